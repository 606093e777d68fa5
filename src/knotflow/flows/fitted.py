"""Domains that fit data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from knotflow.transforms import Domain, Line
from knotflow.transforms.base import check_tensor

REACH: Final = 5.0
"""Splines on a line reach this many standard deviations to each side; beyond, maps are affine."""


def data_domains(x: Tensor, known: Mapping[int, Domain]) -> list[Domain]:
    """Domains of data (n, d): those known, by the number of the coordinate, and lines that fit the rest."""
    check_tensor("data", x)
    if x.ndim != 2 or len(x) < 2 or not torch.is_floating_point(x):
        raise ValueError(
            f"expected data of shape (n, d) with at least two points, in floating-point numbers, got shape "
            f"{tuple(x.shape)} and {x.dtype}."
        )
    wrong = sorted(set(known) - set(range(x.shape[1])))
    if wrong:
        raise ValueError(f"there is no coordinate {wrong[0]}; data have {x.shape[1]}, counted from 0.")
    found: list[Domain] = []
    for i, (mean, deviation) in enumerate(
        zip(x.double().mean(0).tolist(), x.double().std(0).tolist(), strict=True)
    ):
        if i in known:
            found.append(known[i])
            continue
        if not 0 < deviation < math.inf:
            problem = "is constant" if deviation == 0 else "has values that are not finite"
            raise ValueError(f"coordinate {i} of the data {problem}; leave it out, or clean the data.")
        found.append(Line(mean - REACH * deviation, mean + REACH * deviation))
    return found
