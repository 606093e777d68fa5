"""n-Butane with GFN2-xTB without any flow: exact Markov chains that jump from well to well.

The oracle of docs/tutorials/correct.md. A cycle of a chain is a trajectory of hybrid Monte Carlo
(`knotflow.dynamics.hybrid`), then a few turns of one half of the molecule about its middle bond. A turn by an
angle that is as likely as its opposite changes no volume, so Metropolis' rule makes it exact. Dynamics hardly
crosses the barriers at 300 K; two fifths of the turns are accepted.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from benchmarks.report import Table, progress
from knotflow.dynamics.hybrid import HybridMove
from knotflow.dynamics.masses import Masses
from knotflow.energies import MolecularEnergy, force_field
from knotflow.geometry.graph import bonds_between, neighbours
from knotflow.molecules import MolecularSystem
from knotflow.molecules.conformation import ConformationAngle
from knotflow.statistics.populations import of_frames
from knotflow.workflows.molecule import load_molecule

BACKBONE: Final = ConformationAngle("C1-C2-C3-C4", (0, 1, 2, 3))
STATES: Final = ("anti", "gauche+", "gauche-")
TURN, SPREAD = math.radians(117), math.radians(12)
"""Mean and deviation of the size of a turn: from well to well."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    chains: int = 32
    cycles: int = 700
    burn_in: int = 50
    """Cycles that are left out."""
    md_steps: int = 10
    turns: int = 4
    """In a cycle."""
    time_step: float = 0.001
    """In ps."""
    seed: int = 0

    @classmethod
    def quick(cls) -> Settings:
        return cls(chains=2, cycles=4, burn_in=1, md_steps=2)


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]]]:
    """The table, and a record of it."""
    system = load_molecule("CCCC", energy="xtb")
    with force_field(system) as energy, progress(console) as bar:
        task = bar.add_task("butane", total=settings.cycles)
        angles, accepted = [], []
        chains = Chains(system, energy, settings)
        for _ in range(settings.cycles):
            accepted.append(chains.cycle())
            angles.append(BACKBONE(chains.x.numpy()))
            bar.advance(task)
    found = summary(np.array(angles)[settings.burn_in :])
    moved, turned = np.array(accepted)[settings.burn_in :].mean(0)
    evaluations = settings.chains * (1 + settings.cycles * (settings.md_steps + 1 + settings.turns))
    rows = [[name, str(value)] for name, value in found.items()]
    rows += [["trajectories accepted", f"{moved:.3f}"], ["turns accepted", f"{turned:.3f}"]]
    notes = [f"{settings.chains} chains, {settings.cycles:,} cycles, {evaluations:,} evaluations of GFN2-xTB"]
    record = {**asdict(settings), "evaluations": evaluations, "moved": moved, "turned": turned}
    record |= {name: asdict(value) for name, value in found.items()}
    return [Table("n-Butane with GFN2-xTB at 300 K", ["what", "value"], rows, notes)], [record]


def turning_half(system: MolecularSystem) -> list[int]:
    """The atoms that turn about C2-C3: those nearer to C3, without itself."""
    near = neighbours(system.n_atoms, system.bonds)
    nearer = bonds_between(near, 2) < bonds_between(near, 1)
    return [atom for atom in np.flatnonzero(nearer) if atom != 2]


class Chains:
    """Independent chains, with their positions (chains, atoms, 3) and energies (chains,)."""

    def __init__(self, system: MolecularSystem, energy: MolecularEnergy, settings: Settings) -> None:
        self.energy, self.settings = energy, settings
        self.half = turning_half(system)
        self.move = HybridMove(energy, Masses.of(system), settings.md_steps, settings.time_step)
        self.random = torch.Generator().manual_seed(settings.seed)
        self.x = torch.as_tensor(system.positions).double().repeat(settings.chains, 1, 1)
        self.u = energy.energy(self.x)

    def cycle(self) -> tuple[float, float]:
        """A trajectory and some turns; the shares of them that were accepted."""
        x, u, gain = self.move.propose(self.x, self.random)
        moved = self._accept(x, u, gain)
        turned = 0.0
        for _ in range(self.settings.turns):
            x = turned_about(self.x, self._angles(), self.half)
            u = self.energy.energy(x)
            turned += self._accept(x, u, self.u - u) / self.settings.turns
        return moved, turned

    def _angles(self) -> Tensor:
        size = TURN + SPREAD * torch.randn(len(self.x), generator=self.random, dtype=torch.float64)
        sign = torch.randint(2, (len(self.x),), generator=self.random) * 2 - 1
        return size * sign

    def _accept(self, x: Tensor, u: Tensor, gain: Tensor) -> float:
        chance = torch.rand(len(x), generator=self.random, dtype=torch.float64)
        yes = chance.log() < gain  # NaN: no
        self.x, self.u = torch.where(yes[:, None, None], x, self.x), torch.where(yes, u, self.u)
        return float(yes.double().mean())


def turned_about(x: Tensor, angle: Tensor, half: list[int]) -> Tensor:
    """Positions (chains, atoms, 3) with some atoms turned about the bond C2-C3, by an angle for each chain.

    Rodrigues' formula.
    """
    origin, axis = x[:, 1:2], x[:, 2:3] - x[:, 1:2]
    axis = axis / axis.norm(dim=-1, keepdim=True)
    arm, cos, sin = x[:, half] - origin, angle.cos()[:, None, None], angle.sin()[:, None, None]
    along = (arm * axis).sum(-1, keepdim=True) * axis
    turned = x.clone()
    turned[:, half] = (
        origin + along + cos * (arm - along) + sin * torch.linalg.cross(axis.expand_as(arm), arm)
    )
    return turned


def summary(angles: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    """Populations and free energies from torsions of shape ``(cycles, chains)``, with errors over chains."""
    cycles, chains = angles.shape
    torsion = np.degrees(angles.T.reshape(-1)) % 360
    wells = [(torsion > 120) & (torsion < 240), torsion <= 120, torsion >= 240]
    members = np.stack([*wells, ~wells[0]], 1)
    found = of_frames(members, np.repeat(np.arange(chains), cycles))
    return {
        **dict(zip((f"population of {name}" for name in STATES), found.shares, strict=False)),
        "F(gauche) - F(anti), kT": found.differences[0, 3],
    }
