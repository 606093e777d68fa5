"""Named flows; all laws are tested on all of them. Weights are random and far from the identity."""

import math
from collections.abc import Callable
from typing import Any

import torch

import knotflow as kf

ANGLE = kf.Circle(-math.pi, math.pi)
BOND = kf.Interval(0.05, 0.3)
HEIGHT = kf.Line(-2.0, 3.0)
SMALL = {"bins": 6}
NET = {"hidden": [12, 12]}


def _by_hand() -> kf.Flow:
    """Couplings put together without a configuration: a coordinate that is neither read nor transformed."""
    unit = kf.Interval()
    first = [kf.BSpline(5, 4, kf.Circle()), kf.RationalQuadratic(4, unit)]
    sizes = [sum(f.n_parameters for f in first), kf.BSpline(3, 5, unit).n_parameters]
    return kf.Flow(
        [ANGLE, BOND, BOND, BOND],
        [
            kf.Coupling([0, 2], first, [1], kf.Conditioner([unit], sizes[0], hidden=(8,), activation="tanh")),
            kf.Coupling([1], [kf.BSpline(3, 5, unit)], [], kf.Conditioner([], sizes[1])),
        ],
    )


def _whitened(domains: list[kf.Domain], **options: Any) -> kf.Flow:
    config = kf.Flow.on(domains, **options).config
    assert config is not None
    return config.model_copy(update={"whitened": True}).build()


BUILDERS: dict[str, Callable[[], kf.Flow]] = {
    "interval-1d": lambda: kf.Flow.on([BOND], transform=SMALL),
    "circle-1d": lambda: kf.Flow.on([ANGLE], transform=SMALL),
    "line-1d": lambda: kf.Flow.on([HEIGHT], transform=SMALL),
    "interval-2d": lambda: kf.Flow.on([BOND, kf.Interval(-1.0, 2.0)], transform=SMALL, conditioner=NET),
    "circle-2d": lambda: kf.Flow.on([ANGLE, kf.Circle()], transform=SMALL, conditioner=NET),
    "rq-2d": lambda: kf.Flow.on([BOND, ANGLE], transform={"family": "rq", "bins": 5}, conditioner=NET),
    "bump-2d": lambda: kf.Flow.on(
        [BOND, ANGLE], rounds=1, transform={"family": "bump", "components": 3}, conditioner=NET
    ),
    "paper-2d": lambda: kf.Flow.on(
        [BOND, ANGLE],
        transform={"bins": 6, "parametrisation": {"kind": "paper"}, "phase": False},
        conditioner={"hidden": [12, 12], "activation": "sin", "identity": False},
    ),
    "mixed-5d": lambda: kf.Flow.on([ANGLE, ANGLE, BOND, BOND, HEIGHT], transform=SMALL, conditioner=NET),
    "residual-3d": lambda: kf.Flow.on(
        [ANGLE, BOND, HEIGHT],
        transform={"bins": 4, "order": 5},
        conditioner={"hidden": [10, 10, 10], "residual": True, "frequencies": 3, "activation": "gelu"},
    ),
    "context-2d": lambda: kf.Flow.on([ANGLE, HEIGHT], transform=SMALL, conditioner=NET, context=3),
    "by-hand-4d": _by_hand,
    "affine-3d": lambda: kf.Flow.on(
        [HEIGHT, ANGLE, kf.Line(1.0, 1.5)], transform={"bins": 4, "affine": True}, conditioner=NET
    ),
    "networks-2d": lambda: kf.Flow.on(
        [BOND, ANGLE],
        rounds=1,
        transform={"family": "bump", "components": 3},
        conditioner={"hidden": [8], "activation": "sin", "networks": [1, 1, 3]},
    ),
    "whitened-2d": lambda: _whitened([HEIGHT, kf.Line(1.0, 1.5)], transform=SMALL, conditioner=NET),
    "whitened-4d": lambda: _whitened(
        [HEIGHT, ANGLE, kf.Line(1.0, 1.5), HEIGHT], transform=SMALL, conditioner=NET
    ),
    "whitened-context-2d": lambda: _whitened([ANGLE, HEIGHT], transform=SMALL, conditioner=NET, context=3),
    "autoregressive-1d": lambda: kf.Flow.on([HEIGHT], masks="autoregressive", transform=SMALL),
    "autoregressive-2d": lambda: kf.Flow.on(
        [ANGLE, HEIGHT], masks="autoregressive", transform=SMALL, conditioner=NET
    ),
    "autoregressive-context-5d": lambda: kf.Flow.on(
        [ANGLE, BOND, HEIGHT, BOND, ANGLE],
        masks="autoregressive",
        transform=SMALL,
        conditioner={"hidden": [9, 9], "frequencies": 2, "residual": True},
        context=2,
    ),
    "mixture-1d": lambda: kf.Flow.on([HEIGHT], transform=SMALL, components=3),
    "mixture-3d": lambda: kf.Flow.on(
        [HEIGHT, ANGLE, kf.Line(1.0, 1.5)], transform=SMALL, conditioner=NET, components=2
    ),
    "mixture-whitened-autoregressive-2d": lambda: kf.Flow.on(
        [HEIGHT, kf.Line(1.0, 1.5)],
        masks="autoregressive",
        transform=SMALL,
        conditioner=NET,
        whitened=True,
        components=3,
    ),
}
NAMES = list(BUILDERS)


def make(name: str, scale: float = 0.4) -> kf.Flow:
    """The flow of that name, in float64, with random weights added to its initial ones."""
    torch.manual_seed(NAMES.index(name))
    flow = BUILDERS[name]().double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += scale * torch.randn_like(parameter)
    if flow.whitened:
        flow.whiten(correlated(flow, 500))
    return flow


def correlated(flow: kf.Flow, n: int, seed: int = 2) -> torch.Tensor:
    """Points whose lines are correlated, with deviations around a tenth of their lengths."""
    x = points(flow, n, seed)
    generator = torch.Generator().manual_seed(seed)
    lines = [i for i, d in enumerate(flow.domains) if isinstance(d, kf.Line)]
    length = x.new_tensor([flow.domains[i].length for i in lines])
    middle = x.new_tensor([(flow.domains[i].low + flow.domains[i].high) / 2 for i in lines])
    normal = torch.randn(n, len(lines), generator=generator, dtype=torch.float64)
    mixing = torch.eye(len(lines), dtype=torch.float64) + 0.6 * torch.randn(
        len(lines), len(lines), generator=generator, dtype=torch.float64
    )
    x[:, lines] = middle + 0.1 * length * (normal @ mixing.T)
    return x


def points(flow: kf.Flow, n: int, seed: int = 0) -> torch.Tensor:
    """Random points all over the domains; on lines also beyond the stretch where splines act."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(n, flow.dim, generator=generator, dtype=torch.float64)
    low = torch.tensor([d.low for d in flow.domains], dtype=torch.float64)
    length = torch.tensor([d.length for d in flow.domains], dtype=torch.float64)
    stretch = torch.tensor([1.4 if isinstance(d, kf.Line) else 1.0 for d in flow.domains])
    return low + length * ((u - 0.5) * stretch + 0.5)


def context(flow: kf.Flow, n: int, seed: int = 1) -> torch.Tensor | None:
    """A random context for each of n points, or None."""
    if not flow.context:
        return None
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, flow.context, generator=generator, dtype=torch.float64)


def distance(flow: kf.Flow, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Largest distance of coordinates as a fraction of their domains, around circles."""
    gaps = [d.distance(a[:, i], b[:, i]).max() / d.length for i, d in enumerate(flow.domains)]
    return torch.stack(gaps).max()
