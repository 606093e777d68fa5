"""What moves on what, and from which frames: dynamics on a trained model, or on the force field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis.frame_table import check_same_molecule
from knotflow.dynamics import FlowEnergy
from knotflow.energies import MolecularEnergy, OpenMMEnergy, TorchForceField
from knotflow.energies.torch_force_field import frames_at_once
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.sampling import Sampler
from knotflow.inputs import file_fingerprint
from knotflow.molecules import MolecularSystem
from knotflow.storage import trajectory
from knotflow.storage.other_programs import read_frames
from knotflow.storage.split import held_out

Compile = Literal["auto", "on", "off"]

COMPILED_FROM: Final = 2_000
"""Steps from which on it pays to compile the force field, which takes tens of seconds."""


@dataclass(frozen=True, eq=False)
class Setting:
    """A molecule and the energy it moves on."""

    system: MolecularSystem
    energy: MolecularEnergy
    about: dict[str, Any]
    """What a record says of the energy: which one, of which model file, and how a force field is computed."""


def on_flow(model: Path) -> Setting:
    """Dynamics on a model, in float64."""
    generator = BoltzmannGenerator.load(model).double().requires_grad_(False)
    about = {"energy": "flow", "model": file_fingerprint(model)}
    return Setting(MolecularSystem.parse(generator.molecule), FlowEnergy(generator), about)


def on_force_field(
    system: MolecularSystem, steps: int, compile: Compile = "auto", *, replicas: int | None = None
) -> Setting:
    """Dynamics on the true force field, in torch or, where that does not know a force, by OpenMM.

    Args:
        system: The molecule.
        steps: How many steps it will be: it decides whether compilation pays.
        compile: ``"auto"``, or whether to compile in any case.
        replicas: How many will move at once, if that is known.
    """
    compiled = steps >= COMPILED_FROM if compile == "auto" else compile == "on"
    # These words are in records: those of earlier versions must still be known.
    how, energy = "whole" if compiled else "off", None
    try:
        energy = TorchForceField(system, compiled=compiled)
        energy.chunk = frames_at_once(system.n_atoms, replicas)
    except ValueError:  # a force that it does not know
        how = "OpenMM"
    about = {"energy": "force field", "model": None, "compiled": how}
    return Setting(system, energy or OpenMMEnergy(system, workers=1), about)


def frames_of(
    data: Path, system: MolecularSystem, n: int, *, seed: int = 0, split: Mapping[str, Any] | None = None
) -> NDArray[np.float32]:
    """Frames (n, atoms, 3) of a file to start from, chosen at random; those held back in training, if any.

    Args:
        data: A trajectory of knotflow, or whatever MDTraj reads.
        system: The molecule.
        n: How many.
        seed: Of the choice.
        split: The note ``split`` of the model; None: all frames.

    Raises:
        ValueError: if the file is of another molecule, or has too few frames.
        OSError: if it is missing or damaged.
    """
    try:
        info = trajectory.open_info(data)
    except ValueError:
        pieces = [piece.positions for piece in read_frames(data, system, None, trajectory.ROWS_AT_ONCE)]
        positions = np.concatenate([np.empty((0, system.n_atoms, 3), np.float32), *pieces])
        return positions[_chosen(np.arange(len(positions)), n, seed, data)]
    check_same_molecule(system, info.system)
    held = held_out(split, data, info.n_frames)
    rows = np.arange(info.n_frames) if held is None else np.flatnonzero(held)
    chosen = _chosen(rows, n, seed, data)
    return np.concatenate([trajectory.read(data, slice(row, row + 1)).positions for row in chosen.tolist()])


def _chosen(rows: NDArray[np.int64], n: int, seed: int, data: Path) -> NDArray[np.int64]:
    if len(rows) < n:
        raise ValueError(
            f"{n} replicas need as many frames, {data} has {len(rows)} to start from; give more data, or "
            "fewer replicas."
        )
    return np.sort(np.random.default_rng(seed).permutation(rows)[:n])


def samples_of(model: Path, n: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Samples (n, atoms, 3) of a model to start from."""
    x, _ = Sampler(BoltzmannGenerator.load(model).double(), seed).take(n)
    return x.numpy()
