"""Train a Boltzmann generator on a trajectory file: split, internal coordinates, presets, run folder."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import torch
from pydantic import Field, model_validator
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
from knotflow.ranks import agreed, leads, together
from knotflow.resources import check_time
from knotflow.storage import trajectory
from knotflow.training.config import Count, LossConfig, TrainingConfig, Weight
from knotflow.training.cycles import Deadline
from knotflow.training.data import select, thinned
from knotflow.training.frames import load_data
from knotflow.training.mapped import rewritten
from knotflow.training.objectives import Batch, Metric, make_loss
from knotflow.training.refinement import refine
from knotflow.training.replay import effective_share
from knotflow.training.run import MODEL, fit
from knotflow.training.temperatures import conditioned, load_ladder, shape_at_lowest, temperature_range
from knotflow.transforms import FAMILIES, Line

FORCE_SHARE = 3.0
"""Weight of the standardised force error, relative to the likelihood, in the presets best and quick. Near the
optimum the gradient of the likelihood is noise, but that of the force error is not."""
RATE = 1.5e-3
"""Largest learning rate of these presets, for up to 60 coordinates; with more it falls like a square root,
since forces weigh more. At 2e-3, trainings of 120 coordinates and of many temperatures blew up."""
FORCE_LIMIT = 1.0
"""Standardised force errors above it count linearly in these presets."""
BATCH = {"best": 96, "quick": 256, "paper": 128}
"""Points of a step. Where forces are matched, gradients have little noise, and small batches learn more from
as many points."""
STEPS = {"best": 8000, "quick": 2000}
"""Steps of a training; the preset paper has ten epochs."""
CLIP = 3.0
"""Largest norm of a gradient of these presets, in units of the usual one. Of forces, a few are enormous."""
MARGINALS = 300
"""Largest number of first steps in which maps learn the densities of single coordinates."""
VALIDATED = 3_000_000
"""Coordinates in all validation data together, at most, such as 60 of 50,000 frames: the losses of more would
take longer than the training."""
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
    epochs: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Passes through the training data."""
    steps: Count | None = None
    """Steps of the training, instead of ``epochs``; those of the refinement follow from them."""
    batch_size: Count | None = None
    learning_rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    zmatrix: Literal["bonds", "paper"] | None = None
    published: bool = False
    """With the preset paper: bins of B-splines as narrow as 1e-6 of the whole, no start from the
    marginals, no clipping, no average and no warm-up, as published."""
    temperatures: bool | None = None
    """Whether to train on all temperatures of a tempering run, see `TemperatureRange`; None: with the preset
    best, if there is a file of them beside the data. Refined, the model is of the target temperature; that of
    all temperatures is kept beside it."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    compile: bool = False
    """Compile the loss to one graph, for GPUs: see `TrainingConfig`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps both say how long to train; give only one of them")
        if self.temperatures and (self.preset == "paper" or self.reverse_kl):
            raise ValueError(
                "temperatures can be combined neither with the preset paper nor with reverse_kl, which are "
                "for one temperature"
            )
        return self


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
        context=int(bool(choice.temperatures)),
    )


def training_config(choice: MoleculeTraining, n_train: int, n_coordinates: int) -> TrainingConfig:
    """The schedule and the loss of a preset."""
    paper, quick = choice.preset == "paper", choice.preset == "quick"
    batch_size = min(choice.batch_size or BATCH[choice.preset], n_train)
    in_a_pass = n_train // batch_size
    if choice.steps is not None:
        steps = choice.steps
    elif choice.epochs is not None or paper:
        steps = max(1, round((choice.epochs or 10) * in_a_pass))
    else:
        steps = STEPS[choice.preset]
    check_time(f"{float(steps):.3g} steps", steps * 1e-3)
    weight = 0.0
    if choice.forces or (choice.forces is None and not quick):
        # In standardised coordinates half of the squared error bounds the divergence of a normal density.
        weight = 0.001 if paper else FORCE_SHARE * 0.5 * n_coordinates
    raw = paper and choice.published
    return TrainingConfig(
        steps=steps,
        batch_size=batch_size,
        learning_rate=choice.learning_rate or (5e-4 if paper else RATE * min(1, 60 / n_coordinates) ** 0.5),
        schedule="exponential" if paper else "cosine",
        decay=0.7,
        decay_every=in_a_pass,
        marginals=0 if raw else min(MARGINALS, steps),
        warm_up=0 if raw else min(500, max(1, steps // (10 if paper else 6))),
        clip=20.0 if paper and not raw else None,
        clip_usual=None if paper else CLIP,
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


@dataclass(frozen=True)
class Prepared:
    """A training that can begin: data in internal coordinates, the flow, the loss and the schedule."""

    choice: MoleculeTraining
    system: MolecularSystem
    generator: BoltzmannGenerator
    """Untrained."""
    flow: Flow
    """To be trained; its context is the temperature, if there are many."""
    train: Batch
    validation: Batch
    split: dict[str, Any]
    training: TrainingConfig
    metric: Metric
    """Measure of force errors."""

    @property
    def steps_in_a_pass(self) -> float:
        """Steps in which every frame is used once."""
        return len(self.train.x) / self.training.batch_size

    def seconds_per_step(self, steps: int = 3) -> float:
        """Time of a step of the training, measured; the flow stays as it is."""
        flow = copy.deepcopy(self.flow)
        mix = make_loss(self.training.loss, lambda q: q.sum(-1), self.metric)
        batch = select(self.train, torch.arange(self.training.batch_size) % len(self.train.x))
        times = []
        for _ in range(1 + steps):
            began = time.perf_counter()
            mix(flow, batch)[0].backward()
            times.append(time.perf_counter() - began)
        return sorted(times[1:])[steps // 2]


def prepare(
    data: str | Path, choice: MoleculeTraining, progress: Progress = silent, *, folder: str | Path = "."
) -> Prepared:
    """Read a trajectory file and build a flow for it; for the arguments see `train_generator`.

    The training data stay on the disk of the folder (`RowsOnDisk`), however many there are. Domains, spreads
    and losses on validation data are those of the rows that `thinned` chooses.
    """
    system = trajectory.open_info(data).system
    kind = choice.zmatrix or ("paper" if choice.preset == "paper" and system.name == "ala2" else "bonds")
    coordinates = internal_coordinates(system, kind)
    wanted, choice = choice, choice.model_copy(update={"temperatures": _on_ladder(choice, data)})
    load, temperatures = load_ladder if choice.temperatures else load_data, None
    loaded = load(data, coordinates, progress, folder=folder)
    some = thinned(loaded.train)
    shape = some.x
    if choice.temperatures:
        temperatures = temperature_range(loaded.train)
        shape = shape_at_lowest(some, temperatures, coordinates)
    torch.manual_seed(choice.seed)
    flow = flow_config(choice, coordinates, shape).build()
    generator = BoltzmannGenerator(coordinates, flow, system.plain(), temperatures)

    def as_trained(rows: Batch) -> Batch:
        rows = rows._replace(x=generator.unwound(rows.x))
        return rows if temperatures is None else conditioned(rows, temperatures, flow.domains)

    train = rewritten(loaded.train, as_trained, folder)
    validation, some = as_trained(thinned(loaded.validation, VALIDATED)), thinned(train)
    if flow.whitened:
        flow.whiten(some.x)
    paper = choice.preset == "paper"
    return Prepared(
        wanted,
        system,
        generator,
        flow,
        train,
        validation,
        loaded.split.plain(),
        training_config(choice, len(train.x), coordinates.n_coordinates),
        cartesian_metric(coordinates) if paper else standardised_metric(flow, cast(Tensor, some.force)),
    )


def train_generator(
    data: str | Path,
    folder: str | Path,
    choice: MoleculeTraining | None = None,
    *,
    energy: Callable[[MolecularSystem], MolecularEnergy] | None = None,
    until: float | None = None,
    progress: Progress | None = None,
) -> BoltzmannGenerator:
    """Train a Boltzmann generator on a trajectory file and return it.

    Besides the files of `fit`, the folder gets ``split.json``. The model file holds molecule, z-matrix and
    split, and is all that sampling needs. Called again, an unfinished run resumes; a finished one is loaded.

    Args:
        data: trajectory file of knotflow; with ``choice.temperatures`` that of a tempering run, whose other
            temperatures are in the file beside it.
        folder: the run folder.
        choice: preset and changes to it.
        energy: makes the energy of the molecule, as `knotflow.energies.force_field` does. It is needed for
            the effective sample size in the log, for the refinement and for the reverse divergence.
        until: when to end the refinement, on the clock of `time.time`; its cycles are then as long as the
            time allows.
        progress: called with the frames read, then with the steps done, see `fit`.
    """
    choice = MoleculeTraining() if choice is None else choice
    if choice.refine and energy is None:
        raise ValueError("refine needs an energy: give energy=..., or set it to False.")
    target = "knotflow.training.molecules:train_generator"
    with together(target, data, folder, choice, energy=energy, until=until):
        return _trained(data, folder, choice, energy, until, progress)


def _trained(
    data: str | Path,
    folder: str | Path,
    choice: MoleculeTraining,
    energy: Callable[[MolecularSystem], MolecularEnergy] | None,
    until: float | None,
    progress: Progress | None,
) -> BoltzmannGenerator:
    """The generator, trained and refined; all ranks do this together."""
    ready = prepare(data, choice, progress or silent, folder=folder)
    field = None if energy is None else energy(ready.system)
    generator, folder = ready.generator, Path(folder)
    flow = fit(
        ready.flow,
        ready.train,
        ready.training,
        folder,
        validation=ready.validation,
        energy=None if field is None else _reduced(field, generator.coordinates),
        metric=ready.metric,
        monitor=None if field is None else _monitor(field, generator),
        notes={**generator.notes(), "split": ready.split, "choice": choice.plain()},
        progress=progress,
    )
    if leads():
        write_json(folder / "split.json", ready.split)
    if agreed(leads() and "refinement" in notes_of(folder / MODEL)):
        return BoltzmannGenerator(generator.coordinates, flow, generator.molecule)
    trained = BoltzmannGenerator(generator.coordinates, flow, generator.molecule, generator.temperatures)
    refined = choice.preset == "best" if choice.refine is None else choice.refine
    if field is None or not refined:
        return trained
    return _refined(ready, trained, folder, field, until, progress)


def _refined(
    ready: Prepared,
    trained: BoltzmannGenerator,
    folder: Path,
    energy: MolecularEnergy,
    until: float | None,
    progress: Progress | None,
) -> BoltzmannGenerator:
    """The generator at the target temperature, refined; its model file replaces that of the training."""
    model, system = folder / MODEL, ready.system
    found = agreed(notes_of(model) if leads() else {})
    train, validation = thinned(ready.train), ready.validation
    if trained.temperatures is not None:
        if leads():
            trained.save(folder / "temperatures.safetensors", **found)
        trained = trained.at(system.temperature)
        train, validation = map(_at_lowest, (ready.train, validation))
    flow, cycles = refine(
        trained,
        train,
        ready.training,
        folder / "refinement",
        energy=energy,
        masses=Masses.molecule(system.masses, system.temperature),
        metric=ready.metric,
        validation=validation,
        deadline=None if until is None else Deadline(until, found["seconds"] / ready.training.steps),
        progress=progress,
    )
    refined = BoltzmannGenerator(trained.coordinates, flow, trained.molecule)
    seconds = found["seconds"] + sum(cycle["seconds"] for cycle in cycles)
    kept = {key: value for key, value in found.items() if key != "temperatures"}
    more = {"choice": ready.choice.plain(), "refinement": cycles, "seconds": seconds}
    if leads():
        refined.save(model, **{**kept, **more})
    return refined


def _on_ladder(choice: MoleculeTraining, data: str | Path) -> bool:
    """Whether to train on all temperatures."""
    if choice.temperatures is None:
        usual = choice.preset == "best" and not choice.reverse_kl
        return usual and trajectory.ladder_file(data).exists()
    return choice.temperatures


def _at_lowest(data: Batch) -> Batch:
    """Points of the lowest temperature, whose context is -1, without context."""
    lowest = cast(Tensor, data.context)[:, 0] == -1
    return thinned(data, among=lowest.nonzero()[:, 0])._replace(context=None)


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
        if generator.temperatures is not None:
            flow = generator.temperatures.at(flow, generator.temperature)
        with torch.no_grad():
            seeded = torch.Generator(device=next(flow.parameters()).device).manual_seed(0)
            q, log_prob = flow.sample_and_log_prob(MONITORED, generator=seeded)
            x, ladj = generator.coordinates.inverse(q)
            u, _ = energy.energy_and_force(x)
        return {"ess": effective_share((ladj - u - log_prob).double().cpu().numpy())}

    return monitor
