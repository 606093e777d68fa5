"""Results of Markov chains: their current state, the states they visited, and their acceptance rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from knotflow.statistics.autocorrelation import autocorrelation_time
from knotflow.statistics.estimates import Estimate, mean
from knotflow.tensor_files import read_tensors, write_tensors


@dataclass(frozen=True)
class ChainState:
    """Current state of chains: all that is needed to continue them with the same random numbers."""

    x: Tensor
    """Shape (chains, atoms, 3) in nm, or (chains, d)."""
    energy: Tensor
    """Reduced energies u, shape (chains,), float64."""
    log_prob: Tensor
    r"""Log-densities of the flow, shape (chains,), float64; $-\infty$ outside its support."""
    random: Tensor
    """State of the random generator; for chains in groups, a row for each group."""
    cycles: Tensor
    """Number of cycles done, a scalar."""

    def save(self, path: str | Path) -> None:
        """Write a ``.safetensors`` file."""
        write_tensors(Path(path), self.tensors(), {})

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> ChainState:
        """Read what `save` wrote."""
        try:
            return cls.of(read_tensors(Path(path))[0], device)
        except TypeError as error:
            raise ValueError(f"{path} does not hold the state of chains, or is damaged: {error}") from None

    def groups(self) -> list[ChainState]:
        """The groups of chains, each with random numbers of its own; they are about equally large."""
        if self.random.ndim == 1:
            return [self]
        parts = (part.tensor_split(len(self.random)) for part in (self.x, self.energy, self.log_prob))
        # Generators want memory of their own, and crash if they get a row of a table.
        random = [row.clone() for row in self.random]
        return [ChainState(x, u, p, r, self.cycles) for x, u, p, r in zip(*parts, random, strict=True)]

    @classmethod
    def of_groups(cls, groups: Sequence[ChainState]) -> ChainState:
        """The inverse of `groups`."""
        if len(groups) == 1:
            return groups[0]
        x, energy, log_prob = (
            torch.cat([getattr(group, name) for group in groups]) for name in ("x", "energy", "log_prob")
        )
        return cls(x, energy, log_prob, torch.stack([g.random for g in groups]), groups[0].cycles)

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name, as stored in files."""
        return {field.name: getattr(self, field.name).cpu().contiguous() for field in fields(self)}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], device: str = "cpu") -> ChainState:
        """The inverse of `tensors`."""
        kept_on_cpu = ("random", "cycles")
        return cls(**{k: t if k in kept_on_cpu else t.to(device) for k, t in tensors.items()})


@dataclass(frozen=True)
class Moves:
    """Numbers of tried and accepted moves of one kind."""

    tried: int
    accepted: int

    def __add__(self, other: Moves) -> Moves:
        return Moves(self.tried + other.tried, self.accepted + other.accepted)

    @property
    def acceptance(self) -> float:
        """Share of the moves that were accepted; NaN if none was tried."""
        return self.accepted / self.tried if self.tried else math.nan

    @property
    def percent(self) -> str:
        """`acceptance` as text: ``31 %``; a dash if none was tried."""
        return f"{100 * self.acceptance:.3g} %" if self.tried else "-"


NO_MOVES: Final = {"flow": Moves(0, 0), "hmc": Moves(0, 0)}
"""The kinds of moves, before any was tried."""


def accepted_shares(moves: Mapping[str, Moves]) -> str:
    """Acceptance of each kind of move that was tried, as text."""
    return "accepted: " + ", ".join(f"{kind} {some.percent}" for kind, some in moves.items() if some.tried)


@dataclass(frozen=True)
class Chains:
    """Result of a run: rows of states, with one column for each chain."""

    positions: Tensor
    """Shape (rows, chains, atoms, 3) in nm, or (rows, chains, d)."""
    energy: Tensor
    """Reduced energies, shape (rows, chains), float64."""
    log_prob: Tensor
    """Log-densities of the flow, shape (rows, chains), float64."""
    moves: Mapping[str, Moves]
    """Counts for each kind of move: ``"flow"`` and ``"hmc"``."""
    every: int
    """Cycles from one row to the next."""
    state: ChainState
    """Final state, from which to continue."""

    def average(self, values: ArrayLike) -> Estimate:
        """Mean of an observable, values (rows, chains), and its standard error.

        Chains are independent of each other, so the error comes from the spread of their means; it is NaN
        for a single chain.
        """
        return mean(self._table(values).mean(0))

    def autocorrelation_time(self, values: ArrayLike | None = None) -> float:
        """Integrated autocorrelation time of an observable, values (rows, chains), in cycles.

        By default of the energy. Trust it only if the chains are at least twenty times as long.
        """
        table = self._table(self.energy.cpu().numpy() if values is None else values)
        return self.every * autocorrelation_time(table)

    def effective_samples(self, values: ArrayLike | None = None) -> float:
        """Number of independent samples that would give the mean of an observable equally well."""
        return self.energy.numel() * self.every / self.autocorrelation_time(values)

    def _table(self, values: ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        table = np.asarray(values, dtype=np.float64)
        if table.shape != tuple(self.energy.shape):
            raise ValueError(
                f"values must have shape (rows, chains), here {tuple(self.energy.shape)}, got {table.shape}."
            )
        return table
