r"""Steps of dynamics, composed of parts that are solved exactly.

A: positions drift, $x \leftarrow x + t\,v$. B: forces kick, $v \leftarrow v + t\,\frac{kT}{m} f$. O: friction
and noise act on the velocities. A step begins with the force at the end of the last one: one evaluation per
step. Nothing here depends on molecules or batches: arrays have the shape of the positions, or broadcast
against it.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Field = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions to reduced energies and reduced forces."""


def verlet(field: Field, x: Tensor, v: Tensor, f: Tensor, *, dt: float, kick: Tensor) -> tuple[Tensor, ...]:
    r"""Velocity Verlet, BAB: time-reversible, symplectic and of second order (Swope et al. 1982).

    Args:
        field: Energies and forces.
        x: Positions.
        v: Velocities.
        f: Forces at ``x``.
        dt: The step in units of time.
        kick: $\frac{dt}{2} \frac{kT}{m}$, broadcast against the positions.

    Returns:
        Positions, velocities, forces and energies after the step.
    """
    v = v + kick * f
    x = x + dt * v
    u, f = field(x)
    return x, v + kick * f, f, u


def baoab(
    field: Field,
    x: Tensor,
    v: Tensor,
    f: Tensor,
    thermostat: Callable[[Tensor], Tensor],
    *,
    dt: float,
    kick: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""Langevin dynamics by BAOAB (Leimkuhler & Matthews 2013, Appl. Math. Res. Express 2013, 34).

    In a harmonic well the distribution of positions is exact for every stable step; elsewhere its error is of
    second order, and of fourth at high friction. Velocities at the end of a step are too cold by the square
    of the step; those in its middle are not.

    Arguments are as for `verlet`, and ``thermostat`` is part O,
    $v \mapsto e^{-\gamma\,dt} v + \sqrt{1 - e^{-2\gamma\,dt}} \sqrt{kT/m}\;\xi$ with normal numbers $\xi$.

    Returns:
        Positions, velocities, forces and energies after the step, and velocities in its middle.
    """
    v = v + kick * f
    x = x + 0.5 * dt * v
    v = middle = thermostat(v)
    x = x + 0.5 * dt * v
    u, f = field(x)
    return x, v + kick * f, f, u, middle
