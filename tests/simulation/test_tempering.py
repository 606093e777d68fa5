"""Ladders of temperatures: exchanges keep the Boltzmann distributions."""

import math

import numpy as np
import pytest

from knotflow.molecules.units import BOLTZMANN
from knotflow.simulation.tempering import Exchanges, Ladder, geometric_ladder


def test_ladder_is_geometric_and_ends_where_asked() -> None:
    ladder = np.array(geometric_ladder(300.0, 1000.0, 22))
    assert ladder[0] == 300.0 and ladder[-1] == 1000.0
    ratios = ladder[1:] / ladder[:-1]
    assert np.ptp(ratios) < 1e-12 and 1.1 < ratios[0] < 1.4
    assert len(geometric_ladder(300.0, 1000.0, 138)) > 2 * len(ladder)


@pytest.mark.parametrize("highest", [300.0, 200.0, math.inf, math.nan])
def test_ladder_must_go_up(highest: float) -> None:
    with pytest.raises(ValueError, match="must be above the lowest, 300 K"):
        geometric_ladder(300.0, highest, 22)


def test_exchange_rate_is_metropolis() -> None:
    groups = 20_000
    ladder = Ladder.fresh((300.0, 400.0), groups)
    energies = np.tile([-12.0, -10.0], (groups, 1))
    ladder.exchange(energies, np.random.default_rng(0))
    expected = math.exp((1 / 300 - 1 / 400) / BOLTZMANN * -2.0)
    rate = ladder.accepted[0] / ladder.tried[0]
    assert rate == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / groups))
    # Downhill is always accepted.
    sure = Ladder.fresh((300.0, 400.0), 100)
    factors = sure.exchange(np.tile([-10.0, -12.0], (100, 1)), np.random.default_rng(0))
    assert sure.accepted[0] == 100 and (sure.rungs == [1, 0]).all()
    np.testing.assert_allclose(factors, np.tile([math.sqrt(4 / 3), math.sqrt(3 / 4)], (100, 1)))


def test_pairs_take_turns_and_rungs_stay_permutations() -> None:
    ladder = Ladder.fresh((300.0, 400.0, 500.0, 600.0), 50)
    random = np.random.default_rng(1)
    for _ in range(7):
        ladder.exchange(random.normal(size=(50, 4)), random)
        assert (np.sort(ladder.rungs, axis=1) == np.arange(4)).all()
    assert list(ladder.tried) == [200, 150, 200]


def test_round_trips_are_counted() -> None:
    """One walker up and down again; the energies make every exchange sure or impossible."""
    ladder = Ladder.fresh((300.0, 400.0, 500.0), 1)
    random = np.random.default_rng(0)
    big = 1e6

    def move(energies: list[float]) -> None:
        ladder.exchange(np.array([energies]), random)

    move([big, 0.0, 0.0])  # pair 0-1: walker 0 to rung 1
    move([big, 0.0, 0.0])  # pair 1-2: walker 0 to the top
    assert ladder.rungs[0, 0] == 2 and ladder.round_trips == 0
    move([-big, -big, -big])  # pair 0-1 of the others, equal energies: they exchange
    move([-big, 0.0, 0.0])  # pair 1-2: walker 0 down
    move([-big, 0.0, 0.0])  # pair 0-1: walker 0 at the bottom
    assert ladder.rungs[0, 0] == 0 and ladder.round_trips == 1


def test_exchanges_keep_boltzmann_distributions() -> None:
    """Harmonic energies of n coordinates: exact draws, many exchanges without moves, same distributions."""
    temperatures = geometric_ladder(300.0, 600.0, 22)
    n, groups = 20, 20_000
    random = np.random.default_rng(2)
    kT = BOLTZMANN * np.array(temperatures)
    energies = random.gamma(n / 2, size=(groups, len(kT))) * kT
    ladder = Ladder.fresh(temperatures, groups)
    for _ in range(10):
        ladder.exchange(energies, random)
    assert (ladder.accepted / ladder.tried > 0.3).all()
    for rung, unit in enumerate(kT):
        on_rung = energies[ladder.rungs == rung] / unit
        assert on_rung.mean() == pytest.approx(n / 2, abs=4 * math.sqrt(n / 2 / groups))
        assert on_rung.var() == pytest.approx(n / 2, rel=0.05)


def test_exchanges_are_summed_up_and_poor_ones_are_noticed() -> None:
    def of(*accepted: int, tried: int = 200) -> Exchanges:
        return Exchanges(np.full(len(accepted), tried), np.array(accepted), 3)

    ladder = (300.0, 400.0, 500.0)
    assert str(of(100, 60)) == "exchanges 40 % (least 30 %), 3 round trips"
    assert of(100, 60).warning(ladder) is None and of(100, 20).warning(ladder) is None
    warning = of(100, 8).warning(ladder)
    assert (
        warning is not None and "at 400 and 500 K exchange in only 4 %" in warning and "--rungs 5" in warning
    )
    assert of(1, 1, tried=50).warning(ladder) is None  # too early to tell
    assert not of(0, 0, tried=0) and of(0, 0, tried=0).warning(ladder) is None
    assert not Exchanges(np.zeros(0, int), np.zeros(0, int), 0)
    assert Exchanges(np.zeros(0, int), np.zeros(0, int), 0).warning((300.0,)) is None
