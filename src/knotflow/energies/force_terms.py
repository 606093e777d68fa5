"""The terms of an OpenMM ``System`` as plain arrays: what a force field says about one molecule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

COULOMB: Final = 138.93545764438198
"""1 / (4 pi epsilon_0) in kJ/mol nm / e², with OpenMM's digits."""

BORN_OFFSET: Final = 0.009
"""In nm: how much smaller an atom is inside the Born integrals (Onufriev, Bashford, Case 2004)."""

PROBE: Final = 0.14
"""Radius of a water molecule in nm, for the surface term."""


@dataclass(frozen=True)
class Torsions:
    r"""Fourier series of torsions, $\sum_n a_n \cos n\varphi + b_n \sin n\varphi$, one for four atoms."""

    atoms: Indices
    """Shape (4, torsions)."""
    cosines: Floats
    """$a_n$, shape (orders + 1, torsions), kJ/mol."""
    sines: Floats
    """$b_n$, shape (orders + 1, torsions), kJ/mol."""


@dataclass(frozen=True)
class Born:
    """Generalised Born solvation (OBC II) with its surface term, as OpenMM's ``GBSAOBCForce`` has it."""

    charges: Floats
    """In e, one per atom."""
    radii: Floats
    """In nm."""
    scales: Floats
    """Factors of the radii inside the integrals of other atoms."""
    prefactor: float
    r"""$-k_e (1/\epsilon_\text{solute} - 1/\epsilon_\text{solvent})$ in kJ/mol nm / e²."""
    surface: float
    """Surface energy times 4 pi, kJ/mol/nm²."""


@dataclass(frozen=True)
class ForceTerms:
    """All terms of a molecule, energies in kJ/mol, lengths in nm."""

    n_atoms: int
    bonds: Indices
    """Shape (2, bonds)."""
    bond_lengths: Floats
    bond_constants: Floats
    angles: Indices
    """Shape (3, angles)."""
    angle_values: Floats
    angle_constants: Floats
    torsions: Torsions
    coulomb: Floats
    """Factor of 1/r, shape (atoms, atoms), symmetric, zero on the diagonal and where excluded."""
    attraction: Floats
    """Factor of -1/r⁶, like `coulomb`."""
    repulsion: Floats
    """Factor of 1/r¹², like `coulomb`."""
    born: Born | None


def read_terms(system: Any) -> ForceTerms:
    """Read the terms of an OpenMM ``System``.

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
    torsions = _parameters(forces["PeriodicTorsionForce"], "Torsion")
    coulomb, attraction, repulsion = _pairs(forces["NonbondedForce"], n)
    return ForceTerms(
        n_atoms=n,
        bonds=_indices(bonds, 2),
        bond_lengths=_column(bonds, 2),
        bond_constants=_column(bonds, 3),
        angles=_indices(angles, 3),
        angle_values=_column(angles, 3),
        angle_constants=_column(angles, 4),
        torsions=_torsions(torsions),
        coulomb=coulomb,
        attraction=attraction,
        repulsion=repulsion,
        born=_born(forces["GBSAOBCForce"][0]) if forces["GBSAOBCForce"] else None,
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


def _indices(rows: list[list[Any]], count: int) -> Indices:
    return np.array([row[:count] for row in rows], dtype=np.int64).reshape(-1, count).T.copy()


def _column(rows: list[list[Any]], column: int) -> Floats:
    return np.array([row[column] for row in rows], dtype=np.float64)


def _torsions(rows: list[list[Any]]) -> Torsions:
    r"""Gather $k(1 + \cos(n\varphi - \varphi_0))$ by their atoms.

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
    return Torsions(np.array(quadruples, dtype=np.int64).reshape(-1, 4).T.copy(), cosines, sines)


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


def _born(force: Any) -> Born:
    charges, radii, scales = np.array(_parameters([force], "Particle")).T
    return Born(
        charges,
        radii,
        scales,
        prefactor=-COULOMB * (1 / force.getSoluteDielectric() - 1 / force.getSolventDielectric()),
        surface=4 * math.pi * force.getSurfaceAreaEnergy()._value,
    )
