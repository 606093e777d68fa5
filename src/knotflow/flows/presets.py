"""Flows for molecules: the flow of the paper, and flows fitted to data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

import torch
from torch import Tensor

from knotflow.flows.config import FlowConfig, FlowOptions, Pairs, halves
from knotflow.flows.fitted import REACH
from knotflow.geometry import InternalCoordinates
from knotflow.transforms import FAMILIES, Circle, Domain, Interval, Line

Preset = Literal["best", "quick", "paper"]

BOND_LIMITS = (0.05, 0.3)
"""Limits of bonds in the paper, in nm."""
ANGLE_LIMITS = (0.15 * math.pi, math.pi)
"""Limits of angles in the paper."""

STIFF = 0.35
"""A torsion with a circular standard deviation (rad) below this does not turn over: it gets a line."""
RQ_FLOOR = 1e-3
"""Floors of the paper's rational-quadratic splines, as in Durkan et al. (NeurIPS 2019) and libraries."""
DENSITY_FLOOR = 1e-6
"""Floor of the paper's B-splines (smallest rise) and bumps (smallest slope; Köhler et al., NeurIPS 2021, have
it for this molecule). It is the density where there are no data. So it limits the height of the walls that
keep molecules intact in dynamics on the flow: with 1e-4, bonds and angles leak over them."""
MARGIN = 8.0
"""Standard deviations that must fit between the mean of a bond or angle and its physical limits."""


def paper_flow(
    coordinates: InternalCoordinates,
    family: str = "bspline",
    *,
    bins: int | None = None,
    order: int = 4,
    min_width: float | None = None,
) -> FlowConfig:
    """The flow of Hong & Chun (AAAI 2023), for alanine dipeptide with the published numbers of parameters.

    Bonds live on [0.05, 0.3] nm, angles on [0.15π, π], torsions on the circle, with a uniform base. Bonds are
    transformed given angles and torsions, and angles given torsions. The two halves of the torsions, in the
    order of the z-matrix, are transformed given each other, twice. Networks have two hidden layers of 64 with
    sine activations; "bump" has three networks, for weights, shapes and the rest.

    Args:
        coordinates: coordinates of a molecule of at least five atoms, so that there are two torsions.
        family: "bspline", "rq" or "bump", with the paper's floors; any other family with its own.
        bins: bins or components; by default 32, 16 and 8 as in the paper.
        order: order of B-splines.
        min_width: smallest width of a bin of B-splines, as a fraction of the whole; by default a tenth of an
            equal share, which keeps force matching stable. The paper has 1e-6.
    """
    n = coordinates.n_coordinates
    bonds, angles, torsions = (
        list(range(n))[part] for part in (coordinates.bonds, coordinates.angles, coordinates.torsions)
    )
    if len(torsions) < 2:
        raise ValueError(
            f"the paper's flow splits the torsions into two halves and needs at least 5 atoms, got "
            f"{coordinates.n_atoms}; use the preset best or quick."
        )
    domains: list[Domain] = [Interval(*BOND_LIMITS)] * len(bonds)
    domains += [Interval(*ANGLE_LIMITS)] * len(angles) + [Circle(-math.pi, math.pi)] * len(torsions)
    half = len(torsions) // 2
    first, second = torsions[:half], torsions[half:]
    parts = [(bonds, angles + torsions), (angles, torsions), *[(second, first), (first, second)] * 2]
    conditioner: dict[str, Any] = {"hidden": [64, 64], "activation": "sin", "identity": False}
    if family == "bump":
        conditioner["networks"] = [1, 1, 3]
    floors: dict[str, dict[str, Any]] = {
        # The published parametrisation gives the published numbers of parameters.
        "bspline": {"parametrisation": {"kind": "paper", "min_width": min_width, "min_rise": DENSITY_FLOOR}},
        "rq": dict.fromkeys(("min_width", "min_height", "min_slope"), RQ_FLOOR),
        "bump": {"min_slope": DENSITY_FLOOR},
    }
    transform = {**_family(family, bins, order), **floors.get(family, {})}
    return _config(domains, [(parts, transform)], conditioner)


def molecular_flow(
    coordinates: InternalCoordinates,
    q: Tensor,
    *,
    rounds: int = 3,
    turning_rounds: int = 5,
    hidden: Sequence[int] = (128, 128),
    frequencies: int = 3,
    family: str = "bspline",
    bins: int | None = None,
    line_bins: int = 8,
    order: int = 4,
    context: int = 0,
) -> FlowConfig:
    """A flow fitted to the shape of a molecule's data.

    Stiff coordinates are all bonds and angles, and the torsions that do not turn over. They live on lines:
    they are standardised by their means and deviations, freed of linear correlations (`Flow.whiten`), have a
    normal base, and are shifted and scaled before their splines, all given other coordinates. Torsions that
    turn live on circles. In every round a part of the stiff coordinates is transformed given the rest and all
    turning torsions, then the other part. At the end the turning torsions are transformed, given each other
    and all stiff coordinates. Parts follow `halves`, so that any two coordinates meet.

    Args:
        coordinates: coordinates of the molecule.
        q: training data in these coordinates, (frames, n).
        rounds: rounds of couplings between stiff coordinates.
        turning_rounds: rounds of couplings between turning torsions. They are cheap, and need more: what one
            torsion allows another, such as psi in a rare well of phi, has sharp limits.
        hidden: widths of the hidden layers.
        frequencies: frequencies of the turning torsions that networks see, for the same reason.
        family: transforms of the turning torsions.
        bins: bins or components of the turning torsions; by default those of `FAMILIES`.
        line_bins: bins of the splines of stiff coordinates.
        order: order of all B-splines.
        context: number of components of the context.
    """
    domains = fitted_domains(coordinates, q)
    stiff = [i for i, domain in enumerate(domains) if not isinstance(domain, Circle)]
    turning = [i for i, domain in enumerate(domains) if isinstance(domain, Circle)]
    line = {**_family("bspline", line_bins, order), "affine": True}
    circle = _family(family, bins, order, phase=True)
    layers = [
        ([(part, [*rest, *others]) for part, rest in halves(own, n if len(own) > 1 else 1)], transform)
        for own, others, n, transform in (
            (stiff, turning, rounds, line),
            (turning, stiff, turning_rounds, circle),
        )
    ]
    conditioner = {"hidden": list(hidden), "frequencies": frequencies}
    return _config(domains, layers, conditioner, whitened=bool(stiff), context=context)


def fitted_domains(coordinates: InternalCoordinates, q: Tensor) -> list[Domain]:
    """Domains that suit data: lines for stiff coordinates, circles for torsions that turn.

    A bond or angle that comes close to a physical limit, such as the angle of a linear group, gets the
    interval between the limits.
    """
    q, first_torsion = q.double(), coordinates.torsions.start
    turns = torch.exp(1j * q[:, coordinates.torsions]).mean(0)
    circular = torch.sqrt(-2 * torch.log(turns.abs().clamp(1e-12, 1.0)))
    means = torch.cat([q.mean(0)[:first_torsion], turns.angle()]).tolist()
    spreads = torch.cat([q.std(0)[:first_torsion], circular]).clamp(min=1e-6).tolist()
    domains: list[Domain] = []
    for i, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        whole: Domain = Circle(-math.pi, math.pi)
        stiff = spread < STIFF
        if i < first_torsion:
            bond = i < coordinates.angles.start
            whole, limit = (Interval(0.02, 1.0), math.inf) if bond else (Interval(0.0, math.pi), math.pi)
            stiff = MARGIN * spread < mean < limit - MARGIN * spread
        domains.append(Line(mean - REACH * spread, mean + REACH * spread) if stiff else whole)
    return domains


def _family(name: str, size: int | None, order: int, **more: Any) -> dict[str, Any]:
    """The table of a family of a given size, with those of the other options that it knows."""
    if name not in FAMILIES:
        raise ValueError(f"the families of transforms are {', '.join(FAMILIES)}; got {name!r}.")
    family = FAMILIES[name]
    if size is not None and family.size is None:
        raise ValueError(f"the family {name} has no bins or components; leave the number out, got {size}.")
    known = {field.name for field in fields(family.kind)}
    options: dict[Any, Any] = {**more, "order": order, family.size: family.usual if size is None else size}
    return {"family": name, **{key: value for key, value in options.items() if key in known}}


def _config(
    domains: Sequence[Domain],
    layers: Sequence[tuple[Pairs, dict[str, Any]]],
    conditioner: dict[str, Any],
    whitened: bool = False,
    context: int = 0,
) -> FlowConfig:
    """The configuration of layers, each of which has pairs and their transform."""
    couplings = []
    for pairs, transform in layers:
        options = FlowOptions.parse({"transform": transform, "conditioner": conditioner})
        couplings += options.couplings(domains, pairs)
    table = {"domains": domains, "couplings": couplings, "whitened": whitened, "context": context}
    return FlowConfig.parse(table)
