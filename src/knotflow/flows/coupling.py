"""Coupling layers: transform some coordinates, given others that stay unchanged."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from knotflow.transforms import Transform


class Coupling(nn.Module):
    r"""Transform some coordinates with parameters that depend on others.

    $$y_T = f(x_T;\, \theta(x_R, c)), \qquad y_i = x_i \text{ for } i \notin T .$$

    The sets $T$ (transformed) and $R$ (read) are disjoint, so the Jacobian is triangular and its
    log-determinant is the sum of the log-slopes. Coordinates in neither set pass through unread. Each
    transformed coordinate has its own transform, on its own domain; equal transforms share one call.

    Args:
        transformed: indices $T$.
        transforms: a transform for each of them.
        read: indices $R$.
        conditioner: maps (x_R, context) to ``sum(f.n_parameters for f in transforms)`` raw parameters; see
            `Conditioner`.
    """

    _read: Tensor
    _written: Tensor
    _order: Tensor

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
        self.register_buffer("_read", torch.tensor(self.read, dtype=torch.long), persistent=False)
        # Images come group by group: their coordinates, and the place of each transformed coordinate.
        order = [m for _, members in self._groups for m in members]
        places = [order.index(m) for m in range(len(order))]
        self._in_order = order == sorted(order)
        self.register_buffer("_written", torch.tensor([self.transformed[m] for m in order]), persistent=False)
        self.register_buffer("_order", torch.tensor(places), persistent=False)

    @staticmethod
    def sizes(transforms: Sequence[Transform]) -> list[tuple[int, int]]:
        """Members and raw parameters of each group of equal transforms, in order."""
        return [(len(members), f.n_parameters) for f, members in _groups(transforms)]

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map (..., d) to (..., d); returns the image and the log-slopes of the transformed coordinates."""
        return self._map(x, context, forward=True)

    def inverse(self, y: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map back; returns the preimage and the log-slopes of the inverse."""
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
        outputs, parts = self.conditioner(x.index_select(-1, self._read), context), self.outputs
        return [outputs[..., parts[i]] for i in self.transformed]

    def _blocks(self, x: Tensor, context: Tensor | None) -> list[Tensor]:
        """Raw parameters (..., members, n_parameters) of each group of equal transforms."""
        outputs = self.conditioner(x.index_select(-1, self._read), context)
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
        points = _split(x.index_select(-1, self._written), [len(members) for _, members in self._groups])
        mapped = [
            (f.forward if forward else f.inverse)(own, raw)
            for (f, _), own, raw in zip(self._groups, points, blocks, strict=True)
        ]
        image, log_slopes = (
            parts[0] if len(parts) == 1 else torch.cat(parts, -1) for parts in zip(*mapped, strict=True)
        )
        if not self._in_order:
            log_slopes = log_slopes.index_select(-1, self._order)
        return x.index_copy(-1, self._written, image), log_slopes

    def extra_repr(self) -> str:
        return f"transformed={self.transformed}, read={self.read}, transforms={[f for f, _ in self._groups]}"


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
