"""Whole flows of two coordinates, knotflow's and those of zuko, nflows and normflows, behind one interface.

All have four couplings of splines with equally many bins, networks of the same width with SiLU and PyTorch's
initial weights (ours as well, so that no gradient starts as zero), and are in float32. The rest is the
libraries' own: ours live on the unit square and have a uniform base, the others on ``[-BOUND, BOUND]``, with
tails and a normal base. zuko's NSF and normflows' couplings transform, in each layer, the coordinate that
they read as well, by a spline that depends on nothing; the column ``splines`` counts maps of one coordinate
in an evaluation of the density. normflows' networks are residual, with two matrices in a block, hence larger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import normflows
import torch
import zuko
from nflows.distributions.normal import StandardNormal
from nflows.flows.base import Flow as NflowsFlow
from nflows.nn.nets import MLP
from nflows.transforms.base import CompositeTransform
from nflows.transforms.coupling import PiecewiseRationalQuadraticCouplingTransform
from torch import Tensor, nn
from zuko.flows.coupling import GeneralCouplingTransform
from zuko.lazy import UnconditionalDistribution

import knotflow as kf
from knotflow.flows import Flow

DIM = 2
COUPLINGS = 4
BOUND = 5.0
"""Half the side of the square on which zuko's flows live; also taken for nflows and normflows."""
MASKS = [(0, 1), (1, 0)] * (COUPLINGS // 2)


@dataclass(frozen=True)
class FlowCandidate:
    """A flow of one library; ``build`` makes one with fresh weights."""

    name: str
    build: Callable[[], Any]
    log_prob: Callable[[Any, Tensor], Tensor]
    """``(flow, x) -> log-density`` of points (n, 2) in ``[low, high]``."""
    sample: Callable[[Any, int], Any]
    splines: int = COUPLINGS
    low: float = -BOUND
    high: float = BOUND
    ours: bool = False

    @property
    def length(self) -> float:
        return self.high - self.low


def our_flow(family: str, label: str, bins: int, hidden: Sequence[int]) -> FlowCandidate:
    """knotflow on the unit square."""
    transform: dict[str, Any] = {"family": family, "bins": bins}
    if family == "bspline":
        transform["phase"] = False

    def build() -> Flow:
        return Flow.on(
            [kf.Interval()] * DIM,
            rounds=COUPLINGS // 2,
            transform=transform,
            conditioner={"hidden": list(hidden), "identity": False},
        )

    return FlowCandidate(
        f"knotflow {label}",
        build,
        Flow.log_prob,
        lambda flow, n: flow.sample(n),
        low=0.0,
        high=1.0,
        ours=True,
    )


def zuko_nsf(bins: int, hidden: Sequence[int]) -> FlowCandidate:
    """zuko's ready-made flow: two passes, which for two coordinates is the same as autoregressive."""

    def build() -> nn.Module:
        return zuko.flows.NSF(
            features=DIM,
            transforms=COUPLINGS,
            passes=2,
            bins=bins,
            hidden_features=tuple(hidden),
            activation=nn.SiLU,
        )

    return _zuko("zuko NSF, passes=2", build, splines=COUPLINGS * DIM)


def zuko_coupling(bins: int, hidden: Sequence[int]) -> FlowCandidate:
    """The same put together from zuko's coupling layers, which leave what they read as it is."""

    def build() -> nn.Module:
        layers = [
            GeneralCouplingTransform(
                features=DIM,
                mask=mask,
                univariate=zuko.transforms.MonotonicRQSTransform,
                shapes=[(bins,), (bins,), (bins - 1,)],
                hidden_features=tuple(hidden),
                activation=nn.SiLU,
            )
            for mask in MASKS
        ]
        base = UnconditionalDistribution(
            zuko.distributions.DiagNormal, torch.zeros(DIM), torch.ones(DIM), buffer=True
        )
        return zuko.flows.Flow(layers, base)

    return _zuko("zuko RQS couplings", build, splines=COUPLINGS)


def _zuko(name: str, build: Callable[[], nn.Module], splines: int) -> FlowCandidate:
    def log_prob(flow: Any, x: Tensor) -> Tensor:
        # This is flow().log_prob(x), layer by layer: an assertion in zuko's composition stops Dynamo.
        total = x.new_zeros(())
        for layer in flow.transform.transforms:
            x, ladj = layer().call_and_ladj(x)
            total = total + ladj
        value: Tensor = flow.base().log_prob(x) + total
        return value

    return FlowCandidate(name, build, log_prob, lambda flow, n: flow().sample((n,)), splines)


class Perceptron(MLP):
    """nflows' perceptron, made to fit nflows' couplings, which pass a context and ask for the width."""

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int]) -> None:
        super().__init__([inputs], [outputs], list(hidden), activation=nn.functional.silu)
        self.hidden_features = hidden[-1]

    def forward(self, inputs: Tensor, context: None = None) -> Tensor:
        value: Tensor = super().forward(inputs)
        return value


def nflows_flow(bins: int, hidden: Sequence[int]) -> FlowCandidate:
    """Rational-quadratic couplings of nflows."""

    def build() -> nn.Module:
        layers = [
            PiecewiseRationalQuadraticCouplingTransform(
                mask,
                lambda inputs, outputs: Perceptron(inputs, outputs, hidden),
                num_bins=bins,
                tails="linear",
                tail_bound=BOUND,
            )
            for mask in MASKS
        ]
        return NflowsFlow(CompositeTransform(layers), StandardNormal([DIM]))

    return FlowCandidate(
        "nflows RQS couplings", build, lambda flow, x: flow.log_prob(x), lambda flow, n: flow.sample(n)
    )


def normflows_flow(bins: int, hidden: Sequence[int]) -> FlowCandidate:
    """Rational-quadratic couplings of normflows, with a residual block for each hidden layer."""

    def build() -> nn.Module:
        layers = [
            normflows.flows.CoupledRationalQuadraticSpline(
                DIM,
                num_blocks=len(hidden),
                num_hidden_channels=hidden[0],
                num_bins=bins,
                tail_bound=BOUND,
                activation=nn.SiLU,
                reverse_mask=bool(i % 2),
            )
            for i in range(COUPLINGS)
        ]
        return normflows.NormalizingFlow(normflows.distributions.DiagGaussian(DIM, trainable=False), layers)

    return FlowCandidate(
        "normflows RQS couplings",
        build,
        lambda flow, x: flow.log_prob(x),
        lambda flow, n: flow.sample(n),
        splines=COUPLINGS * DIM,
    )


def wide_candidates(dim: int) -> list[FlowCandidate]:
    """Default flows of many coordinates on lines: our couplings, our autoregressive ones, and zuko's NSF."""

    def ours(masks: str) -> FlowCandidate:
        def build() -> Flow:
            return Flow.on([kf.Line(-BOUND, BOUND)] * dim, masks=masks)

        with torch.device("meta"):
            splines = sum(len(coupling.transformed) for coupling in build().couplings)
        return FlowCandidate(
            f"knotflow {masks}", build, Flow.log_prob, lambda flow, n: flow.sample(n), splines, ours=True
        )

    def zuko_default() -> nn.Module:
        return zuko.flows.NSF(dim)

    splines = dim * len(zuko_default().transform.transforms)
    return [ours("coupling"), ours("autoregressive"), _zuko("zuko NSF", zuko_default, splines)]


def flow_candidates(bins: int = 32, hidden: Sequence[int] = (100, 100)) -> list[FlowCandidate]:
    """Everything the benchmark of flows compares."""
    return [
        our_flow("bspline", "B-spline", bins, hidden),
        our_flow("rq", "RQ", bins, hidden),
        zuko_nsf(bins, hidden),
        zuko_coupling(bins, hidden),
        nflows_flow(bins, hidden),
        normflows_flow(bins, hidden),
    ]
