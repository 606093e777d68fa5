"""Losses for training: small terms, and weighted sums of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from knotflow import ranks
from knotflow.flows import Flow
from knotflow.training.config import LossConfig
from knotflow.transforms.base import check_count


class Batch(NamedTuple):
    """Points of the training data, with forces, context, densities and weights if available."""

    x: Tensor
    """Coordinates, (batch, d)."""
    force: Tensor | None = None
    """Forces -du/dx there, (batch, d), for force matching."""
    context: Tensor | None = None
    """Context, (batch, m), for conditional flows."""
    log_target: Tensor | None = None
    """Logarithm of the density to be learned, up to a constant, (batch,), for energy matching."""
    weight: Tensor | None = None
    """Weights in averages over the target, (batch,). Points of weight 0 are no samples of the target: only
    their densities are matched. None: all weights are 1."""


Metric = Callable[[Tensor, Tensor], Tensor]
"""Maps points (n, d) and errors of their scores (n, d) to the numbers (n, ...) whose squares are averaged."""


class View(NamedTuple):
    """A flow and a batch, with the quantities that terms share, computed once."""

    flow: Flow
    batch: Batch
    log_prob: Tensor | None
    score: Tensor | None


class Term(ABC):
    """One term of a loss: maps a `View` to a number."""

    needs_log_prob = False
    needs_score = False
    needs_force = False
    needs_target = False

    @abstractmethod
    def __call__(self, view: View) -> Tensor:
        """Value of the term, differentiable with respect to the weights of the flow."""

    def count(self, batch: Batch) -> Tensor:
        """The number of points over which the term is a mean."""
        return batch.x.new_tensor(float(len(batch.x)))


class NLL(Term):
    r"""Negative log-likelihood $-\frac1n \sum_i w_i \log p(x_i)$, over the $n$ points with $w_i > 0$."""

    needs_log_prob = True

    def __call__(self, view: View) -> Tensor:
        weight = view.batch.weight
        log_prob = _given(view.log_prob)
        return -log_prob.mean() if weight is None else -(weight * log_prob).sum() / _n_positive(weight)

    def count(self, batch: Batch) -> Tensor:
        return super().count(batch) if batch.weight is None else _n_positive(batch.weight)


class ForceMatching(Term):
    r"""Mean squared error of forces, $\frac1{nd} \sum_i |M(x_i)(\nabla \log p(x_i) - f_i)|^2$.

    The score of the Boltzmann distribution is the force in units of kT, so data with forces also give the
    gradient of the log-density. Force matching needs no samples of the target, only points near them: all
    points of positive weight count alike.

    Args:
        metric: the map $M$, linear in its second argument; by default the identity.
        limit: errors above it count linearly (Huber), so that a few points in hard contact do not outweigh
            all others; None: no limit.
    """

    needs_score = True
    needs_force = True

    def __init__(self, metric: Metric | None = None, limit: float | None = None) -> None:
        self.metric, self.limit = metric, limit

    def __call__(self, view: View) -> Tensor:
        error = _given(view.score) - _given(view.batch.force)
        error = error if self.metric is None else self.metric(view.batch.x, error)
        square = error.square() if self.limit is None else _huber(error, self.limit)
        if view.batch.weight is None:
            return square.mean()
        counts = _positive(view.batch.weight)
        return (counts * square.flatten(1).mean(-1)).sum() / _n_positive(view.batch.weight)

    def count(self, batch: Batch) -> Tensor:
        return super().count(batch) if batch.weight is None else _n_positive(batch.weight)


class EnergyMatching(Term):
    r"""Mean squared error of log-densities, $\frac1n \sum_i h(\log p(x_i) - \log \pi(x_i) - c)$.

    $\pi$ is the density to be learned, up to a factor that $c$ absorbs: the median of the difference over
    the points of positive weight. Without the limit it is the log-variance divergence (Richter et al.,
    VarGrad, NeurIPS 2020). It is zero only for the right density, wherever the points come from. So it also
    shows a flow what it should *not* draw: give points that it did draw the weight 0.

    Args:
        limit: errors above it count linearly (Huber): $h(e) = e^2$ up to the limit.
    """

    needs_log_prob = True
    needs_target = True

    def __init__(self, limit: float = 3.0) -> None:
        self.limit = limit

    def __call__(self, view: View) -> Tensor:
        batch = view.batch
        if batch.log_target is None:
            raise ValueError("energy matching needs densities: give Batch(x, log_target=...).")
        error = _given(view.log_prob) - batch.log_target
        centre = error.detach()
        if batch.weight is not None:
            # Points of weight 0 are left out: NaN is no part of the median.
            centre = torch.where(batch.weight > 0, centre, torch.nan)
        return _huber(error - ranks.gathered(centre).nanmedian(), self.limit).mean()


class ReverseKL(Term):
    r"""Reverse divergence $\mathbb E_{x \sim p}[\log p(x) + u(x)]$, up to the free energy; needs no data.

    Args:
        energy: maps points (n, d) to reduced energies (n,), differentiable.
        samples: number of points drawn in each step.
    """

    def __init__(self, energy: Callable[[Tensor], Tensor], samples: int = 256) -> None:
        check_count("samples", samples, 1)
        self.energy, self.samples = energy, samples

    def __call__(self, view: View) -> Tensor:
        flow, context = view.flow, view.batch.context
        if context is not None:
            rows = torch.randint(len(context), (self.samples,), device=context.device)
            context = context[rows[ranks.mine()]]
        z = flow.sample_base(self.samples)[ranks.mine()]
        x, ladj = flow.inverse(z, context)
        return (flow.base_log_prob(z) - ladj + self.energy(x)).mean()

    def count(self, batch: Batch) -> Tensor:
        return batch.x.new_tensor(float(len(range(self.samples)[ranks.mine()])))


Shares = dict[str, Tensor]
"""A factor for each term."""


class Mix:
    """A weighted sum of terms; terms of weight 0 are left out and cost nothing.

    Called with a flow and a batch, it returns the sum and the value of every term.

    Example:
        ``Mix(nll=(0.999, NLL()), force_matching=(0.001, ForceMatching()))``
    """

    def __init__(self, **terms: tuple[float, Term]) -> None:
        for name, (weight, _) in terms.items():
            if not 0 <= weight < float("inf"):
                raise ValueError(f"the weight of {name} must be finite and not negative, got {weight}.")
        self.terms = {name: (weight, term) for name, (weight, term) in terms.items() if weight > 0}
        if not self.terms:
            raise ValueError(f"a loss needs a term of positive weight, got {terms or 'none'}.")
        parts = [term for _, term in self.terms.values()]
        self.needs_score = any(term.needs_score for term in parts)
        self.needs_log_prob = any(term.needs_log_prob for term in parts)
        self.needs_force = any(term.needs_force for term in parts)
        self.needs_target = any(term.needs_target for term in parts)

    def __call__(
        self, flow: Flow, batch: Batch, shares: Shares | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        values = self._evaluate(flow, batch, list(self.terms), shares)
        total = torch.stack([weight * values[name] for name, (weight, _) in self.terms.items()]).sum()
        return total, {name: value.detach() for name, value in values.items()}

    @torch.no_grad()
    def values(self, flow: Flow, batch: Batch, shares: Shares | None = None) -> dict[str, Tensor]:
        """The terms that depend on data, without derivatives, for validation."""
        of_data = [name for name, (_, term) in self.terms.items() if term.needs_log_prob or term.needs_score]
        return self._evaluate(flow, batch, of_data, shares)

    def shares(self, batch: Batch) -> Shares | None:
        """Factors for the terms of this process's share of a batch; None if it is the whole batch.

        With them, the mean of a term over all processes is the term of the whole batch: a mean over $n$ of
        $N$ points, times $n/N$ and the number of processes.
        """
        if ranks.size() == 1:
            return None
        counts = torch.stack([term.count(batch) for _, term in self.terms.values()])
        parts = counts * ranks.size() / ranks.total(counts).clamp(min=1)
        return dict(zip(self.terms, parts, strict=True))

    def _evaluate(
        self, flow: Flow, batch: Batch, names: Sequence[str], shares: Shares | None
    ) -> dict[str, Tensor]:
        """Some of the terms; log-density and score are computed once for all of them."""
        log_prob = score = None
        if self.needs_score:
            log_prob, score = flow.log_prob_and_score(batch.x, batch.context)
        elif self.needs_log_prob:
            log_prob = flow.log_prob(batch.x, batch.context)
        view = View(flow, batch, log_prob, score)
        values = {name: self.terms[name][1](view) for name in names}
        return values if shares is None else {name: values[name] * shares[name] for name in names}


def make_loss(
    config: LossConfig, energy: Callable[[Tensor], Tensor] | None = None, metric: Metric | None = None
) -> Mix:
    """The loss that a configuration describes."""
    if config.reverse_kl and energy is None:
        raise ValueError("loss.reverse_kl needs an energy function: give energy=..., or set it to 0.")
    terms: dict[str, tuple[float, Term]] = {
        "nll": (config.nll, NLL()),
        "force_matching": (config.force_matching, ForceMatching(metric, config.force_limit)),
        "energy_matching": (config.energy_matching, EnergyMatching()),
    }
    if energy is not None:
        terms["reverse_kl"] = (config.reverse_kl, ReverseKL(energy, config.reverse_kl_samples))
    return Mix(**terms)


def _huber(error: Tensor, limit: float) -> Tensor:
    """Squares of errors up to the limit, and their tangents beyond."""
    return 2 * torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=limit)


def _positive(weight: Tensor) -> Tensor:
    """1 for each point of positive weight, else 0."""
    return (weight > 0).to(weight.dtype)


def _n_positive(weight: Tensor) -> Tensor:
    """The number of points of positive weight, at least 1."""
    return _positive(weight).sum().clamp(min=1)


def _given(value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError("force matching needs forces: give Batch(x, force=...).")
    return value
