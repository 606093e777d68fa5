"""Values and gradients of a function of points in one pass, in every mode of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

import torch
from torch import Tensor


def with_gradient(
    function: Callable[[Tensor], Tensor], x: Tensor, others: Iterable[Tensor | None]
) -> tuple[Tensor, Tensor]:
    r"""Values $f(x_i)$ and gradients $\partial f / \partial x_i$, both differentiable.

    Plain autograd is fastest on a CPU. It cannot be called inside ``torch.func``, ``torch.compile`` and
    inference mode; there ``torch.func.grad`` does the same.

    Args:
        function: maps points to numbers (...), each point independently.
        x: the points.
        others: other tensors on which the function depends. If neither these nor ``x`` require gradients, or
            gradients are turned off, the results record no graph.
    """
    leaf = None if torch.compiler.is_compiling() or torch.is_inference_mode_enabled() else _leaf(x)
    if leaf is None:

        def total(points: Tensor) -> tuple[Tensor, Tensor]:
            values = function(points)
            return values.sum(), values

        gradient, values = torch.func.grad(total, has_aux=True)(x)
        return values, gradient
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in chain((x,), others))
    with torch.enable_grad():
        points = x if x.requires_grad and wanted else leaf
        values = function(points)
        (gradient,) = torch.autograd.grad(values.sum(), points, create_graph=wanted)
    return values if wanted else values.detach(), gradient


def _leaf(x: Tensor) -> Tensor | None:
    """The points as a leaf to differentiate by; None inside ``torch.func``, which does not allow it."""
    try:
        return x.detach().requires_grad_()
    except RuntimeError:
        return None
