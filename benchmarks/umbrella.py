r"""n-Butane with GFN2-xTB by umbrella sampling: a free energy that owes nothing to a flow.

Copies of the molecule are held around angles $\phi_i$ of the torsion C-C-C-C, evenly spread over the circle,
by springs $b_i(\phi) = \tfrac k2 (\phi - \phi_i)^2$ kT, so that no barrier has to be crossed by chance. All
frames together, by MBAR, give every frame its weight without springs, and so the population of *anti* (120 to
240 degrees). Each set of copies, one at every angle, is a simulation of its own; the error is that of their
mean.

``knotflow run`` and ``knotflow reweight`` answer the same question: docs/tutorials/correct.md.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

import knotflow as kf
from benchmarks.report import Table, progress
from knotflow.analysis.free_energy import import_pymbar
from knotflow.dynamics import Langevin, Masses
from knotflow.energies import MolecularEnergy, force_field

CARBONS = (0, 1, 2, 3)
ANTI = (math.radians(120), math.radians(240))


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    energy: str = "xtb"
    windows: int = 18
    sets: int = 4
    equilibration: float = 0.8
    """Picoseconds."""
    length: float = 4.0
    """Picoseconds of each copy."""
    every: int = 10
    """Steps between frames."""
    dt: float = 0.001
    friction: float = 5.0
    """Per ps."""
    spring: float = 12.0
    """In kT/rad²."""
    seed: int = 0

    @classmethod
    def quick(cls) -> Settings:
        return cls(windows=8, sets=2, equilibration=0.002, length=0.01, every=2, spring=2.0)


class Restrained:
    """The energy of a molecule with a spring on a torsion, its rest at another angle for each replica."""

    def __init__(self, energy: MolecularEnergy, rest: Tensor, spring: float) -> None:
        self.energy, self.rest, self.spring = energy, rest, spring

    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u, force = self.energy.energy_and_force(x)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            bias = 0.5 * self.spring * wrapped(torsion(x) - self.rest).square()
            (slope,) = torch.autograd.grad(bias.sum(), x)
        return u + bias.detach(), force - slope


def torsion(x: Tensor) -> Tensor:
    """The torsion C-C-C-C of positions (n, atoms, 3), in radians."""
    a, b, c = (x[:, j] - x[:, i] for i, j in pairwise(CARBONS))
    first, second = torch.linalg.cross(a, b), torch.linalg.cross(b, c)
    sine = (torch.linalg.cross(first, second) * b).sum(-1) / b.norm(dim=-1)
    return torch.atan2(sine, (first * second).sum(-1))


def wrapped(angle: Tensor) -> Tensor:
    """An angle in [-π, π)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def anti_weight(angles: NDArray[np.float64], rest: NDArray[np.float64], spring: float) -> float:
    """The population of anti without springs, from angles (windows, frames), by MBAR."""
    apart = angles.ravel() - rest[:, None]
    bias = 0.5 * spring * ((apart + math.pi) % (2 * math.pi) - math.pi) ** 2
    energies = np.concatenate((bias, np.zeros_like(bias[:1])))
    counts = [angles.shape[1]] * len(rest) + [0]
    weight = import_pymbar().MBAR(energies, np.array(counts)).weights()[:, -1]
    place = angles.ravel() % (2 * math.pi)
    return float(weight[(place >= ANTI[0]) & (place < ANTI[1])].sum())


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """The populations, and a record."""
    began = time.perf_counter()
    system = kf.load_molecule("CCCC", energy=settings.energy)
    rest = torch.linspace(0, 2 * math.pi, settings.windows + 1, dtype=torch.float64)[:-1]
    masses = Masses.of(system)
    x = torch.from_numpy(system.positions).expand(settings.windows * settings.sets, -1, -1)
    random = torch.Generator().manual_seed(settings.seed)
    with force_field(system) as energy, progress(console) as bar:
        potential = Restrained(energy, rest.repeat(settings.sets), settings.spring)
        dynamics = Langevin(potential, masses, settings.dt, settings.friction, seed=settings.seed)
        state = dynamics.start(x, masses.thermal_velocities(len(x), generator=random))
        before, frames = (round(ps / settings.dt) for ps in (settings.equilibration, settings.length))
        task = bar.add_task("umbrella", total=before + frames)
        seen = []
        while state.step < before + frames:
            state = dynamics.run(state, settings.every)
            bar.update(task, completed=state.step)
            if state.step > before:
                seen.append(torsion(state.positions))
    if not bool(state.moving.all()):
        raise RuntimeError("a replica fell apart; make the steps shorter.")
    angles = torch.stack(seen, -1).reshape(settings.sets, settings.windows, -1).numpy()
    anti = np.array([anti_weight(one, rest.numpy(), settings.spring) for one in angles])
    gauche = np.log(anti / (1 - anti))
    found = {
        "anti": (anti.mean(), anti.std(ddof=1) / math.sqrt(len(anti))),
        "F(gauche) - F(anti), kT": (gauche.mean(), gauche.std(ddof=1) / math.sqrt(len(anti))),
    }
    evaluations = len(x) * state.step
    rows = [[name, f"{value:.4f}", f"{error:.4f}"] for name, (value, error) in found.items()]
    about = f"{settings.sets} sets of {settings.windows} copies, {evaluations:,} evaluations"
    took = f"{time.perf_counter() - began:.0f} s"
    table = Table(f"n-Butane with {settings.energy} at 300 K", ["what", "value", "±"], rows, [about, took])
    record = {**asdict(settings), "evaluations": evaluations, "sets_found": anti.tolist(), "found": found}
    return [table], [record]
