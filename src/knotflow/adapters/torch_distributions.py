"""A family with fixed parameters as a transform of ``torch.distributions``, and so of Pyro."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Transform as TorchTransform
from torch.distributions import constraints

from knotflow.transforms import Line, Transform
from knotflow.transforms.domains import RealLine


class ElementwiseTransform(TorchTransform):
    r"""The map $y = f(x; \theta)$ of each element, for ``torch.distributions``.

    The parameters ``raw`` have shape ``batch_shape + (transform.n_parameters,)``, and ``batch_shape``
    broadcasts with the shape of the points. Domain and codomain are ``constraints.real`` for a family on a
    `Line` or the whole real line, otherwise ``constraints.interval(low, high)``, with ``event_dim`` 0.

    A ``TransformedDistribution`` samples by $f$ and finds densities by its inverse,
    $\log p(y) = \log p_\mathrm{base}(x) - \log f'(x)$ with $x = f^{-1}(y)$.

    On a `Circle`, points are numbers in ``[low, high]``, and a distribution that validates its arguments
    refuses others. Its ``cdf`` starts at ``low``; it has no meaning if the family has a phase, which moves
    ``low``.

    With ``cache_size=1`` the last point, its image and log-derivative are cached. Then
    ``log_abs_det_jacobian(x, y)`` costs nothing after ``y = t(x)`` or ``x = t.inv(y)``, and ``t.inv(y)`` is
    ``x``. As elsewhere in torch, points are recognised by identity. The cache is dropped if one of its
    tensors or ``raw`` is changed in place, and not used in another gradient mode. Compiled code caches
    nothing.

    Args:
        transform: family of maps.
        raw: parameters of shape (..., n_parameters).
        cache_size: 0, or 1 to cache the last evaluation.
    """

    bijective = True
    sign = +1

    def __init__(self, transform: Transform, raw: Tensor, cache_size: int = 0) -> None:
        transform.check_raw(raw)
        super().__init__(cache_size=cache_size)
        self.transform, self.raw = transform, raw
        own = transform.domain
        is_real = isinstance(own, Line | RealLine)
        self.domain = constraints.real if is_real else constraints.interval(own.low, own.high)
        self.codomain = self.domain
        self._last: _Evaluation | None = None

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Image $y = f(x)$ and $\log f'(x)$ from one evaluation, both of the broadcast shape; for zuko."""
        last = self._last_evaluation()
        if last is not None and x is last.x:
            return last.y, last.ladj
        y, ladj = self.transform.forward(x.expand(self.forward_shape(x.shape)), self.raw)
        self._keep(x, y, ladj)
        return y, ladj

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        r"""Elementwise $\log f'(x)$; ``y`` is not needed."""
        return self.call_and_ladj(x)[1]

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        last = self._last_evaluation()
        if last is not None and y is last.y:
            return last.x
        x, minus_ladj = self.transform.inverse(y.expand(self.inverse_shape(y.shape)), self.raw)
        self._keep(x, y, -minus_ladj)
        return x

    # Instead of torch's cache, which has no log-derivative and does not notice changes of raw.
    __call__ = _call
    _inv_call = _inverse

    def with_cache(self, cache_size: int = 1) -> ElementwiseTransform:
        """The same map with another ``cache_size``."""
        if cache_size == self._cache_size:
            return self
        return ElementwiseTransform(self.transform, self.raw, cache_size)

    def clear_cache(self) -> None:
        """Drop the cached evaluation and the graph it holds; Pyro's distributions call this."""
        self._last = None

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        """Shape of the images of points of the given shape, broadcast with that of the parameters."""
        batch_shape = self.raw.shape[:-1]
        try:
            return torch.Size(torch.broadcast_shapes(shape, batch_shape))
        except RuntimeError:
            raise ValueError(
                f"points of shape {tuple(shape)} do not broadcast with raw parameters of shape "
                f"{tuple(self.raw.shape)}, which hold one map for each of {tuple(batch_shape)}."
            ) from None

    inverse_shape = forward_shape

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ElementwiseTransform)
            and self.transform == other.transform
            and (self.raw.dtype, self.raw.device) == (other.raw.dtype, other.raw.device)
            and (self.raw is other.raw or torch.equal(self.raw, other.raw))
        )

    def __repr__(self) -> str:
        return f"ElementwiseTransform({self.transform})"

    def _keep(self, x: Tensor, y: Tensor, ladj: Tensor) -> None:
        if self._cache_size and not torch.compiler.is_compiling():
            self._last = _Evaluation(x, y, ladj, _state(x, y, self.raw))

    def _last_evaluation(self) -> _Evaluation | None:
        """The cached evaluation, if it is still valid."""
        last = None if torch.compiler.is_compiling() else self._last
        return None if last is None or last.state != _state(last.x, last.y, self.raw) else last


class _Evaluation(NamedTuple):
    """A point, its image, the log-derivative, and the state in which they were computed."""

    x: Tensor
    y: Tensor
    ladj: Tensor
    state: tuple[object, ...]


def _state(*tensors: Tensor) -> tuple[object, ...]:
    """Everything that must be unchanged for a cached evaluation to be valid.

    Without the gradient mode, a sample drawn under ``no_grad`` would later give a density without the
    gradient through its preimage.
    """
    # Tensors made in inference mode have no version counter.
    versions = (None if tensor.is_inference() else tensor._version for tensor in tensors)
    return torch.is_grad_enabled(), *(tensor.requires_grad for tensor in tensors), *versions
