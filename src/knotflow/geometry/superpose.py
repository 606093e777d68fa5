"""Superposition of structures by rigid motions."""

from __future__ import annotations

import torch
from torch import Tensor


def superposed(x: Tensor, onto: Tensor) -> Tensor:
    r"""Translate and rotate each structure of ``x`` so that $\sum_a |R x_a + t - y_a|^2$ is smallest.

    The rotation is that of Kabsch (1976): with the centred positions as columns of $X$ and $Y$ and the
    singular values $Y X^\top = U S V^\top$, it is $R = U \,\mathrm{diag}(1, 1, \det U V^\top)\, V^\top$.
    Reflections are not allowed, so structures of different handedness stay apart. Use float64 to measure
    errors of float32.

    Args:
        x: Structures to move, shape ``(..., atoms, 3)``.
        onto: Target structures, of the same shape and dtype.

    Returns:
        The moved structures, shape of ``x``.
    """
    if x.shape != onto.shape or x.ndim < 2 or x.shape[-1] != 3:
        raise ValueError(
            "structures must have the same shape (..., atoms, 3) to be superposed, got "
            f"{tuple(x.shape)} and {tuple(onto.shape)}."
        )
    centre = onto.mean(-2, keepdim=True)
    x, y = x - x.mean(-2, keepdim=True), onto - centre
    u, _, vt = torch.linalg.svd(y.mT @ x)
    handedness = torch.linalg.det(u @ vt).sign()[..., None, None]
    turn: Tensor = torch.cat((u[..., :2], u[..., 2:] * handedness), dim=-1) @ vt
    return x @ turn.mT + centre
