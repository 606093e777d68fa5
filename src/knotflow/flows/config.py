"""Flows as configurations: everything that is needed to build one, without its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from knotflow.config import Config
from knotflow.flows.conditioner import Conditioner, SeparateConditioners
from knotflow.flows.coupling import Coupling
from knotflow.flows.flow import Flow, check_domains, standard
from knotflow.transforms import (
    Affine,
    BSpline,
    Bump,
    Chain,
    Circle,
    Domain,
    Interval,
    Line,
    Paper,
    RationalQuadratic,
    Slopes,
    Transform,
)

Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]


class DomainConfig(Config):
    """An `Interval`, a `Circle` or a `Line`."""

    kind: Literal["interval", "circle", "line"]
    low: float
    high: float

    @classmethod
    def of(cls, domain: Domain) -> DomainConfig:
        """The configuration of a domain."""
        return cls.parse(
            {"kind": type(domain).__name__.lower(), "low": float(domain.low), "high": float(domain.high)}
        )

    def build(self) -> Domain:
        """The domain."""
        kinds: dict[str, type[Interval | Circle | Line]] = {
            "interval": Interval,
            "circle": Circle,
            "line": Line,
        }
        return kinds[self.kind](self.low, self.high)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.build()
        return self


class SlopesConfig(Config):
    """The parametrisation `Slopes`."""

    kind: Literal["slopes"] = "slopes"
    min_width: float | None = None
    min_slope: float = 0.1
    max_slope: float = 20.0

    def build(self) -> Slopes:
        """The parametrisation."""
        return Slopes(self.min_width, self.min_slope, self.max_slope)


class PaperConfig(Config):
    """The parametrisation `Paper`."""

    kind: Literal["paper"] = "paper"
    min_width: float | None = None
    min_rise: float | None = None

    def build(self) -> Paper:
        """The parametrisation."""
        return Paper(self.min_width, self.min_rise)


class BSplineConfig(Config):
    """`BSpline`; ``phase`` is for circles, ``affine`` (an `Affine` before the spline) for lines.

    Both are ignored elsewhere.
    """

    family: Literal["bspline"] = "bspline"
    bins: Count = 32
    order: Annotated[int, Field(ge=3)] = 4
    parametrisation: Annotated[SlopesConfig | PaperConfig, Field(discriminator="kind")] = SlopesConfig()
    phase: bool = True
    affine: bool = False

    def build(self, domain: Domain) -> Transform:
        """The transform on a domain."""
        spline = BSpline(
            self.bins,
            self.order,
            domain,
            parametrisation=self.parametrisation.build(),
            phase=self.phase and isinstance(domain, Circle),
        )
        return Chain([Affine(), spline]) if self.affine and isinstance(domain, Line) else spline


class RationalQuadraticConfig(Config):
    """`RationalQuadratic`."""

    family: Literal["rq"] = "rq"
    bins: Count = 32
    min_width: float | None = None
    min_height: float | None = None
    min_slope: float = 1e-2

    def build(self, domain: Domain) -> Transform:
        """The transform on a domain."""
        return RationalQuadratic(
            self.bins,
            domain,
            min_width=self.min_width,
            min_height=self.min_height,
            min_slope=self.min_slope,
        )


class BumpConfig(Config):
    """`Bump`, the paper's Smooth."""

    family: Literal["smooth"] = "smooth"
    components: Count = 8
    min_slope: float = 1e-2

    def build(self, domain: Domain) -> Transform:
        """The transform on a domain."""
        return Bump(self.components, domain, min_slope=self.min_slope)


TransformConfig = Annotated[
    BSplineConfig | RationalQuadraticConfig | BumpConfig, Field(discriminator="family")
]


class ConditionerConfig(Config):
    """`Conditioner`: see there."""

    hidden: Annotated[tuple[Count, ...], Field(strict=False)] = (64, 64)
    activation: Literal["gelu", "silu", "sin", "softplus", "tanh"] = "silu"
    residual: bool = False
    frequencies: Count = 1
    identity: bool = True
    networks: Annotated[tuple[Count, ...], Field(strict=False)] = (1,)
    """More than one number: `SeparateConditioners`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.residual and len(set(self.hidden)) > 1:
            raise ValueError(f"residual layers need hidden layers of one width, got {self.hidden}")
        return self


class CouplingConfig(Config):
    """One coupling layer."""

    transformed: Annotated[tuple[Index, ...], Field(strict=False, min_length=1)]
    read: Annotated[tuple[Index, ...], Field(strict=False)] = ()
    transform: TransformConfig = BSplineConfig()
    conditioner: ConditionerConfig = ConditionerConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        both = [*self.transformed, *self.read]
        if len(set(both)) < len(both):
            raise ValueError(
                "a coordinate can be transformed or read, and only once, got "
                f"transformed={list(self.transformed)}, read={list(self.read)}"
            )
        return self

    def build(self, domains: Sequence[Domain], context: int) -> Coupling:
        """The layer, with fresh weights, for coordinates on the given standard domains."""
        transforms = [self.transform.build(domains[i]) for i in self.transformed]
        options = dict(self.conditioner)
        networks = options.pop("networks")
        read = [domains[i] for i in self.read]
        if len(networks) == 1:
            outputs = sum(f.n_parameters for f in transforms)
            return Coupling(
                self.transformed,
                transforms,
                self.read,
                Conditioner(read, outputs, context=context, **options),
            )
        sizes = Coupling.sizes(transforms)
        separate = SeparateConditioners(read, sizes, networks, context=context, **options)
        return Coupling(self.transformed, transforms, self.read, separate)


class FlowConfig(Config):
    """A whole flow: domains of the coordinates, and the couplings."""

    domains: Annotated[tuple[DomainConfig, ...], Field(strict=False, min_length=1)]
    couplings: Annotated[tuple[CouplingConfig, ...], Field(strict=False)]
    context: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        domains = self._standard()
        for number, coupling in enumerate(self.couplings):
            worst = max(*coupling.transformed, *coupling.read, 0)
            if worst >= len(domains):
                raise ValueError(
                    f"coupling {number} uses coordinate {worst}, but there are {len(domains)}, counted from 0"
                )
            try:
                for i in coupling.transformed:
                    coupling.transform.build(domains[i])
            except ValueError as error:
                raise ValueError(f"couplings.{number}.transform: {error}") from None
        return self

    def _standard(self) -> list[Domain]:
        return [standard(domain.build()) for domain in self.domains]

    def build(self) -> Flow:
        """The flow, with fresh weights drawn from PyTorch's global generator."""
        domains = self._standard()
        couplings = [coupling.build(domains, self.context) for coupling in self.couplings]
        return Flow([d.build() for d in self.domains], couplings, context=self.context, config=self)


class FlowOptions(Config):
    """What can be chosen of the flow that `Flow.on` builds."""

    rounds: Count | None = None
    transform: TransformConfig = BSplineConfig()
    conditioner: ConditionerConfig = ConditionerConfig()
    context: Annotated[int, Field(ge=0)] = 0


def default_config(domains: Sequence[Domain], **options: Any) -> FlowConfig:
    """The configuration behind `Flow.on`.

    A round is a pair of couplings: one part of the coordinates is transformed given the rest, then the rest
    given that part. Parts follow the binary digits of the coordinates' numbers, a digit a round, so that
    after ceil(log2 d) rounds every coordinate has been read by every other.

    Args:
        domains: domain of each coordinate.
        **options: keys of `FlowOptions`. ``rounds`` is by default ceil(log2 d) + 1; ``transform``
            takes keys of `BSplineConfig`, `RationalQuadraticConfig` or `BumpConfig`, chosen by ``family``,
            which may stand alone (``transform="rq"``), by default cubic B-splines with learned rotations on
            circles; ``conditioner`` takes keys of `ConditionerConfig`; ``context`` is the number of
            components of a context.
    """
    transform = options.get("transform")
    if isinstance(transform, str):
        options["transform"] = {"family": transform}
    elif isinstance(transform, dict):
        options["transform"] = {"family": "bspline", **transform}
    chosen = FlowOptions.parse(options)
    domains = check_domains(domains)
    d = len(domains)
    digits = max(1, math.ceil(math.log2(max(d, 1))))
    rounds = digits + 1 if chosen.rounds is None else chosen.rounds
    parts = []
    for number in range(rounds):
        part = [i for i in range(d) if not i >> (number % digits) & 1]
        rest = [i for i in range(d) if i not in part]
        parts += [(part, rest), (rest, part)]
    couplings = [
        {"transformed": part, "read": rest, "transform": chosen.transform, "conditioner": chosen.conditioner}
        for part, rest in parts
        if part
    ]
    return FlowConfig.parse(
        {
            "domains": [DomainConfig.of(domain) for domain in domains],
            "couplings": couplings,
            "context": chosen.context,
        }
    )
