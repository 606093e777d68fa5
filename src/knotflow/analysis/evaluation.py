"""How good is a Boltzmann generator? One pass over data and samples, all measures with error bars.

The target is the Boltzmann distribution of the force field, restricted to the handedness that the molecule
has: samples of another handedness have weight zero, and so have those with an energy or density not finite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knotflow.analysis import measures
from knotflow.analysis.frame_table import (
    Clock,
    Observed,
    Progress,
    check_same_molecule,
    held_out,
    like,
    observe_data,
    observe_samples,
)
from knotflow.analysis.measures import Measures
from knotflow.energies.energy import MolecularEnergy
from knotflow.extras import need
from knotflow.files import write_atomically
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import fingerprint
from knotflow.molecules.system import MolecularSystem
from knotflow.statistics.estimates import blocks
from knotflow.storage import trajectory
from knotflow.transforms.base import check_count
from knotflow.version import __version__


@dataclass(frozen=True)
class Evaluation:
    """Everything that `evaluate` found."""

    about: dict[str, Any]
    """Molecule, data and samples: what was compared with what."""
    measures: Measures
    residues: dict[str, Measures]
    """Measures of the torsions (phi, psi) of each residue that has both."""
    seconds: dict[str, float]
    """Wall time of the parts."""

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "about": self.about,
            "measures": {key: measure.plain() for key, measure in self.measures.items()},
            "residues": {
                residue: {key: measure.plain() for key, measure in found.items()}
                for residue, found in self.residues.items()
            },
            "seconds": {work: round(seconds, 3) for work, seconds in self.seconds.items()},
        }

    def write(self, file: Path, model: Path, **more: Any) -> dict[str, Any]:
        """Write all numbers as JSON, with a fingerprint of the model file and more; return them."""
        plain = self.plain()
        numbers = {**plain, "about": {**plain["about"], "model": fingerprint(model)}, **more}
        write_atomically(file, (json.dumps(numbers, indent=1, ensure_ascii=False) + "\n").encode())
        return numbers


def evaluate(
    generator: BoltzmannGenerator,
    data: str | Path,
    energy: MolecularEnergy,
    *,
    split: Mapping[str, Any] | None = None,
    samples: int = 10_000,
    seed: int = 0,
    progress: Progress | None = None,
    drawn: Observed | None = None,
    clock: Clock | None = None,
) -> Evaluation:
    """Compare a generator with data of its molecule and with the force field.

    Memory is bounded: frames are read, and samples drawn, in pieces. Same arguments give the same numbers.

    Args:
        generator: The generator; densities and forces of the flow are computed in its dtype.
        data: A trajectory file of the same molecule at the same temperature.
        energy: The force field of the molecule, for the samples.
        split: The note ``split`` of the model: if ``data`` is the file it was trained on, only the rows that
            were held back are used. Otherwise, or if missing, all rows.
        samples: How many samples to draw.
        seed: Of samples and error bars.
        progress: Told how far it is.
        drawn: These samples if they are at hand already, from `observe_samples` with the same arguments.
        clock: With the time that took.

    Raises:
        ValueError: if the data are of another molecule, temperature or force field, or without frames.
        OSError: if the file is missing or damaged.
    """
    check_count("samples", samples, 1)
    need("evaluations", "analysis")
    report, clock = progress or (lambda doing, done, total: None), clock or Clock()
    info = trajectory.open_info(data)
    check_same_molecule(MolecularSystem.parse(generator.molecule), info.system)
    held = held_out(split, data, info.n_frames)
    selected = np.ones(info.n_frames, dtype=bool) if held is None else held
    if not selected.any():
        raise ValueError(f"{data} holds no frames yet; evaluate when it has some.")

    frames = observe_data(generator, data, energy, selected, report, clock)
    if drawn is None:
        drawn = observe_samples(generator, energy, samples, seed, report, clock)
    elif len(drawn) != samples:
        raise ValueError(f"samples must be those drawn, {len(drawn)}, got {samples}; give the same number.")
    block = blocks(frames.replica)
    doing, parts = "distances and error bars", 1 + len(frames.torsions)
    report(doing, 0, parts)
    with clock(doing):
        overall = measures.overall(frames, drawn, block, seed)
        residues = {}
        for number, residue in enumerate(frames.torsions, 1):
            report(doing, number, parts)
            residues[residue] = measures.of_torsions(residue, frames, drawn, block, seed)
    report(doing, parts, parts)
    about = {
        "molecule": info.system.name,
        "atoms": generator.n_atoms,
        "temperature": generator.temperature,
        "dtype": str(like(generator).dtype).removeprefix("torch."),
        "parameters": sum(p.numel() for p in generator.parameters()),
        "energy": type(energy).__name__,
        "data": {
            "file": Path(data).name,
            "rows": "all" if held is None else "validation",
            "frames": len(frames),
            "frames_in_file": info.n_frames,
            "replicas": len(np.unique(frames.replica)),
            "blocks": len(np.unique(block)),
        },
        "samples": samples,
        "seed": seed,
        "knotflow": __version__,
    }
    return Evaluation(about, overall, residues, clock.seconds)
