"""The base classes of all transform families, with their checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor

from knotflow.transforms.domains import Domain, with_value


def check_count(name: str, value: int, least: int) -> None:
    """Refuse anything but a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def check_tensor(what: str, value: object) -> None:
    """Refuse anything but a tensor, such as an array of NumPy."""
    if not isinstance(value, Tensor):
        kind = type(value)
        raise ValueError(
            f"expected {what} as a torch tensor, got {kind.__module__}.{kind.__qualname__}; convert with "
            "torch.as_tensor(...), in the right dtype."
        )


class Kernel(Protocol):
    """Computes a family faster than its definition, equal up to rounding (see `knotflow.kernels`)."""

    def takes(self, x: Tensor, raw: Tensor) -> bool:
        """Whether the kernel handles these tensors."""

    def forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """As `Transform.forward`."""

    def inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """As `Transform.inverse`."""


class Transform(ABC):
    r"""A family of increasing maps $f(\cdot\,; \theta)$ of a one-dimensional domain onto itself.

    A family is stateless: it holds no tensors. One map takes `n_parameters` raw parameters, which are
    unconstrained reals and usually the output of a network. Points ``x`` have any shape; ``raw`` has that
    shape plus a last axis of size `n_parameters`, up to broadcasting. Results have the dtype and device of
    ``x``.

    A family is a frozen dataclass, and its fields are its configuration. They define equality and ``repr``,
    and are what a flow's configuration and model file store.

    **To add a family**, write one file with a frozen dataclass that derives from `SlopeTransform`, and
    add a line for it to ``transforms/families.py``. Flows, presets, the command line and the tests of
    all laws then know it.
    """

    domain: Domain
    """The domain on which the maps act."""
    n_parameters: int
    """Size of the last axis of ``raw``."""
    smoothness: float
    """How often each map and its inverse are continuously differentiable (``inf``: smooth)."""

    kernel: Kernel | None = None
    """A faster twin of the definition, for the tensors it takes; None if there is none."""

    def forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        r"""Map points: returns $y = f(x)$ and $\log f'(x)$, both of the shape of ``x``."""
        self._check(x, raw)
        if self.kernel is not None and self.kernel.takes(x, raw):
            self.domain.check(x)
            return self.kernel.forward(x, raw.to(x.dtype))
        return self.define_forward(x, raw)

    def inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        r"""Map back: returns $x = f^{-1}(y)$ and $\log (f^{-1})'(y) = -\log f'(x)$."""
        self._check(y, raw)
        if self.kernel is not None and self.kernel.takes(y, raw):
            self.domain.check(y)
            return self.kernel.inverse(y, raw.to(y.dtype))
        return self.define_inverse(y, raw)

    @abstractmethod
    def define_forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """The definition of `forward` in pure torch, without kernels. Shapes are not checked."""

    @abstractmethod
    def define_inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """The definition of `inverse` in pure torch, likewise."""

    def _derive(self, **values: Any) -> None:
        """Set attributes that follow from the fields, in ``__post_init__`` of the frozen dataclass."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check(self, x: Tensor, raw: Tensor) -> None:
        name = type(self).__name__
        check_tensor(f"points of {name}", x)
        if not torch.is_floating_point(x):
            raise ValueError(f"{name} maps floating-point tensors, got {x.dtype}; call .float().")
        self.check_raw(raw)
        if raw.shape[:-1] == x.shape:
            return
        try:
            shape = torch.broadcast_shapes(x.shape, raw.shape[:-1])
        except RuntimeError:
            shape = None
        if shape != x.shape:
            raise ValueError(
                f"{name} takes raw parameters for each point: x has shape {tuple(x.shape)}, so raw "
                f"must broadcast to {(*x.shape, self.n_parameters)}, got {tuple(raw.shape)}."
            )

    def check_raw(self, raw: Tensor) -> None:
        """Raise ``ValueError`` unless the last axis of ``raw`` has size `n_parameters`."""
        check_tensor(f"raw parameters of {type(self).__name__}", raw)
        if raw.shape[-1:] != (self.n_parameters,):
            raise ValueError(
                f"{type(self).__name__} takes raw parameters of shape (..., {self.n_parameters}), got "
                f"{tuple(raw.shape)}; size the conditioner by n_parameters."
            )


class SlopeTransform(Transform):
    """A family defined by its images and slopes on ``[domain.low, domain.high]``.

    This class does the checks, the wrapping, the identity outside a `Line` and the logarithm. A new family
    has a field ``domain``, sets `n_parameters` and `smoothness` (in ``__post_init__``, with
    ``self._derive``), and implements `_forward` and `_inverse`.
    """

    def define_forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        y, slope = self._forward(self.domain.enter(x), raw.to(x.dtype))
        return self._leave(x, y, slope.log())

    def define_inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        x, slope = self._inverse(self.domain.enter(y), raw.to(y.dtype))
        return self._leave(y, x, -slope.log())

    @abstractmethod
    def _forward(self, x: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Image and slope $f'$ of points in ``[domain.low, domain.high]``."""

    @abstractmethod
    def _inverse(self, y: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Preimage $x$ of points in ``[domain.low, domain.high]``, and the slope $f'(x)$, not its inverse."""

    def _leave(self, x: Tensor, y: Tensor, ladj: Tensor) -> tuple[Tensor, Tensor]:
        inside = self.domain.inside(x)
        if inside is None:
            return y, ladj
        return torch.where(inside, y, x), torch.where(inside, ladj, 0.0)

    def _onto(self, source: Tensor, image: Tensor) -> Tensor:
        """Keep images inside the domain despite rounding, and map its upper end exactly to itself."""
        low, high = self.domain.low, self.domain.high
        return with_value(image, torch.where(source >= high, high, image.clamp(low, high)))
