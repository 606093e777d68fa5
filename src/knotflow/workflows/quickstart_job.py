"""Where the quickstart happens, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from knotflow.dynamics.protocol import DynamicsConfig
from knotflow.energies import OpenMMEnergy
from knotflow.flows.io import notes
from knotflow.molecules import MolecularSystem, ala2
from knotflow.simulation import Simulation, SimulationPlan
from knotflow.training.molecules import MoleculeTraining
from knotflow.workflows.report import METRICS, RUN_MODEL


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    plan: SimulationPlan
    training: MoleculeTraining
    samples: int
    """To draw, for the file, the evaluation and the page alike."""
    dynamics: DynamicsConfig
    seconds: tuple[float, ...]
    """What the steps take on two idle cores, roughly: where an estimate of the time left begins."""
    workers: int | None = None
    """Processes for OpenMM and simulations; None: one for each core."""


def full(seed: int = 0) -> Scale:
    """Minutes.

    Tempering gives phi > 0 the weight it has, which plain dynamics of this length does not. Exchanges also
    bring fresh structures down the ladder, so that frames can be kept more often. 24 ladders of 8
    temperatures make four tasks of 48 walkers, three vectors of 16. More steps of training would learn the
    frames by heart.
    """
    return Scale(
        SimulationPlan(
            engine="torch",
            method="tempering",
            replicas=24,
            frames=420,
            interval=100,
            equilibration=5_000,
            highest_temperature=1000.0,
            seed=seed,
        ),
        MoleculeTraining(preset="quick", forces=True, epochs=15.0, seed=seed),
        samples=5_000,
        dynamics=DynamicsConfig(replicas=4, dt=5e-4, equilibration=0.2, production=0.5, every=10, seed=seed),
        seconds=(65, 25, 1, 4, 10, 6),
    )


def smoke(seed: int = 0) -> Scale:
    """Less than a minute: all parts work, and the numbers mean nothing."""
    return Scale(
        SimulationPlan(
            replicas=1, frames=120, interval=10, equilibration=10, highest_temperature=1000.0, seed=seed
        ),
        MoleculeTraining(preset="quick", forces=True, epochs=2.0, seed=seed),
        samples=200,
        dynamics=DynamicsConfig(
            replicas=2, dt=5e-4, equilibration=0.005, production=0.01, every=5, seed=seed
        ),
        seconds=(4, 8, 1, 4, 1, 12),
        workers=1,
    )


SCALES: Final[Mapping[str, Callable[[int], Scale]]] = {"full": full, "smoke": smoke}


@dataclass(frozen=True)
class Quickstart:
    """Where it happens, and how much of it.

    The folder is that of a training run: all commands on trained models take it.
    """

    folder: Path
    scale: Scale

    @property
    def data(self) -> Path:
        """The simulation."""
        return self.folder / "ala2.h5"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.folder / RUN_MODEL

    @property
    def samples(self) -> Path:
        """Samples of the model, with weights."""
        return self.folder / "samples.h5"

    @property
    def metrics(self) -> Path:
        """The evaluation."""
        return self.folder / METRICS

    @property
    def motion(self) -> Path:
        """The folder of the dynamics."""
        return self.folder / "dynamics"

    @property
    def page(self) -> Path:
        """The page."""
        return self.folder / "report.html"

    @property
    def seed(self) -> int:
        """Of all random numbers."""
        return self.scale.plan.seed

    def simulation(self) -> Simulation:
        """The simulation as far as it is; refuses a file that was begun otherwise."""
        return Simulation(self.data, ala2(), self.scale.plan, self.scale.workers)

    def energy(self) -> OpenMMEnergy:
        """The force field of the molecule."""
        return OpenMMEnergy(MolecularSystem.parse(notes(self.model)["molecule"]), self.scale.workers)
