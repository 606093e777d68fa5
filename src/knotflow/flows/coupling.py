"""Coupling layers: transform some coordinates, given others that stay unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from knotflow.flows.conditioner import Conditioner, is_ordered
from knotflow.flows.constants import Constants
from knotflow.transforms import Domain, Transform


class Coupling(nn.Module):
    r"""Transform some coordinates with parameters that depend on others.

    $$y_T = f(x_T;\, \theta(x_R, c)), \qquad y_i = x_i \text{ for } i \notin T .$$

    The sets $T$ (transformed) and $R$ (read) are disjoint, so the Jacobian is triangular and its
    log-determinant is the sum of the log-slopes. Coordinates in neither set pass through unread. Each
    transformed coordinate has its own transform, on its own domain; equal transforms share one call.

    An *autoregressive* coupling also reads those that it transforms, each only the ones before it:

    $$y_{t_i} = f(x_{t_i};\, \theta_i(x_R, x_{t_1}, \dots, x_{t_{i-1}}, c)) .$$

    Forward is one pass as well; the inverse goes coordinate by coordinate. `autoregressive` makes one.

    Args:
        transformed: indices $T$.
        transforms: a transform for each of them.
        read: indices $R$.
        conditioner: maps (x_R, context) to ``sum(f.n_parameters for f in transforms)`` raw parameters; see
            `Conditioner`. If it was made with ``sees``, the coupling is autoregressive: it then reads $R$ and
            all of $T$ except the last.
    """

    def __init__(
        self,
        transformed: Sequence[int],
        transforms: Sequence[Transform],
        read: Sequence[int],
        conditioner: nn.Module,
    ) -> None:
        super().__init__()
        if not transformed:
            raise ValueError("a coupling needs at least one coordinate to transform, got none.")
        if len(transformed) != len(transforms):
            raise ValueError(
                f"expected a transform for each of the {len(transformed)} transformed coordinates, got "
                f"{len(transforms)}."
            )
        check_indices(transformed, read)
        self.transformed, self.read = list(transformed), list(read)
        self.transforms = list(transforms)
        self.conditioner = conditioner
        self._groups = _groups(self.transforms)
        self._sizes = [len(members) * f.n_parameters for f, members in self._groups]
        self.is_autoregressive = is_ordered(conditioner)
        self._read = Constants(
            [*self.read, *(self.transformed[:-1] if self.is_autoregressive else ())], whole=True
        )
        # Images come group by group: their coordinates, and the place of each transformed coordinate.
        order = [m for _, members in self._groups for m in members]
        places = [order.index(m) for m in range(len(order))]
        self._in_order = order == sorted(order)
        self._written = Constants([self.transformed[m] for m in order], whole=True)
        self._order = Constants(places, whole=True)

    @staticmethod
    def sizes(transforms: Sequence[Transform]) -> list[tuple[int, int]]:
        """Members and raw parameters of each group of equal transforms, in order."""
        return [(len(members), f.n_parameters) for f, members in _groups(transforms)]

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map (..., d) to (..., d); returns the image and the log-slopes of the transformed coordinates."""
        return self._map(x, context, forward=True)

    def inverse(self, y: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map back; returns the preimage and the log-slopes of the inverse."""
        if self.is_autoregressive:
            return self._one_by_one(y, context)
        return self._map(y, context, forward=False)

    @property
    def outputs(self) -> dict[int, slice]:
        """For each transformed coordinate, the outputs of the conditioner that are its raw parameters."""
        found, first = {}, 0
        for f, members in self._groups:
            for member in members:
                found[self.transformed[member]] = slice(first, first + f.n_parameters)
                first += f.n_parameters
        return found

    def raw(self, x: Tensor, context: Tensor | None = None) -> list[Tensor]:
        """Raw parameters (..., n_parameters) for each transformed coordinate."""
        outputs, parts = self.conditioner(self._seen(x), context), self.outputs
        return [outputs[..., parts[i]] for i in self.transformed]

    def _blocks(self, x: Tensor, context: Tensor | None) -> list[Tensor]:
        """Raw parameters (..., members, n_parameters) of each group of equal transforms."""
        outputs = self.conditioner(self._seen(x), context)
        if outputs.shape[-1] != sum(self._sizes):
            raise ValueError(
                f"the transforms of this coupling take {sum(self._sizes)} raw parameters, its conditioner "
                f"gives {outputs.shape[-1]}; give it sum(f.n_parameters for f in transforms) outputs."
            )
        return [
            block.unflatten(-1, (len(members), f.n_parameters))
            for (f, members), block in zip(self._groups, _split(outputs, self._sizes), strict=True)
        ]

    def _map(self, x: Tensor, context: Tensor | None, *, forward: bool) -> tuple[Tensor, Tensor]:
        blocks = self._blocks(x, context)
        written = self._written(x)
        points = _split(x.index_select(-1, written), [len(members) for _, members in self._groups])
        mapped = [
            (f.forward if forward else f.inverse)(own, raw)
            for (f, _), own, raw in zip(self._groups, points, blocks, strict=True)
        ]
        image, log_slopes = (
            parts[0] if len(parts) == 1 else torch.cat(parts, -1) for parts in zip(*mapped, strict=True)
        )
        if not self._in_order:
            log_slopes = log_slopes.index_select(-1, self._order(x))
        return x.index_copy(-1, written, image), log_slopes

    def _seen(self, x: Tensor) -> Tensor:
        """What the conditioner reads of points."""
        return x.index_select(-1, self._read(x))

    def _one_by_one(self, y: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """The inverse of an autoregressive coupling; coordinates not yet found are there, but unseen."""
        x, log_slopes, parts = y, [], self.outputs
        for i, f in zip(self.transformed, self.transforms, strict=True):
            found, log_slope = f.inverse(y[..., i], self.conditioner(self._seen(x), context, parts[i]))
            x = torch.cat([x[..., :i], found.unsqueeze(-1), x[..., i + 1 :]], -1)
            log_slopes.append(log_slope)
        return x, torch.stack(log_slopes, -1)

    def extra_repr(self) -> str:
        return f"transformed={self.transformed}, read={self.read}, transforms={[f for f, _ in self._groups]}"


def autoregressive(
    transformed: Sequence[int],
    transforms: Sequence[Transform],
    read: Sequence[int],
    domains: Sequence[Domain],
    **options: Any,
) -> Coupling:
    """An autoregressive `Coupling`, with a `Conditioner` made for it.

    Args:
        transformed: coordinates in the order in which they read each other.
        transforms: a transform for each of them.
        read: coordinates that all of them read.
        domains: standard domain of every coordinate of the flow.
        **options: of the `Conditioner`.
    """
    before = [*read, *transformed[:-1]]
    sees = [
        count
        for f, members in _groups(transforms)
        for count in (len(read) + member for member in members for _ in range(f.n_parameters))
    ]
    conditioner = Conditioner([domains[i] for i in before], len(sees), sees=sees, **options)
    return Coupling(transformed, transforms, read, conditioner)


def check_indices(transformed: Sequence[int], read: Sequence[int]) -> None:
    """Raise ``ValueError`` unless all indices are different and none is negative."""
    indices = [*transformed, *read]
    if len(set(indices)) < len(indices) or min(indices) < 0:
        raise ValueError(
            "the coordinates a coupling transforms and reads must be different and counted from 0, got "
            f"transformed={list(transformed)}, read={list(read)}."
        )


def _split(x: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    """Parts of the last axis. A split into one part is skipped: it would copy the gradient."""
    return [x] if len(sizes) == 1 else x.split(list(sizes), -1)


def _groups(transforms: Sequence[Transform]) -> list[tuple[Transform, list[int]]]:
    """Different transforms, each with the places where it occurs."""
    groups: dict[Transform, list[int]] = {}
    for place, f in enumerate(transforms):
        groups.setdefault(f, []).append(place)
    return list(groups.items())
