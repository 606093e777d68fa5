"""Constant numbers of a module, which it does not learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn


class Constants(nn.Module):
    """A vector of numbers in the dtype and on the device of the module that holds it.

    It is not stored in model files. When the module changes its dtype, the original numbers are rounded
    again: a buffer that went through float32 would keep that rounding in float64.

    Args:
        values: the numbers.
    """

    _tensor: Tensor

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        self.values = tuple(values)
        made = torch.tensor(self.values, dtype=torch.get_default_dtype())
        self.register_buffer("_tensor", made, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The numbers, in the dtype and on the device of ``x``."""
        same = self._tensor.dtype == x.dtype and self._tensor.device == x.device
        return self._tensor if same else x.new_tensor(self.values)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._tensor = self._tensor.new_tensor(self.values)
        return self

    def extra_repr(self) -> str:
        return f"{len(self.values)} numbers"
