"""Configurations of flows: everything needed to build one, except its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from knotflow.config import Config
from knotflow.errors import ConfigError
from knotflow.flows.conditioner import ACTIVATIONS, Conditioner, SeparateConditioners, check_residual
from knotflow.flows.coupling import Coupling, autoregressive, check_indices
from knotflow.flows.flow import Flow, check_components, check_coordinates, check_domains, standard
from knotflow.flows.tagged import model_of, tagged
from knotflow.resources import check_memory
from knotflow.transforms import FAMILIES, Affine, Chain, Circle, Domain, Line, Transform
from knotflow.transforms.domains import DOMAINS
from knotflow.transforms.families import RENAMED
from knotflow.transforms.knots import PARAMETRISATIONS, Parametrisation

Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Pairs = Sequence[tuple[Sequence[int], Sequence[int]]]
"""For each coupling, the coordinates that it transforms and those that it reads."""

APPLIES: Final[dict[str, type[Domain]]] = {"phase": Circle, "affine": Line}
"""Options of transforms that apply to one kind of domain only."""


MOST_BINS: Final = 256
"""Bins of all coordinates together in the flows of `default_config`, which keeps those of wide data small."""
BINS: Final = (8, 32)
"""Fewest and most bins of one coordinate there."""
WIDE: Final = 64
"""With more coordinates, most rounds have one coupling instead of two."""
PASSES: Final = 3
"""Autoregressive couplings there, each in the opposite order of the one before."""


class TransformConfig(Config):
    """A family of transforms without a domain, as each coordinate has its own.

    The keys are ``family`` (a name in `knotflow.transforms.FAMILIES`), the fields of that dataclass except
    ``domain``, and ``affine``.
    """

    family: str
    affine: bool = False
    """Shift and scale coordinates on lines first, with an `Affine`."""

    def unused(self, domains: Sequence[Domain]) -> list[str]:
        """Options that are set but apply to none of these domains."""
        chosen = {key: kind for key, kind in APPLIES.items() if getattr(self, key, False)}
        return [key for key, kind in chosen.items() if not any(isinstance(d, kind) for d in domains)]

    def refuse_unused(self, domains: Sequence[Domain]) -> None:
        """Raise ``ValueError`` for options that would have no effect on these domains."""
        for key in self.unused(domains):
            raise ValueError(
                f"{key} is for coordinates on a {APPLIES[key].__name__}, and none of these is; leave it out"
            )

    def fitted(self, domains: Sequence[Domain]) -> Self:
        """The same without options that apply to none of these domains."""
        return self.model_copy(update=dict.fromkeys(self.unused(domains), False))

    def on(self, domain: Domain) -> Transform:
        """The family on a domain, with the options that apply there."""
        options = dict(self.fitted([domain]))
        kind, affine = FAMILIES[options.pop("family")].kind, options.pop("affine")
        transform: Transform = kind(domain=domain, **options)
        return Chain([Affine(), transform]) if affine else transform

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle cannot import classes that are made from dataclasses.
        return _transform_config, (dict(self),)


def _transform_config(table: dict[str, Any]) -> TransformConfig:
    return FlowOptions.parse({"transform": table}).transform


def _current(name: Any) -> Any:
    """The current name of a family."""
    return RENAMED.get(name, name) if isinstance(name, str) else name


def _table(value: Any) -> Any:
    """A transform as a table of its family, by its current name, and fields; also from the family itself."""
    names = {family.kind: name for name, family in FAMILIES.items()} if isinstance(value, Transform) else {}
    if type(value) in names:
        own = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return {"family": names[type(value)], **{key: own[key] for key in own if key != "domain"}}
    if isinstance(value, dict) and "family" in value:
        return {**value, "family": _current(value["family"])}
    return value


if TYPE_CHECKING:
    ActivationName = str
    FamilyName = str
    AnyTransform = TransformConfig
    AnyDomain = Domain
else:
    ActivationName = Literal[tuple(ACTIVATIONS)]
    FamilyName = Annotated[Literal[tuple(FAMILIES)], BeforeValidator(_current)]
    AnyDomain = tagged("kind", DOMAINS)
    _held = {Parametrisation: tagged("kind", PARAMETRISATIONS)}
    _models = [
        model_of(family.kind, TransformConfig, "family", name, _held, without="domain")
        for name, family in FAMILIES.items()
    ]
    AnyTransform = Annotated[reduce(or_, _models), Field(discriminator="family"), BeforeValidator(_table)]


class ConditionerConfig(Config):
    """Options of a `Conditioner`."""

    hidden: Annotated[tuple[Count, ...], Field(strict=False)] = (64, 64)
    activation: ActivationName = "silu"
    residual: bool = False
    frequencies: Count = 1
    identity: bool = True
    unit_spread: bool = True
    """Lines enter in deviations of the base; files of version 0.2 and before lack this and mean False."""
    networks: Annotated[tuple[Count, ...], Field(strict=False)] = (1,)
    """Shares of `SeparateConditioners`, if there is more than one number."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_residual(self.residual, self.hidden)
        return self


class CouplingConfig(Config):
    """One coupling layer."""

    transformed: Annotated[tuple[Index, ...], Field(strict=False, min_length=1)]
    read: Annotated[tuple[Index, ...], Field(strict=False)] = ()
    transform: AnyTransform = Field({"family": "bspline"}, validate_default=True)
    conditioner: ConditionerConfig = ConditionerConfig()
    autoregressive: bool = False
    """Each transformed coordinate also reads those before it in ``transformed``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_indices(self.transformed, self.read)
        if self.autoregressive and len(self.conditioner.networks) > 1:
            raise ValueError("an autoregressive coupling has one network; leave networks out")
        return self

    def build(self, domains: Sequence[Domain], context: int) -> Coupling:
        """The layer, with new weights, for coordinates on the given standard domains."""
        transforms = [self.transform.on(domains[i]) for i in self.transformed]
        outputs = sum(f.n_parameters for f in transforms)
        weights = outputs * max(self.conditioner.hidden, default=1)
        check_memory(f"a network with {outputs:,} outputs, the parameters of the maps,", 4 * weights)
        options = {**dict(self.conditioner), "context": context}
        networks, read = options.pop("networks"), [domains[i] for i in self.read]
        if self.autoregressive:
            return autoregressive(self.transformed, transforms, self.read, domains, **options)
        conditioner: Conditioner | SeparateConditioners
        if len(networks) == 1:
            conditioner = Conditioner(read, outputs, **options)
        else:
            conditioner = SeparateConditioners(read, Coupling.sizes(transforms), networks, **options)
        return Coupling(self.transformed, transforms, self.read, conditioner)


class FlowConfig(Config):
    """A whole flow: domains of the coordinates, and the couplings."""

    domains: Annotated[tuple[AnyDomain, ...], Field(strict=False, min_length=1)]
    couplings: Annotated[tuple[CouplingConfig, ...], Field(strict=False)]
    context: Annotated[int, Field(ge=0)] = 0
    whitened: bool = False
    """Whether lines pass through a linear map that takes out their correlations, see `Flow.whiten`."""
    components: Count = 1
    """Normals in the base on lines; more than one are a trainable `Mixture`."""

    @classmethod
    def read(cls, data: Any) -> Self:
        """A configuration from a file that any version of knotflow wrote.

        Version 0.1 also stored phases and affine parts for couplings to which they do not apply. Up to
        version 0.2 networks saw lines scaled by their limits, as they see intervals.
        """
        try:
            kinds = [DOMAINS[domain["kind"]] for domain in data["domains"]]
            couplings = []
            for coupling in data["couplings"]:
                own, seen = ({kinds[i] for i in coupling[key]} for key in ("transformed", "read"))
                transform = coupling["transform"]
                unused = [key for key, kind in APPLIES.items() if key in transform and kind not in own]
                couplings.append(
                    {
                        **coupling,
                        "transform": {**transform, **dict.fromkeys(unused, False)},
                        "conditioner": {"unit_spread": Line not in seen, **coupling.get("conditioner", {})},
                    }
                )
        except (AttributeError, IndexError, KeyError, TypeError):
            return cls.parse(data)  # raises an error that says what is wrong
        return cls.parse({**data, "couplings": couplings})

    @model_validator(mode="after")
    def _check(self) -> Self:
        domains = [standard(domain) for domain in self.domains]
        check_components(self.components, domains)
        for number, coupling in enumerate(self.couplings):
            check_coordinates(number, coupling, len(domains))
            own = [domains[i] for i in coupling.transformed]
            try:
                coupling.transform.refuse_unused(own)
                for domain in own:
                    coupling.transform.on(domain)
            except ValueError as error:
                raise ValueError(f"couplings.{number}.transform: {error}") from None
        return self

    def build(self) -> Flow:
        """The flow, with new weights drawn from PyTorch's global generator."""
        domains = [standard(domain) for domain in self.domains]
        couplings = [coupling.build(domains, self.context) for coupling in self.couplings]
        return Flow(
            self.domains,
            couplings,
            context=self.context,
            whitened=self.whitened,
            components=self.components,
            config=self,
        )


class FlowOptions(Config):
    """Options of the flow that `Flow.on` builds."""

    rounds: Count | None = None
    masks: Literal["coupling", "autoregressive"] = "coupling"
    transform: AnyTransform = Field({"family": "bspline"}, validate_default=True)
    conditioner: ConditionerConfig = ConditionerConfig()
    context: Annotated[int, Field(ge=0)] = 0
    whitened: bool = False
    components: Count = 1

    def couplings(self, domains: Sequence[Domain], pairs: Pairs) -> list[CouplingConfig]:
        """A coupling for each pair, with the options of the transform that apply there."""
        return [
            CouplingConfig(
                transformed=tuple(part),
                read=tuple(rest),
                transform=self.transform.fitted([domains[i] for i in part]),
                conditioner=self.conditioner,
                autoregressive=self.masks == "autoregressive",
            )
            for part, rest in pairs
        ]


def default_config(domains: Sequence[Domain], **options: Any) -> FlowConfig:
    """The configuration behind `Flow.on`.

    Couplings follow `halves`: after ceil(log2 d) rounds every coordinate has been read by every other. With
    more than `WIDE` coordinates, all rounds but the last have one coupling instead of two: of any two
    coordinates one has been read by the other.

    Args:
        domains: domain of each coordinate.
        **options: keys of `FlowOptions`. ``rounds`` is ceil(log2 d) + 1 by default. ``masks`` is "coupling"
            or "autoregressive": each coordinate given those before it, in orders that alternate, for
            ``rounds`` layers, by default `PASSES`. ``transform`` is a family such as `BSpline(16)` (its
            domain is ignored), its name, or a table of ``family`` and any fields; by default cubic
            B-splines, with learned rotations on circles. Splines have 32 bins for up to 8 coordinates, 256 /
            d for more, and never fewer than 8. ``conditioner`` is a table of keys of `ConditionerConfig`.
            ``context`` is the number of components of the context. ``whitened`` and ``components`` are those
            of `Flow`.
    """
    domains = check_domains(domains)
    transform = options.get("transform", {})
    if isinstance(transform, str):
        transform = {"family": transform}
    if isinstance(transform, dict):
        transform = {"family": "bspline", **transform}
        if transform["family"] in ("bspline", "rq"):
            transform.setdefault("bins", min(max(MOST_BINS // len(domains), BINS[0]), BINS[1]))
        if transform["family"] == "bspline":
            transform.setdefault("phase", any(isinstance(domain, Circle) for domain in domains))
    chosen = FlowOptions.parse({**options, "transform": transform})
    try:
        chosen.transform.refuse_unused(domains)
    except ValueError as error:
        raise ConfigError(f"transform: {error}.") from None
    d = len(domains)
    pairs: Pairs
    if chosen.masks == "autoregressive":
        order = list(range(d))
        pairs = [(order[:: (-1) ** number], []) for number in range(chosen.rounds or PASSES)]
    else:
        rounds = math.ceil(math.log2(max(d, 2))) + 1 if chosen.rounds is None else chosen.rounds
        pairs = halves(range(d), rounds)
        if d > WIDE and chosen.rounds is None:
            # The first and the second coupling of a round in turns; then a whole round, which transforms all.
            pairs = [*(pair for n, pair in enumerate(pairs[:-2]) if n % 4 in (0, 3)), *pairs[-2:]]
    table = {key: getattr(chosen, key) for key in ("context", "whitened", "components")}
    return FlowConfig.parse({"domains": domains, "couplings": chosen.couplings(domains, pairs), **table})


def halves(members: Sequence[int], rounds: int) -> Pairs:
    """Pairs of a part of the members and the rest, and then of the rest and the part, in every round.

    Parts follow the binary digits of the members' places, one digit per round, so that after ceil(log2 n)
    rounds every member has met every other. Pairs with nothing to transform are left out.
    """
    digits = max(1, math.ceil(math.log2(max(len(members), 1))))
    pairs = []
    for number in range(rounds):
        part = [m for place, m in enumerate(members) if not place >> (number % digits) & 1]
        rest = [m for m in members if m not in part]
        pairs += [(part, rest), (rest, part)]
    return [(part, rest) for part, rest in pairs if part]
