"""The speed of an energy, measured."""

import pytest
import torch

from knotflow.energies import MolecularEnergy, speed
from knotflow.molecules import ala2


class Slow(MolecularEnergy):
    """Takes its time, by a clock of its own, and much more for the first call."""

    n_atoms, temperature = 22, 300.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
        self.now, self.asked, self.rate = 0.0, 0, rate
        monkeypatch.setattr(speed.time, "perf_counter", lambda: self.now)

    def energy(self, x: torch.Tensor) -> torch.Tensor:
        return self.energy_and_force(x)[0]

    def energy_and_force(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.now += len(x) / self.rate if self.asked else 100.0
        self.asked += len(x)
        return x.new_zeros(len(x)), torch.zeros_like(x)


@pytest.mark.parametrize(("rate", "asked"), [(0.5, 2), (100.0, 74), (1e5, 586)])
def test_the_speed_of_an_energy_is_measured_with_few_calls_if_it_is_slow(monkeypatch, rate, asked) -> None:
    energy = Slow(monkeypatch, rate)
    assert speed.evaluations_per_second(energy, ala2().positions) == pytest.approx(rate)
    assert energy.asked == asked


def test_a_batch_is_what_will_be_evaluated(monkeypatch) -> None:
    energy = Slow(monkeypatch, 1e5)
    speed.evaluations_per_second(energy, ala2().positions, 4)
    assert energy.asked == 1 + 1 + 4
