"""Draw samples from a model, weight them by the force field, and keep them in memory or in a file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from knotflow.energies import MolecularEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.sampling import Block, Sampler, draw_block
from knotflow.flows.temperature import SAME
from knotflow.inputs import file_fingerprint
from knotflow.molecules import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.ranks import OneByOne, Team
from knotflow.resources import check_disk, check_memory, check_time
from knotflow.statistics.weights import RunningShare
from knotflow.storage.samples import Samples, SampleWriter, check_free, read_samples
from knotflow.version import __version__
from knotflow.workflows.models import energy_of, model_file

Piece = tuple[Tensor, Tensor, Tensor | None]
"""Positions in nm, log-densities and reduced energies."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """The result of drawing samples."""

    sampler: Sampler
    """Counts the candidates that were drawn and those that were rejected."""
    files: tuple[Path, ...] = ()
    samples: Samples | None = None
    """The samples, unless they went to files."""
    effective: RunningShare | None = None
    """Effective sample size of the weights, if they were written to a file."""


def sample(
    model: str | Path,
    n: int = 10_000,
    out: str | Path | None = None,
    *,
    weights: bool = False,
    seed: int = 0,
    keep_mirrored: bool = False,
    float64: bool = False,
    temperature: float | None = None,
    batch: int = 10_000,
    overwrite: bool = False,
    energy: MolecularEnergy | None = None,
    workers: int | None = None,
    progress: Progress = silent,
) -> Drawn:
    """Draw samples from a model, with their log-densities and, on request, their Boltzmann weights.

    A seed stands for one sequence of samples. The first n of it are taken, whatever ``batch`` is; with
    ``float64`` the sequence is another one.

    Args:
        model: A model file, the folder of a training run, or ``"ala2"``, which comes with knotflow.
        n: Number of samples.
        out: The file, ``.h5``, ``.xtc``, ``.dcd`` or ``.pdb``; None: samples stay in memory.
        weights: Whether to add energies and the logarithms of the Boltzmann weights.
        seed: Seed of all random numbers.
        keep_mirrored: Whether to keep samples with a centre of the wrong handedness.
        float64: Whether to compute in double precision.
        temperature: In K, for a model that knows many; None: that of its molecule.
        batch: Samples that are drawn, weighted and written at a time.
        overwrite: Whether an existing file may be replaced.
        energy: The force field for the weights; None: that of the molecule, by OpenMM or, for very many
            samples, in torch.
        workers: Processes of OpenMM; None: one per core.
        progress: Called with the number of samples drawn.

    Raises:
        ValueError: if the ending of ``out`` or the temperature is unknown, or hardly any sample can be kept.
        OSError: if a file is missing or damaged, or exists already.
    """
    if out is not None:
        check_free(Path(out), overwrite=overwrite)
    path = model_file(model)
    generator = BoltzmannGenerator.load(path)
    if temperature is not None:
        generator = generator.at(temperature)
    generator = generator.double() if float64 else generator
    _check_affordable(n, generator.n_atoms, out, weights=weights, batch=batch)
    inputs = sample_inputs(
        path,
        n,
        weights=weights,
        seed=seed,
        keep_mirrored=keep_mirrored,
        float64=float64,
        temperature=temperature,
    )

    def provenance() -> dict[str, Any]:
        counts = {"drawn": sampler.drawn, "mirrored": sampler.mirrored, "not_finite": sampler.not_finite}
        return {"command": "sample", "model": path.name, **inputs, **counts}

    energies: AbstractContextManager[MolecularEnergy | None] = nullcontext()
    if weights and energy is not None and abs(energy.temperature - generator.temperature) > SAME:
        raise ValueError(
            f"the energy is at {energy.temperature:g} K, the samples are at {generator.temperature:g} K; "
            "make one of system.with_temperature(...)."
        )
    if weights:
        system = MolecularSystem.parse(generator.molecule)
        energies = energy_of(system, energy, evaluations=n, workers=workers)
    with (
        energies as field,
        Team("knotflow.workflows.sampling:drawer", (generator, seed, keep_mirrored, field)) as team,
    ):
        sampler = Sampler(generator, seed, keep_mirrored=keep_mirrored, draw=team.map, at_once=team.size)
        pieces = _pieces(sampler, n, batch, team, progress, weights=weights)
        if out is None:
            return Drawn(sampler, samples=_in_memory(list(pieces), generator, provenance()))
        with SampleWriter(out, generator.molecule, weights=weights, overwrite=overwrite) as writer:
            for piece in pieces:
                writer.write(*piece)
            writer.complete(provenance())
    return Drawn(sampler, tuple(writer.paths), effective=writer.effective if weights else None)


def _check_affordable(n: int, n_atoms: int, out: str | Path | None, *, weights: bool, batch: int) -> None:
    """Refuse more samples than disk or memory can hold."""
    row, what = 12 * n_atoms + (24 if weights else 8), f"{n:,} samples"
    if out is not None:
        check_time(what, n * 1e-6)
        check_disk(Path(out), what, n * row)
        n = min(n, batch)
    check_memory(f"{n:,} samples at once", n * row)


def sample_inputs(
    model: Path,
    n: int,
    *,
    weights: bool = False,
    seed: int = 0,
    keep_mirrored: bool = False,
    float64: bool = False,
    temperature: float | None = None,
) -> dict[str, Any]:
    """Everything that samples depend on, as their file notes it; for the arguments see `sample`."""
    return {
        "fingerprint": file_fingerprint(model),
        "samples": n,
        "weights": weights,
        "seed": seed,
        "keep_mirrored": keep_mirrored,
        "float64": float64,
        "temperature": temperature,
        "knotflow": __version__,
    }


def noted_samples(file: Path) -> dict[str, Any] | None:
    """What a file of samples notes, its inputs included; None if there is no readable file."""
    try:
        return read_samples(file, slice(0)).provenance
    except (OSError, ValueError):
        return None


def drawer(setup: tuple[BoltzmannGenerator, int, bool, MolecularEnergy | None]) -> OneByOne:
    """Target of a `Team`: blocks of samples by their numbers, and the energies of positions."""
    generator, seed, keep_mirrored, energy = setup

    def work(task: int | Tensor) -> Block | Tensor:
        if isinstance(task, int):
            return draw_block(generator, seed, task, keep_mirrored=keep_mirrored)
        if energy is None:
            raise ValueError("weights need an energy.")
        # Energies in double precision: single precision would cost digits of the weights.
        return energy.energy_and_force(task.double())[0]

    return OneByOne(work)


def _pieces(
    sampler: Sampler, n: int, batch: int, team: Team, progress: Progress, *, weights: bool
) -> Iterator[Piece]:
    progress("sampling", 0, n)
    began = time.perf_counter()
    for start in range(0, n, batch):
        size = min(batch, n - start)
        x, log_prob = sampler.take(size, then=n - start - size)
        yield x, log_prob, torch.cat(team.map(x.chunk(team.size))) if weights else None
        done = start + len(x)
        progress("sampling", done, n, f"{done / (time.perf_counter() - began):,.0f} per second")


def _in_memory(pieces: list[Piece], generator: BoltzmannGenerator, provenance: dict[str, Any]) -> Samples:
    positions, log_prob, energies = zip(*pieces, strict=True)
    densities = torch.cat(log_prob).detach().cpu().double().numpy()
    u = None if energies[0] is None else torch.cat(energies).detach().cpu().double().numpy()
    return Samples(
        torch.cat(positions).detach().cpu().float().numpy(),
        densities,
        None if u is None else u * MolecularSystem.parse(generator.molecule).kT,
        None if u is None else -u - densities,
        generator.molecule,
        provenance,
    )
