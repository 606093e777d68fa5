"""Plans of simulations: which engine and method, how many replicas, how long."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from knotflow.config import Config
from knotflow.molecules.system import MolecularSystem
from knotflow.simulation.engines import STEP, EngineName, engine_of
from knotflow.simulation.tempering import geometric_ladder

EXCHANGE_STEPS: Final = 250
"""Steps between attempts to exchange temperatures; fewer if frames are kept more often."""

USUAL_REPLICAS: Final = {"openmm": 8, "torch": 512, "xtb": 8, "ase": 8, "module": 8}
"""Independent simulations of plain dynamics."""

LADDERS: Final = (8, 16)
"""Least number of ladders, for error bars; and as many as there may always be, if they are long enough."""

LADDER_NANOSECONDS: Final = 0.5
"""Ladders for torch are at least this long, unless there are few: the 40 ps before the first frame are then
less than a tenth of the work."""

FEWEST_TASKS: Final = 4
"""Replicas are divided into at least this many tasks, to keep all cores busy."""


class SimulationPlan(Config):
    """What to simulate.

    Once a file has been started, only ``frames`` may change: more frames continue it.
    """

    engine: EngineName = "openmm"
    """``openmm``, one replica after the other on each core; ``torch``, many at once; ``xtb``, ``ase`` or
    ``module`` for a molecule with that energy."""
    method: Literal["langevin", "tempering"] = "langevin"
    """``langevin`` at one temperature; ``tempering``, with a ladder of temperatures for each replica."""
    replicas: int = Field(8, ge=1)
    """Independent simulations; for tempering, ladders."""
    frames: int = Field(1000, ge=1)
    """Frames to keep of each replica."""
    interval: int = Field(1000, ge=1)
    """Steps of 1 fs from frame to frame."""
    equilibration: int = Field(20_000, ge=1)
    """Steps at the target temperature before the first frame."""
    highest_temperature: float = Field(1000.0, gt=0, allow_inf_nan=False)
    """Top of the ladder in K, for tempering."""
    rungs: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Temperatures of a ladder; None: as many as neighbours need to exchange in half of the attempts."""
    seed: int = Field(0, ge=0)
    """Seed of all random numbers."""

    @model_validator(mode="after")
    def _exchanges_fit(self) -> SimulationPlan:
        if self.method == "tempering" and self.interval > EXCHANGE_STEPS and self.interval % EXCHANGE_STEPS:
            raise ValueError(
                f"tempering exchanges every {EXCHANGE_STEPS} steps, so the interval of frames must be a "
                f"multiple of {EXCHANGE_STEPS} steps or shorter, got {self.interval}"
            )
        return self

    @classmethod
    def of_times(
        cls,
        ns: float,
        system: MolecularSystem,
        *,
        every: float = 1.0,
        equilibration: float = 20.0,
        replicas: int | None = None,
        engine: EngineName | None = None,
        **more: Any,
    ) -> SimulationPlan:
        """A plan by times instead of steps.

        Args:
            ns: Nanoseconds at the target temperature, all replicas together: frames are kept of this time.
                With tempering, each temperature of the ladders is simulated as long.
            system: The molecule.
            every: Picoseconds between saved frames of a replica.
            equilibration: Picoseconds that each replica runs before its first saved frame.
            replicas: Independent simulations; None: `usual_replicas`.
            engine: None: the usual one for the energy of the molecule.
            **more: Other fields of `SimulationPlan`.

        Raises:
            ValueError: if a time does not fit the step of 1 fs, or is too short for a frame of each replica.
        """
        interval = _steps("every", every)
        steps: dict[str, Any] = {"engine": engine_of(system, engine), "interval": interval}
        steps["equilibration"] = _steps("equilibration", equilibration)
        plan = cls.parse(steps | more)
        if replicas is None:
            replicas = usual_replicas(plan.engine, ns, len(plan.ladder(system)), system.n_atoms)
        if ns == math.inf:
            raise ValueError("ns must be a number of nanoseconds, got inf.")
        frames = round(ns * 1000 / (interval * STEP * replicas)) if ns > 0 and replicas > 0 else 0
        if frames < 1 <= replicas:
            raise ValueError(
                f"ns must give each of {replicas} replicas at least one frame of {every:g} ps, "
                f"{replicas * every / 1000:g} ns in all, got {ns:g}; raise it, or use fewer replicas."
            )
        return cls.parse({"replicas": replicas, "frames": frames, **steps, **more})

    def ladder(self, system: MolecularSystem) -> tuple[float, ...]:
        """Temperatures in K, the target's first."""
        if self.method == "langevin":
            return (system.temperature,)
        return geometric_ladder(system.temperature, self.highest_temperature, system.n_atoms, self.rungs)

    def fixed(self) -> dict[str, Any]:
        """The fields that must stay the same when a run is continued."""
        return {key: value for key, value in self.plain().items() if key != "frames"}


def usual_replicas(engine: EngineName, ns: float, rungs: int, n_atoms: int) -> int:
    """The number of replicas, unless the user gives one.

    Plain dynamics has 8, but 512 with torch, which moves many at once. Exchanges mix the walkers of a
    ladder, so a few long ladders are better than many short ones: 8; with torch one for
    every 0.5 ns, at least 8, at most 16 or as many as make `FEWEST_TASKS` full tasks. Tasks are of equal
    size, because every other size is compiled anew.
    """
    if engine != "torch" or rungs == 1:
        return USUAL_REPLICAS[engine]
    fewest, several = LADDERS
    most = max(several, FEWEST_TASKS * _full_task(rungs, n_atoms))
    wanted = min(max(fewest, int(min(ns, 1e6) / LADDER_NANOSECONDS)), most) if ns > 0 else fewest
    size = groups_per_task(engine, wanted, rungs, n_atoms)
    return size * math.ceil(wanted / size)


def groups_per_task(engine: EngineName, replicas: int, rungs: int, n_atoms: int) -> int:
    """The number of ladders, or of replicas without one, that one process of a CPU moves at once."""
    several = math.ceil(replicas / FEWEST_TASKS)
    if engine == "torch":
        return min(_full_task(rungs, n_atoms), several)
    return several if engine == "module" else 1


def _full_task(rungs: int, n_atoms: int) -> int:
    """The number of ladders of a task for torch: about as many walkers as the cache holds, in full vectors.

    A vector that is not full costs as much as a full one: 22 walkers take as long as 32, two vectors of 16.
    """
    from knotflow.energies.torch_force_field import frames_at_once  # here: OpenMM runs without torch

    at_once = frames_at_once(n_atoms)

    def merit(groups: int) -> tuple[float, bool, int]:
        walkers = groups * rungs
        return walkers / (math.ceil(walkers / 16) * 16), walkers <= at_once, groups

    return max(range(1, max(1, at_once * 3 // 2 // rungs) + 1), key=merit)


def _steps(name: str, picoseconds: float) -> int:
    steps = round(picoseconds / STEP) if 0 < picoseconds < math.inf else 0
    if steps < 1 or abs(steps * STEP - picoseconds) > 1e-9 * picoseconds:
        raise ValueError(
            f"{name} must be a positive multiple of the step, {STEP * 1000:g} fs, got {picoseconds:g} ps."
        )
    return steps
