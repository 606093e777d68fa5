"""Coupling layers: some coordinates are transformed, given others that stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from knotflow.transforms import Transform


class Coupling(nn.Module):
    r"""Transform some coordinates with parameters that depend on others.

    $$y_T = f(x_T;\, \theta(x_R, c)), \qquad y_i = x_i \text{ for } i \notin T .$$

    Sets $T$ (transformed) and $R$ (read) are disjoint, so the Jacobian is triangular and its log-determinant
    the sum of the log-slopes. Coordinates that are in neither pass unread. Each transformed coordinate has a
    transform of its own, on its own domain; those that have the same share one call.

    Args:
        transformed: indices $T$.
        transforms: a transform for each of them.
        read: indices $R$.
        conditioner: maps (x_R, context) to ``sum(f.n_parameters for f in transforms)`` raw parameters, see
            `Conditioner`.
    """

    _read: Tensor

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
                f"expected a transform for each of the {len(transformed)} coordinates transformed, got "
                f"{len(transforms)}."
            )
        indices = [*transformed, *read]
        if len(set(indices)) < len(indices) or min(indices) < 0:
            raise ValueError(
                "the coordinates a coupling transforms and reads must be different and counted from 0, got "
                f"transformed={list(transformed)}, read={list(read)}."
            )
        self.transformed, self.read = list(transformed), list(read)
        self.transforms = list(transforms)
        self.conditioner = conditioner
        self._groups = _groups(self.transforms)
        self._sizes = [len(members) * f.n_parameters for f, members in self._groups]
        self.register_buffer("_read", torch.tensor(self.read, dtype=torch.long), persistent=False)
        for number, (_, members) in enumerate(self._groups):
            group = torch.tensor([self.transformed[m] for m in members])
            self.register_buffer(f"_group{number}", group, persistent=False)
        # Place of each transformed coordinate in the concatenation of the groups.
        order = [m for _, members in self._groups for m in members]
        self._places = [order.index(m) for m in range(len(order))]

    @staticmethod
    def sizes(transforms: Sequence[Transform]) -> list[tuple[int, int]]:
        """Members and number of raw parameters of each group of equal transforms, in order."""
        return [(len(members), f.n_parameters) for f, members in _groups(transforms)]

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map (..., d) to (..., d); returns the image and the log-slopes of the transformed coordinates."""
        return self._map(x, context, forward=True)

    def inverse(self, y: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map back; returns the preimage and the log-slopes of the inverse."""
        return self._map(y, context, forward=False)

    @property
    def groups(self) -> list[tuple[Transform, Tensor]]:
        """The different transforms, and the indices of the coordinates that each acts on."""
        return [(f, self.get_buffer(f"_group{number}")) for number, (f, _) in enumerate(self._groups)]

    def blocks(self, outputs: Tensor) -> list[Tensor]:
        """Outputs of the conditioner as raw parameters (..., members, n_parameters) of each group."""
        # Splitting into one would copy the gradient.
        blocks = outputs.split(self._sizes, -1) if len(self._groups) > 1 else [outputs]
        return [
            block.unflatten(-1, (len(members), f.n_parameters))
            for (f, members), block in zip(self._groups, blocks, strict=True)
        ]

    def gather_read(self, x: Tensor) -> Tensor:
        """The coordinates that are read, (..., n), of points or tangents (..., d)."""
        return x.index_select(-1, self._read)

    @property
    def outputs(self) -> dict[int, slice]:
        """Which outputs of the conditioner are the raw parameters of which coordinate."""
        found, first = {}, 0
        for f, members in self._groups:
            for member in members:
                found[self.transformed[member]] = slice(first, first + f.n_parameters)
                first += f.n_parameters
        return found

    def raw(self, x: Tensor, context: Tensor | None = None) -> list[Tensor]:
        """Raw parameters (..., n_parameters) of the map of each transformed coordinate."""
        outputs = self.conditioner(self.gather_read(x), context)
        parts = self.outputs
        return [outputs[..., parts[i]] for i in self.transformed]

    def _blocks(self, x: Tensor, context: Tensor | None) -> list[Tensor]:
        """Raw parameters (..., members, n_parameters) of each group of equal transforms."""
        outputs = self.conditioner(self.gather_read(x), context)
        if outputs.shape[-1] != sum(self._sizes):
            raise ValueError(
                f"the transforms of this coupling take {sum(self._sizes)} raw parameters, its conditioner "
                f"gives {outputs.shape[-1]}; size it by sum(f.n_parameters for f in transforms)."
            )
        return self.blocks(outputs)

    def _map(self, x: Tensor, context: Tensor | None, *, forward: bool) -> tuple[Tensor, Tensor]:
        images, log_slopes = [], []
        for (f, index), raw in zip(self.groups, self._blocks(x, context), strict=True):
            image, log_slope = (f.forward if forward else f.inverse)(x.index_select(-1, index), raw)
            images.append(image)
            log_slopes.append(log_slope)
        # The vector is put together anew: writing in place is more than autograd and vmap can follow.
        image, log_slope = torch.cat(images, -1), torch.cat(log_slopes, -1)
        columns = list(x.unbind(-1))
        for i, place in zip(self.transformed, self._places, strict=True):
            columns[i] = image[..., place]
        return torch.stack(columns, -1), log_slope[..., self._places]

    def extra_repr(self) -> str:
        return f"transformed={self.transformed}, read={self.read}, transforms={[f for f, _ in self._groups]}"


def _groups(transforms: Sequence[Transform]) -> list[tuple[Transform, list[int]]]:
    """Transforms that are the same, by what they print, with their places."""
    groups: dict[str, tuple[Transform, list[int]]] = {}
    for place, f in enumerate(transforms):
        groups.setdefault(repr(f), (f, []))[1].append(place)
    return list(groups.values())
