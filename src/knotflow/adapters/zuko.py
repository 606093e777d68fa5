"""Any family in the couplings and autoregressive flows of zuko.

This module does not import zuko, whose flows take any constructor of a torch transform.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from knotflow.adapters.torch_distributions import ElementwiseTransform
from knotflow.transforms import Transform


def univariate(transform: Transform) -> dict[str, Any]:
    r"""The two keyword arguments that give zuko's flows and layers their map of one variable.

    ``univariate`` makes a map $f(\cdot\,; \theta)$ from the output of a network, of shape
    (..., features, n_parameters), and ``shapes`` gives the number of parameters of one map. Pass them to
    ``MAF`` and ``NICE`` of ``zuko.flows``, or to the layers of these:

        zuko.flows.MAF(features=3, context=4, **univariate(kf.BSpline(16, domain=kf.Line(-5.0, 5.0))))

    In zuko a flow maps data to its base: densities come from $f$, samples from the inverse.

    Args:
        transform: family of maps.

    Returns:
        ``{"univariate": ..., "shapes": [(n_parameters,)]}``
    """
    # A map lives for one call of a layer; the cache gives zuko's inverses value and log-derivative together.
    return {
        "univariate": partial(ElementwiseTransform, transform, cache_size=1),
        "shapes": [(transform.n_parameters,)],
    }
