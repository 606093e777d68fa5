r"""The kernels as torch operators, with derivatives.

With $\varphi = \bar y\, y + \bar\ell\, \ell$ for the image $y$ and the log-slope $\ell$ of a point $x$,

* ``spline`` returns $(y, \ell)$;
* ``spline_backward`` returns the gradient $\nabla\varphi$ with respect to $x$ and the raw parameters;
* ``spline_double_backward`` takes a direction $h$ in these, and returns the gradient of
  $h \cdot \nabla\varphi$ with respect to $x$, the raw parameters, $\bar y$ and $\bar\ell$. Force matching
  needs it. It is the kernel of ``spline_backward`` on dual numbers;
* ``spline_inverse`` and ``spline_inverse_backward`` do the same for $x = f^{-1}(y)$ and $-\ell$.

Each is one pass over the raw parameters. Second derivatives of the inverse are composed of the forward
operators. Third derivatives come from the definition in torch, which the family gives to its kernel.

All operators work on CPU tensors of float32 or float64: points of any shape (...), raw parameters (..., p).
They support fake tensors, ``torch.compile``, ``torch.func.grad`` and ``vmap``. Forward-mode derivatives, and
``torch.func`` inside ``torch.compile``, use the definition instead.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad

from knotflow.kernels.library import native, tell_once

Pair = tuple[Tensor, Tensor]
Definition = Callable[[Tensor, Tensor], Pair]
"""Maps points and raw parameters to images and log-slopes, in pure torch."""

ORDERS: Final = (3, 4, 5)
DTYPES: Final = (torch.float32, torch.float64)


class SplineKernel(NamedTuple):
    """The kernel of a family of splines: seven integers, seven floats and the definition."""

    family: int
    """0: B-splines, 1: rational quadratics."""
    bins: int
    domain: int
    """0: interval, 1: circle, 2: line."""
    n_parameters: int
    order: int = 0
    """Order of B-splines."""
    parametrisation: int = 0
    """0: slopes, 1: paper."""
    phase: int = 0
    low: float = 0.0
    high: float = 1.0
    width_floor: float = 0.0
    """Smallest share of a width."""
    rise_floor: float = 0.0
    """Smallest share of a rise (paper) or of a height (rational quadratics)."""
    min_slope: float = 0.1
    """Bounds of slopes before normalisation (slopes); rational quadratics only use the lower one."""
    max_slope: float = 20.0
    affine: float = 0.0
    """On a line: bound of the log-scale of an affine map before the spline; 0 if there is none."""
    definition: Definition | None = None
    """The map in torch, from which third derivatives are taken."""

    @property
    def spec(self) -> tuple[list[int], list[float]]:
        """The arguments of operators: integers, and floats."""
        numbers: list[Any] = list(self[:-1])
        return numbers[:7], numbers[7:]

    @property
    def exists(self) -> bool:
        """Whether the library has this kernel."""
        clamps = self.domain == 0 and self.parametrisation == 1
        return self.family == 1 or (self.order in ORDERS and (not clamps or self.bins >= self.order - 2))

    def after_affine(self, bound: float, definition: Definition) -> SplineKernel | None:
        """The kernel of an affine map followed by this spline, with the parameters of both; lines only."""
        if self.family or self.domain != 2 or self.affine:
            return None
        return self._replace(affine=bound, n_parameters=self.n_parameters + 2, definition=definition)

    def takes(self, x: Tensor, raw: Tensor) -> bool:
        """Whether the kernel handles these tensors; if not, the definition in torch must."""
        if x.device.type != "cpu" or raw.device.type != "cpu" or x.dtype not in DTYPES:
            return False
        if torch.compiler.is_compiling():
            # torch.compile cannot trace our autograd functions inside torch.func.
            return bool(_ready) and not torch._C._are_functorch_transforms_active()
        if not prepare():  # a flow that was sent to this process has not loaded them yet
            tell_once()
            return False
        return bool(forward_ad._current_level < 0)

    def forward(self, x: Tensor, raw: Tensor) -> Pair:
        """Images and log-slopes of points (...), for raw parameters that broadcast to (..., p)."""
        y, ladj = _apply(_Forward, x, raw.expand(*x.shape, -1), self)
        return y, ladj

    def inverse(self, y: Tensor, raw: Tensor) -> Pair:
        """Preimages of points, and log-slopes of the inverse."""
        x, ladj = _apply(_Inverse, y, raw.expand(*y.shape, -1), self)
        return x, ladj


class _Call(ctypes.Structure):
    """``struct Call`` of call.hpp."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("operation", "is_double", "family", "order")],
        *[(name, ctypes.c_int32) for name in ("domain", "parametrisation", "phase", "bins", "threads")],
        *[(name, ctypes.c_int64) for name in ("points", "raw_stride", "hraw_stride")],
        *[(name, ctypes.c_double) for name in ("low", "high", "width_floor", "rise_floor")],
        *[(name, ctypes.c_double) for name in ("min_slope", "max_slope", "affine")],
        *[(name, ctypes.c_void_p) for name in ("x", "raw", "gy", "gl", "hx", "hraw")],
        *[(name, ctypes.c_void_p) for name in ("y", "ladj", "gx", "graw")],
    ]


_FORWARD, _BACKWARD, _DOUBLE_BACKWARD, _INVERSE, _INVERSE_BACKWARD = range(5)
_FAILURES: Final = {1: "this operation or order has no kernel", 2: "out of memory"}

_ready: bool | None = None


def prepare() -> bool:
    """Load the kernels if that is not done yet, and say whether there are any."""
    global _ready
    if _ready is None:
        _ready = native() is not None
    return _ready


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Use the definitions in torch instead of kernels within this block."""
    global _ready
    before, _ready = _ready, False
    try:
        yield
    finally:
        _ready = before


def _run(
    operation: int,
    kernel: SplineKernel,
    x: Tensor,
    raw: Tensor,
    *others: Tensor | None,
    with_raw: bool = True,
) -> Any:
    """Call a kernel. ``others`` are gy, gl, and directions in x and in raw; the last may be None.

    Without ``with_raw`` the gradient with respect to the raw parameters is None.
    """
    library = native()
    if library is None:
        raise RuntimeError("knotflow has no native kernels here; see knotflow.kernels.library.engine().")
    points = [x.contiguous(), *(part.contiguous() for part in others[:3] if part is not None)]
    rows = [_rows(part) for part in (raw, *others[3:]) if part is not None]
    new: dict[str, Tensor | None] = {}
    if operation not in (_FORWARD, _INVERSE):
        new |= {"gx": torch.empty_like(points[0]), "graw": x.new_empty(raw.shape) if with_raw else None}
    if operation not in (_BACKWARD, _INVERSE_BACKWARD):
        new |= {"y": torch.empty_like(points[0]), "ladj": torch.empty_like(points[0])}
    given = dict(zip(("x", "gy", "gl", "hx"), points, strict=False))
    call = _Call(
        *(operation, x.dtype == torch.float64, kernel.family, kernel.order, kernel.domain),
        *(kernel.parametrisation, kernel.phase, kernel.bins, torch.get_num_threads()),
        *(x.numel(), rows[0].stride(0), rows[-1].stride(0)),
        *kernel.spec[1],
        raw=rows[0].data_ptr(),
        hraw=rows[1].data_ptr() if len(rows) > 1 else None,
        **{name: part.data_ptr() for name, part in (given | new).items() if part is not None},
    )
    failure = library.knotflow_run(ctypes.byref(call)) if x.numel() else 0
    if failure:
        raise RuntimeError(f"a kernel of knotflow failed: {_FAILURES.get(failure, failure)}.")
    return tuple(new.values())


def _rows(raw: Tensor) -> Tensor:
    """Raw parameters as contiguous rows (points, p); a row that points share is not copied."""
    rows = raw.reshape(-1, raw.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


# ---- the operators

_library = torch.library.Library("knotflow", "DEF")


def _operator(number: int, name: str, takes: str, shapes: str) -> Any:
    """Register an operator: its kernel on the CPU, and the shapes of its results on fake tensors."""
    tensors = ", ".join(f"Tensor {tensor}" for tensor in takes.split())
    results = ", ".join("Tensor" for _ in shapes.split())
    _library.define(f"{name}({tensors}, int[] sizes, float[] numbers) -> ({results})")

    def on_cpu(*arguments: Any) -> Any:
        *tensors, sizes, numbers = arguments
        return _run(number, SplineKernel(*sizes, *numbers), *tensors)

    def on_fakes(x: Tensor, raw: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        return tuple(x.new_empty((x if like == "x" else raw).shape) for like in shapes.split())

    def refuse(*arguments: Any) -> Any:
        raise RuntimeError("knotflow's operators cannot be differentiated on their own; call the transform.")

    _library.impl(name, on_cpu, "CPU")
    torch.library.register_fake(f"knotflow::{name}", on_fakes, lib=_library)
    torch.library.register_autograd(f"knotflow::{name}", refuse, lib=_library)
    return getattr(torch.ops.knotflow, name)


_OPERATORS: Final = [
    _operator(_FORWARD, "spline", "x raw", "x x"),
    _operator(_BACKWARD, "spline_backward", "x raw gy gl", "x raw"),
    _operator(_DOUBLE_BACKWARD, "spline_double_backward", "x raw gy gl hx hraw", "x raw x x"),
    _operator(_INVERSE, "spline_inverse", "y raw", "x x"),
    _operator(_INVERSE_BACKWARD, "spline_inverse_backward", "x raw gx gl", "x raw"),
]


def _compute(operation: int, kernel: SplineKernel, *tensors: Tensor | None, with_raw: bool = True) -> Any:
    """Call the kernel directly for plain tensors; for all others, as an operator that torch can trace."""
    x, raw, *others = tensors
    if type(x) is Tensor and raw is not None and not torch.compiler.is_compiling():
        return _run(operation, kernel, x, raw, *others, with_raw=with_raw)
    return _OPERATORS[operation](*tensors, *kernel.spec)


# ---- derivatives


class _PointByPoint(torch.autograd.Function):
    """Base of the functions below, whose arguments are tensors and then the kernel."""

    def __init_subclass__(cls) -> None:
        cls.vmap = staticmethod(partial(_batched, cls))  # type: ignore[method-assign]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.kernel = inputs
        ctx.save_for_backward(*tensors)


def _in_plain_autograd() -> bool:
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def _wants_raw(ctx: Any) -> bool:
    """Whether autograd will use the gradient with respect to the raw parameters."""
    node = ctx.next_functions[1][0]
    return not _in_plain_autograd() or (node is not None and torch._C._will_engine_execute_node(node))


def _apply(function: Any, *arguments: Any) -> Any:
    """``function.apply``, without its work for torch.func where that is not in use: half of the time."""
    if not _in_plain_autograd():
        return function.apply(*arguments)
    return super(torch.autograd.Function, function).apply(*unwrap_dead_wrappers(arguments))


def _batched(function: Any, info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
    """The ``vmap`` rule: one more leading axis for all tensors."""
    *tensors, kernel = arguments
    results = _apply(function, *_with_batch_axis(info, in_dims, tensors), kernel)
    return results, (0,) * len(results)


def _with_batch_axis(info: Any, in_dims: tuple[int | None, ...], tensors: Sequence[Tensor]) -> list[Tensor]:
    return [
        part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)
        for part, dim in zip(tensors, in_dims, strict=False)
    ]


class _Forward(_PointByPoint):
    @staticmethod
    def forward(x: Tensor, raw: Tensor, kernel: SplineKernel) -> Any:
        return _compute(_FORWARD, kernel, x, raw)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return *_apply(_Backward, *ctx.saved_tensors, *g, _wants_raw(ctx), ctx.kernel), None


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, raw: Tensor, gy: Tensor, gl: Tensor, with_raw: bool, kernel: SplineKernel) -> Any:
        return _compute(_BACKWARD, kernel, x, raw, gy, gl, with_raw=with_raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, _, ctx.kernel = inputs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)  # raw parameters often do not move: no zeros for them

    @staticmethod
    def backward(ctx: Any, hx: Any, hraw: Any) -> Any:
        x, raw, _, _ = ctx.saved_tensors
        hx = torch.zeros_like(x) if hx is None else hx
        if hraw is None and not (_in_plain_autograd() and type(x) is Tensor):
            hraw = torch.zeros_like(raw)
        return *_apply(_DoubleBackward, *ctx.saved_tensors, hx, hraw, ctx.kernel), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        *tensors, with_raw, kernel = arguments
        tensors = _with_batch_axis(info, in_dims, tensors)
        return _apply(_Backward, *tensors, with_raw, kernel), (0, 0 if with_raw else None)


class _DoubleBackward(_PointByPoint):
    @staticmethod
    def forward(
        x: Tensor,
        raw: Tensor,
        gy: Tensor,
        gl: Tensor,
        hx: Tensor,
        hraw: Tensor | None,
        kernel: SplineKernel,
    ) -> Any:
        return _compute(_DOUBLE_BACKWARD, kernel, x, raw, gy, gl, hx, hraw)

    @staticmethod
    def backward(ctx: Any, *h: Any) -> Any:
        """Third derivatives, from the definition in torch."""

        def first(x: Tensor, raw: Tensor, *g: Tensor) -> tuple[Tensor, ...]:
            return _gradients(ctx.kernel.definition, (x, raw), g)

        def second(x: Tensor, raw: Tensor, gy: Tensor, gl: Tensor, *h: Tensor) -> tuple[Tensor, ...]:
            return _gradients(first, (x, raw, gy, gl), h)

        *tensors, hraw = ctx.saved_tensors
        gradients = _gradients(second, (*tensors, torch.zeros_like(tensors[1]) if hraw is None else hraw), h)
        return *(gradients if hraw is not None else (*gradients[:-1], None)), None


class _Inverse(_PointByPoint):
    @staticmethod
    def forward(y: Tensor, raw: Tensor, kernel: SplineKernel) -> Any:
        return _compute(_INVERSE, kernel, y, raw)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, raw, ctx.kernel = inputs
        ctx.save_for_backward(output[0], raw)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return *_apply(_InverseBackward, *ctx.saved_tensors, *g, ctx.kernel), None


class _InverseBackward(_PointByPoint):
    @staticmethod
    def forward(x: Tensor, raw: Tensor, gx: Tensor, gl: Tensor, kernel: SplineKernel) -> Any:
        return _compute(_INVERSE_BACKWARD, kernel, x, raw, gx, gl)

    @staticmethod
    def backward(ctx: Any, *h: Any) -> Any:
        r"""Gradient of $s = (\bar x - \bar\ell\,\ell_x)/f'$ and $-s\,\partial f - \bar\ell\,\partial\ell$."""

        def first(x: Tensor, raw: Tensor, gx: Tensor, gl: Tensor) -> Pair:
            def pull(gy: Tensor, gl: Tensor) -> Any:
                return _apply(_Backward, x, raw, gy, gl, True, ctx.kernel)

            one, zero = torch.ones_like(x), torch.zeros_like(x)
            s = (gx - gl * pull(zero, one)[0]) / pull(one, zero)[0]
            return s, pull(-s, -gl)[1]

        return *_gradients(first, ctx.saved_tensors, h), None


def _gradients(
    function: Callable[..., tuple[Tensor, ...]], at: Sequence[Tensor], weights: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Gradients of the weighted sum of a function's results in all its arguments; differentiable again."""
    pull: Any = torch.func.vjp(function, *at)[1]
    found: tuple[Tensor, ...] = pull(weights)
    return found
