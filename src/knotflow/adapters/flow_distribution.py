"""A whole flow as a distribution of ``torch.distributions``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from knotflow.flows import Flow
from knotflow.flows.flow import like
from knotflow.transforms import Circle, Domain, Line
from knotflow.transforms.base import check_tensor
from knotflow.transforms.domains import with_value


class FlowDistribution(Distribution):
    """The density of a flow, with ``sample``, ``rsample`` and ``log_prob`` of ``torch.distributions``.

    The event shape is (d,). With a context of shape (..., m) the batch shape is (...): one density for each
    context, so ``FlowDistribution(flow, contexts).sample((n,))`` draws n points for each of them. Parameters
    are those of the flow: train ``flow.parameters()``. ``rsample`` has derivatives by all of them and by the
    context.

    The support is an interval for intervals and circles, the real numbers for lines. A distribution that
    validates its arguments refuses points outside; ``validate_args=False`` takes angles modulo their circle.

    In Pyro, use `knotflow.adapters.pyro.PyroFlow`.

    Args:
        flow: the flow; it is used, not copied.
        context: one context (m,), or any number of them.
        validate_args: as in all distributions of torch.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  (torch reads it from the class)
    has_rsample = True

    def __init__(self, flow: Flow, context: Tensor | None = None, validate_args: bool | None = None) -> None:
        flow.check_context(context)
        self.flow, self.context = flow, context
        batch = torch.Size() if context is None else context.shape[:-1]
        super().__init__(batch, torch.Size([flow.dim]), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Where points may lie."""
        kinds = groupby(self.flow.domains, lambda domain: isinstance(domain, Line))
        parts = [(real, list(domains)) for real, domains in kinds]
        found = [constraints.real if real else self._between(domains) for real, domains in parts]
        whole = found[0] if len(found) == 1 else constraints.cat(found, -1, [len(own) for _, own in parts])
        return constraints.independent(whole, 1)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> FlowDistribution:
        """The same densities with a larger batch shape."""
        batch_shape = torch.Size(batch_shape)
        found = self._get_checked_instance(FlowDistribution, _instance)  # type: ignore[no-untyped-call]
        context = self.context
        found.flow, found.context = (
            self.flow,
            context if context is None else context.expand(*batch_shape, -1),
        )
        Distribution.__init__(found, batch_shape, self.event_shape, validate_args=False)
        found._validate_args = self._validate_args
        return cast("FlowDistribution", found)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Points (sample shape, batch shape, d), with derivatives."""
        return self.rsample_and_log_prob(sample_shape)[0]

    def rsample_and_log_prob(self, sample_shape: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Points and their log-densities, at the cost of the points."""
        shape = torch.Size(sample_shape) + self.batch_shape
        z = self.flow.sample_base(shape.numel())
        x, ladj = self.flow.inverse(z, self._contexts(shape))
        log_prob = self.flow.base_log_prob(z) - ladj
        return self._inside(x).reshape(*shape, -1), log_prob.reshape(shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Points without derivatives, in bounded memory."""
        shape = torch.Size(sample_shape) + self.batch_shape
        x = self.flow.sample(shape.numel(), self._contexts(shape))
        return self._inside(x).reshape(*shape, -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-densities of points, whose leading shape is broadcast with the batch shape."""
        check_tensor("points", value)
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        x = value.expand(*shape, -1).reshape(-1, value.shape[-1])
        return self.flow.log_prob(x, self._contexts(shape)).reshape(shape)

    def _contexts(self, shape: torch.Size) -> Tensor | None:
        """The context of each of the points of a shape, in one row."""
        context = self.context
        if context is None or context.ndim == 1:
            return context
        return context.expand(*shape, -1).reshape(-1, context.shape[-1])

    def _inside(self, x: Tensor) -> Tensor:
        """Points whose angles rounding may have put outside ``[low, high]``."""
        if not any(isinstance(domain, Circle) for domain in self.flow.domains):
            return x
        limits = [(d.low, d.high) if isinstance(d, Circle) else d.bounds for d in self.flow.domains]
        low, high = x.new_tensor(limits).unbind(-1)
        return with_value(x, x.clamp(low, high))

    def _between(self, domains: Sequence[Domain]) -> constraints.Constraint:
        like_flow = like(self.flow)
        low, high = (like_flow.new_tensor([getattr(d, end) for d in domains]) for end in ("low", "high"))
        return constraints.interval(low, high)
