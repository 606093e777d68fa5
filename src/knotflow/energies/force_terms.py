"""The terms of an OpenMM ``System`` as tensors: what a force field says about one molecule."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]

COULOMB: Final = 138.93545764438198
"""1 / (4 pi epsilon_0) in kJ/mol nm / e², with OpenMM's digits."""

BORN_OFFSET: Final = 0.009
"""In nm: how much smaller an atom is inside the Born integrals (Onufriev, Bashford, Case 2004)."""

PROBE: Final = 0.14
"""Radius of a water molecule in nm, for the surface term."""


@dataclass(frozen=True)
class _Terms:
    """Tensors, or again terms; a last axis of length one stands for the frames."""

    def to(self, like: Tensor) -> Self:
        """The same with the dtype and on the device of a tensor; indices stay whole numbers."""
        return type(self)(**{f.name: _like(getattr(self, f.name), like) for f in fields(self)})


def _like(value: Tensor | _Terms | None, like: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)
    return value if value is None else value.to(like)


@dataclass(frozen=True)
class BornTerms(_Terms):
    """Generalised Born solvation (OBC II) with its surface term, as OpenMM's ``GBSAOBCForce`` has it."""

    size: Tensor
    """Radius inside the integrals, less than the radius by the offset, shape (atoms, 1)."""
    inverse_size: Tensor
    inverse_radius: Tensor
    reach: Tensor
    """Scaled size of the partner, shape (1, atoms, 1)."""
    product: Tensor
    r"""$-k_e (1/\epsilon_\text{solute} - 1/\epsilon_\text{solvent})\, q_i q_j / kT$, zero on the diagonal.

    Shape (atoms, atoms, 1)."""
    self_product: Tensor
    """Half the diagonal of that product, shape (atoms, 1)."""
    surface: Tensor
    """Factor of the inverse sixth power of the Born radius, shape (atoms, 1)."""


@dataclass(frozen=True)
class ForceTerms(_Terms):
    r"""All terms of a molecule: energies in kT, lengths in nm; a last axis of length one for the frames.

    Torsions are Fourier series $\sum_n a_n \cos n\varphi + b_n \sin n\varphi$, one for each four atoms.
    """

    bonds: Tensor
    """Shape (2, bonds)."""
    bond_lengths: Tensor
    bond_constants: Tensor
    """Half the force constants."""
    angles: Tensor
    """Shape (3, angles)."""
    angle_values: Tensor
    angle_constants: Tensor
    """Half the force constants."""
    torsions: Tensor
    """Shape (4, torsions)."""
    cosines: Tensor
    """$a_n$, shape (orders + 1, torsions, 1)."""
    sines: Tensor
    """$b_n$, shape (orders + 1, torsions, 1)."""
    coulomb: Tensor
    """Factor of 1/r, shape (atoms, atoms, 1), symmetric, zero on the diagonal and where excluded."""
    attraction: Tensor
    """Factor of -1/r⁶, like `coulomb`."""
    repulsion: Tensor
    """Factor of 1/r¹², like `coulomb`."""
    diagonal: Tensor
    """One on the diagonal of pairs, zero elsewhere."""
    born: BornTerms | None


def read_terms(system: Any, kT: float) -> ForceTerms:
    """Read the terms of an OpenMM ``System``, in float64.

    Args:
        system: The System.
        kT: Unit of energy, in kJ/mol.

    Raises:
        ValueError: if it has a force of another kind, a cut-off, a periodic box or constraints.
    """
    forces: dict[str, list[Any]] = {name: [] for name in _READ}
    for force in system.getForces():
        # Not asked for its own getName(), which the user may set.
        name = type(force).__name__
        if name == "CMMotionRemover":
            continue
        if name not in forces:
            raise ValueError(
                f"a torch force field is made of {', '.join(_READ)}; the system has a {name}, so use OpenMM "
                "for it (engine openmm, OpenMMEnergy)."
            )
        forces[name].append(force)
    _check(system, forces)
    n = system.getNumParticles()
    bonds = _parameters(forces["HarmonicBondForce"], "Bond")
    angles = _parameters(forces["HarmonicAngleForce"], "Angle")
    torsions, cosines, sines = _torsions(_parameters(forces["PeriodicTorsionForce"], "Torsion"))
    coulomb, attraction, repulsion = _pairs(forces["NonbondedForce"], n)
    return ForceTerms(
        bonds=_indices(bonds, 2),
        bond_lengths=_tensor(_column(bonds, 2)),
        bond_constants=_tensor(_column(bonds, 3), 0.5 / kT),
        angles=_indices(angles, 3),
        angle_values=_tensor(_column(angles, 3)),
        angle_constants=_tensor(_column(angles, 4), 0.5 / kT),
        torsions=torsions,
        cosines=_tensor(cosines, 1 / kT),
        sines=_tensor(sines, 1 / kT),
        coulomb=_tensor(coulomb, 1 / kT),
        attraction=_tensor(attraction, 1 / kT),
        repulsion=_tensor(repulsion, 1 / kT),
        diagonal=torch.eye(n, dtype=torch.float64)[..., None],
        born=_born(forces["GBSAOBCForce"][0], kT) if forces["GBSAOBCForce"] else None,
    )


_READ = (
    "HarmonicBondForce",
    "HarmonicAngleForce",
    "PeriodicTorsionForce",
    "NonbondedForce",
    "GBSAOBCForce",
)


def _check(system: Any, forces: dict[str, list[Any]]) -> None:
    if system.getNumConstraints():
        raise ValueError(
            f"a torch force field has no constraints, the system has {system.getNumConstraints()}; create "
            "it with constraints=None and rigidWater=False."
        )
    for name in ("NonbondedForce", "GBSAOBCForce"):
        for force in forces[name]:
            if force.getNonbondedMethod() != force.NoCutoff:
                raise ValueError(
                    f"a torch force field takes all pairs of atoms, the {name} of the system has a "
                    "cut-off or a periodic box; create it with nonbondedMethod=NoCutoff."
                )
        if len(forces[name]) > 1:
            raise ValueError(f"expected at most one {name}, the system has {len(forces[name])}; merge them.")
    for force in forces["NonbondedForce"]:
        if force.getNumParticleParameterOffsets() or force.getNumExceptionParameterOffsets():
            raise ValueError(
                "a torch force field has fixed charges, the NonbondedForce of the system has parameter "
                "offsets; remove them."
            )


def _parameters(forces: list[Any], kind: str) -> list[list[Any]]:
    """Rows of parameters of all bonds, angles ... of some forces, without units (nm, rad, kJ/mol, e)."""
    return [
        [getattr(value, "_value", value) for value in getattr(force, f"get{kind}Parameters")(i)]
        for force in forces
        for i in range(getattr(force, f"getNum{kind}s")())
    ]


def _tensor(array: Floats, scale: float = 1.0) -> Tensor:
    return torch.as_tensor(array * scale)[..., None]


def _indices(rows: list[Any], count: int) -> Tensor:
    return torch.tensor([row[:count] for row in rows], dtype=torch.int64).reshape(-1, count).T.contiguous()


def _column(rows: list[list[Any]], column: int) -> Floats:
    return np.array([row[column] for row in rows], dtype=np.float64)


def _torsions(rows: list[list[Any]]) -> tuple[Tensor, Floats, Floats]:
    r"""Gather $k(1 + \cos(n\varphi - \varphi_0))$ by their atoms: indices, $a_n$ and $b_n$ in kJ/mol.

    Each adds $k$ to $a_0$, $k\cos\varphi_0$ to $a_n$ and $k\sin\varphi_0$ to $b_n$.
    """
    rows = [row for row in rows if row[6] != 0]
    quadruples = sorted({tuple(row[:4]) for row in rows})
    place = {atoms: i for i, atoms in enumerate(quadruples)}
    orders = max((row[4] for row in rows), default=0)
    cosines = np.zeros((orders + 1, len(quadruples)))
    sines = np.zeros_like(cosines)
    for *atoms, n, phase, k in rows:
        i = place[tuple(atoms)]
        cosines[0, i] += k
        cosines[n, i] += k * math.cos(phase)
        sines[n, i] += k * math.sin(phase)
    return _indices(quadruples, 4), cosines, sines


def _pairs(forces: list[Any], n: int) -> tuple[Floats, Floats, Floats]:
    """Tables of Coulomb and Lennard-Jones factors, exceptions put in their places."""
    coulomb, sigma, epsilon = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    for force in forces:
        charge, size, depth = np.array(_parameters([force], "Particle")).T
        coulomb = np.outer(charge, charge)
        sigma = (size[:, None] + size) / 2
        epsilon = np.sqrt(np.outer(depth, depth))
        for i, j, product, size_ij, depth_ij in _parameters([force], "Exception"):
            coulomb[i, j] = coulomb[j, i] = product
            sigma[i, j] = sigma[j, i] = size_ij
            epsilon[i, j] = epsilon[j, i] = depth_ij
    for table in (coulomb, epsilon):
        np.fill_diagonal(table, 0.0)
    return COULOMB * coulomb, 4 * epsilon * sigma**6, 4 * epsilon * sigma**12


def _born(force: Any, kT: float) -> BornTerms:
    charge, radius, scale = torch.tensor(_parameters([force], "Particle"), dtype=torch.float64).T
    size = radius - BORN_OFFSET
    prefactor = -COULOMB * (1 / force.getSoluteDielectric() - 1 / force.getSolventDielectric())
    product = prefactor / kT * charge[:, None] * charge
    surface = 4 * math.pi * force.getSurfaceAreaEnergy()._value
    terms = (
        size,
        1 / size,
        1 / radius,
        (scale * size)[None],
        product - product.diag().diag(),
        product.diag() / 2,
        surface / kT * (radius + PROBE) ** 2 * radius**6,
    )
    return BornTerms(*(term[..., None] for term in terms))
