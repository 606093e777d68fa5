"""The toy densities against SciPy, finite differences and exact samples."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from knotflow.analysis import log_normaliser
from knotflow.energies import Energy, Mixed, Rings

ENERGIES: dict[str, Energy] = {"rings": Rings(), "periodic rings": Rings(periodic=True), "mixed": Mixed()}
EVERY = pytest.mark.parametrize("name", ENERGIES)


def points(energy: Energy, n: int, seed: int = 0) -> Tensor:
    """Uniform points of the domain, away from its edges: finite differences must not cross a seam."""
    unit = torch.rand(n, len(energy.domains), dtype=torch.float64, generator=torch.manual_seed(seed))
    low, length = torch.tensor([(d.low, d.length) for d in energy.domains], dtype=torch.float64).T
    return low + length * (0.01 + 0.98 * unit)


def slopes(f: object, x: Tensor, h: float) -> Tensor:
    """Central differences of ``f`` along each coordinate, stacked on a new last axis."""
    unit = torch.eye(x.shape[-1], dtype=x.dtype)
    return torch.stack([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in unit], dim=-1)


@EVERY
def test_force_is_the_slope_of_the_energy(name: str) -> None:
    energy = ENERGIES[name]
    x = points(energy, 500)
    torch.testing.assert_close(energy.force(x), -slopes(energy.energy, x, 1e-6), rtol=1e-5, atol=1e-5)


@EVERY
def test_force_can_be_differentiated_again(name: str) -> None:
    energy = ENERGIES[name]
    x = points(energy, 100)
    jacobian = torch.vmap(torch.func.jacrev(energy.force))(x)
    torch.testing.assert_close(jacobian, jacobian.mT, rtol=1e-9, atol=1e-7)
    expected = slopes(energy.force, x, 1e-6)
    torch.testing.assert_close(jacobian, expected, rtol=1e-4, atol=1e-6 * expected.abs().max().item())
    leaf = x.clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(energy.force(leaf).sum(), leaf)
    torch.testing.assert_close(by_autograd, jacobian.sum(-2))


@EVERY
def test_shapes_dtypes_and_vmap(name: str) -> None:
    energy = ENERGIES[name]
    x = points(energy, 12).float()
    batch = x.view(3, 4, -1)
    assert energy.energy(batch).shape == (3, 4)
    assert energy.energy(batch).dtype == energy.force(batch).dtype == torch.float32
    torch.testing.assert_close(energy.force(batch).view_as(x), energy.force(x))
    torch.testing.assert_close(torch.vmap(energy.force)(x), energy.force(x))
    torch.testing.assert_close(energy.energy(x).double(), energy.energy(x.double()), rtol=1e-4, atol=1e-4)


@EVERY
def test_wrong_points_are_refused(name: str) -> None:
    d = len(ENERGIES[name].domains)
    with pytest.raises(ValueError, match=rf"shape \(\.\.\., {d}\), got torch.float32 of shape \(7, 3\)"):
        ENERGIES[name].energy(torch.zeros(7, 3))
    with pytest.raises(ValueError, match="floating-point points"):
        ENERGIES[name].energy(torch.zeros(7, d, dtype=torch.int64))


def rings(r: np.ndarray, sigma: float) -> np.ndarray:
    parts = zip((1.0, 0.8, 0.6, 0.4), (1.0, 2.0, 1.5, 2.5), strict=True)
    return sum(height * np.exp(-((r - radius) ** 2) / (2 * sigma**2)) for height, radius in parts)


def test_rings_have_the_density_of_the_paper() -> None:
    x = points(Rings(), 1000).numpy()
    z = 2 * np.pi * x - np.pi
    for energy, r, sigma in [
        (Rings(), np.hypot(*z.T), 0.06),
        (Rings(periodic=True), np.sqrt(np.cos(z**2 / 2).sum(-1) + 2), 0.05),
    ]:
        actual = (-energy.energy(torch.from_numpy(x))).exp().numpy()
        np.testing.assert_allclose(actual, rings(r, sigma), rtol=1e-10, atol=1e-300)


def test_normaliser_of_the_rings_is_a_radial_integral() -> None:
    # All rings end long before the edges: what the corners hold is below 1e-20.
    radial, _ = integrate.quad(
        lambda r: r * rings(r, 0.06), 0, np.pi, points=[1, 1.5, 2, 2.5], epsabs=1e-13, limit=200
    )
    assert log_normaliser(Rings(), 400) == pytest.approx(math.log(radial / (2 * np.pi)), abs=1e-12)


def test_normaliser_of_the_periodic_rings() -> None:
    # The density is analytic on each quarter, so that Gauss's rule converges there at full speed.
    nodes, weights = np.polynomial.legendre.leggauss(400)
    cosine = np.cos((np.pi / 2 * (nodes + 1)) ** 2 / 2)
    density = rings(np.sqrt(cosine[:, None] + cosine + 2), 0.05)
    exact = math.log(weights @ density @ weights / 4)
    error = [log_normaliser(Rings(periodic=True), n) - exact for n in (400, 800)]
    assert abs(error[1]) < 1e-5
    assert error[0] / error[1] == pytest.approx(4, rel=0.05)  # the kink at the seam: second order


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_rings_stay_finite_where_the_radius_vanishes(dtype: torch.dtype) -> None:
    tip = 0.5 + math.sqrt(2 * math.pi) / (2 * math.pi)
    for energy, centre in [(Rings(), 0.5), (Rings(periodic=True), tip), (Rings(periodic=True), 1 - tip)]:
        ulps = torch.arange(-20, 21, dtype=dtype) * torch.finfo(dtype).eps
        x = centre + torch.cartesian_prod(ulps, ulps)
        force = energy.force(x)
        assert force.isfinite().all()
        # At the tip of the cone |f| = R/σ² · |dr/dx|, and not more.
        slope = 2 * math.pi * (math.sqrt(math.pi) if energy.periodic else 1.0)
        assert force.norm(dim=-1).max() <= 1.01 * slope / energy.sigma**2
    middle = torch.full((2,), 0.5, dtype=dtype)
    assert torch.equal(Rings().force(middle), torch.zeros(2, dtype=dtype))
    assert torch.func.jacrev(Rings().force)(middle).isfinite().all()


def test_periodic_rings_wrap() -> None:
    energy, x = Rings(periodic=True), points(Rings(), 200)
    shifted = x + torch.randint(-3, 4, x.shape, generator=torch.manual_seed(1))
    torch.testing.assert_close(energy.energy(shifted), energy.energy(x))
    torch.testing.assert_close(energy.force(shifted), energy.force(x), rtol=1e-6, atol=1e-6)
    seam = torch.tensor([[0.0, 0.3], [1.0, 0.3], [1e-12, 0.3], [-1e-12, 0.3]], dtype=torch.float64)
    assert energy.energy(seam).diff().abs().max() < 1e-8
    force = energy.force(seam)[2:]
    assert (force[0] - force[1]).norm() > 1  # continuous, but with a kink


# ------------------------------------------------------------------------------------------------ mixed


def conditionals(x: np.ndarray) -> list[object]:
    """The chain of the docstring, in SciPy's words."""
    phi, psi, a, b, _ = x.T
    mean_a, mean_b = 0.5 + 0.2 * np.sin(phi), 1.25 + 0.3 * np.cos(psi) + 0.8 * (a - 0.5)
    return [
        stats.vonmises(1.0, loc=-1.0),
        stats.vonmises(2.0, loc=phi + 2.0),
        stats.truncnorm(-mean_a / 0.25, (1 - mean_a) / 0.25, loc=mean_a, scale=0.25),
        stats.truncnorm((0.5 - mean_b) / 0.4, (2 - mean_b) / 0.4, loc=mean_b, scale=0.4),
        stats.norm(np.sin(phi + psi) + b - 1.25, 0.5 * np.exp(0.2 * np.cos(phi))),
    ]


def features(x: Tensor) -> Tensor:
    """First and second moments of all coordinates, angles as cosine and sine."""
    angles, rest = x[..., :2], x[..., 2:]
    first = torch.cat([angles.cos(), angles.sin(), rest], dim=-1)
    row, column = torch.triu_indices(7, 7)
    return torch.cat([first, first[..., row] * first[..., column]], dim=-1)


def test_mixed_is_the_chain_of_conditionals() -> None:
    x = points(Mixed(), 2000)
    expected = sum(c.logpdf(column) for c, column in zip(conditionals(x.numpy()), x.numpy().T, strict=True))
    np.testing.assert_allclose(Mixed().energy(x).numpy(), -expected, rtol=1e-12, atol=1e-12)


def test_mixed_is_normalised_and_its_samples_have_its_moments() -> None:
    """A product rule in five dimensions: trapezia on circles and the line, Gauss's on the intervals."""
    energy = Mixed()
    angle = torch.arange(24, dtype=torch.float64) * (2 * math.pi / 24) - math.pi
    nodes, weights = (torch.from_numpy(t) for t in np.polynomial.legendre.leggauss(10))
    line = torch.linspace(-6, 6, 49, dtype=torch.float64)
    mass, moments = torch.zeros((), dtype=torch.float64), torch.zeros(35, dtype=torch.float64)
    rest = torch.cartesian_prod(angle, (nodes + 1) / 2, 0.5 + 0.75 * (nodes + 1), line)
    weight = torch.cartesian_prod(weights / 2, 0.75 * weights).prod(-1).repeat(24).repeat_interleave(49)
    weight = weight * (2 * math.pi / 24) ** 2 * 0.25
    for phi in angle:
        x = torch.cat([phi.expand(len(rest), 1), rest], dim=-1)
        p = weight * (-energy.energy(x)).exp()
        mass += p.sum()
        moments += p @ features(x)
    assert mass.item() == pytest.approx(1, abs=1e-7)

    drawn = features(energy.sample(200_000, torch.Generator().manual_seed(2), dtype=torch.float64))
    z = (drawn.mean(0) - moments) / (drawn.std(0) / math.sqrt(len(drawn)))
    assert z.abs().max() < 4
    assert torch.corrcoef(drawn[:, :7].T).fill_diagonal_(0).abs().amax(0).min() > 0.2  # none stands alone


def test_samples_of_mixed_pass_kolmogorov_and_smirnov() -> None:
    """Each coordinate's own cumulative distribution, given those before, makes it uniform and independent."""
    x = Mixed().sample(20_000, torch.Generator().manual_seed(3), dtype=torch.float64).numpy()
    uniform = np.stack([c.cdf(t) for c, t in zip(conditionals(x), x.T, strict=True)]) % 1.0
    for column in uniform:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    assert np.abs(np.corrcoef(uniform) - np.eye(5)).max() < 4 / math.sqrt(20_000)


def test_samples_of_mixed_are_reproducible_and_inside() -> None:
    energy = Mixed()
    one, two, other = (energy.sample(1000, torch.Generator().manual_seed(s)) for s in (4, 4, 5))
    assert torch.equal(one, two) and not torch.equal(one, other)
    assert one.shape == (1000, 5) and one.dtype == torch.float32
    for column, domain in zip(one.T, energy.domains, strict=True):
        assert domain.low - 1e-6 <= column.min() and column.max() <= domain.high + 1e-6
    with pytest.raises(ValueError, match="n must be a whole number of at least 1"):
        energy.sample(0)


def test_score_of_mixed_is_bounded_and_periodic() -> None:
    energy = Mixed()
    x = points(energy, 5000)
    for i in (0, 1):
        ends = [x.clone() for _ in range(2)]
        ends[0][:, i], ends[1][:, i] = -math.pi, math.pi
        torch.testing.assert_close(energy.force(ends[0]), energy.force(ends[1]), rtol=1e-9, atol=1e-9)
    for i in (2, 3):
        for end in (energy.domains[i].low, energy.domains[i].high):
            at, inside = x.clone(), x.clone()
            at[:, i], inside[:, i] = end, end + 1e-9 * (1 if end == energy.domains[i].low else -1)
            torch.testing.assert_close(energy.force(at), energy.force(inside), rtol=1e-6, atol=1e-6)
    assert energy.force(x).abs().max() < 200


def test_mixed_reaches_both_ends_of_its_intervals() -> None:
    energy = Mixed()
    x = energy.sample(20_000, torch.Generator().manual_seed(6))
    for i in (2, 3):
        unit = (x[:, i] - energy.domains[i].low) / energy.domains[i].length
        for near in (unit < 0.05, unit > 0.95):
            assert near.double().mean() > 0.01
