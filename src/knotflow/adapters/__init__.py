"""Use of transforms and flows in other libraries: ``torch.distributions``, Pyro and zuko."""

from knotflow.adapters.flow_distribution import FlowDistribution
from knotflow.adapters.torch_distributions import ElementwiseTransform

__all__ = ["ElementwiseTransform", "FlowDistribution"]
