"""The flow: a density of coordinates with domains, made of a base distribution and couplings."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor, nn

from knotflow.flows.checks import refuse_not_finite
from knotflow.flows.conditioner import Conditioner, SeparateConditioners
from knotflow.flows.constants import Constants
from knotflow.flows.coupling import Coupling
from knotflow.flows.gradient import with_gradient
from knotflow.flows.mixture import Mixture
from knotflow.transforms import Circle, Domain, Interval, Line
from knotflow.transforms.base import check_count, check_tensor
from knotflow.transforms.domains import rounding, with_value

if TYPE_CHECKING:
    from knotflow.flows.config import CouplingConfig, FlowConfig

CHUNK = 20_000
"""Points handled at once by `Flow.sample` and, without gradients, by `Flow.log_prob`."""
STANDARD: Final[dict[type[Domain], Domain]] = {Interval: Interval(), Circle: Circle(), Line: Line(-5.0, 5.0)}
"""The domains on which couplings act, by the kind of a coordinate's domain."""


def like(module: nn.Module) -> Tensor:
    """A tensor with the dtype and on the device of a flow or generator."""
    return next(module.parameters(), torch.empty(0))


def dtype_name(dtype: torch.dtype) -> str:
    """Its name without the package: ``float32``."""
    return str(dtype).removeprefix("torch.")


def standard(domain: Domain) -> Domain:
    """The standard domain on which couplings act on a coordinate."""
    if type(domain) not in STANDARD:
        raise ValueError(f"a coordinate of a flow lives on an Interval, a Circle or a Line, got {domain!r}.")
    return STANDARD[type(domain)]


def check_domains(domains: Sequence[Domain]) -> tuple[Domain, ...]:
    """The domains as a tuple; raises ``ValueError`` unless it is a non-empty sequence of domains."""
    if isinstance(domains, Domain) or not isinstance(domains, Sequence):
        raise ValueError(f"expected a list of domains, one for each coordinate, got {domains!r}.")
    check_count("the number of coordinates", len(domains), 1)
    for domain in domains:
        standard(domain)
    return tuple(domains)


def check_components(components: int, domains: Sequence[Domain]) -> None:
    """Raise ``ValueError`` unless a base of so many normals is possible."""
    check_count("components", components, 1)
    if components > 1 and not any(isinstance(domain, Line) for domain in domains):
        raise ValueError(
            f"a mixture of normals is for coordinates on a Line, and none of these is; got {components} "
            "components, leave them out."
        )


class Flow(nn.Module):
    r"""A probability density on d coordinates, each with its own domain.

    Couplings $f = f_n \circ \dots \circ f_1$ map data to a base distribution:

    $$\log p(x) = \log p_0(f(x)) + \log |\det f'(x)| .$$

    The base $p_0$ is uniform on intervals and circles. On a line it is normal, with its mean in the middle of
    ``[low, high]`` and a tenth of that length as standard deviation, or a trainable `Mixture` of normals on
    all lines together. Couplings act on standard domains (the
    unit interval, the unit circle, ``Line(-5, 5)``); the change of scale is part of the flow. So is, in a
    whitened flow, a triangular linear map of all lines together, $x = L z$, chosen from data by `whiten`, so
    that networks need not learn linear correlations. Density evaluation runs the splines forward, sampling
    runs their inverses.

    Points have shape (..., d) and the dtype of the flow: float32, or float64 after ``flow.double()``. Make a
    flow with `Flow.on` (a good default), with `FlowConfig.build` (from a configuration), or from your own
    couplings.

    Args:
        domains: `Interval`, `Circle` or `Line` of each coordinate.
        couplings: applied to data in this order; their transforms act on standard domains.
        context: number of components of the context that conditions the density.
        whitened: whether lines pass through a linear map; it is the identity until `whiten` is called.
        components: normals in the base on lines; more than one are a trainable mixture.
        config: the configuration from which the flow was built; needed to save it.
    """

    _mixing: Tensor

    def __init__(
        self,
        domains: Sequence[Domain],
        couplings: Sequence[Coupling],
        *,
        context: int = 0,
        whitened: bool = False,
        components: int = 1,
        config: FlowConfig | None = None,
    ) -> None:
        super().__init__()
        domains = check_domains(domains)
        check_count("context", context, 0)
        check_components(components, domains)
        self.domains, self.context, self.config = domains, context, config
        inner = [standard(domain) for domain in domains]
        for number, coupling in enumerate(couplings):
            _check_coupling(number, coupling, inner)
        self.couplings = cast("Sequence[Coupling]", nn.ModuleList(couplings))
        scale = [s.length / d.length for d, s in zip(domains, inner, strict=True)]
        self._log_scale = sum(map(math.log, scale))
        self._scale = Constants(scale)
        self._origin = Constants(
            [d.low if s.low == 0 else (d.low + d.high) / 2 for d, s in zip(domains, inner, strict=True)]
        )
        self._limits, self._inner_limits = _Limits(domains), _Limits(inner)
        lines = [i for i, d in enumerate(domains) if isinstance(d, Line)]
        self._lines = Constants(lines, whole=True)
        self.whitened = whitened and bool(lines)
        if self.whitened:
            self.register_buffer("_mixing", torch.eye(len(lines)))
        self.mixture = Mixture(len(lines), components) if components > 1 else None

    @classmethod
    def on(cls, domains: Sequence[Domain], **options: Any) -> Flow:
        """A flow that trains well without further choices; for options see `knotflow.flows.default_config`.

        Example:
            ``Flow.on([Circle(-math.pi, math.pi)] * 2 + [Interval(0.05, 0.3)] * 3)``
        """
        from knotflow.flows.config import default_config

        return default_config(domains, **options).build()

    @classmethod
    def for_data(
        cls,
        x: Tensor,
        domains: Mapping[int, Domain] | None = None,
        *,
        whitened: bool = True,
        **options: Any,
    ) -> Flow:
        """A flow whose domains fit data (n, d), in their dtype and on their device, ready to be trained.

        A coordinate gets a line around its mean, five standard deviations to each side. Linear correlations
        of lines are taken out by `whiten`.

        Args:
            x: the data.
            domains: domains of coordinates that are angles or have hard limits, by their number.
            whitened: whether to take out linear correlations.
            **options: as in `on`.

        Example:
            ``Flow.for_data(x, {0: Circle(-math.pi, math.pi)})``
        """
        from knotflow.flows.config import default_config
        from knotflow.flows.fitted import data_domains

        config = default_config(data_domains(x, domains or {}), whitened=whitened, **options)
        flow = config.build().to(x)
        flow.check(x, x.new_zeros(flow.context) if flow.context else None)
        if flow.whitened:
            flow.whiten(x)
        return flow

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.domains)

    @torch.no_grad()
    def whiten(self, x: Tensor) -> None:
        """Choose the linear map of a whitened flow: data (n, d) get uncorrelated lines of unit spread.

        $L$ is the Cholesky factor of the covariance of the lines, in standard coordinates. Of $n$ points and
        $m$ lines, correlations are multiplied by $n^2 / (n^2 + m^2)$, so that chance correlations of few
        points do no harm (shrinkage, as Ledoit & Wolf, J. Multivar. Anal. 88, 2004).
        """
        if not self.whitened:
            raise ValueError("this flow has no linear map; build it with whitened=True.")
        self._check_shapes(x, None if not self.context else x.new_zeros(self.context))
        if len(x) < 2:
            raise ValueError(f"the spread of data needs at least two points, got {len(x)}.")
        z = ((x - self._origin(x)) * self._scale(x)).index_select(-1, self._lines(x)).double()
        covariance = torch.cov(z.T).reshape(len(self._lines), -1)
        share = len(z) ** 2 / (len(z) ** 2 + len(covariance) ** 2)
        covariance = share * covariance + (1 - share) * torch.diag(covariance.diagonal())
        # A direction in which the data do not spread at all keeps a thousandth of its scale.
        lower = torch.linalg.cholesky(covariance + 1e-6 * torch.eye(len(covariance)).to(covariance))
        self._mixing.copy_(lower)

    def with_couplings(self, couplings: Sequence[Coupling]) -> Flow:
        """A flow with the same base, scales and linear map, but other couplings."""
        other = Flow(self.domains, couplings, context=self.context, whitened=self.whitened)
        if self.whitened:
            other._mixing = self._mixing
        other.mixture = self.mixture
        return other

    def standard_score(self, score: Tensor) -> Tensor:
        """Scores (..., d), or differences of scores, with respect to the standard coordinates."""
        score = score / self._scale(score)
        return self._mixed(score, self._mixing.T) if self.whitened else score

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map data (..., d) to the base; returns base points, in standard coordinates, and log |det|."""
        self._check_shapes(x, context)
        z, log_slopes = self._enter(x), []
        for coupling in self.couplings:
            z, more = coupling(z, context)
            log_slopes.append(more)
        return z, self._ladj(log_slopes, x, 1)

    def inverse(self, z: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map base points (..., d), in standard coordinates, to data; returns data and log |det|."""
        self._check_shapes(z, context)
        x, log_slopes = z, []
        for coupling in reversed(self.couplings):
            x, more = coupling.inverse(x, context)
            log_slopes.append(more)
        if self.whitened:
            x = self._mixed(x, self._mixing)
        data = self._limits.clip(self._origin(x) + x / self._scale(x))
        return data, self._ladj(log_slopes, z, -1)

    def log_prob(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Log-density (...) of points (..., d); without gradients, in bounded memory."""
        return in_chunks(self._log_prob, x, context)

    def log_prob_and_score(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-density (...) and score (..., d) of points in one pass, both differentiable."""
        check_tensor("points", x)
        self.check_context(context)
        others = chain((context,), self.parameters())
        return with_gradient(lambda points: self._log_prob(points, context), x, others)

    def score(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        r"""$\partial \log p / \partial x$ of points (..., d): the force of the energy $u = -\log p$."""
        return in_chunks(lambda *part: self.log_prob_and_score(*part)[1], x, context)

    def energy(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        r"""Reduced energy $u = -\log p$; with `force`, a flow can be used wherever an energy can."""
        return -self.log_prob(x, context)

    def force(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        r"""$-\partial u / \partial x$, the score."""
        return self.score(x, context)

    def sample(
        self, n: int, context: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw n points (n, d), in bounded memory. A context has shape (m,), or (n, m): one per point."""
        return self.sample_and_log_prob(n, context, generator=generator)[0]

    @torch.no_grad()
    def sample_and_log_prob(
        self, n: int, context: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw n points, with their log-densities: (n, d) and (n,)."""
        check_count("n", n, 0)
        own = like(self)
        x, log_prob = own.new_empty(n, self.dim), own.new_empty(n)
        for first, c in zip(range(0, n, CHUNK), _split(context, n), strict=False):
            part = slice(first, min(first + CHUNK, n))
            z = self.sample_base(part.stop - first, generator=generator)
            x[part], ladj = self.inverse(z, c)
            log_prob[part] = self.base_log_prob(z) - ladj
        return x, log_prob

    def sample_base(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n points of the base distribution, in standard coordinates."""
        own = like(self)
        options: dict[str, Any] = {"generator": generator, "dtype": own.dtype, "device": own.device}
        z = torch.rand(n, self.dim, **options)
        if len(self._lines):
            lines = (
                torch.randn(n, len(self._lines), **options)
                if self.mixture is None
                else self.mixture.sample(n, generator)
            )
            z = z.index_copy(-1, self._lines(z), lines)
        return z

    def base_log_prob(self, z: Tensor) -> Tensor:
        """Log-density of the base in standard coordinates."""
        if not len(self._lines):
            return z.new_zeros(z.shape[:-1])
        lines = z.index_select(-1, self._lines(z))
        if self.mixture is not None:
            return self.mixture.log_prob(lines)
        return -0.5 * (lines.square().sum(-1) + len(self._lines) * math.log(2 * math.pi))

    def base_cdf(self, z: Tensor) -> Tensor:
        """Share (..., d) of the base below each coordinate of points (..., d), in standard coordinates."""
        if not len(self._lines):
            return z
        places = self._lines(z)
        lines = z.index_select(-1, places)
        below = torch.special.ndtr(lines) if self.mixture is None else self.mixture.cdf(lines)
        return z.index_copy(-1, places, below)

    @torch.no_grad()
    def given(self, context: Tensor, domains: Sequence[Domain] | None = None) -> Flow:
        """The density at one context (m,), as a flow that takes no context, with copies of all weights.

        Args:
            context: the context.
            domains: other domains of the same kinds, to which the density is moved and stretched.
        """
        if not self.context or context.shape != (self.context,):
            expected = f"a context of shape ({self.context},)" if self.context else "no context"
            raise ValueError(f"expected {expected}, got one of shape {tuple(context.shape)}.")
        couplings = []
        for own in self.couplings:
            if not isinstance(own.conditioner, Conditioner | SeparateConditioners):
                raise ValueError(
                    f"a conditioner of the type {type(own.conditioner).__name__} keeps its context."
                )
            couplings.append(
                Coupling(own.transformed, own.transforms, own.read, own.conditioner.given(context))
            )
        domains = self.domains if domains is None else tuple(domains)
        config = self.config and self.config.model_copy(update={"context": 0, "domains": domains})
        found = Flow(domains, couplings, whitened=self.whitened, config=config).to(like(self))
        if self.whitened:
            found._mixing.copy_(self._mixing)
        found.mixture = copy.deepcopy(self.mixture)
        return found

    def check(self, x: Tensor, context: Tensor | None = None) -> None:
        """Raise ``ValueError`` unless points and context have the right shape and lie in their domains."""
        self._check_shapes(x, context)
        self._refuse_outside(x)

    def check_context(self, context: Tensor | None) -> None:
        """Raise ``ValueError`` unless a context (..., m) has the right size and only finite components."""
        if context is None:
            if self.context:
                raise ValueError(f"this flow is conditional: give a context of shape (..., {self.context}).")
            return
        check_tensor("a context", context)
        if not self.context or context.shape[-1:] != (self.context,):
            expected = f"a context of shape (..., {self.context})" if self.context else "no context"
            raise ValueError(f"expected {expected}, got one of shape {tuple(context.shape)}.")
        if not torch.compiler.is_compiling():
            refuse_not_finite(context.detach())

    def layers(self, x: Tensor, context: Tensor | None = None) -> Iterator[tuple[Coupling, Tensor, Tensor]]:
        """Each coupling with its input and log-slopes, in standard coordinates, to look inside a flow."""
        self._check_shapes(x, context)
        z = self._enter(x)
        for coupling in self.couplings:
            image, log_slopes = coupling(z, context)
            yield coupling, z, log_slopes
            z = image

    def _log_prob(self, x: Tensor, context: Tensor | None) -> Tensor:
        z, ladj = self.forward(x, context)
        return self.base_log_prob(z) + ladj

    def _ladj(self, log_slopes: Sequence[Tensor], x: Tensor, sign: int) -> Tensor:
        """Sum (...) of all log-slopes and of the linear part, of points (..., d); sign -1: of the inverse."""
        total = torch.cat(list(log_slopes), -1).sum(-1) if log_slopes else x.new_zeros(x.shape[:-1])
        if self.whitened:
            total = total - sign * self._mixing.diagonal().log().sum()
        return total + sign * self._log_scale

    def _mixed(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Points whose lines are multiplied by a matrix."""
        places = self._lines(x)
        return x.index_copy(-1, places, x.index_select(-1, places) @ matrix.to(x.dtype).T)

    def _enter(self, x: Tensor) -> Tensor:
        """Standard coordinates of data; points that rounding put outside an interval are moved back."""
        if not torch.compiler.is_compiling():
            self._refuse_outside(x.detach())
        z = self._inner_limits.clip((x - self._origin(x)) * self._scale(x))
        if not self.whitened:
            return z
        places, lower = self._lines(z), self._mixing.to(z.dtype)
        lines = z.index_select(-1, places)
        # The map is undone in the precision of the points, not by a stored inverse.
        rows = torch.linalg.solve_triangular(lower.T, lines.reshape(-1, len(lower)), upper=True, left=False)
        return z.index_copy(-1, places, rows.reshape(lines.shape))

    def _refuse_outside(self, x: Tensor) -> None:
        if x.numel() == 0:
            return
        least, most = torch.aminmax(x.reshape(-1, self.dim), dim=0)
        try:
            if self._limits.hold(least, most):
                return
        except RuntimeError:  # vmap hides the values
            return
        for i, (smallest, largest) in enumerate(zip(least.tolist(), most.tolist(), strict=True)):
            domain = self.domains[i]
            if math.isnan(smallest):
                raise ValueError(f"coordinate {i} is NaN in some points; remove those points.")
            (low, high), slack = domain.bounds, rounding(domain, x.dtype)
            if not (smallest >= low - slack and largest <= high + slack):
                raise ValueError(
                    f"coordinate {i} lives on the interval [{domain.low}, {domain.high}], got values from "
                    f"{smallest:.9g} to {largest:.9g}; rescale the data or widen the interval."
                )

    def _check_shapes(self, x: Tensor, context: Tensor | None) -> None:
        check_tensor("points", x)
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise ValueError(f"expected points of shape (..., {self.dim}), got {tuple(x.shape)}.")
        if not torch.is_floating_point(x):
            raise ValueError(f"expected floating-point coordinates, got {x.dtype}; call .float().")
        own = next(self.parameters(), x).dtype
        if x.dtype != own and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(
                f"this flow computes in {own}, got points in {x.dtype}; convert the points with x.to({own}), "
                f"or the flow with flow.to({x.dtype})."
            )
        self.check_context(context)
        if context is not None and context.ndim > 1 and context.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                f"expected one context, or one for each point, of shape {(*x.shape[:-1], self.context)}, got "
                f"{tuple(context.shape)}."
            )


class _Limits(nn.Module):
    """The bounds of all coordinates, on the device of the flow."""

    def __init__(self, domains: Sequence[Domain]) -> None:
        super().__init__()
        low, high = zip(*(d.bounds for d in domains), strict=True)
        self.low, self.high = Constants(low), Constants(high)
        self._any = any(map(math.isfinite, low))

    def clip(self, x: Tensor) -> Tensor:
        """Clamp the values of points, but keep their derivatives."""
        return with_value(x, torch.clamp(x, self.low(x), self.high(x))) if self._any else x

    def hold(self, least: Tensor, most: Tensor) -> bool:
        """Whether all values from least to most, (d,) each, are inside and not NaN."""
        return bool(((least >= self.low(least)) & (most <= self.high(most))).all())


def check_coordinates(number: int, coupling: Coupling | CouplingConfig, dim: int) -> None:
    """Raise ``ValueError`` if a coupling uses a coordinate that does not exist."""
    last = max(*coupling.transformed, *coupling.read, 0)
    if last >= dim:
        raise ValueError(f"coupling {number} uses coordinate {last}, but there are {dim}, counted from 0.")


def _check_coupling(number: int, coupling: Coupling, domains: Sequence[Domain]) -> None:
    check_coordinates(number, coupling, len(domains))
    for i, f in zip(coupling.transformed, coupling.transforms, strict=True):
        if f.domain != domains[i]:
            raise ValueError(
                f"coupling {number} must act on the standard domain {domains[i]} of coordinate {i}, got a "
                f"transform of {f.domain}."
            )


def in_chunks(
    function: Callable[..., Tensor], x: Tensor, *context: Tensor | None, point_axes: int = 1
) -> Tensor:
    """Apply a function to points (n, ...) and context; without gradients, `CHUNK` points at a time."""
    check_tensor("points", x)
    whole = x.ndim != 1 + point_axes or len(x) <= CHUNK
    if whole or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return function(x, *context)
    chunks = zip(x.split(CHUNK), *(_split(c, len(x)) for c in context), strict=False)
    return torch.cat([function(*chunk) for chunk in chunks])


def _split(context: Tensor | None, n: int) -> Sequence[Tensor | None]:
    """The context of each chunk of n points."""
    if context is not None:
        check_tensor("a context", context)
    if context is None or context.ndim < 2:
        return [context] * math.ceil(max(n, 1) / CHUNK)
    if len(context) != n:
        raise ValueError(f"expected a context for each of {n} points, got {len(context)}.")
    return list(context.split(CHUNK))
