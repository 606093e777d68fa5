"""Constant numbers of a module, which it does not learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn


class Constants(nn.Module):
    """A vector of numbers in the dtype and on the device of the module that holds it.

    It is not stored in model files. When the module changes its dtype, the original numbers are rounded
    again: a buffer that went through float32 would keep that rounding in float64. A module made on the
    ``meta`` device gets its numbers when it is moved; until then each call makes them.

    Args:
        values: the numbers.
        whole: whole numbers, such as indices; they keep their dtype.
    """

    _tensor: Tensor

    def __init__(self, values: Sequence[float], *, whole: bool = False) -> None:
        super().__init__()
        self.values, self.whole = tuple(values), whole
        made = torch.tensor(self.values, dtype=torch.long if whole else torch.get_default_dtype())
        self.register_buffer("_tensor", made, persistent=False)

    def __len__(self) -> int:
        return len(self.values)

    def forward(self, x: Tensor) -> Tensor:
        """The numbers, on the device of ``x`` and, unless they are whole, in its dtype."""
        dtype = torch.long if self.whole else x.dtype
        if self._tensor.dtype == dtype and self._tensor.device == x.device:
            return self._tensor
        return x.new_tensor(self.values, dtype=dtype)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        if self._tensor.is_meta:  # has no numbers that could be moved
            self._tensor = torch.empty(0, dtype=self._tensor.dtype, device="cpu")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._tensor = self._tensor.new_tensor(self.values)
        return self

    def extra_repr(self) -> str:
        return f"{len(self.values)} numbers"
