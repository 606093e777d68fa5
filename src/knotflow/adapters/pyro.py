"""A whole flow as a distribution of Pyro."""

from __future__ import annotations

from pyro.distributions.torch_distribution import TorchDistributionMixin

from knotflow.adapters.flow_distribution import FlowDistribution


class PyroFlow(FlowDistribution, TorchDistributionMixin):  # type: ignore[misc]
    """`FlowDistribution` for ``pyro.sample``: in models, as a likelihood or prior, and in guides.

    Call ``pyro.module("flow", flow)`` in the model or guide, so that Pyro trains the weights.
    """
