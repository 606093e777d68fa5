r"""Parallel tempering: walkers on a ladder of temperatures, which neighbours exchange now and then.

A hot walker crosses barriers that trap a cold one. Exchanges carry what it finds down the ladder with the
right weight, because they preserve the product of all Boltzmann distributions (Sugita & Okamoto 1999).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from knotflow.molecules.units import BOLTZMANN

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


FEW_EXCHANGES: Final = 0.1
"""Neighbours that exchange less often than this share of attempts hardly know of each other."""
ENOUGH_ATTEMPTS: Final = 100
"""Attempts of a pair before its rate means something."""


def geometric_ladder(
    lowest: float, highest: float, n_atoms: int, rungs: int | None = None
) -> tuple[float, ...]:
    r"""Temperatures in a constant ratio, so close that neighbours exchange in about half of the attempts.

    Potential energies of $3N - 6$ nearly harmonic coordinates spread by $\sqrt{(3N - 6)/2}\,kT$; neighbours
    overlap well if their inverse temperatures differ by about the inverse of that number of $kT$.

    Args:
        lowest: In K.
        highest: In K.
        n_atoms: Number of atoms, which sets how close the temperatures are.
        rungs: Number of temperatures, at least 2, instead.

    Raises:
        ValueError: if the temperatures are not positive and increasing.
    """
    if not 0 < lowest < highest < math.inf:
        raise ValueError(
            f"the highest temperature of a ladder must be above the lowest, {lowest:g} K, got {highest:g} K; "
            "raise it."
        )
    spread = math.sqrt(max(1, 3 * n_atoms - 6) / 2)
    steps = rungs - 1 if rungs else max(1, math.ceil(math.log(highest / lowest) * spread))
    return (*(lowest * (highest / lowest) ** (i / steps) for i in range(steps)), highest)


class Ladder:
    """Walkers on the rungs of a ladder, and their exchanges.

    Args:
        temperatures: In K, from the target temperature upwards.
        rungs: Rung of each walker, shape (groups, rungs): each row a permutation.
        heading: +1 for walkers last at the bottom, -1 for those last at the top, 0 for neither; same shape.
        attempts: Number of earlier rounds of exchanges; even and odd pairs take turns.
    """

    def __init__(self, temperatures: tuple[float, ...], rungs: Ints, heading: Ints, attempts: int) -> None:
        self.temperatures = np.array(temperatures)
        self.rungs = rungs
        self.heading = heading
        self.attempts = attempts
        self.tried = np.zeros(len(temperatures) - 1, dtype=np.int64)
        self.accepted = np.zeros_like(self.tried)
        self.round_trips = 0

    @classmethod
    def fresh(cls, temperatures: tuple[float, ...], groups: int) -> Ladder:
        """Every walker on its own rung."""
        rungs = np.tile(np.arange(len(temperatures), dtype=np.int64), (groups, 1))
        return cls(temperatures, rungs, (rungs == 0).astype(np.int64), 0)

    def of_walkers(self) -> Floats:
        """Temperature of each walker, shape (groups, rungs)."""
        return self.temperatures[self.rungs]

    def on_rungs(self) -> Ints:
        """The walker of each group on each rung, shape (groups, rungs)."""
        walkers: Ints = self.rungs.argsort(axis=1)
        return walkers

    def exchange(self, energies: Floats, random: np.random.Generator) -> Floats:
        r"""Try to exchange neighbours, alternating between even and odd pairs.

        Walkers at temperatures $T_i, T_j$ with energies $U_i, U_j$ exchange with probability
        $\min(1, e^{(1/kT_i - 1/kT_j)(U_i - U_j)})$.

        Args:
            energies: Potential energies of the walkers in kJ/mol, shape (groups, rungs).
            random: Source of randomness.

        Returns:
            Factors for the velocities of each walker, shape (groups, rungs).
        """
        before = self.of_walkers()
        beta = 1 / (BOLTZMANN * self.temperatures)
        walker_on = self.on_rungs()
        rows = np.arange(len(self.rungs))
        for low in range(self.attempts % 2, len(beta) - 1, 2):
            a, b = walker_on[:, low], walker_on[:, low + 1]
            gain = (beta[low] - beta[low + 1]) * (energies[rows, a] - energies[rows, b])
            swap = np.log(random.random(len(rows))) < gain
            self.rungs[rows[swap], a[swap]] += 1
            self.rungs[rows[swap], b[swap]] -= 1
            self.tried[low] += len(rows)
            self.accepted[low] += int(swap.sum())
        self.attempts += 1
        self._count_trips()
        return np.sqrt(self.of_walkers() / before)

    def _count_trips(self) -> None:
        """Count round trips, from the bottom to the top and back."""
        bottom, top = self.rungs == 0, self.rungs == len(self.temperatures) - 1
        self.round_trips += int((bottom & (self.heading == -1)).sum())
        self.heading[bottom] = 1
        self.heading[top & (self.heading == 1)] = -1


@dataclass(frozen=True)
class Exchanges:
    """How walkers moved on a ladder so far: false before the first attempt of every pair."""

    tried: Ints
    """Exchanges tried between neighbouring temperatures, shape (rungs - 1,)."""
    accepted: Ints
    round_trips: int
    """Ways of a walker from the bottom to the top and back."""

    def __add__(self, other: Exchanges) -> Exchanges:
        return Exchanges(
            self.tried + other.tried, self.accepted + other.accepted, self.round_trips + other.round_trips
        )

    def __bool__(self) -> bool:
        return len(self.tried) > 0 and bool((self.tried > 0).all())

    @property
    def rates(self) -> Floats:
        """Accepted share of the exchanges of each pair; NaN before its first attempt."""
        with np.errstate(invalid="ignore"):
            rates: Floats = self.accepted / self.tried
        return rates

    def __str__(self) -> str:
        trips = "1 round trip" if self.round_trips == 1 else f"{self.round_trips:,} round trips"
        mean, least = 100 * self.rates.mean(), 100 * self.rates.min()
        return f"exchanges {mean:.0f} % (least {least:.0f} %), {trips}"

    def warning(self, temperatures: tuple[float, ...]) -> str | None:
        """What to do if a pair of neighbours hardly exchanges; None if all do, or it is too early to tell."""
        known = self.tried >= ENOUGH_ATTEMPTS
        rates = np.where(known, self.rates, np.inf)
        low = int(rates.argmin()) if len(rates) else 0
        if not known.any() or rates[low] >= FEW_EXCHANGES:
            return None
        return (
            f"Walkers at {temperatures[low]:.0f} and {temperatures[low + 1]:.0f} K exchange in only "
            f"{100 * rates[low]:.0f} % of the attempts, so what hot ones find hardly comes down: start a new "
            f"run with more temperatures, --rungs {math.ceil(1.5 * len(temperatures))}."
        )
