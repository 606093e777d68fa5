"""Slow, naive, independent implementations: Cox-de Boor recursion, SciPy, mpmath, the printed formulas."""

import math

import mpmath
import numpy as np
import pytest
import scipy.interpolate
import torch

import knotflow as kf
from knotflow.transforms.basis import evaluate
from knotflow.transforms.roots import bracketed_halley, polynomial_root
from tests.transforms.registry import BSPLINES, BUMPS, RATIONAL_QUADRATICS, draw


@pytest.mark.parametrize("name", BSPLINES)
def test_scipy_agrees_on_value_and_slope(name: str) -> None:
    f = BSPLINES[name]
    _, raw = draw(f, 3, 2.0)
    x = torch.linspace(f.domain.low, f.domain.high, 301, dtype=torch.float64)
    t, alpha = f.knots(raw)
    assert t.shape[-1] == alpha.shape[-1] + f.order
    for i in range(3):
        theirs = scipy.interpolate.BSpline(t[i].numpy(), alpha[i].numpy(), f.order - 1)
        y, ladj = f.forward(x, raw[i])
        assert np.abs(theirs(x.numpy()) - y.numpy()).max() <= 1e-12 * max(1.0, f.domain.length)
        slopes = theirs.derivative()(x.numpy()[1:-1])
        assert np.abs(np.log(slopes) - ladj.numpy()[1:-1]).max() <= 1e-9


def cox_de_boor(t: np.ndarray, j: int, k: int, x: float) -> float:
    """The paper's equations 3.1.1 to 3.1.3, on a sequence ``t``, right-continuous."""
    if k == 1:
        return 1.0 if t[j] <= x < t[j + 1] else 0.0
    left = (x - t[j]) / (t[j + k - 1] - t[j]) * cox_de_boor(t, j, k - 1, x)
    right = (t[j + k] - x) / (t[j + k] - t[j + 1]) * cox_de_boor(t, j + 1, k - 1, x)
    return left + right


def algorithm_1(raw: np.ndarray, bins: int, k: int, eps_t: float, eps_alpha: float):
    """Algorithm 1 line by line, on [0, 1]; indices shifted so that arrays start at 0.

    One more knot on each side completes the outermost B-splines; it does not act on [0, 1].
    """
    n_t, n_alpha = bins + 2 * k - 4, bins + k - 2
    dt, dalpha = (np.exp(part) / np.exp(part).sum() for part in (raw[:n_t], raw[n_t:]))
    dt = eps_t + (1 - n_t * eps_t) * dt
    dt = dt / dt[k - 2 : k - 2 + bins].sum()
    t = np.concatenate([[0.0], np.cumsum(dt)])
    t = t - t[k - 2]
    t = np.concatenate([[t[0] - 0.3], t, [t[-1] + 0.3]])
    dalpha = eps_alpha + (1 - n_alpha * eps_alpha) * dalpha
    alpha = np.concatenate([[0.0], np.cumsum(dalpha)])
    first = k - 1  # t[first] = 0, t[first + bins] = 1

    def spline(x: float, a: np.ndarray) -> float:
        return sum(a[j] * cox_de_boor(t, j, k, x) for j in range(len(a)))

    f_r, f_s = spline(t[first], alpha), spline(t[first + bins] - 1e-15, alpha)
    return lambda x: spline(x, (alpha - f_r) / (f_s - f_r))


@pytest.mark.parametrize("order", [3, 4, 5, 6])
@pytest.mark.parametrize("bins", [1, 2, 3, 6])
def test_paper_parametrisation_is_algorithm_1(order: int, bins: int) -> None:
    f = kf.BSpline(bins, order, kf.Interval(), parametrisation=kf.Paper(min_width=1e-4, min_rise=1e-4))
    raw = torch.randn(f.n_parameters, dtype=torch.float64, generator=torch.manual_seed(order + 10 * bins))
    theirs = algorithm_1(raw.numpy(), bins, order, 1e-4, 1e-4)
    x = torch.linspace(0.0, 1.0, 41, dtype=torch.float64)[:-1]
    y, _ = f.forward(x, raw)
    assert np.abs(np.array([theirs(float(v)) for v in x]) - y.numpy()).max() < 1e-11


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_polynomial_roots_agree_with_mpmath(size: int, spread: float) -> None:
    generator = torch.manual_seed(size)
    d = torch.exp(spread * torch.randn(size, 12, dtype=torch.float64, generator=generator))
    u = torch.rand(12, dtype=torch.float64, generator=generator)
    u[:3] = torch.tensor([0.0, 1.0, 0.5])
    target = evaluate(list(d), u)[0]
    found, slope = polynomial_root(list(d), target)
    degree = size - 1
    for i in range(12):
        with mpmath.workdps(40):
            terms = [mpmath.mpf(float(d[j, i])) * mpmath.binomial(degree, j) for j in range(size)]
            power = [
                mpmath.fsum(
                    terms[j] * mpmath.binomial(degree - j, m - j) * (-1) ** (m - j) for j in range(m + 1)
                )
                for m in range(size)
            ]
            rise = [c / (m + 1) for m, c in enumerate(power)]
            roots = mpmath.polyroots(
                [*rise[::-1], -mpmath.mpf(float(target[i]))], maxsteps=500, extraprec=400
            )
            exact = min(roots, key=lambda root: abs(root - float(u[i])))
            assert abs(float(exact.real) - float(found[i])) * float(slope[i]) <= 1e-14 * float(d[:, i].max())
            exact_slope = mpmath.polyval(power[::-1], exact.real)
            assert abs(float(exact_slope) / float(slope[i]) - 1) <= 1e-9


def test_bracketed_search_survives_a_bad_guess_and_a_cliff() -> None:
    """A slope of 1e-3 with a jump of 1 within 1e-3: plain Halley steps alone would leave the interval."""

    def cliff(x: torch.Tensor):
        z = (x - 0.7) / 1e-3
        s = torch.sigmoid(z)
        curve = s * (1 - s) / 1e-3
        return 1e-3 * x + s, 1e-3 + curve, curve * (1 - 2 * s) / 1e-3

    target = torch.linspace(1e-4, 1.0, 50, dtype=torch.float64)
    root = bracketed_halley(cliff, target, torch.zeros(50, dtype=torch.float64), steps=80, trust=1e-6)
    value, slope, _ = cliff(root)
    ulp = torch.finfo(torch.float64).eps  # x is rounded, and the slope multiplies that
    assert ((value - target).abs() <= ulp * slope.clamp(min=1.0)).all()


@pytest.mark.parametrize("name", RATIONAL_QUADRATICS)
def test_rational_quadratic_formula(name: str) -> None:
    """Equation 4 of Durkan et al., scalar by scalar, from softmax and softplus in numpy."""
    f = RATIONAL_QUADRATICS[name]
    x, raw = draw(f, 40)
    y, ladj = f.forward(x, raw)
    n, low, span = f.bins, f.domain.low, f.domain.length
    for i in range(2, 40):
        r = raw[i].numpy()
        widths, heights = (
            span * (0.1 / n + 0.9 * np.exp(part) / np.exp(part).sum()) for part in (r[:n], r[n : 2 * n])
        )
        slopes = 0.01 + np.log1p(np.exp(r[2 * n :] + math.log(math.expm1(0.99))))
        if isinstance(f.domain, kf.Circle):
            slopes = np.append(slopes, slopes[0])
        elif isinstance(f.domain, kf.Line):
            slopes = np.concatenate([[1.0], slopes, [1.0]])
        xs, ys = low + np.append(0, np.cumsum(widths)), low + np.append(0, np.cumsum(heights))
        k = min(int(np.searchsorted(xs, float(x[i]), side="right")) - 1, n - 1)
        s, xi = heights[k] / widths[k], (float(x[i]) - xs[k]) / widths[k]
        denominator = s + (slopes[k + 1] + slopes[k] - 2 * s) * xi * (1 - xi)
        expected = ys[k] + heights[k] * (s * xi**2 + slopes[k] * xi * (1 - xi)) / denominator
        top = slopes[k + 1] * xi**2 + 2 * s * xi * (1 - xi) + slopes[k] * (1 - xi) ** 2
        assert abs(float(y[i]) - expected) < 1e-12
        assert abs(float(ladj[i]) - math.log(s**2 * top / denominator**2)) < 1e-10


@pytest.mark.parametrize("name", BUMPS)
def test_bump_formula(name: str) -> None:
    """The printed formula with mpmath, five points of each map."""
    f = BUMPS[name]
    x, raw = draw(f, 5, seed=4)
    y, _ = f.forward(x, raw)
    n, periodic = f.components, isinstance(f.domain, kf.Circle)

    def rho(z, alpha):
        return mpmath.exp(-1 / (alpha * z)) if z > 0 else mpmath.mpf(0)

    def sigma(z, alpha):
        return rho(z, alpha) / (rho(z, alpha) + rho(1 - z, alpha))

    for i in range(5):
        w, shape, shift, scale, offset = raw[i].numpy().reshape(5, n)
        w = np.exp(w) / np.exp(w).sum()
        z, total = (float(x[i]) - f.domain.low) / f.domain.length, 0.0
        for j in range(n):
            alpha = 10.0 ** math.tanh(shape[j] / math.log(10))
            place = (j + 0.5) / n
            b = 1 / (1 + math.exp(-(shift[j] + math.log(place / (1 - place)))))
            a = 1 + math.log1p(math.exp(scale[j]))
            c = 0.01 + 0.99 / (1 + math.exp(-offset[j]))
            images = (-1, 0, 1) if periodic else (0,)

            def g(z, a=a, b=b, alpha=alpha, images=images):
                return mpmath.fsum(sigma(a * (z - b + m) + 0.5, alpha) for m in images)

            total += w[j] * (c * z + (1 - c) * (g(z) - g(0)) / (g(1) - g(0)))
        assert abs(float(y[i]) - (f.domain.low + f.domain.length * float(total))) < 1e-11
