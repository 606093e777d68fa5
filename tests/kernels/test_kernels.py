"""The kernels against the definition in torch: values, first and second derivatives, in both directions."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import knotflow as kf
from knotflow.kernels import ops
from knotflow.kernels.library import native, supported
from knotflow.transforms import Chain

DOMAINS = {
    "interval": kf.Interval(-1.0, 2.0),
    "circle": kf.Circle(-math.pi, math.pi),
    "line": kf.Line(-3.0, 2.0),
}
FAMILIES: dict[str, kf.Transform] = {
    f"{parametrisation}-{name}-k{order}-n{bins}": kf.BSpline(
        bins, order, domain, parametrisation=parametrisation
    )
    for (parametrisation, (name, domain), order), bins in zip(
        itertools.product(("slopes", "paper"), DOMAINS.items(), ops.ORDERS),
        itertools.cycle((3, 8, 33, 4, 17)),
        strict=False,
    )
}
FAMILIES |= {
    f"phase-k{order}-n{bins}": kf.BSpline(bins, order, DOMAINS["circle"], phase=True)
    for order, bins in zip(ops.ORDERS, (1, 5, 32), strict=True)
}
FAMILIES |= {
    f"affine-k{order}-n{bins}": Chain([kf.Affine(20.0), kf.BSpline(bins, order, DOMAINS["line"])])
    for order, bins in zip(ops.ORDERS, (3, 8, 20), strict=True)
}
FAMILIES |= {
    f"rq-{name}-n{bins}": kf.RationalQuadratic(bins, domain)
    for (name, domain), bins in itertools.product(DOMAINS.items(), (1, 8, 33))
}
EVERY = pytest.mark.parametrize("name", FAMILIES)
POINTS = 83  # no multiple of any number of lanes

pytestmark = pytest.mark.skipif(native() is None, reason="no kernels were built")
Map = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def draw(f: kf.Transform, n: int, scale: float = 1.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points all over the domain, its ends and, for a line or a circle, points outside; in float64."""
    generator = torch.Generator().manual_seed(seed)
    low, length = f.domain.low, f.domain.length
    x = low + length * torch.rand(n, generator=generator, dtype=torch.float64)
    ends = torch.tensor([low, f.domain.high], dtype=torch.float64)
    x[: min(2, n)] = ends[: min(2, n)]
    if n > 6 and not isinstance(f.domain, kf.Interval):
        x[2:6] = torch.tensor([low - 0.3, low - 7.0, f.domain.high + 0.1, f.domain.high + 30.0])
    return x, scale * torch.randn(n, f.n_parameters, generator=generator, dtype=torch.float64)


def maps(f: kf.Transform) -> Iterator[tuple[Map, Map]]:
    """Kernel and definition, of both directions."""
    yield f.forward, in_torch(f.forward)
    yield f.inverse, in_torch(f.inverse)


def in_torch(function: Map) -> Map:
    """The same without kernels."""

    def definition(x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        with ops.disabled():
            return function(x, raw)

    return definition


def everything(function: Map, x: Tensor, raw: Tensor) -> list[Tensor]:
    """Values, gradients of a random combination, and gradients of a random combination of those."""
    generator = torch.Generator().manual_seed(7)
    x, raw = x.clone().requires_grad_(), raw.clone().requires_grad_()
    g = torch.randn(2, *x.shape, generator=generator, dtype=torch.float64).to(x)
    h = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
    h_raw = torch.randn(raw.shape, generator=generator, dtype=torch.float64).to(x)
    values = function(x, raw)
    first = torch.autograd.grad(values, (x, raw), tuple(g), create_graph=True)
    second = torch.autograd.grad(first, (x, raw), (h, h_raw))
    return [part.detach() for part in (*values, *first, *second)]


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Within a tolerance of the largest value of each, or of 1 if all are small."""
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert (a.double() - b.double()).abs().max() <= tolerance * b.abs().max().clamp(min=1.0)


def test_these_families_have_kernels() -> None:
    assert ops.prepare()
    assert all(f.kernel is not None for f in FAMILIES.values())
    for f in (kf.BSpline(8, 6), kf.BSpline(2, 5, parametrisation="paper"), Chain([kf.Affine()])):
        assert f.kernel is None


@EVERY
def test_kernels_equal_the_definition(name: str) -> None:
    f = FAMILIES[name]
    x, raw = draw(f, POINTS)
    for kernel, definition in maps(f):
        assert_close(everything(kernel, x, raw), everything(definition, x, raw), 1e-9)


@EVERY
def test_float32_is_float64_up_to_rounding(name: str) -> None:
    """Bins are widest where raw parameters are small, so slopes and curvatures stay moderate."""
    f = FAMILIES[name]
    x, raw = (part.float() for part in draw(f, POINTS, 0.5))
    x[0] += f.domain.length / 1e3  # the ends have the derivatives of one side only, and of either on a circle
    x[1] -= f.domain.length / 1e3
    if not isinstance(f.domain, kf.Circle):
        x[2:6] = x[6:10]
    for kernel, definition in maps(f):
        values = everything(kernel, x, raw)
        assert_close(values[:2], everything(definition, x.double(), raw.double())[:2], 2e-5)
        # A point within rounding of a knot may take the other piece, whose curvature is another for k = 3.
        if f.smoothness > 1:
            assert_close(values[2:4], everything(definition, x.double(), raw.double())[2:4], 2e-3)


@EVERY
@pytest.mark.parametrize("scale", [30.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_extreme_parameters(name: str, scale: float, dtype: torch.dtype) -> None:
    """Finite, onto, and the value of the definition."""
    f = FAMILIES[name]
    x, raw = (part.to(dtype) for part in draw(f, 500, scale))
    for kernel, definition in maps(f):
        found, expected = everything(kernel, x, raw), definition(x.double(), raw.double())
        assert all(part.isfinite().all() for part in found)
        # Slopes of B-splines reach 200: that many roundings of a knot, or of a point that an affine map moved
        # far away. Those of rational quadratics have no bound.
        reach = expected[0].abs().clamp(min=f.domain.length) * expected[1].exp().clamp(min=1.0)
        worst = 400 * 8 * torch.finfo(dtype).eps * reach
        assert (f.domain.distance(found[0].double(), expected[0]) <= worst).all()


@EVERY
@pytest.mark.parametrize("isa", supported(native()) if native() is not None else [])
def test_all_instruction_sets_agree(name: str, isa: str) -> None:
    library = native()
    assert library is not None
    f = FAMILIES[name]
    x, raw = draw(f, POINTS)
    before = library.knotflow_isa()
    try:
        assert library.knotflow_use(isa.encode()) == 0
        for kernel, definition in maps(f):
            assert_close(everything(kernel, x, raw), everything(definition, x, raw), 1e-9)
            single = everything(kernel, x.float(), raw.float())
            assert all(part.isfinite().all() for part in single)
    finally:
        library.knotflow_use(before)


@pytest.mark.parametrize("order", ops.ORDERS)
def test_images_near_an_end_keep_their_place(order: int) -> None:
    """What rounding puts beyond the end is moved back to it, and lost: so sums of bins must be right.

    The way back is a few ulps of the image divided by the slope; plain sums gave 10 to 18.
    """
    f = kf.BSpline(32, order, parametrisation="paper")
    generator = torch.Generator().manual_seed(order)
    raw = 10 * torch.randn(200_000, f.n_parameters, generator=generator)
    raw[:, -3:] = -20.0  # the last rises are as small as they can be
    x = 1 - 1e-3 * torch.rand(len(raw), generator=generator)
    y, ladj = f.forward(x, raw)
    way = (f.inverse(y, raw)[0] - x).abs() * ladj.exp()
    assert way.max() <= 6 * 2.0**-24


@settings(deadline=None, max_examples=60)
@given(
    order=st.sampled_from(ops.ORDERS),
    bins=st.integers(3, 40),
    domain=st.sampled_from(list(DOMAINS)),
    parametrisation=st.sampled_from(["slopes", "paper"]),
    n=st.integers(1, 70),
    scale=st.floats(0.0, 5.0),
    seed=st.integers(0, 2**31),
)
def test_any_family(
    order: int, bins: int, domain: str, parametrisation: str, n: int, scale: float, seed: int
) -> None:
    f = kf.BSpline(bins, order, DOMAINS[domain], parametrisation=parametrisation)
    x, raw = draw(f, n, scale, seed)
    for kernel, definition in maps(f):
        assert_close(everything(kernel, x, raw)[:4], everything(definition, x, raw)[:4], 1e-8)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 127, 128, 129, 1_000, 300_007])
def test_results_do_not_depend_on_batches_or_threads(n: int) -> None:
    """A point has the same bits alone, in any batch, and on any number of threads."""
    f = kf.BSpline(8, 4, DOMAINS["circle"])
    x, raw = draw(f, n)
    x, raw = x.float(), raw.float()
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append([*f.forward(x, raw), *f.inverse(x, raw)])
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        assert one.shape == (n,)
        assert torch.equal(one, two)
    for i in {0, n // 2, n - 1} & set(range(n)):
        alone = [*f.forward(x[i], raw[i]), *f.inverse(x[i], raw[i])]
        assert all(torch.equal(part, whole[i]) for part, whole in zip(alone, results[0], strict=True))


def test_any_strides_and_shapes() -> None:
    f = kf.BSpline(20, 4, DOMAINS["interval"])
    x, raw = draw(f, 60)
    plain = everything(f.forward, x, raw)
    p = f.n_parameters
    wide = torch.zeros(60, p + 5, dtype=torch.float64)
    wide[:, 3 : 3 + p] = raw
    layouts = {
        "columns": (x, raw.T.contiguous().T),
        "a slice of columns": (x, wide[:, 3 : 3 + p]),
        "every other row": (x.repeat_interleave(2)[::2], raw.repeat_interleave(2, 0)[::2]),
        "three axes": (x.reshape(3, 4, 5), raw.reshape(3, 4, 5, p)),
        "three axes, transposed": (x.reshape(3, 20).T, raw.reshape(3, 20, p).transpose(0, 1)),
    }
    for name, (points, parameters) in layouts.items():
        y, ladj = f.forward(points, parameters)
        assert y.shape == points.shape, name
        if name == "three axes, transposed":
            y, ladj = y.T, ladj.T
        assert torch.equal(y.reshape(-1), plain[0]), name
        assert torch.equal(ladj.reshape(-1), plain[1]), name
        if points.ndim == 1:
            assert_close(everything(f.forward, points, parameters), plain, 1e-12)
    # Raw parameters that points share get the sum of their gradients.
    shared = raw[:3].clone().requires_grad_()
    y, _ = f.forward(x.reshape(3, 20), shared[:, None])
    (gradient,) = torch.autograd.grad(y.square().sum(), shared)
    y, _ = in_torch(f.forward)(x.reshape(3, 20), shared[:, None])
    (expected,) = torch.autograd.grad(y.square().sum(), shared)
    assert torch.allclose(gradient, expected, atol=1e-10)


def test_not_a_number_stays_so_and_touches_nothing_else() -> None:
    f = kf.BSpline(8, 4, DOMAINS["line"])
    x, raw = draw(f, 40)
    clean = [*f.forward(x, raw), *f.inverse(x, raw)]
    x[7], raw[9, 3], raw[11, -1] = math.nan, math.nan, math.inf
    spoilt = [*f.forward(x, raw), *f.inverse(x, raw)]
    for before, after in zip(clean, spoilt, strict=True):
        kept = torch.ones(40, dtype=torch.bool)
        kept[[7, 9, 11]] = False
        assert torch.equal(before[kept], after[kept])
        assert not after[[7, 9]].isfinite().any()


@pytest.mark.parametrize("name", ["slopes-circle-k4", "paper-interval-k5", "affine-k4", "rq-interval-n8"])
def test_third_derivatives(name: str) -> None:
    f = next(f for key, f in FAMILIES.items() if key.startswith(name))
    x, raw = (part[10:14] for part in draw(f, 20))

    def third(function: Map) -> Tensor:
        def energy(x: Tensor, raw: Tensor) -> Tensor:
            y, ladj = function(x, raw)
            return (y.sin() + ladj).sum()

        def squared_force(x: Tensor, raw: Tensor) -> Tensor:
            return torch.func.grad(energy)(x, raw).square().sum()

        def squared_bend(raw: Tensor) -> Tensor:
            return torch.func.grad(squared_force)(x, raw).square().sum()

        result: Tensor = torch.func.grad(squared_bend)(raw)
        return result

    for kernel, definition in maps(f):
        assert_close([third(kernel)], [third(definition)], 1e-8)


def test_vmap_and_forward_mode_inside_and_outside() -> None:
    f = kf.BSpline(8, 4, DOMAINS["circle"], phase=True)
    x, raw = draw(f, 12)
    for kernel, definition in maps(f):
        slopes = torch.func.vmap(torch.func.grad(lambda x, raw, f=kernel: f(x, raw)[0]))(x, raw)
        assert torch.allclose(slopes, definition(x, raw)[1].exp(), rtol=1e-9)
        hessian = torch.func.hessian(lambda raw, f=kernel: f(x[0], raw)[1])(raw[0])
        expected = torch.func.hessian(lambda raw, f=definition: f(x[0], raw)[1])(raw[0])
        assert torch.allclose(hessian, expected, atol=1e-8)
        shared = torch.func.vmap(lambda x, f=kernel: f(x, raw[0])[0])(x)
        assert torch.allclose(shared, definition(x, raw[0])[0], atol=1e-12)


def test_operators_are_what_torch_expects() -> None:
    """Schemas and fake tensors, by torch's own check; derivatives belong to the transform."""
    f = kf.BSpline(8, 4)
    assert isinstance(f.kernel, ops.SplineKernel)
    x, raw = draw(f, 10)
    spec = f.kernel.spec
    utilities = ("test_schema", "test_faketensor")
    for arguments in ((x, raw), (x, raw, x, x), (x, raw, x, x, x, raw)):
        name = {2: "spline", 4: "spline_backward", 6: "spline_double_backward"}[len(arguments)]
        operator = getattr(torch.ops.knotflow, name)
        torch.library.opcheck(operator.default, (*arguments, *spec), test_utils=utilities)
    for name, arguments in (("spline_inverse", (x, raw)), ("spline_inverse_backward", (x, raw, x, x))):
        operator = getattr(torch.ops.knotflow, name)
        torch.library.opcheck(operator.default, (*arguments, *spec), test_utils=utilities)
    with pytest.raises(RuntimeError, match="call the transform"):
        torch.ops.knotflow.spline(x.requires_grad_(), raw, *spec)[0].sum().backward()


def test_a_point_outside_an_interval_is_refused() -> None:
    f = kf.BSpline(8, 4)
    with pytest.raises(ValueError, match="expected points of the interval"):
        f.forward(torch.tensor([0.5, 1.5]), torch.zeros(f.n_parameters))


def test_half_precision_and_other_orders_take_the_definition() -> None:
    f = kf.BSpline(8, 4)
    x, raw = draw(f, 10)
    y, _ = f.forward(x.bfloat16(), raw.bfloat16())
    assert y.dtype == torch.bfloat16
    assert f.forward(x.float(), raw)[0].dtype == torch.float32


@pytest.mark.slow
def test_they_can_be_turned_off() -> None:
    code = (
        "import torch, knotflow as kf; from knotflow.kernels.library import engine; f = kf.BSpline(4); "
        "x = torch.full((3,), 0.5); y, _ = f.forward(x, torch.zeros(10)); "
        "print(f.kernel.takes(x, x), engine(), y[0])"
    )
    environment = {**os.environ, "KNOTFLOW_KERNELS": "off"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("False torch (no native kernels: turned off")
    assert "0.5" in done.stdout
