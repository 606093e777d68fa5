"""Quadrature against densities whose integrals are known in closed form."""

import cmath
import math
from dataclasses import astuple

import pytest
import torch
from scipy.special import iv
from torch import Tensor

from knotflow.analysis import compare, force_jump, log_normaliser
from knotflow.energies import Energy, Mixed, Rings
from knotflow.transforms import Circle, Interval


class VonMises(Energy):
    """A product of two von Mises densities, as energies without their normaliser."""

    domains = (Circle(-math.pi, math.pi), Circle(-math.pi, math.pi))

    def __init__(self, mean: tuple[float, float], concentration: tuple[float, float]) -> None:
        self.mean, self.concentration = mean, concentration

    def energy(self, x: Tensor) -> Tensor:
        return -(x.new_tensor(self.concentration) * (x - x.new_tensor(self.mean)).cos()).sum(-1)

    @property
    def log_z(self) -> float:
        return sum(math.log(2 * math.pi * iv(0, k)) for k in self.concentration)

    def log_prob(self, x: Tensor) -> Tensor:
        return -self.energy(x) - self.log_z


class Slope(Energy):
    """``exp(x - 2 y)`` on a rectangle."""

    domains = (Interval(0.0, 1.0), Interval(-1.0, 2.0))

    def energy(self, x: Tensor) -> Tensor:
        return 2 * x[..., 1] - x[..., 0]


P = VonMises((0.3, -1.0), (1.5, 4.0))
Q = VonMises((0.9, -1.4), (2.5, 3.0))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def nothing(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def test_normalisers() -> None:
    assert log_normaliser(P, 64) == pytest.approx(P.log_z, abs=1e-12)
    exact = math.log((math.e - 1) * (math.exp(2) - math.exp(-4)) / 2)
    assert log_normaliser(Slope(), 1000) == pytest.approx(exact, abs=1e-5)
    assert log_normaliser(Slope(), 100, chunk=77) == pytest.approx(log_normaliser(Slope(), 100), abs=1e-12)


def test_comparison_has_the_closed_forms() -> None:
    kl = square = true_square = 0.0
    for m, k, n, l in zip(P.mean, P.concentration, Q.mean, Q.concentration, strict=True):
        cosine, double = iv(1, k) / iv(0, k), iv(2, k) / iv(0, k)  # E cos (x - m), E cos 2(x - m)
        kl += math.log(iv(0, l) / iv(0, k)) + cosine * (k - l * math.cos(m - n))
        true_square += k**2 * (1 - double) / 2
        # The difference of two sines is a sine.
        size, phase = cmath.polar(l * cmath.exp(1j * n) - k * cmath.exp(1j * m))
        square += size**2 * (1 - double * math.cos(2 * (m - phase))) / 2
    c = compare(Q.log_prob, Q.force, P, points=200)
    assert c.kl == pytest.approx(kl, abs=1e-10)
    assert c.mass == pytest.approx(1, abs=1e-10)
    assert c.force_rms == pytest.approx(math.sqrt(square), abs=1e-10)
    assert c.true_force_rms == pytest.approx(math.sqrt(true_square), abs=1e-10)
    assert c.largest_force == pytest.approx(math.hypot(2.5, 3.0), rel=1e-3)


def test_comparison_of_a_density_with_itself_and_with_half_of_it() -> None:
    c = compare(lambda x: P.log_prob(x) - math.log(2), P.force, P, points=50)
    assert c.kl == pytest.approx(math.log(2), abs=1e-10)
    assert c.mass == pytest.approx(0.5, abs=1e-10)
    assert c.force_rms == c.force_median == 0.0


def test_median_is_weighted_by_the_density() -> None:
    def shifted(x: Tensor) -> Tensor:
        """Off by ``(3, 4) (x₀ + π)``: a median of 5 times that of x₀ + π."""
        return centred.force(x) + x.new_tensor([3.0, 4.0]) * (x[:, :1] + math.pi)

    centred = VonMises((0.0, 0.0), (3.0, 1.0))
    c = compare(centred.log_prob, shifted, centred, points=400)
    assert c.force_median == pytest.approx(5 * math.pi, abs=5 * math.pi / 200)
    # With the median elsewhere than the middle of the grid.
    exponential = Slope()
    median = -1 - math.log((1 + math.exp(-6)) / 2) / 2
    c = compare(
        nothing_but_mass, lambda x: exponential.force(x) + (x + 1) * x.new_tensor([0.0, 1.0]), exponential
    )
    assert c.force_median == pytest.approx(median + 1, abs=2e-3)


def nothing_but_mass(x: Tensor) -> Tensor:
    return torch.full_like(x[:, 0], -math.log(3))


def test_chunks_change_nothing_and_progress_is_told() -> None:
    calls: list[tuple] = []
    whole = compare(Q.log_prob, Q.force, P, points=60)
    parts = compare(Q.log_prob, Q.force, P, points=60, chunk=1000, progress=lambda *now: calls.append(now))
    assert astuple(parts) == pytest.approx(astuple(whole), rel=1e-12)
    assert calls == [("quadrature", done, 3600) for done in (1000, 2000, 3000, 3600)]


def test_model_without_mass_where_the_target_has_none() -> None:
    """Both densities underflow to 0 on most of the square: that costs nothing, and is not NaN."""
    narrow = VonMises((0.0, 0.0), (3000.0, 3000.0))
    cut = compare(
        lambda x: torch.where(x.norm(dim=-1) < 2, P.log_prob(x), -math.inf), P.force, narrow, points=500
    )
    assert math.isfinite(cut.kl)
    missing = compare(lambda x: torch.full_like(x[:, 0], -math.inf), P.force, narrow, points=100)
    assert missing.kl == math.inf and missing.mass == 0.0


def test_force_that_is_not_a_number_shows() -> None:
    c = compare(P.log_prob, lambda x: torch.where(x[:, :1] > 3, math.nan, P.force(x)), P, points=50)
    assert math.isnan(c.largest_force) and math.isnan(c.force_rms)
    with pytest.raises(ValueError, match="not finite"):
        force_jump(lambda x: nothing(x) / 0, P, lines=2, points=50, generator=seeded())


@pytest.mark.parametrize(("periodic", "expected"), [(False, 105), (True, 85)], ids=["interval", "circle"])
def test_forces_of_the_rings(periodic: bool, expected: float) -> None:
    energy = Rings(periodic)
    c = compare(lambda x: nothing(x)[:, 0], nothing, energy, points=500)
    assert c.true_force_rms == pytest.approx(expected, abs=0.5)
    assert c.force_rms == pytest.approx(c.true_force_rms)
    assert c.mass == pytest.approx(1)


# ------------------------------------------------------------------------------------------- force_jump


@pytest.mark.parametrize("size", [0.03, 3.0, -300.0])
@pytest.mark.parametrize("axis", [0, 1])
def test_jump_is_found_on_top_of_a_steep_force(size: float, axis: int) -> None:
    energy = Rings()
    direction = torch.tensor([0.6, 0.8], dtype=torch.float64)

    def score(x: Tensor) -> Tensor:
        return energy.force(x) + size * (x[:, axis, None] > 0.3217) * direction

    assert force_jump(score, energy, lines=60, generator=seeded()) == pytest.approx(abs(size), rel=1e-4)


@pytest.mark.parametrize(
    "energy", [Rings(), Rings(periodic=True), P, Slope()], ids=lambda e: type(e).__name__
)
def test_continuous_force_has_no_jump(energy: Energy) -> None:
    assert force_jump(energy.force, energy, lines=60, generator=seeded()) < 1e-5


def test_what_is_left_of_a_kink_shrinks_with_the_width() -> None:
    def kinked(x: Tensor) -> Tensor:
        return 1e4 * (x - 0.1234).abs()

    left = [force_jump(kinked, P, lines=20, points=1000, depth=d, generator=seeded()) for d in (0, 10, 20)]
    assert left[0] / left[1] == pytest.approx(2**10, rel=0.01)
    assert left[1] / left[2] == pytest.approx(2**10, rel=0.01)


def test_jumps_at_the_seam_and_in_empty_places_do_not_count() -> None:
    narrow = VonMises((0.0, 0.0), (200.0, 200.0))  # a standard deviation of 0.07

    def far(x: Tensor) -> Tensor:
        return 1.0 * (x > 1.0)

    def seam(x: Tensor) -> Tensor:
        return 1.0 * (x > math.pi - 1e-3)

    assert force_jump(far, narrow, lines=200, generator=seeded()) == 0.0
    assert force_jump(seam, P, lines=60, generator=seeded()) == 0.0
    assert force_jump(far, P, lines=60, generator=seeded()) == pytest.approx(1.0)


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="two intervals or circles"):
        log_normaliser(Mixed())
    with pytest.raises(ValueError, match="two intervals or circles"):
        force_jump(nothing, Mixed())
    with pytest.raises(ValueError, match="points must be a whole number of at least 1"):
        compare(P.log_prob, P.force, P, points=0)
    with pytest.raises(ValueError, match="chunk must be a whole number"):
        compare(P.log_prob, P.force, P, chunk=0)
    with pytest.raises(ValueError, match="points must be a whole number of at least 4"):
        force_jump(nothing, P, points=3)
    with pytest.raises(ValueError, match="do not resolve the density"):
        force_jump(nothing, VonMises((0.0, 0.0), (1e6, 1e6)), points=51, generator=seeded())
