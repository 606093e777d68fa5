r"""Log-densities, scores and their gradients by compiled layers.

Force matching needs the gradient of a loss of the score, a second derivative. Compiling it whole means one
graph that grows with the number of couplings, and minutes of compilation. Here it is reduced to first
derivatives of single couplings: with $s = \nabla_x \log p$, the gradient of any loss $\ell(s)$ in the weights
$\theta$ is that of a directional derivative,

$$\nabla_\theta\, \ell(s(x; \theta)) = \nabla_\theta\, \frac{\partial \log p(x + \varepsilon v; \theta)}
  {\partial \varepsilon}\Big|_{\varepsilon = 0}, \qquad v = \nabla_s \ell(s) \text{ held fixed},$$

and directional derivatives pass through the couplings one after another, forward (Pearlmutter 1994). So every
coupling is compiled on its own, with its network, and couplings that differ in their weights and indices only
share the result.

Points are held coordinate by coordinate, (d, n), and raw parameters parameter by parameter: compiled loops
run over points, which lie side by side, instead of over the few parameters of each.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from knotflow.compiled import Compiled, warn_of_failure
from knotflow.flows.conditioner import Conditioner
from knotflow.flows.coupling import Coupling
from knotflow.flows.flow import Flow
from knotflow.transforms import Chain, Transform


class Layerwise:
    """Runs flows coupling by coupling, each compiled.

    Args:
        enabled: whether to compile; without, everything runs eagerly.
        task: what goes on more slowly if compilation fails, for the message, which comes once.
    """

    def __init__(self, *, enabled: bool = True, task: str = "training") -> None:
        self.enabled, self.task = enabled, task
        self._pieces: dict[tuple[object, ...], Compiled[..., Any]] = {}
        self._warned = False

    @property
    def compiled(self) -> bool:
        """Whether the next call runs compiled code, as far as is known."""
        return self.enabled and all(piece.compiled for piece in self._pieces.values())

    def log_prob(self, flow: Flow, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Log-density (n,) of points (n, d), differentiable once in points and weights."""
        z = flow.enter(x).T.contiguous()
        ladj = z.new_full((len(x),), flow.log_scale)
        if torch.is_grad_enabled():
            z, ladj = _as_a_coupling_gives(z, ladj)
        for coupling in flow.couplings:
            z, ladj = self._piece(_forward, coupling)(coupling, z, ladj, context)
        return flow.base_log_prob(z.T) + ladj

    def log_prob_and_score(
        self, flow: Flow, x: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-density (n,) and score (n, d), both without derivatives."""
        with torch.enable_grad(), _fixed_weights(flow):
            x = x.detach().requires_grad_()
            log_prob = self.log_prob(flow, x, context)
            (score,) = torch.autograd.grad(log_prob.sum(), x)
        return log_prob.detach(), score

    def log_prob_and_derivative(
        self, flow: Flow, x: Tensor, v: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        r"""Log-density and $v \cdot \nabla_x \log p$, both (n,) and differentiable once in the weights."""
        z, dz = flow.enter(x).T.contiguous(), (v * v.new_tensor(flow.scale)).T.contiguous()
        ladj, derivative = z.new_full((len(x),), flow.log_scale), z.new_zeros(len(x))
        if torch.is_grad_enabled():
            z, dz, ladj, derivative = _as_a_coupling_gives(z, dz, ladj, derivative)
        for coupling in flow.couplings:
            z, dz, ladj, derivative = self._piece(_with_derivative, coupling)(
                coupling, z, dz, ladj, derivative, context
            )
        end, d_end = flow.base_log_prob(z.T), flow.base_derivative(z.T, dz.T)
        return end + ladj, d_end + derivative

    def inverse(self, flow: Flow, z: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Carry base points (n, d) to data; returns them and log |det|, differentiable once."""
        ladj = z.new_full((len(z),), -flow.log_scale)
        z = z.T.contiguous()
        if torch.is_grad_enabled():
            z, ladj = _as_a_coupling_gives(z, ladj)
        for coupling in reversed(flow.couplings):
            z, ladj = self._piece(_inverse, coupling)(coupling, z, ladj, context)
        return flow.leave(z.T), ladj

    def _piece(self, function: Callable[..., Any], coupling: Coupling) -> Compiled[..., Any]:
        key = (function.__name__, _structure(coupling))
        if key not in self._pieces:
            self._pieces[key] = Compiled(
                _with_own_code(function, len(self._pieces)),
                task=self.task,
                enabled=self.enabled,
                dynamic=True,
                failed=self._failed,
            )
        return self._pieces[key]

    def _failed(self, error: Exception) -> None:
        if not self._warned:
            warn_of_failure(error, self.task)
        self._warned = True


@contextlib.contextmanager
def _fixed_weights(flow: Flow) -> Iterator[None]:
    """Without gradients of weights, which compiled code would compute though nobody asked for them."""
    free = [weight for weight in flow.parameters() if weight.requires_grad and weight.is_leaf]
    for weight in free:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in free:
            weight.requires_grad_(True)


def _as_a_coupling_gives(*values: Tensor) -> tuple[Tensor, ...]:
    """What comes to the first coupling, with gradients as for the next: one variant does for both."""
    return tuple(value if value.requires_grad else value.detach().requires_grad_() for value in values)


def _structure(coupling: Coupling) -> tuple[object, ...]:
    """What couplings have in common that differ in their weights and indices only."""
    groups = tuple((repr(f), len(index)) for f, index in coupling.groups)
    return groups, len(coupling.read), repr(coupling.conditioner)


def _forward(coupling: Coupling, z: Tensor, ladj: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
    """Points (d, n) after a coupling, and all log-slopes so far, summed."""
    return _through(coupling, _map, z, ladj, context)


def _inverse(coupling: Coupling, z: Tensor, ladj: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
    """Points (d, n) before a coupling, and all log-slopes so far, summed."""
    return _through(coupling, _map_back, z, ladj, context)


def _through(
    coupling: Coupling,
    function: Callable[[Transform, Tensor, Tensor], tuple[Tensor, Tensor]],
    z: Tensor,
    ladj: Tensor,
    context: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """A function takes points (members, n) and raw parameters (members, n, p) of each kind of transform."""
    outputs = _outputs(coupling.conditioner, coupling.gather_read(z.T), context)
    images = []
    for (f, index), raw in zip(coupling.groups, coupling.blocks(outputs), strict=True):
        image, log_slope = function(f, z.index_select(0, index), raw.transpose(0, 1))
        images.append(image)
        ladj = ladj + log_slope.sum(0)
    return _replaced(z, coupling, images), ladj


def _with_derivative(
    coupling: Coupling, z: Tensor, dz: Tensor, ladj: Tensor, derivative: Tensor, context: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `_forward`, with derivatives of both along tangents (d, n)."""
    outputs, d_outputs = _outputs_with_derivative(
        coupling.conditioner, coupling.gather_read(z.T), coupling.gather_read(dz.T), context
    )
    images, d_images = [], []
    for (f, index), raw, d_raw in zip(
        coupling.groups, coupling.blocks(outputs), coupling.blocks(d_outputs), strict=True
    ):
        points, d_points = z.index_select(0, index), dz.index_select(0, index)
        image, d_image, log_slope, d_log_slope = _dual(
            f, points, d_points, raw.transpose(0, 1), d_raw.transpose(0, 1)
        )
        images.append(image)
        d_images.append(d_image)
        ladj, derivative = ladj + log_slope.sum(0), derivative + d_log_slope.sum(0)
    return _replaced(z, coupling, images), _replaced(dz, coupling, d_images), ladj, derivative


def _map(f: Transform, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Image and log-slope of points (members, n)."""
    if isinstance(f, Chain):
        ladj = torch.zeros_like(x)
        for part, own in f.split(raw):
            x, more = _map(part, x, own)
            ladj = ladj + more
        return x, ladj
    return f.at(x, f.select(x.detach(), raw))


def _map_back(f: Transform, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Preimage and log-slope of the inverse of points (members, n)."""
    if isinstance(f, Chain):
        ladj = torch.zeros_like(y)
        for part, own in reversed(f.split(raw)):
            y, more = _map_back(part, y, own)
            ladj = ladj + more
        return y, ladj
    return f.inverse_at(y, f.select_inverse(y.detach(), raw))


def _dual(
    f: Transform, x: Tensor, dx: Tensor, raw: Tensor, d_raw: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Image, its derivative, log-slope, its derivative."""
    if isinstance(f, Chain):
        ladj = d_ladj = torch.zeros_like(x)
        for (part, own), (_, d_own) in zip(f.split(raw), f.split(d_raw), strict=True):
            x, dx, more, d_more = _dual(part, x, dx, own, d_own)
            ladj, d_ladj = ladj + more, d_ladj + d_more
        return x, dx, ladj, d_ladj
    if _selects(f):
        at = x.detach()
        both: Any = torch.func.jvp(lambda raw: f.select(at, raw), (raw.clone(),), (d_raw.clone(),))
        raw, d_raw = both
    both = torch.func.jvp(f.at, (x.clone(), raw.clone()), (dx.clone(), d_raw.clone()))
    (image, log_slope), (d_image, d_log_slope) = both
    return image, d_image, log_slope, d_log_slope


def _replaced(z: Tensor, coupling: Coupling, images: list[Tensor]) -> Tensor:
    """Points (d, n) with the transformed coordinates replaced."""
    index = torch.cat([index for _, index in coupling.groups])
    return z.index_copy(0, index, torch.cat(images))


def _selects(f: Transform) -> bool:
    """Whether a family chooses among its raw parameters."""
    return type(f).select is not Transform.select


def _outputs(conditioner: nn.Module, x: Tensor, context: Tensor | None) -> Tensor:
    """Outputs (n, m) of a conditioner; of ours, all points of an output lie side by side in memory."""
    if isinstance(conditioner, Conditioner):
        return _by_columns(conditioner.last, conditioner.hidden(x, context))
    outputs: Tensor = conditioner(x, context)
    return outputs


def _outputs_with_derivative(
    conditioner: nn.Module, x: Tensor, tangent: Tensor, context: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Outputs of a conditioner and their derivative along a tangent, laid out in the same way."""
    if isinstance(conditioner, Conditioner):
        h, dh = conditioner.hidden_with_derivative(x, tangent, context)
        return _by_columns(conditioner.last, h), (conditioner.last.weight @ dh.T).T
    with_derivative = getattr(conditioner, "with_derivative", None)
    if with_derivative is not None:
        own: tuple[Tensor, Tensor] = with_derivative(x, tangent, context)
        return own
    both: Any = torch.func.jvp(lambda x: conditioner(x, context), (x,), (tangent,))
    return both[0], both[1]


def _by_columns(layer: nn.Linear, h: Tensor) -> Tensor:
    """``layer(h)`` of rows h, computed transposed."""
    if layer.bias is None:
        return (layer.weight @ h.T).T
    return torch.addmm(layer.bias.unsqueeze(1), layer.weight, h.T).T


def _with_own_code(function: Any, number: int) -> Any:
    """A copy of a function with code of its own: by that PyTorch keeps, and limits, what it compiles."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{number}")
    return types.FunctionType(code, function.__globals__, code.co_name)
