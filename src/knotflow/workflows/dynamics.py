"""Dynamics on a trained model or on the force field: the energy, the starting frames and the folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis.frame_table import check_same_molecule, intake_for
from knotflow.dynamics import DynamicsConfig, FlowEnergy, Record
from knotflow.dynamics.protocol import CHECKPOINT, DRIFT, RECORD, run, run_inputs
from knotflow.energies import MolecularEnergy, TorchForceField, force_field
from knotflow.energies.torch_force_field import frames_at_once
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.flows.sampling import Sampler
from knotflow.inputs import file_fingerprint
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.resources import check_memory, check_time
from knotflow.storage import trajectory
from knotflow.storage.other_programs import RawFrames, read_frames
from knotflow.storage.plausible import check_plausible
from knotflow.storage.split import held_out

Compile = Literal["auto", "on", "off"]

COMPILED_FROM: Final = 2_000
"""Number of steps from which compiling the force field pays off; it takes tens of seconds."""


@dataclass(frozen=True, eq=False)
class Setting:
    """A molecule and the energy it moves on."""

    system: MolecularSystem
    energy: MolecularEnergy
    about: dict[str, Any]
    """What a record notes of the energy: its kind, the model file, and how a force field is computed."""


class DynamicsRun:
    """The stability test of `knotflow.dynamics.run` for a model file: new, interrupted or finished.

    Args:
        model: The model file; None: the molecule of ``data`` moves on its force field.
        data: Frames to start from: a trajectory of knotflow, or any file that MDTraj reads. If the model was
            trained on it, held-out frames are used. None: samples of the model.
        folder: For the files of the run, see `knotflow.dynamics.run`; None: no files.
        config: How to run.
        true: Whether to move on the force field of the molecule instead of the flow.
        all_frames: Whether to start from training frames, too.
        split: Start from the frames that this split holds out; None: the split noted in the model.
        compile: Whether to compile the force field; ``"auto"``: if it pays off for the number of steps.

    Raises:
        ValueError: if model and data do not belong together, or there are too few frames.
        OSError: if a file is missing or damaged.
    """

    def __init__(
        self,
        model: str | Path | None,
        data: str | Path | None = None,
        folder: str | Path | None = None,
        config: DynamicsConfig | None = None,
        *,
        true: bool = False,
        all_frames: bool = False,
        split: Mapping[str, Any] | None = None,
        compile: Compile = "auto",
    ) -> None:
        if data is None and (model is None or true):
            raise ValueError("dynamics on the force field start from frames: give a trajectory as data.")
        self.config = config or DynamicsConfig()
        self.folder = None if folder is None else Path(folder)
        n, seed = self.config.replicas, self.config.seed
        self._check_affordable(4)  # before frames are read; a molecule has at least so many atoms
        if model is not None:
            self.setting = on_flow(Path(model))
        if model is None or true:
            system = trajectory.open_info(Path(str(data))).system if model is None else self.system
            self.setting = on_force_field(system, self.config.steps, compile, replicas=n)
        self.frames: NDArray[np.floating[Any]]
        if data is None:
            self.frames = samples_of(Path(str(model)), n, seed=seed)
        else:
            if split is None and model is not None:
                split = notes(model).get("split")
            held = None if all_frames else split
            self.frames = frames_of(Path(data), self.system, n, seed=seed, split=held)
            if model is not None:
                self.frames = labelled(Path(model), Path(data), self.frames)

    def _check_affordable(self, n_atoms: int) -> None:
        """Refuse a run that would never end, or whose record fits into no memory."""
        config = self.config
        records = config.steps // config.every + 1
        check_time(f"{config.steps:,} steps", config.steps * 1e-5)
        what = f"a record of {config.replicas:,} molecules at {records:,} times"
        check_memory(what, records * config.replicas * (16 + 12 * n_atoms))

    @property
    def system(self) -> MolecularSystem:
        """The molecule."""
        return self.setting.system

    @property
    def finished(self) -> bool:
        """Whether the folder holds a finished run."""
        return self.folder is not None and (self.folder / RECORD).exists()

    @property
    def begun(self) -> bool:
        """Whether the folder holds an interrupted run."""
        return self.folder is not None and (self.folder / CHECKPOINT).exists()

    @property
    def compiles(self) -> bool:
        """Whether the force field is compiled first, which takes tens of seconds."""
        return self.setting.about.get("compiled") == "whole"

    @property
    def inputs(self) -> dict[str, Any]:
        """Everything that the run depends on."""
        return run_inputs(self.system, self.frames, self.config, self.setting.about)

    @property
    def found(self) -> dict[str, Any] | None:
        """What the finished run in the folder notes; None if there is none, or its score is missing."""
        if self.folder is None or not (self.finished and (self.folder / DRIFT).exists()):
            return None
        return Record.load(self.folder / RECORD).about

    def run(self, progress: Progress = silent) -> Record:
        """Start the run, resume it, or read it if it is finished.

        Raises:
            ValueError: if the folder holds another run.
        """
        energy, system, about = self.setting.energy, self.system, self.setting.about
        return run(
            energy, system, self.frames, self.config, folder=self.folder, progress=progress, about=about
        )


def on_flow(model: Path) -> Setting:
    """Dynamics on a model, in float64."""
    generator = BoltzmannGenerator.load(model).double().requires_grad_(False)
    about = {"energy": "flow", "model": file_fingerprint(model)}
    return Setting(MolecularSystem.parse(generator.molecule), FlowEnergy(generator), about)


def on_force_field(
    system: MolecularSystem, steps: int, compile: Compile = "auto", *, replicas: int | None = None
) -> Setting:
    """Dynamics on the true energy: a force field in torch or, if torch lacks a force, by OpenMM; or another.

    Args:
        system: The molecule.
        steps: Number of steps; ``"auto"`` compiles if there are many.
        compile: Whether to compile.
        replicas: Number of molecules that move at once, if known.
    """
    compiled = steps >= COMPILED_FROM if compile == "auto" else compile == "on"
    energy = force_field(system, compiled=compiled, workers=None if system.energy else 1)
    # Records hold these words: do not change them, or finished runs are refused.
    how = "OpenMM" if system.energy is None else system.energy["kind"]
    if isinstance(energy, TorchForceField):
        how = "whole" if compiled else "off"
        energy.chunk = frames_at_once(system.n_atoms, replicas)
    return Setting(system, energy, {"energy": "force field", "model": None, "compiled": how})


def frames_of(
    data: Path, system: MolecularSystem, n: int, *, seed: int = 0, split: Mapping[str, Any] | None = None
) -> NDArray[np.float32]:
    """Frames (n, atoms, 3) to start from, chosen at random; held-out ones if the split is of this file.

    Args:
        data: A trajectory of knotflow, or any file that MDTraj reads.
        system: The molecule.
        n: Number of frames.
        seed: Seed of the choice.
        split: The note ``split`` of the model; None: all frames.

    Raises:
        ValueError: if the file is of another molecule, has too few frames, or positions that are nonsense.
        OSError: if it is missing or damaged.
    """
    try:
        info = trajectory.open_info(data)
    except ValueError:
        pieces = [piece.positions for piece in read_frames(data, system, None, trajectory.ROWS_AT_ONCE)]
        positions = np.concatenate([np.empty((0, system.n_atoms, 3), np.float32), *pieces])
        chosen = _chosen(np.arange(len(positions)), n, seed, data)
        check_plausible(data, chosen, system.n_atoms, positions=positions[chosen])
        return positions[chosen]
    check_same_molecule(system, info.system)
    held = held_out(split, data, info.n_frames)
    rows = np.arange(info.n_frames) if held is None else np.flatnonzero(held)
    chosen = _chosen(rows, n, seed, data)
    found = np.concatenate([trajectory.read(data, slice(row, row + 1)).positions for row in chosen.tolist()])
    check_plausible(data, chosen, system.n_atoms, positions=found)
    return found


def _chosen(rows: NDArray[np.int64], n: int, seed: int, data: Path) -> NDArray[np.int64]:
    if len(rows) < n:
        raise ValueError(
            f"{n} replicas need as many frames, {data} has {len(rows)} to start from; give more data, or "
            "fewer replicas."
        )
    return np.sort(np.random.default_rng(seed).permutation(rows)[:n])


def labelled(model: Path, data: Path, frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """Frames of a file with equivalent hydrogens labelled as the model labels them.

    Raises:
        ValueError: if a frame has another handedness than the model.
    """
    rows = np.arange(len(frames))
    intake = intake_for(BoltzmannGenerator.load(model), data)
    kept, _ = intake(RawFrames(row=rows, segment=np.zeros_like(rows), positions=frames))
    intake.conclude()
    if intake.mirrored:
        raise ValueError(
            f"{intake.mirrored} of {len(frames)} frames chosen from {data} are of the other hand than the "
            "model; leave such frames out, as `knotflow import` does."
        )
    return kept.positions


def samples_of(model: Path, n: int, *, seed: int = 0) -> NDArray[np.float64]:
    """Samples (n, atoms, 3) of a model to start from."""
    x, _ = Sampler(BoltzmannGenerator.load(model).double(), seed).take(n)
    return x.numpy()
