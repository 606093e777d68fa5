"""Train a Boltzmann generator on a trajectory file: split, internal coordinates, presets, run folder."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from knotflow.config import Config
from knotflow.dynamics.masses import Masses
from knotflow.energies import MolecularEnergy
from knotflow.energies.energy import cut
from knotflow.files import write_json
from knotflow.flows import Flow, FlowConfig
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.config import FamilyName
from knotflow.flows.io import notes as notes_of
from knotflow.flows.presets import Preset, molecular_flow, paper_flow
from knotflow.geometry import InternalCoordinates
from knotflow.molecules import MolecularSystem
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.progress import Progress, silent
from knotflow.storage import trajectory
from knotflow.storage.intake import Intake
from knotflow.storage.split import Split
from knotflow.training.config import Count, LossConfig, TrainingConfig, Weight
from knotflow.training.objectives import Batch, Metric
from knotflow.training.refinement import refine
from knotflow.training.replay import effective_share
from knotflow.training.run import fit
from knotflow.transforms import FAMILIES, Line

FORCE_SHARE = 3.0
"""Weight of the standardised force error, relative to the likelihood, in the presets best and quick. Near the
optimum the gradient of the likelihood is noise, but that of the force error is not."""
FORCE_LIMIT = 1.0
"""Standardised force errors above it count linearly in these presets."""
MARGINALS = 300
"""Largest number of first steps in which maps learn the densities of single coordinates."""
MONITORED = 1000
"""Number of samples for the effective sample size shown in training."""


class MoleculeTraining(Config):
    """Settings of a Boltzmann generator and its training; the preset chooses those that are None."""

    preset: Preset = "best"
    transform: FamilyName = "bspline"
    """Family of the maps of freely turning torsions or, with the preset paper, of all coordinates."""
    bins: Count | None = None
    """Number of bins or components of these maps."""
    order: Annotated[int, Field(ge=3)] = 4
    """Order of B-splines."""
    forces: bool | None = None
    """Whether to match forces."""
    reverse_kl: Weight = 0.0
    """Weight of the reverse divergence."""
    refine: bool | None = None
    """Whether to go on with points of the model itself, see `refine`; None: with the preset best, if there is
    an energy."""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes through the training data."""
    batch_size: Count | None = None
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    zmatrix: Literal["bonds", "paper"] | None = None
    published: bool = False
    """With the preset paper: bins of B-splines as narrow as 1e-6 of the whole, no start from the
    marginals, no clipping, no average and no warm-up, as published."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    compile: bool = False
    """Compile the loss to one graph, for GPUs: see `TrainingConfig`."""


class MolecularData(NamedTuple):
    """A trajectory in internal coordinates, split into training and validation data."""

    train: Batch
    validation: Batch
    split: Split


def load_data(
    path: str | Path, coordinates: InternalCoordinates, progress: Progress = silent
) -> MolecularData:
    r"""Internal coordinates $q$ and the scores of their density, from a trajectory file.

    The score is $-\partial u/\partial q + \partial L/\partial q$ with $L = \log|\partial x/\partial q|$; the
    flow's score should equal it. Both are computed in float64 and kept in float32. Labels of equivalent
    hydrogens are brought to the order of the file's structure, and mirror images are set aside (`Intake`).

    Raises:
        ValueError: if there are fewer than 100 frames, or most are mirror images of the structure.
    """
    info = trajectory.open_info(path)
    if info.n_frames < 100:
        raise ValueError(f"training needs at least 100 frames, {path} has {info.n_frames}; simulate longer.")
    intake, points, scores, replicas, kept = Intake(info.system, [path]), [], [], [], []
    for found in trajectory.pieces(path):
        frames, usable = intake(found)
        x = torch.from_numpy(frames.positions).double()
        force = torch.from_numpy(frames.forces).double() / info.system.kT
        q, _ = coordinates(x)
        volume = torch.func.grad(lambda q: coordinates.inverse(q)[1].sum())(q)
        points.append(q.float())
        scores.append((coordinates.internal_force(x, force) + volume).float())
        replicas.append(found.replica)
        kept.append(torch.from_numpy(usable))
        progress("reading frames", sum(map(len, replicas)), info.n_frames)
    intake.conclude()
    split = Split.of(Path(path).name, np.concatenate(replicas))
    held_out = torch.from_numpy(split.mask())[torch.cat(kept)]
    q, score = torch.cat(points), torch.cat(scores)
    return MolecularData(Batch(q[~held_out], score[~held_out]), Batch(q[held_out], score[held_out]), split)


def flow_config(choice: MoleculeTraining, coordinates: InternalCoordinates, q: Tensor) -> FlowConfig:
    """The flow of a preset, for a molecule and its training data."""
    if choice.preset == "paper":
        width = 1e-6 if choice.published else None
        return paper_flow(
            coordinates, choice.transform, bins=choice.bins, order=choice.order, min_width=width
        )
    quick, usual = choice.preset == "quick", FAMILIES[choice.transform].usual
    return molecular_flow(
        coordinates,
        q,
        rounds=2 if quick else 3,
        hidden=(64, 64) if quick else (128, 128),
        family=choice.transform,
        bins=choice.bins or (min(16, usual) if quick and usual else None),
        order=choice.order,
    )


def training_config(choice: MoleculeTraining, n_train: int, n_coordinates: int) -> TrainingConfig:
    """The schedule and the loss of a preset."""
    paper, quick = choice.preset == "paper", choice.preset == "quick"
    batch_size = min(choice.batch_size or (128 if paper else 256), n_train)
    in_a_pass = n_train // batch_size
    if choice.epochs is not None or paper:
        steps = max(1, round((choice.epochs or 10) * in_a_pass))
    else:
        steps = 2000 if quick else 4000
    weight = 0.0
    if choice.forces or (choice.forces is None and not quick):
        # In standardised coordinates half of the squared error bounds the divergence of a normal density.
        weight = 0.001 if paper else FORCE_SHARE * 0.5 * n_coordinates
    raw = paper and choice.published
    return TrainingConfig(
        steps=steps,
        batch_size=batch_size,
        learning_rate=choice.learning_rate or (5e-4 if paper else 2e-3),
        schedule="exponential" if paper else "cosine",
        decay=0.7,
        decay_every=in_a_pass,
        marginals=0 if raw else min(MARGINALS, steps),
        warm_up=0 if raw else min(500, max(1, steps // 10)),
        # Forces of large weight have large gradients.
        clip=None if raw else max(20.0, 6.0 * weight),
        ema=0.0 if raw else 0.999,
        loss=LossConfig(
            nll=1 - weight if paper else 1.0,
            force_matching=weight,
            force_limit=None if paper else FORCE_LIMIT,
            reverse_kl=choice.reverse_kl,
        ),
        checkpoint_every=max(1, min(1000, -(-steps // 10))),
        log_every=min(50, max(1, steps // 10)),
        seed=choice.seed,
        compile=choice.compile,
    )


def cartesian_metric(coordinates: InternalCoordinates) -> Metric:
    """Converts score errors in internal coordinates to errors of the forces on atoms, in kT/nm."""

    def metric(q: Tensor, error: Tensor) -> Tensor:
        with torch.no_grad():
            x, _ = coordinates.inverse(q)
        return coordinates.cartesian_force(x, error)

    return metric


def standardised_metric(flow: Flow, score: Tensor) -> Metric:
    """Measures score errors in coordinates of about unit spread.

    Those are the standard coordinates of lines. On circles and intervals, errors are in units of the root
    mean square score: for a normal coordinate of deviation σ that is 1/σ. A torsion that turns freely has no
    score, but its deviation is at most π/√3.
    """
    spread = (1 / score.square().mean(0).sqrt()).clamp(max=math.pi / math.sqrt(3))
    line = torch.tensor([isinstance(domain, Line) for domain in flow.domains], device=spread.device)

    def metric(q: Tensor, error: Tensor) -> Tensor:
        return torch.where(line.to(q.device), flow.standard_score(error), error * spread.to(error))

    return metric


def train_generator(
    data: str | Path,
    folder: str | Path,
    choice: MoleculeTraining | None = None,
    *,
    energy: Callable[[MolecularSystem], MolecularEnergy] | None = None,
    progress: Progress | None = None,
) -> BoltzmannGenerator:
    """Train a Boltzmann generator on a trajectory file and return it.

    Besides the files of `fit`, the folder gets ``split.json``. The model file holds molecule, z-matrix and
    split, and is all that sampling needs. Called again, an unfinished run resumes; a finished one is loaded.

    Args:
        data: trajectory file of knotflow.
        folder: the run folder.
        choice: preset and changes to it.
        energy: makes the energy of the molecule, as `knotflow.energies.force_field` does. It is needed for
            the effective sample size in the log, for the refinement and for the reverse divergence.
        progress: called with the frames read, then with the steps done, see `fit`.
    """
    choice = MoleculeTraining() if choice is None else choice
    if choice.refine and energy is None:
        raise ValueError("refine needs an energy: give energy=..., or set it to False.")
    system = trajectory.open_info(data).system
    kind = choice.zmatrix or ("paper" if choice.preset == "paper" and system.name == "ala2" else "bonds")
    coordinates = internal_coordinates(system, kind)
    loaded = load_data(data, coordinates, progress or silent)
    torch.manual_seed(choice.seed)
    config = flow_config(choice, coordinates, loaded.train.x)
    generator = BoltzmannGenerator(coordinates, config.build(), system.plain())
    train, validation = (
        Batch(generator.unwound(part.x), part.force) for part in (loaded.train, loaded.validation)
    )
    training = training_config(choice, len(train.x), coordinates.n_coordinates)
    force_field = None if energy is None else energy(system)
    split, paper = loaded.split.plain(), choice.preset == "paper"
    model = Path(folder) / "model.safetensors"
    if generator.flow.whitened:
        generator.flow.whiten(train.x)
    metric = (
        cartesian_metric(coordinates)
        if paper
        else standardised_metric(generator.flow, cast(Tensor, train.force))
    )
    notes = {**generator.notes(), "split": split, "choice": choice.plain()}
    flow = fit(
        generator.flow,
        train,
        training,
        folder,
        validation=validation,
        energy=None if force_field is None else _reduced(force_field, coordinates),
        metric=metric,
        monitor=None if force_field is None else _monitor(force_field, generator),
        notes=notes,
        progress=progress,
    )
    write_json(Path(folder) / "split.json", split)
    trained = BoltzmannGenerator(coordinates, flow, system.plain())
    wanted = choice.preset == "best" if choice.refine is None else choice.refine
    if force_field is None or not wanted or "refinement" in (found := notes_of(model)):
        return trained
    flow, cycles = refine(
        trained,
        train,
        training,
        Path(folder) / "refinement",
        energy=force_field,
        masses=Masses.molecule(system.masses, system.temperature),
        metric=metric,
        validation=validation,
        progress=progress,
    )
    trained = BoltzmannGenerator(coordinates, flow, system.plain())
    trained.save(model, **{**found, "choice": choice.plain(), "refinement": cycles})
    return trained


def _reduced(energy: MolecularEnergy, coordinates: InternalCoordinates) -> Callable[[Tensor], Tensor]:
    """The energy u(x(q)) - L(q), whose density in internal coordinates is the Boltzmann density.

    Energies are cut above 1,000 kT, so that samples with clashes do not outweigh all others.
    """

    def reduced(q: Tensor) -> Tensor:
        x, ladj = coordinates.inverse(q)
        return cut(energy.energy(x)) - ladj

    return reduced


def _monitor(energy: MolecularEnergy, generator: BoltzmannGenerator) -> Callable[[Flow], dict[str, float]]:
    """Computes the effective sample size of a few samples, as a share of them."""

    def monitor(flow: Flow) -> dict[str, float]:
        with torch.no_grad():
            seeded = torch.Generator(device=next(flow.parameters()).device).manual_seed(0)
            q, log_prob = flow.sample_and_log_prob(MONITORED, generator=seeded)
            x, ladj = generator.coordinates.inverse(q)
            u, _ = energy.energy_and_force(x)
        return {"ess": effective_share((ladj - u - log_prob).double().cpu().numpy())}

    return monitor
