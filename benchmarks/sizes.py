"""How large a Boltzmann generator should be: one change of the preset ``best`` at a time, in equal time.

Each molecule is simulated by tempering; then each variant is trained on frames of all temperatures, without
refinement. Small networks take more steps in the time that ``best`` needs for its own, large ones fewer. So
the steps of each variant are those of ``best``, times the ratio of the processor times of a step.

The *error of forces* is the mean squared error on held-out frames, in standardised coordinates. The
*effective sample size* is that of fresh samples at the lowest temperature, the largest 0.1 % of the weights
cut. One seed: differences below a tenth mean little.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console

from benchmarks.flow import n_parameters
from benchmarks.report import Table, progress
from knotflow.energies import force_field
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.log_file import read_log
from knotflow.molecules import peptide
from knotflow.simulation import Simulation
from knotflow.statistics.weights import clipped, effective_share
from knotflow.training import molecules as recipe
from knotflow.training.data import select
from knotflow.training.molecules import MoleculeTraining, Prepared
from knotflow.training.objectives import make_loss
from knotflow.training.run import MODEL
from knotflow.transforms import Circle

VARIANTS: dict[str, dict[str, Any]] = {
    "best": {},
    "widths 64": {"hidden": (64, 64)},
    "widths 256": {"hidden": (256, 256)},
    "rounds of stiff 2": {"rounds": 2},
    "rounds of stiff 4": {"rounds": 4},
    "rounds of turning 3": {"turning_rounds": 3},
    "rounds of turning 7": {"turning_rounds": 7},
    "bins of turning 16": {"bins": 16},
    "bins of stiff 16": {"line_bins": 16},
}
TIMED = 12
"""Steps of which the median is taken as the time of a step."""
TRIMMED = 1e-3
"""Share of the weights that are cut."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    peptides: tuple[str, ...] = ("A", "P", "AAA", "AAAAA")
    variants: tuple[str, ...] = tuple(VARIANTS)
    replicas: int = 12
    ns: float = 0.6
    equilibration: float = 5.0
    """In ps."""
    engine: str = "torch"
    steps: int = 1500
    """Steps of ``best``."""
    samples: int = 10_000
    seed: int = 0
    folder: Path = Path("runs/sizes")
    """For simulations and trainings; what is finished is not done again."""

    @classmethod
    def quick(cls) -> Settings:
        return cls(
            ("A",), ("best", "widths 64"), 1, 0.004, 0.05, "openmm", 4, 100, folder=Path("runs/sizes-quick")
        )


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """A table for each molecule, and a record of every training."""
    records: list[dict[str, Any]] = []
    with progress(console) as bar:
        task = bar.add_task("sizes", total=len(settings.peptides) * len(settings.variants))
        for sequence in settings.peptides:
            data = simulated(sequence, settings)
            made = {name: prepared(data, name, settings) for name in settings.variants}
            seconds = {name: step_seconds(ready) for name, ready in made.items()}
            for name, ready in made.items():
                steps = round(settings.steps * seconds["best"] / seconds[name])
                folder = settings.folder / sequence / name.replace(" ", "-")
                records.append(
                    {
                        "peptide": sequence,
                        "variant": name,
                        "coordinates": ready.flow.dim,
                        "turning": sum(isinstance(domain, Circle) for domain in ready.flow.domains),
                        "parameters": n_parameters(ready.flow),
                        "seconds_per_step": seconds[name],
                        "steps": steps,
                        **trained(data, folder, name, steps, settings),
                    }
                )
                bar.advance(task)
    return [table(sequence, records, settings) for sequence in settings.peptides], records


def simulated(sequence: str, settings: Settings) -> Path:
    """A trajectory file by tempering, with its other temperatures beside it."""
    file = settings.folder / f"{sequence}.h5"
    simulation = Simulation.planned(
        file,
        peptide(sequence),
        settings.ns,
        replicas=settings.replicas,
        every=0.1 if settings.ns > 0.01 else 0.01,
        equilibration=settings.equilibration,
        engine=settings.engine,
        method="tempering",
        highest_temperature=700.0,
    )
    simulation.run()
    return file


def choice(settings: Settings, steps: int) -> MoleculeTraining:
    return MoleculeTraining(refine=False, temperatures=True, steps=steps, seed=settings.seed)


def sized(name: str) -> Any:
    """While it is active, the preset is that of a variant."""
    return patch.object(recipe, "molecular_flow", partial(_molecular_flow, changes=VARIANTS[name]))


_built = recipe.molecular_flow


def _molecular_flow(*args: Any, changes: dict[str, Any], **options: Any) -> Any:
    return _built(*args, **{**options, **changes})


def prepared(data: Path, name: str, settings: Settings) -> Prepared:
    with sized(name):
        return recipe.prepare(data, choice(settings, settings.steps), folder=settings.folder)


def step_seconds(ready: Prepared) -> float:
    """Processor time of a step: the loss, its gradient and Adam; the median of some."""
    flow, times = ready.flow, []
    optimiser = torch.optim.AdamW(flow.parameters(), lr=0.0, fused=True)
    mix = make_loss(ready.training.loss, None, ready.metric)
    for number in range(TIMED):
        rows = torch.arange(ready.training.batch_size) + number * ready.training.batch_size
        batch = select(ready.train, rows % len(ready.train.x))
        began = time.process_time()
        optimiser.zero_grad()
        mix(flow, batch)[0].backward()
        optimiser.step()
        times.append(time.process_time() - began)
    return sorted(times)[TIMED // 2]


def trained(data: Path, folder: Path, name: str, steps: int, settings: Settings) -> dict[str, float]:
    """Train a variant; its error of forces on held-out frames, and the effective sample size."""
    with sized(name):
        recipe.train_generator(data, folder, choice(settings, steps))
    log = read_log(folder / "log.csv")
    (*_, error) = (value for _, what, value in log if what == "validation_force_matching")
    generator = BoltzmannGenerator.load(folder / MODEL)
    torch.manual_seed(settings.seed)
    with torch.no_grad():
        x, log_prob = generator.sample_and_log_prob(settings.samples)
        u = force_field(peptide(folder.parent.name)).energy(x)
    log_w = (-u - log_prob).double().numpy()
    return {"force_error": error, "ess": effective_share(clipped(log_w, TRIMMED))}


def table(sequence: str, records: list[dict[str, Any]], settings: Settings) -> Table:
    own = [record for record in records if record["peptide"] == sequence]
    rows = [
        [
            record["variant"],
            f"{record['parameters']:,}",
            f"{1e3 * record['seconds_per_step']:.1f}",
            f"{record['steps']:,}",
            f"{record['force_error']:.4f}",
            f"{100 * record['ess']:.1f} %",
        ]
        for record in own
    ]
    title = f"{sequence}: {own[0]['coordinates']} coordinates, {own[0]['turning']} of them turning torsions"
    columns = ["variant", "parameters", "ms a step", "steps", "error of forces", "effective sample size"]
    notes = [f"the time of {settings.steps:,} steps of best, {settings.samples:,} samples, one seed"]
    return Table(title, columns, rows, notes)
