"""Networks that turn the coordinates a coupling reads into the raw parameters of its transforms."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from knotflow.flows.constants import Constants
from knotflow.transforms import Circle, Domain, Line
from knotflow.transforms.base import check_count

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "sin": torch.sin,
    "softplus": nn.functional.softplus,
    "tanh": torch.tanh,
}
"""Smooth functions only: a kink in the network would make the force jump."""


class Conditioner(nn.Module):
    r"""A perceptron from coordinates (and a context) to raw parameters.

    Networks learn best from inputs of about unit spread. A coordinate on an interval enters as
    $v \in [-1, 1]$, scaled by the limits of its domain; with $F > 1$, $\cos$ and $\sin$ of $\pi j v / 2$,
    $j = 1 \dots F - 1$, are added. A coordinate on a line enters as $v = (x - \mu) / \sigma$, in units of the
    base of a `Flow`: its mean $\mu$ is the middle of the domain, and its standard deviation $\sigma$ a tenth
    of the length. A coordinate on a circle enters as $\cos 2\pi j u$ and $\sin 2\pi j u$, $j = 1 \dots F$,
    where $u$ is the fraction of a turn, so that the network is smooth across the seam. Context components
    enter unchanged.

    With ``residual`` every hidden layer after the first is added to its input, $h \leftarrow h + W \phi(h)$.

    With ``sees`` an output may depend on the first coordinates only, as many as its number says, and on the
    context. Weights are masked as in MADE (Germain et al., ICML 2015): every unit has a degree, and reads
    units of the same or a lower one. Degrees of hidden units are spread evenly.

    Args:
        domains: domain of each coordinate that is read; may be empty.
        outputs: number of raw parameters.
        hidden: widths of the hidden layers.
        activation: a name in `ACTIVATIONS`, or any function; it must be smooth for smooth forces.
        residual: add hidden layers to their inputs; needs equal widths.
        frequencies: number F of frequencies.
        context: number of components of the context.
        identity: start with zero outputs (the identity, for splines) instead of PyTorch's initialisation.
        unit_spread: False for networks of version 0.2 and before: there, lines enter as intervals do, with a
            deviation of 0.2.
        sees: for autoregressive couplings: for each output, how many coordinates it sees.
    """

    def __init__(
        self,
        domains: Sequence[Domain],
        outputs: int,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: str | Callable[[Tensor], Tensor] = "silu",
        residual: bool = False,
        frequencies: int = 1,
        context: int = 0,
        identity: bool = True,
        unit_spread: bool = True,
        sees: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_count("outputs", outputs, 1)
        check_count("frequencies", frequencies, 1)
        check_count("context", context, 0)
        for width in hidden:
            check_count("hidden", width, 1)
        check_residual(residual, hidden)
        if sees is not None and len(sees) != outputs:
            raise ValueError(f"sees needs a number for each of the {outputs} outputs, got {len(sees)}.")
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)} (all smooth, so that forces are), or a "
                f"function, got {activation!r}."
            )
        self.context, self.residual, self.frequencies = context, residual, frequencies
        self.activation = ACTIVATIONS[activation] if isinstance(activation, str) else activation
        turns = [i for i, d in enumerate(domains) if isinstance(d, Circle)]
        flat = [i for i, d in enumerate(domains) if not isinstance(d, Circle)]
        waved = [i for i in flat if not (unit_spread and isinstance(domains[i], Line))]
        self._turns, self._flat, self._waved = (Constants(part, whole=True) for part in (turns, flat, waved))
        self._middle = Constants([(d.low + d.high) / 2 for d in domains])
        # Line() is the line of a normal variable of unit spread.
        whole = [Line().length if unit_spread and isinstance(d, Line) else 2.0 for d in domains]
        self._unit = Constants([d.length / w for d, w in zip(domains, whole, strict=True)])
        # The coordinate behind each input; a context is behind none.
        behind = [*flat, *waved * (2 * (frequencies - 1)), *turns * (2 * frequencies), *[-1] * context]
        inputs = len(behind)
        self._reads = inputs > 0
        # With nothing to read, the outputs are free parameters: the weights of a constant.
        widths = [inputs, *hidden, outputs] if inputs else [1, outputs]
        self.ordered = sees is not None
        if sees is None or not inputs:
            self.layers = nn.ModuleList(nn.Linear(n, m, bias=inputs > 0) for n, m in pairwise(widths))
        else:
            degrees = [[i + 1 for i in behind], *(_spread(sees, context, n) for n in hidden), list(sees)]
            self.layers = nn.ModuleList(MaskedLinear(n, m) for n, m in pairwise(degrees))
        if identity or not inputs:
            for parameter in self.layers[-1].parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, context: Tensor | None = None, part: slice | None = None) -> Tensor:
        """Raw parameters (..., outputs), or a part of them, for coordinates (..., n), a context (..., m)."""
        h = self.hidden(x, context)
        if part is None:
            outputs: Tensor = self.last(h)
            return outputs
        weight = self.last.masked(part) if isinstance(self.last, MaskedLinear) else self.last.weight[part]
        bias = cast("Tensor | None", self.last.bias)
        return nn.functional.linear(h, weight, None if bias is None else bias[part])

    @property
    def last(self) -> nn.Linear:
        """The output layer."""
        return cast("nn.Linear", self.layers[-1])

    def output_gradient(self) -> Tensor:
        """Gradient (outputs,) of the output biases or, with nothing to read, of the outputs themselves."""
        own = self.last.bias if self._reads else self.last.weight
        return torch.zeros_like(own).flatten() if own.grad is None else own.grad.flatten()

    @torch.no_grad()
    def given(self, context: Tensor) -> Conditioner:
        """A copy without context that does at all points what this one does at one context (m,).

        The context enters the first layer linearly, so it becomes a part of its biases.
        """
        found = copy.deepcopy(self)
        found.context = 0
        first = cast("nn.Linear", found.layers[0])
        own = first.weight.split((first.in_features - self.context, self.context), 1)
        if own[0].shape[1]:
            first.in_features = own[0].shape[1]
            first.weight = nn.Parameter(own[0].clone())
            if isinstance(first, MaskedLinear):
                first.sources = Constants(first.sources.values[: first.in_features], whole=True)
            first.bias = nn.Parameter(first.bias + own[1] @ context.to(first.bias))
            return found
        found._reads = False
        outputs = self(first.weight.new_empty(0), context)
        constant = nn.Linear(1, len(outputs), bias=False, device="meta")
        constant.weight = nn.Parameter(outputs[:, None])
        found.layers = nn.ModuleList([constant])
        return found

    def hidden(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Inputs of the output layer."""
        h = self.features(x, context)
        for i, layer in enumerate(self.layers[:-1]):
            update = layer(self.activation(h) if i else h)
            h = h + update if self.residual and i else update
        return self.activation(h) if len(self.layers) > 1 else h

    def features(self, x: Tensor, context: Tensor | None) -> Tensor:
        """Inputs of the first layer."""
        if not self._reads:
            return x.new_ones(*x.shape[:-1], 1)
        v = (x - self._middle(x)) / self._unit(x)
        features, angles = [], []
        if len(self._flat):
            features = [v.index_select(-1, self._flat(v))]
        if len(self._waved) and self.frequencies > 1:
            waved = v.index_select(-1, self._waved(v))
            angles = [0.5 * math.pi * j * waved for j in range(1, self.frequencies)]
        if len(self._turns):
            turns = v.index_select(-1, self._turns(v))
            angles += [math.pi * j * turns for j in range(1, self.frequencies + 1)]
        features += [wave(angle) for angle in angles for wave in (torch.cos, torch.sin)]
        if context is not None:
            features.append(context.to(x.dtype).expand(*x.shape[:-1], self.context))
        return torch.cat(features, -1)


class MaskedLinear(nn.Linear):
    """A linear layer in which a unit reads only units of the same or a lower degree.

    Args:
        sources: degrees of the inputs.
        targets: degrees of the outputs.
    """

    def __init__(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        super().__init__(len(sources), len(targets))
        self.sources, self.targets = Constants(sources, whole=True), Constants(targets, whole=True)

    def masked(self, part: slice = slice(None)) -> Tensor:
        """The weights of some outputs, with zeros where an output does not read."""
        own = self.weight[part]
        mask: Tensor = self.targets(own)[part, None] >= self.sources(own)
        return own * mask

    def forward(self, x: Tensor) -> Tensor:
        """As ``nn.Linear``, with masked weights."""
        return nn.functional.linear(x, self.masked(), self.bias)


def is_ordered(conditioner: nn.Module) -> bool:
    """Whether a conditioner, or one that it wraps, was made with ``sees``."""
    return any(isinstance(part, Conditioner) and part.ordered for part in conditioner.modules())


def _spread(sees: Sequence[int], context: int, n: int) -> list[int]:
    """Degrees of n hidden units: evenly over the degrees that some output sees."""
    degrees = [degree for degree in sorted(set(sees)) if degree or context]
    return [degrees[round(unit * (len(degrees) - 1) / max(n - 1, 1))] for unit in range(n)]


class SeparateConditioners(nn.Module):
    """Several perceptrons with the same inputs, each of which gives a share of every map's raw parameters.

    Args:
        domains: domain of each coordinate that is read.
        sizes: members and raw parameters of each group of transforms, from `Coupling.sizes`.
        shares: relative shares of the networks in a map's parameters, as (1, 1, 3) for the five kinds of
            `Bump`.
        **options: options of each `Conditioner`.
    """

    def __init__(
        self,
        domains: Sequence[Domain],
        sizes: Sequence[tuple[int, int]],
        shares: Sequence[int],
        **options: Any,
    ) -> None:
        super().__init__()
        check_count("the number of networks", len(shares), 1)
        for share in shares:
            check_count("networks", share, 1)
        for _, parameters in sizes:
            if parameters % sum(shares):
                raise ValueError(
                    f"networks {tuple(shares)} must divide the {parameters} raw parameters of a map: their "
                    f"sum, {sum(shares)}, is not a divisor of it."
                )
        self.sizes, self.shares = list(sizes), list(shares)
        parts = [
            Conditioner(domains, sum(m * p * share // sum(shares) for m, p in sizes), **options)
            for share in shares
        ]
        self.parts = cast("Sequence[Conditioner]", nn.ModuleList(parts))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Raw parameters (..., outputs), map by map."""
        return self._together([part(x, context) for part in self.parts])

    def output_gradient(self) -> Tensor:
        """`Conditioner.output_gradient` of all networks, in the order of `forward`."""
        return self._together([part.output_gradient() for part in self.parts])

    def given(self, context: Tensor) -> SeparateConditioners:
        """`Conditioner.given` of all networks."""
        found = copy.deepcopy(self)
        found.parts = cast("Sequence[Conditioner]", nn.ModuleList(part.given(context) for part in self.parts))
        return found

    def _together(self, outputs: Sequence[Tensor]) -> Tensor:
        total = sum(self.shares)
        blocks = []
        own = [[m * p * share // total for m, p in self.sizes] for share in self.shares]
        pieces = [part.split(sizes, -1) for part, sizes in zip(outputs, own, strict=True)]
        for group, (members, _) in enumerate(self.sizes):
            maps = [piece[group].unflatten(-1, (members, -1)) for piece in pieces]
            blocks.append(torch.cat(maps, -1).flatten(-2))
        return torch.cat(blocks, -1)


def check_residual(residual: bool, hidden: Sequence[int]) -> None:
    """Raise ``ValueError`` if residual layers would have different widths."""
    if residual and len(set(hidden)) > 1:
        raise ValueError(f"residual layers need hidden layers of one width, got {tuple(hidden)}.")
