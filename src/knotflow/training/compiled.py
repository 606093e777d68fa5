"""The value and the gradient of a loss, by compiled pieces."""

from __future__ import annotations

import torch
from torch import Tensor

from knotflow.flows import Flow
from knotflow.flows.layerwise import Layerwise
from knotflow.training.objectives import Batch, Mix, Term, View


class CompiledLoss:
    r"""A `Mix` by compiled couplings, see `knotflow.flows.layerwise`.

    Terms of the score give the direction $v = \nabla_s \ell$ in which the log-density is differentiated;
    their gradient in the weights is that of the directional derivative. The result has the value and the
    gradient of the `Mix`. If compilation fails (no C++ compiler), the same runs eagerly and says so once.

    Args:
        mix: the loss.
        enabled: whether to compile at all; without, the `Mix` itself is called.
    """

    def __init__(self, mix: Mix, *, enabled: bool = True) -> None:
        self.mix, self.enabled = mix, enabled
        self._layers = Layerwise(enabled=enabled)

    @property
    def compiled(self) -> bool:
        """Whether the next call runs compiled code."""
        return self._layers.compiled

    def __call__(self, flow: Flow, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, differentiable in the weights, and the value of every term."""
        if not self.enabled:
            return self.mix(flow, batch)
        layers, x, context = self._layers, batch.x, batch.context
        of_score, others = self._split()
        values: dict[str, Tensor] = {}
        parts: list[Tensor] = []
        log_prob = None
        if of_score:
            known, score = layers.log_prob_and_score(flow, x, context)
            view = View(flow, batch, known.requires_grad_(), score.requires_grad_(), flow.inverse)
            total = _weighted(of_score, view, values)
            weight, direction = torch.autograd.grad(total, (known, score), allow_unused=True)
            log_prob, derivative = layers.log_prob_and_derivative(flow, x, direction, context)
            slope = derivative.sum() if weight is None else derivative.sum() + (weight * log_prob).sum()
            # The value is that of the terms, the gradient that of the derivative.
            parts.append(total.detach() + (slope - slope.detach()))
        elif self.mix.needs_log_prob:
            log_prob = layers.log_prob(flow, x, context)
        if others:
            view = View(flow, batch, log_prob, None, lambda z, c: layers.inverse(flow, z, c))
            parts.append(_weighted(others, view, values))
        return torch.stack(parts).sum(), {name: values[name].detach() for name in self.mix.terms}

    @torch.no_grad()
    def values(self, flow: Flow, batch: Batch) -> dict[str, Tensor]:
        """The terms that depend on data, without derivatives."""
        terms = {
            name: term
            for name, term in self.mix.terms.items()
            if term[1].needs_log_prob or term[1].needs_score
        }
        values: dict[str, Tensor] = {}
        log_prob = score = None
        if self.mix.needs_score:
            log_prob, score = self._layers.log_prob_and_score(flow, batch.x, batch.context)
        elif terms:
            log_prob = self._layers.log_prob(flow, batch.x, batch.context)
        _weighted(terms, View(flow, batch, log_prob, score, flow.inverse), values)
        return values

    def _split(self) -> tuple[dict[str, tuple[float, Term]], dict[str, tuple[float, Term]]]:
        """Terms of the score, and the others."""
        terms = self.mix.terms
        of_score = {name: term for name, term in terms.items() if term[1].needs_score}
        return of_score, {name: term for name, term in terms.items() if name not in of_score}


def _weighted(terms: dict[str, tuple[float, Term]], view: View, values: dict[str, Tensor]) -> Tensor:
    """The weighted sum of terms; their values are put into a dictionary."""
    total = view.batch.x.new_zeros(())
    for name, (weight, term) in terms.items():
        values[name] = term(view)
        total = total + weight * values[name]
    return total
