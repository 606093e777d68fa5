"""Flows conditioned on the temperature: one density for every temperature of a ladder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from knotflow.flows.flow import Flow
from knotflow.transforms import Domain, Line

SAME: Final = 1e-6
"""In K: temperatures closer than this are the same."""


@dataclass(frozen=True)
class TemperatureRange:
    r"""The temperatures $T_0 \le T \le T_1$ of a flow $p(q \mid T)$, and how it depends on them.

    In a harmonic well the deviations of a coordinate grow like $\sqrt T$. So stiff coordinates, those on a
    `Line`, are brought to the lowest temperature first: scaled by $\sqrt{T_0/T}$ about the middle $m$ of
    their line,

    $$y = m + (q - m)\sqrt{T_0/T}, \qquad
      \log p(q \mid T) = \log p_y(y \mid c) + \tfrac n2 \log\frac{T_0}{T} ,$$

    with $n$ stiff coordinates. The flow $p_y$ learns the rest, given the context
    $c = 2 \log(T/T_0) / \log(T_1/T_0) - 1$, from -1 to 1. At one temperature it is an ordinary flow
    (`at`): the lines are longer by $\sqrt{T/T_0}$, and the context is part of the biases.

    Args:
        lowest: $T_0$ in K.
        highest: $T_1$ in K.

    Raises:
        ValueError: unless both are positive and in this order.
    """

    lowest: float
    highest: float

    def __post_init__(self) -> None:
        if not 0 < self.lowest < self.highest < math.inf:
            raise ValueError(
                f"a range of temperatures goes from a lower to a higher one, both positive, in K, got "
                f"{self.lowest} to {self.highest}."
            )

    def check(self, temperature: float) -> None:
        """Raise a ValueError for a temperature outside."""
        if not self.lowest - SAME <= temperature <= self.highest + SAME:
            raise ValueError(
                f"this model was trained from {self.lowest:g} to {self.highest:g} K, got {temperature:g} K; "
                "choose a temperature in between, or train on a ladder that reaches it."
            )

    def context(self, temperature: Tensor) -> Tensor:
        """The context (..., 1) of temperatures (...) in K."""
        fraction = torch.log(temperature / self.lowest) / math.log(self.highest / self.lowest)
        return (2 * fraction - 1)[..., None]

    def stretch(self, temperature: Tensor, domains: Sequence[Domain]) -> Tensor:
        r"""$\sqrt{T/T_0}$ for coordinates on lines, 1 for others: (n,) to (n, d)."""
        stiff = torch.tensor([isinstance(domain, Line) for domain in domains], device=temperature.device)
        return torch.where(stiff, (temperature / self.lowest).sqrt()[..., None], 1.0)

    def cooled(self, q: Tensor, temperature: Tensor, domains: Sequence[Domain]) -> Tensor:
        """Coordinates $y$ at the lowest temperature of coordinates q (n, d) at temperatures (n,)."""
        middle = q.new_tensor([(domain.low + domain.high) / 2 for domain in domains])
        return middle + (q - middle) / self.stretch(temperature.to(q), domains)

    def at(self, flow: Flow, temperature: float) -> Flow:
        r"""The density of $q$ at one temperature as a flow without context.

        Args:
            flow: the flow $p_y$, with a context of one number.
            temperature: in K.

        Raises:
            ValueError: if the temperature is outside.
        """
        self.check(temperature)
        factor = math.sqrt(temperature / self.lowest)
        context = self.context(torch.tensor(temperature, dtype=torch.float64))
        return flow.given(context, [_stretched(domain, factor) for domain in flow.domains])


def _stretched(domain: Domain, factor: float) -> Domain:
    if not isinstance(domain, Line):
        return domain
    middle, half = (domain.low + domain.high) / 2, factor * domain.length / 2
    return Line(middle - half, middle + half)
