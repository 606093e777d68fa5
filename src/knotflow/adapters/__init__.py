"""Use of the transforms in other libraries: ``torch.distributions``, Pyro and zuko."""

from knotflow.adapters.torch_distributions import ElementwiseTransform

__all__ = ["ElementwiseTransform"]
