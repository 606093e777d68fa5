"""The terms of an OpenMM ``System`` as tensors: the parameters of one molecule's force field."""

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
"""1 / (4 pi epsilon_0) in kJ/mol nm / e², to OpenMM's digits."""

BORN_OFFSET: Final = 0.009
"""In nm: radii are smaller by this in the Born integrals (Onufriev, Bashford, Case 2004)."""

PROBE: Final = 0.14
"""Radius of a water molecule in nm, for the surface term."""


SUPPORTED: Final = (
    "HarmonicBondForce",
    "HarmonicAngleForce",
    "PeriodicTorsionForce",
    "NonbondedForce",
    "GBSAOBCForce",
)


@dataclass(frozen=True)
class _Terms:
    """Tensors, or nested terms; a last axis of length one broadcasts over the frames."""

    def to(self, like: Tensor) -> Self:
        """A copy with the dtype and on the device of a tensor; indices stay integers."""

        def moved(value: Tensor | _Terms | None) -> Any:
            if isinstance(value, Tensor):
                return value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)
            return value and value.to(like)

        return type(self)(**{field.name: moved(getattr(self, field.name)) for field in fields(self)})


@dataclass(frozen=True)
class BornTerms(_Terms):
    """Generalised Born solvation (OBC II) with its surface term, as in OpenMM's ``GBSAOBCForce``."""

    size: Tensor
    """Radius in the integrals: the radius minus the offset, shape (atoms, 1)."""
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
    r"""All terms of a molecule: energies in kT, lengths in nm, a last axis of length one for the frames.

    Torsions are Fourier series $\sum_n a_n \cos n\varphi + b_n \sin n\varphi$, one per quadruple of atoms.
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
    """Identity matrix of the pairs, shape (atoms, atoms, 1)."""
    born: BornTerms | None


def read_terms(system: Any, kT: float) -> ForceTerms:
    """Read the terms of an OpenMM ``System``, in float64.

    Args:
        system: The System.
        kT: Unit of energy, in kJ/mol.

    Raises:
        ValueError: if it has an unsupported force, a cut-off, a periodic box or constraints.
    """
    forces: dict[str, list[Any]] = {name: [] for name in SUPPORTED}
    for force in system.getForces():
        name = type(force).__name__  # not getName(), which the user may set
        if name == "CMMotionRemover":
            continue
        if name not in forces:
            raise ValueError(
                f"a torch force field supports {', '.join(SUPPORTED)}; the system has a {name}, so use "
                "OpenMM for it (engine openmm, OpenMMEnergy)."
            )
        forces[name].append(force)
    _check(system, forces)
    n = system.getNumParticles()
    return ForceTerms(
        *_springs(forces["HarmonicBondForce"], "Bond", 2, kT),
        *_springs(forces["HarmonicAngleForce"], "Angle", 3, kT),
        *_torsions(forces["PeriodicTorsionForce"], kT),
        *_pairs(forces["NonbondedForce"], n, kT),
        diagonal=torch.eye(n, dtype=torch.float64)[..., None],
        born=_born(forces["GBSAOBCForce"][0], kT) if forces["GBSAOBCForce"] else None,
    )


def _check(system: Any, forces: dict[str, list[Any]]) -> None:
    if system.getNumConstraints():
        raise ValueError(
            f"a torch force field has no constraints, the system has {system.getNumConstraints()}; create "
            "it with constraints=None and rigidWater=False."
        )
    for name in ("NonbondedForce", "GBSAOBCForce"):
        if any(force.getNonbondedMethod() != force.NoCutoff for force in forces[name]):
            raise ValueError(
                f"a torch force field includes all pairs of atoms, the {name} of the system has a cut-off or "
                "a periodic box; create it with nonbondedMethod=NoCutoff."
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


def _indices(rows: list[Any], count: int) -> Tensor:
    return torch.tensor([row[:count] for row in rows], dtype=torch.int64).reshape(-1, count).T.contiguous()


def _tensor(array: Floats, scale: float = 1.0) -> Tensor:
    return torch.as_tensor(array * scale)[..., None]


def _springs(forces: list[Any], kind: str, atoms: int, kT: float) -> tuple[Tensor, Tensor, Tensor]:
    """Atoms, minima and half the force constants of all bonds or angles."""
    rows = _parameters(forces, kind)
    minima, constants = np.array([row[atoms:] for row in rows], dtype=np.float64).reshape(-1, 2).T
    return _indices(rows, atoms), _tensor(minima), _tensor(constants, 0.5 / kT)


def _torsions(forces: list[Any], kT: float) -> tuple[Tensor, Tensor, Tensor]:
    r"""Gather $k(1 + \cos(n\varphi - \varphi_0))$ by atoms: indices, $a_n$ and $b_n$.

    Each adds $k$ to $a_0$, $k\cos\varphi_0$ to $a_n$ and $k\sin\varphi_0$ to $b_n$.
    """
    rows = [row for row in _parameters(forces, "Torsion") if row[6] != 0]
    quadruples = sorted({tuple(row[:4]) for row in rows})
    cosines = np.zeros((max((row[4] for row in rows), default=0) + 1, len(quadruples)))
    sines = np.zeros_like(cosines)
    place = {atoms: i for i, atoms in enumerate(quadruples)}
    for *atoms, n, phase, k in rows:
        i = place[tuple(atoms)]
        cosines[0, i] += k
        cosines[n, i] += k * math.cos(phase)
        sines[n, i] += k * math.sin(phase)
    return _indices(quadruples, 4), _tensor(cosines, 1 / kT), _tensor(sines, 1 / kT)


def _pairs(forces: list[Any], n: int, kT: float) -> tuple[Tensor, Tensor, Tensor]:
    """Tables of Coulomb and Lennard-Jones factors, including exceptions."""
    coulomb, sigma, epsilon = np.zeros((3, n, n))
    for force in forces:
        charge, size, depth = np.array(_parameters([force], "Particle")).T
        coulomb = np.outer(charge, charge)
        sigma = (size[:, None] + size) / 2
        epsilon = np.sqrt(np.outer(depth, depth))
        for i, j, *exception in _parameters([force], "Exception"):
            for table, value in zip((coulomb, sigma, epsilon), exception, strict=True):
                table[i, j] = table[j, i] = value
    for table in (coulomb, epsilon):
        np.fill_diagonal(table, 0.0)
    return (
        _tensor(COULOMB * coulomb, 1 / kT),
        _tensor(4 * epsilon * sigma**6, 1 / kT),
        _tensor(4 * epsilon * sigma**12, 1 / kT),
    )


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
