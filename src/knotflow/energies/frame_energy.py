"""Energies and forces of molecules by programs outside torch, in parallel worker processes."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from knotflow.energies.energy import MolecularEnergy
from knotflow.energies.frames import Evaluated, Frames
from knotflow.workers import WorkerPool

if TYPE_CHECKING:
    from knotflow.molecules.system import MolecularSystem

log = logging.getLogger("knotflow")

MOST_FRAMES = 250
"""Most frames in a worker's task."""


class FrameEnergy(MolecularEnergy):
    r"""The reduced energy $u = U / kT$ of a molecule by a program that evaluates one frame after the other.

    Large batches are divided among worker processes, started with the first such batch and stopped by
    `close`, the end of a ``with`` block or of the program.

    A frame with a position that is not finite has energy and force NaN. So has one on which the program
    fails, and the first such frame is reported by a warning. Programs may also return huge or infinite values
    for atoms on top of each other, so check ``isfinite`` before you average.

    The gradient of `energy` is minus the force, which the program computes along with it. There are no second
    derivatives. Frames that do not enter a loss get the gradient 0, even if their force is NaN.

    Not thread-safe: do not call it from two threads at once.

    Args:
        system: The molecule and the temperature.
        name: The program, for messages.
        target: ``"package.module:function"``: it is called with ``setup``, in this process and in each
            worker, and returns a function as in `knotflow.energies.frames`.
        setup: Picklable.
        workers: Number of processes. With one, everything is done in this process.
        few: Batches up to this size are evaluated in this process: sending them would take longer.
        fewest: Fewest frames in a worker's task.
        zero_kj: In kJ/mol; subtracted from all energies.

    Raises:
        ValueError: if the program cannot be set up or, when it is used, fails on all of its first frames.
    """

    def __init__(
        self,
        system: MolecularSystem,
        name: str,
        target: str,
        setup: object,
        *,
        workers: int,
        few: int = 1,
        fewest: int = 1,
        zero_kj: float = 0.0,
    ) -> None:
        options: dict[str, Any] = {"workers": workers, "few": few, "fewest": fewest, "zero_kj": zero_kj}
        self.recipe = partial(FrameEnergy, system, name, target, setup, **options)
        self.n_atoms, self.temperature = system.n_atoms, system.temperature
        self.name, self.workers = name, workers
        self._kT, self._zero_kj = system.kT, zero_kj
        self._few, self._fewest = few, fewest
        self._target, self._setup = target, setup
        module, _, function = target.partition(":")
        self._here: Callable[[Frames], tuple[Any, ...]]
        self._here = getattr(importlib.import_module(module), function)(setup)
        self._works = False
        """Whether a frame had an energy: then the program is not broken, but other frames may be."""
        self._pool = self._new_pool()

    def energy(self, x: Tensor) -> Tensor:
        u: Tensor = _Differentiable.apply(x, self)  # type: ignore[no-untyped-call]
        return u

    @torch.no_grad()
    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.check_positions(x)
        frames = x.reshape(-1, self.n_atoms, 3).to("cpu", torch.float64).numpy()
        energies_kj, forces_kj = self._evaluate(frames)
        u = torch.from_numpy((energies_kj - self._zero_kj) / self._kT).to(x)
        force = torch.from_numpy(forces_kj / self._kT).to(x)
        return u.reshape(x.shape[:-2]), force.reshape(x.shape)

    def close(self) -> None:
        """Stop the worker processes; they restart when they are needed."""
        self._pool.close()
        self._pool = self._new_pool()

    def _new_pool(self) -> WorkerPool:
        return WorkerPool(self._target, self._setup, self.workers)

    def _evaluate(self, frames: Frames) -> tuple[Frames, Frames]:
        if self.workers == 1 or len(frames) <= self._few:
            starts, parts = [0], [Evaluated(*self._here(frames))]
        else:
            # Several chunks per worker, so that all finish at about the same time.
            chunk = int(np.clip(math.ceil(len(frames) / (4 * self.workers)), self._fewest, MOST_FRAMES))
            starts = list(range(0, len(frames), chunk))
            found = self._pool.map(frames[start : start + chunk] for start in starts)
            parts = [Evaluated(*part) for part in found]
        energies_kj = np.concatenate([part.energies_kj for part in parts])
        failed = [
            (start + i, why) for start, part in zip(starts, parts, strict=True) for i, why in part.failures
        ]
        self._works |= bool(np.isfinite(energies_kj).any())
        if failed:
            self._report(*failed[0], len(frames))
        return energies_kj, np.concatenate([part.forces_kj for part in parts])

    def _report(self, index: int, why: str, n: int) -> None:
        """Say which frame has no energy: as an error if none had one so far, else once as a warning."""
        first, self.failure = self.failure is None, f"{self.name} failed on frame {index + 1} of {n:,}: {why}"
        if not self._works:
            raise ValueError(f"{self.failure}; it has computed no energy at all, so check its settings.")
        if first:
            log.warning("%s. Such frames have no energy; further ones are not reported.", self.failure)


class _Differentiable(torch.autograd.Function):
    """The energy as a function that autograd can differentiate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, energy: FrameEnergy) -> Tensor:
        u, force = energy.energy_and_force(x)
        ctx.save_for_backward(x, force)
        ctx.name = energy.name
        return u

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        gradient: Tensor = _Gradient.apply(grad, *ctx.saved_tensors, ctx.name)  # type: ignore[no-untyped-call]
        return gradient, None


class _Gradient(torch.autograd.Function):
    """The weighted gradient $-f$, whose dependence on ``x`` cannot be differentiated.

    Torch's own ``once_differentiable`` treats it as a constant whenever the weights are constants: second
    derivatives would then silently be missing from a loss.
    """

    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor, force: Tensor, name: str) -> Tensor:
        ctx.name = name
        weight = grad[..., None, None]
        # Zero times NaN is NaN: without this, one bad frame would ruin a loss that leaves it out.
        return torch.where(weight == 0, 0.0, -weight * force)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError(
            f"{ctx.name} gives no second derivatives of the energy; if you do not need them, use force(x), "
            "which autograd treats as a constant."
        )
