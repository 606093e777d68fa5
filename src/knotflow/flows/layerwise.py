r"""Log-densities, scores and their gradients by compiled layers.

Force matching needs the gradient of a loss of the score, a second derivative. Compiling it whole means one
graph that grows with the number of couplings, and minutes of compilation. Here it is reduced to first
derivatives of single couplings: with $s = \nabla_x \log p$, the gradient of any loss $\ell(s)$ in the weights
$\theta$ is that of a directional derivative,

$$\nabla_\theta\, \ell(s(x; \theta)) = \nabla_\theta\, \frac{\partial \log p(x + \varepsilon v; \theta)}
  {\partial \varepsilon}\Big|_{\varepsilon = 0}, \qquad v = \nabla_s \ell(s) \text{ held fixed},$$

and directional derivatives pass through the couplings one after another, forward (Pearlmutter 1994). So every
coupling is compiled on its own, and couplings that differ in their weights and indices only share the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from knotflow.compiled import Compiled, warn_of_failure
from knotflow.flows.coupling import Coupling
from knotflow.flows.flow import Flow
from knotflow.transforms import Chain, Transform

Piece = Callable[..., tuple[Tensor, ...]]


class Layerwise:
    """Runs flows transform by transform, each compiled.

    Args:
        enabled: whether to compile; without, everything runs eagerly.
        task: what goes on more slowly if compilation fails, for the message, which comes once.
    """

    def __init__(self, *, enabled: bool = True, task: str = "training") -> None:
        self.enabled, self.task = enabled, task
        self._pieces: dict[tuple[str, str], Compiled[..., Any]] = {}
        self._warned = False

    @property
    def compiled(self) -> bool:
        """Whether the next call runs compiled code, as far as is known."""
        return self.enabled and all(piece.compiled for piece in self._pieces.values())

    def log_prob(self, flow: Flow, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Log-density (n,) of points (n, d), differentiable once in points and weights."""
        z = flow.enter(x)
        ladj = z.new_full((), flow.log_scale)
        for coupling in flow.couplings:
            z, ladj = _through(coupling, self._forward, z, ladj, context)
        return flow.base_log_prob(z) + ladj

    def log_prob_and_score(
        self, flow: Flow, x: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and score (n, d), both without derivatives."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            log_prob = self.log_prob(flow, x, context)
            (score,) = torch.autograd.grad(log_prob.sum(), x)
        return log_prob.detach(), score

    def log_prob_and_derivative(
        self, flow: Flow, x: Tensor, v: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        r"""Log-density and $v \cdot \nabla_x \log p$, both (n,) and differentiable once in the weights."""
        z, dz = flow.enter(x), v * v.new_tensor(flow.scale)
        ladj, derivative = z.new_full((), flow.log_scale), z.new_zeros(())
        for coupling in flow.couplings:
            outputs, d_outputs = _with_derivative(
                coupling.conditioner, coupling.gather_read(z), coupling.gather_read(dz), context
            )
            images, d_images = [], []
            for (f, index), raw, d_raw in zip(
                coupling.groups, coupling.blocks(outputs), coupling.blocks(d_outputs), strict=True
            ):
                points, d_points = z.index_select(-1, index), dz.index_select(-1, index)
                image, d_image, log_slope, d_log_slope = self._dual(f, points, d_points, raw, d_raw)
                images.append(image)
                d_images.append(d_image)
                ladj, derivative = ladj + log_slope.sum(-1), derivative + d_log_slope.sum(-1)
            z, dz = _replaced(z, coupling, images), _replaced(dz, coupling, d_images)
        end, d_end = flow.base_log_prob(z), flow.base_derivative(z, dz)
        return end + ladj, d_end + derivative

    def inverse(self, flow: Flow, z: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Carry base points (n, d) to data; returns them and log |det|, differentiable once."""
        ladj = z.new_full((), -flow.log_scale).expand(len(z))
        for coupling in reversed(flow.couplings):
            z, ladj = _through(coupling, self._inverse, z, ladj, context)
        return flow.leave(z), ladj

    def _inverse(self, f: Transform, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        shape = y.shape
        x, log_slope = self._piece("inverse", f)(y.reshape(-1), raw.reshape(-1, f.n_parameters))
        return x.reshape(shape), log_slope.reshape(shape)

    def _forward(self, f: Transform, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Image and log-slope of points (n, members)."""
        if isinstance(f, Chain):
            ladj = torch.zeros_like(x)
            for part, own in f.split(raw):
                x, more = self._forward(part, x, own)
                ladj = ladj + more
            return x, ladj
        shape = x.shape
        x, raw = x.reshape(-1), raw.reshape(-1, f.n_parameters)
        selected = self._piece("select", f)(x.detach(), raw) if _selects(f) else raw
        image, log_slope = self._piece("at", f)(x, selected)
        return image.reshape(shape), log_slope.reshape(shape)

    def _dual(
        self, f: Transform, x: Tensor, dx: Tensor, raw: Tensor, d_raw: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Image, its derivative, log-slope, its derivative."""
        if isinstance(f, Chain):
            ladj = d_ladj = torch.zeros_like(x)
            for (part, own), (_, d_own) in zip(f.split(raw), f.split(d_raw), strict=True):
                x, dx, more, d_more = self._dual(part, x, dx, own, d_own)
                ladj, d_ladj = ladj + more, d_ladj + d_more
            return x, dx, ladj, d_ladj
        shape = x.shape
        x, dx = x.reshape(-1), dx.reshape(-1)
        raw, d_raw = raw.reshape(-1, f.n_parameters), d_raw.reshape(-1, f.n_parameters)
        if _selects(f):
            raw, d_raw = self._piece("select_dual", f)(x.detach(), raw, d_raw)
        y, dy, s, ds = self._piece("at_dual", f)(x, dx, raw, d_raw)
        return y.reshape(shape), dy.reshape(shape), s.reshape(shape), ds.reshape(shape)

    def _piece(self, kind: str, f: Transform) -> Compiled[..., Any]:
        key = (kind, repr(f))
        if key not in self._pieces:
            piece = _with_own_code(_PIECES[kind](f), len(self._pieces))
            self._pieces[key] = Compiled(
                piece, task=self.task, enabled=self.enabled, dynamic=True, failed=self._failed
            )
        return self._pieces[key]

    def _failed(self, error: Exception) -> None:
        if not self._warned:
            warn_of_failure(error, self.task)
        self._warned = True


def _with_derivative(
    conditioner: nn.Module, x: Tensor, tangent: Tensor, context: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Outputs of a conditioner and their derivative along a tangent."""
    with_derivative = getattr(conditioner, "with_derivative", None)
    if with_derivative is not None:
        own: tuple[Tensor, Tensor] = with_derivative(x, tangent, context)
        return own
    both: Any = torch.func.jvp(lambda x: conditioner(x, context), (x,), (tangent,))
    return both[0], both[1]


def _selects(f: Transform) -> bool:
    """Whether a family chooses among its raw parameters."""
    return type(f).select is not Transform.select


def _through(
    coupling: Coupling,
    function: Callable[[Transform, Tensor, Tensor], tuple[Tensor, Tensor]],
    z: Tensor,
    ladj: Tensor,
    context: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Points after a coupling whose transforms a function applies, and all log-slopes so far, summed."""
    outputs = coupling.conditioner(coupling.gather_read(z), context)
    images = []
    for (f, index), raw in zip(coupling.groups, coupling.blocks(outputs), strict=True):
        image, log_slope = function(f, z.index_select(-1, index), raw)
        images.append(image)
        ladj = ladj + log_slope.sum(-1)
    return _replaced(z, coupling, images), ladj


def _replaced(z: Tensor, coupling: Coupling, images: list[Tensor]) -> Tensor:
    """Points with the transformed coordinates replaced."""
    index = torch.cat([index for _, index in coupling.groups])
    return z.index_copy(-1, index, torch.cat(images, -1))


def _select(f: Transform) -> Piece:
    def select(x: Tensor, raw: Tensor) -> Tensor:
        return f.select(x, raw)

    return select  # type: ignore[return-value]


def _select_dual(f: Transform) -> Piece:
    def select_dual(x: Tensor, raw: Tensor, d_raw: Tensor) -> tuple[Tensor, ...]:
        return torch.func.jvp(lambda raw: f.select(x, raw), (raw.clone(),), (d_raw.clone(),))

    return select_dual


def _at(f: Transform) -> Piece:
    def at(x: Tensor, selected: Tensor) -> tuple[Tensor, ...]:
        return f.at(x, selected)

    return at


def _inverse(f: Transform) -> Piece:
    def inverse(y: Tensor, raw: Tensor) -> tuple[Tensor, ...]:
        return f.inverse(y, raw)

    return inverse


def _at_dual(f: Transform) -> Piece:
    def at_dual(x: Tensor, dx: Tensor, selected: Tensor, d_selected: Tensor) -> tuple[Tensor, ...]:
        both: Any = torch.func.jvp(f.at, (x.clone(), selected.clone()), (dx.clone(), d_selected.clone()))
        (image, log_slope), (d_image, d_log_slope) = both
        return image, d_image, log_slope, d_log_slope

    return at_dual


_PIECES: dict[str, Callable[[Transform], Piece]] = {
    "select": _select,
    "select_dual": _select_dual,
    "at": _at,
    "at_dual": _at_dual,
    "inverse": _inverse,
}


def _with_own_code(function: Any, number: int) -> Any:
    """Give a function a code object of its own: by that PyTorch keeps compiled code, and limits it."""
    function.__code__ = function.__code__.replace(co_name=f"{function.__name__}_{number}")
    return function
