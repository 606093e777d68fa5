"""Draw samples of a model, weight them by the force field, and keep them in memory or in a file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from knotflow.energies import MolecularEnergy, force_field
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.sampling import Sampler
from knotflow.inputs import file_fingerprint
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.statistics.weights import RunningShare
from knotflow.storage.samples import Samples, SampleWriter, check_free, read_samples
from knotflow.version import __version__
from knotflow.workflows.models import model_file

Piece = tuple[Tensor, Tensor, Tensor | None]
"""Positions in nm, log-densities and reduced energies."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """What came of drawing samples."""

    sampler: Sampler
    """Knows how many candidates it drew, and how many of them were left out."""
    files: tuple[Path, ...] = ()
    samples: Samples | None = None
    """The samples, unless they went to files."""
    effective: RunningShare | None = None
    """Effective sample size of the weights, if there are any."""


def sample(
    model: str | Path,
    n: int = 10_000,
    out: str | Path | None = None,
    *,
    weights: bool = False,
    seed: int = 0,
    keep_mirrored: bool = False,
    float64: bool = False,
    batch: int = 10_000,
    overwrite: bool = False,
    energy: MolecularEnergy | None = None,
    workers: int | None = None,
    progress: Progress = silent,
) -> Drawn:
    """Draw samples of a model file, with their log-densities and perhaps their weights.

    A seed stands for one sequence of samples, whose first n are taken, whatever ``batch`` is; ``float64`` has
    another sequence.

    Args:
        model: A model file, the folder of a training run, or ``"ala2"``, which comes with knotflow.
        n: How many samples.
        out: The file, ``.h5``, ``.xtc``, ``.dcd`` or ``.pdb``; None: samples stay in memory.
        weights: Whether to add energies and logarithms of the Boltzmann weights.
        seed: Of all random numbers.
        keep_mirrored: Whether to keep samples that have a centre of the wrong handedness.
        float64: Whether to compute in double precision.
        batch: Samples that are drawn, weighted and written at a time.
        overwrite: Whether a file that exists may be replaced.
        energy: The force field for the weights; by default that of the molecule, by OpenMM or, for very many
            samples, in torch.
        workers: Processes of OpenMM; None: one for each core.
        progress: Called with the number of samples drawn.

    Raises:
        ValueError: if the ending of ``out`` is not known, or hardly any sample can be kept.
        OSError: if a file is missing or damaged, or exists already.
    """
    if out is not None:
        check_free(Path(out), overwrite=overwrite)
    path = model_file(model)
    generator = BoltzmannGenerator.load(path)
    sampler = Sampler(generator.double() if float64 else generator, seed, keep_mirrored=keep_mirrored)
    chosen: Any = nullcontext(energy if weights else None)
    if weights and energy is None:
        chosen = force_field(MolecularSystem.parse(generator.molecule), evaluations=n, workers=workers)
    inputs = sample_inputs(path, n, weights=weights, seed=seed, keep_mirrored=keep_mirrored, float64=float64)

    def provenance() -> dict[str, Any]:
        counts = {"drawn": sampler.drawn, "mirrored": sampler.mirrored, "not_finite": sampler.not_finite}
        return {"command": "sample", "model": path.name, **inputs, **counts}

    with chosen as field:
        pieces = _pieces(sampler, n, batch, field, progress)
        if out is None:
            return Drawn(sampler, samples=_in_memory(list(pieces), generator, provenance()))
        with SampleWriter(out, generator.molecule, weights=weights, overwrite=overwrite) as writer:
            for piece in pieces:
                writer.write(*piece)
            writer.complete(provenance())
    return Drawn(sampler, tuple(writer.paths), effective=writer.effective if weights else None)


def sample_inputs(
    model: Path,
    n: int,
    *,
    weights: bool = False,
    seed: int = 0,
    keep_mirrored: bool = False,
    float64: bool = False,
) -> dict[str, Any]:
    """All that samples depend on, as their file notes it; for the arguments see `sample`."""
    return {
        "fingerprint": file_fingerprint(model),
        "samples": n,
        "weights": weights,
        "seed": seed,
        "keep_mirrored": keep_mirrored,
        "float64": float64,
        "knotflow": __version__,
    }


def noted_samples(file: Path) -> dict[str, Any] | None:
    """The inputs that a file of samples notes; None if there is no file that can be read."""
    try:
        provenance = read_samples(file, slice(0)).provenance
    except (OSError, ValueError):
        return None
    besides = ("command", "model", "drawn", "mirrored", "not_finite")
    return {key: value for key, value in provenance.items() if key not in besides}


def _pieces(
    sampler: Sampler, n: int, batch: int, energy: MolecularEnergy | None, progress: Progress
) -> Iterator[Piece]:
    progress("sampling", 0, n)
    began = time.perf_counter()
    for start in range(0, n, batch):
        x, log_prob = sampler.take(min(batch, n - start))
        # Energies in double precision: single precision would cost digits of the weights.
        yield x, log_prob, None if energy is None else energy.energy_and_force(x.double())[0]
        done = start + len(x)
        progress("sampling", done, n, f"{done / (time.perf_counter() - began):,.0f} per second")


def _in_memory(pieces: list[Piece], generator: BoltzmannGenerator, provenance: dict[str, Any]) -> Samples:
    x = torch.cat([positions for positions, _, _ in pieces]).detach().cpu().float().numpy()
    densities = torch.cat([log_prob for _, log_prob, _ in pieces]).detach().cpu().double().numpy()
    energies = [energy for _, _, energy in pieces if energy is not None]
    u = torch.cat(energies).detach().cpu().double().numpy() if energies else None
    return Samples(
        x,
        densities,
        None if u is None else u * MolecularSystem.parse(generator.molecule).kT,
        None if u is None else -u - densities,
        generator.molecule,
        provenance,
    )
