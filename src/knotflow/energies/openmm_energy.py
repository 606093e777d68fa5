"""Energies and forces of molecules by OpenMM, in parallel worker processes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from knotflow.energies.energy import MolecularEnergy
from knotflow.energies.openmm_contexts import (
    Frames,
    fastest_platform,
    frame_energies,
    make_context,
    worker_count,
)
from knotflow.workers import WorkerPool

if TYPE_CHECKING:
    from knotflow.molecules.system import MolecularSystem

SMALL_BATCH: Final = 32
"""Batches up to this size are evaluated in this process: sending them to workers would take longer."""

CHUNK: Final = (8, 250)
"""Fewest and most frames in a worker's task."""


class OpenMMEnergy(MolecularEnergy):
    r"""The reduced energy $u = U / kT$ of a molecule with its force field, by OpenMM.

    Frames are evaluated one after the other on the fastest platform of this machine (`platform`); only
    ``"Reference"`` is in double precision throughout. Large batches are divided among worker processes,
    started with the first such batch and stopped by `close`, the end of a ``with`` block or of the program.

    A frame with a position that is not finite has energy and force NaN. Others get OpenMM's values: atoms on
    top of each other can have a huge, infinite or NaN energy, so check ``isfinite`` before you average.

    The gradient of `energy` is minus the force, which OpenMM computes along with it. There are no second
    derivatives. Frames that do not enter a loss get the gradient 0, even if their force is NaN.

    Not thread-safe: do not call it from two threads at once.

    Args:
        system: The molecule, its force field and the temperature.
        workers: Number of processes; default: one per usable core, or one if a GPU is the fastest. With one,
            everything is done in this process.
    """

    def __init__(self, system: MolecularSystem, workers: int | None = None) -> None:
        self.n_atoms = system.n_atoms
        self.temperature = system.temperature
        self.platform = fastest_platform(system.xml, system.positions)
        self.workers = worker_count(self.platform) if workers is None else workers
        self._kT = system.kT
        self._context = make_context(system.xml, self.platform)
        self._setup = (system.xml, self.platform)
        self._pool = self._new_pool()

    def energy(self, x: Tensor) -> Tensor:
        u: Tensor = _Differentiable.apply(x, self)  # type: ignore[no-untyped-call]
        return u

    @torch.no_grad()
    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.check_positions(x)
        frames = x.reshape(-1, self.n_atoms, 3).to("cpu", torch.float64).numpy()
        energies_kj, forces_kj = self._evaluate(frames)
        u = torch.from_numpy(energies_kj / self._kT).to(x)
        force = torch.from_numpy(forces_kj / self._kT).to(x)
        return u.reshape(x.shape[:-2]), force.reshape(x.shape)

    def close(self) -> None:
        """Stop the worker processes; they restart when they are needed."""
        self._pool.close()
        self._pool = self._new_pool()

    def _new_pool(self) -> WorkerPool:
        return WorkerPool("knotflow.energies.openmm_contexts:frame_worker", self._setup, self.workers)

    def _evaluate(self, frames: Frames) -> tuple[Frames, Frames]:
        if self.workers == 1 or len(frames) <= SMALL_BATCH:
            return frame_energies(self._context, frames)
        # Several chunks per worker, so that all finish at about the same time.
        chunk = int(np.clip(math.ceil(len(frames) / (4 * self.workers)), *CHUNK))
        parts = self._pool.map(frames[i : i + chunk] for i in range(0, len(frames), chunk))
        energies_kj, forces_kj = zip(*parts, strict=True)
        return np.concatenate(energies_kj), np.concatenate(forces_kj)


class _Differentiable(torch.autograd.Function):
    """The energy as a function that autograd can differentiate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, energy: OpenMMEnergy) -> Tensor:
        u, force = energy.energy_and_force(x)
        ctx.save_for_backward(x, force)
        return u

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        gradient: Tensor = _Gradient.apply(grad, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return gradient, None


class _Gradient(torch.autograd.Function):
    """The weighted gradient $-f$, whose dependence on ``x`` cannot be differentiated.

    Torch's own ``once_differentiable`` treats it as a constant whenever the weights are constants: second
    derivatives would then silently be missing from a loss.
    """

    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor, force: Tensor) -> Tensor:
        weight = grad[..., None, None]
        # Zero times NaN is NaN: without this, one bad frame would ruin a loss that leaves it out.
        return torch.where(weight == 0, 0.0, -weight * force)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError(
            "OpenMM gives no second derivatives of the energy; if you do not need them, use force(x), which "
            "autograd treats as a constant."
        )
