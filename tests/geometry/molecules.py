"""Named molecules on which all laws of the geometry are tested. Add new ones here."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.geometry import InternalCoordinates, ZMatrix, paper_zmatrix, zmatrix_along_bonds

Placed = tuple[
    int, int, int, float, float, float
]  # references, then bond in nm, angle and torsion in degrees


@dataclass(frozen=True)
class Molecule:
    elements: tuple[str, ...]
    bonds: tuple[tuple[int, int], ...]
    positions: NDArray[np.float64]

    @property
    def n_atoms(self) -> int:
        return len(self.elements)

    def zmatrix(self) -> ZMatrix:
        return zmatrix_along_bonds(self.n_atoms, self.bonds, self.positions, self.elements)

    def frames(self, n: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
        """Shaken (0.005 nm) copies of the structure, turned and moved at random."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.from_numpy(self.positions) + 0.005 * torch.randn(
            n, self.n_atoms, 3, generator=generator, dtype=torch.float64
        )
        turn = torch.linalg.qr(torch.randn(n, 3, 3, generator=generator, dtype=torch.float64))[0]
        turn = turn * torch.linalg.det(turn)[:, None, None].sign()
        move = torch.randn(n, 1, 3, generator=generator, dtype=torch.float64)
        return (x @ turn + move).to(dtype)


def place(*rows: Placed) -> NDArray[np.float64]:
    """Slow oracle: atoms one by one, from the textbook. The first three rows use 0, 1 and 2 references."""
    x: list[NDArray[np.float64]] = []
    for j, k, l, bond, angle, torsion in rows:
        theta, phi = math.radians(angle), math.radians(torsion)
        if not x:
            x.append(np.zeros(3))
        elif len(x) == 1:
            x.append(np.array([bond, 0.0, 0.0]))
        elif len(x) == 2:
            x.append(
                x[j] + bond * (math.cos(theta) * unit(x[k] - x[j]) + np.array([0.0, math.sin(theta), 0.0]))
            )
        else:
            axis = unit(x[k] - x[j])
            towards = unit((x[l] - x[k]) - (x[l] - x[k]) @ axis * axis)
            aside = np.cross(towards, axis)  # looking along j-k, torsions grow clockwise
            across = math.cos(phi) * towards + math.sin(phi) * aside
            x.append(x[j] + bond * (math.cos(theta) * axis + math.sin(theta) * across))
    return np.stack(x)


def unit(v: NDArray[np.float64]) -> NDArray[np.float64]:
    return v / np.linalg.norm(v)


def chain(n: int) -> list[tuple[int, int]]:
    return [(i, i + 1) for i in range(n - 1)]


def ala2() -> Molecule:
    """ACE CH3 H1 H2 H3 C O, ALA N H CA HA CB HB1-3 C O, NME N H C H1-3; phi -80°, psi 75°, L-alanine."""
    rows: list[Placed] = [
        (0, 0, 0, 0, 0, 0),
        (0, 0, 0, 0.109, 0, 0),
        (0, 1, 0, 0.109, 109.5, 0),
        (0, 1, 2, 0.109, 109.5, 120),
        (0, 1, 2, 0.152, 109.5, -120),
        (4, 0, 1, 0.123, 120.5, 60),
        (4, 0, 5, 0.1335, 116.5, 180),
        (6, 4, 5, 0.101, 119.5, 175),
        (6, 4, 0, 0.145, 122, 178),
        (8, 6, 4, 0.109, 109, 40),
        (8, 6, 4, 0.1525, 110, 158),
        (10, 8, 6, 0.109, 109.5, 60),
        (10, 8, 11, 0.109, 109.5, 120),
        (10, 8, 11, 0.109, 109.5, -120),
        (8, 6, 4, 0.1525, 110, -80),
        (14, 8, 6, 0.123, 120.5, -105),
        (14, 8, 6, 0.1335, 116.5, 75),
        (16, 14, 8, 0.101, 119.5, -4),
        (16, 14, 8, 0.145, 122, 177),
        (18, 16, 14, 0.109, 109.5, 180),
        (18, 16, 19, 0.109, 109.5, 120),
        (18, 16, 19, 0.109, 109.5, -120),
    ]
    bonds = ((0, 1), (0, 2), (0, 3), (0, 4), (4, 5), (4, 6), (6, 7), (6, 8), (8, 9), (8, 10), (10, 11))
    bonds += (
        (10, 12),
        (10, 13),
        (8, 14),
        (14, 15),
        (14, 16),
        (16, 17),
        (16, 18),
        (18, 19),
        (18, 20),
        (18, 21),
    )
    return Molecule(tuple("CHHHCONHCHCHHHCONHCHHH"), bonds, place(*rows))


def cyclohexane() -> Molecule:
    """The chair: carbons 0-5, then the axial and the equatorial hydrogens."""
    turn = np.arange(6) * math.pi / 3
    up = 0.025 * (-1.0) ** np.arange(6)
    carbons = np.stack([0.146 * np.cos(turn), 0.146 * np.sin(turn), up], -1)
    axial = carbons + np.stack([np.zeros(6), np.zeros(6), 0.109 * np.sign(up)], -1)
    outwards = np.stack([np.cos(turn), np.sin(turn), -0.35 * np.sign(up)], -1)
    equatorial = carbons + 0.109 * outwards / math.sqrt(1 + 0.35**2)
    ring = tuple((i, (i + 1) % 6) for i in range(6))
    hydrogens = tuple((i, i + 6) for i in range(6)) + tuple((i, i + 12) for i in range(6))
    return Molecule(("C",) * 6 + ("H",) * 12, ring + hydrogens, np.concatenate([carbons, axial, equatorial]))


def benzene() -> Molecule:
    turn = np.arange(6) * math.pi / 3
    flat = np.stack([np.cos(turn), np.sin(turn), np.zeros(6)], -1)
    bonds = tuple((i, (i + 1) % 6) for i in range(6)) + tuple((i, i + 6) for i in range(6))
    return Molecule(("C",) * 6 + ("H",) * 6, bonds, np.concatenate([0.1395 * flat, 0.2485 * flat]))


def on_a_line(elements: str, along: Sequence[float], ends: int) -> Molecule:
    """Heavy atoms (and more) on the x axis at ``along``, with a methyl group at one end or at both."""
    line = np.stack([np.array(along), np.zeros(len(along)), np.zeros(len(along))], -1)
    turn = np.arange(3) * 2 * math.pi / 3
    hydrogens = np.stack([np.full(3, -0.037), 0.1025 * np.cos(turn), 0.1025 * np.sin(turn)], -1)
    other_end = hydrogens * np.array([-1, -1, 1]) + np.array([along[-1], 0, 0])
    x = np.concatenate([line, hydrogens, other_end][: 1 + ends])
    n = len(along)
    bonds = [*chain(n), *((0, n + i) for i in range(3)), *((n - 1, n + 3 + i) for i in range(3))]
    return Molecule((*elements, *"HHHHHH"[: 3 * ends]), tuple(bonds[: n - 1 + 3 * ends]), x)


def water() -> Molecule:
    return Molecule(
        ("O", "H", "H"), ((0, 1), (0, 2)), np.array([[0, 0, 0], [0.096, 0, 0], [-0.024, 0.093, 0]])
    )


def peptide(sequence: str, phi: float = -120.0, psi: float = 140.0) -> Molecule:
    """A stretched peptide between ACE and NME, hydrogens by OpenMM; the caps are cut out of glycines."""
    import openmm.app
    import openmm.unit
    import PeptideBuilder
    from Bio.PDB import PDBIO

    structure = PeptideBuilder.initialize_res("G")
    for letter in (*sequence, "G"):
        PeptideBuilder.add_residue(structure, letter, phi, psi)
    first, *_, last = (residues := list(structure.get_residues()))
    for residue, name, drop, rename in ((first, "ACE", {"N"}, "CH3"), (last, "NME", {"C", "O"}, "C")):
        residue.resname = name
        for atom in list(residue):
            if atom.id in drop:
                residue.detach_child(atom.id)
            elif atom.id == "CA":
                atom.name = atom.fullname = rename
    assert len(residues) == len(sequence) + 2
    text = io.StringIO()
    writer = PDBIO()
    writer.set_structure(structure)
    writer.save(text)
    pdb = openmm.app.PDBFile(io.StringIO(text.getvalue()))
    modeller = openmm.app.Modeller(pdb.topology, pdb.positions)
    modeller.addHydrogens(openmm.app.ForceField("amber99sbildn.xml"))
    elements = tuple(atom.element.symbol for atom in modeller.topology.atoms())
    bonds = tuple((bond.atom1.index, bond.atom2.index) for bond in modeller.topology.bonds())
    return Molecule(elements, bonds, np.array(modeller.positions.value_in_unit(openmm.unit.nanometer)))


BUILDERS = {
    "ala2": ala2,
    "cyclohexane": cyclohexane,
    "benzene": benzene,
    "acetonitrile": lambda: on_a_line("CCN", (0, 0.146, 0.262), 1),
    "propyne": lambda: on_a_line("CCCH", (0, 0.146, 0.267, 0.373), 1),
    "butyne": lambda: on_a_line("CCCC", (0, 0.146, 0.267, 0.413), 2),
    "water": water,
    "chignolin": lambda: peptide("GYDPETGTWG"),
}
SMALL = [name for name in BUILDERS if name != "chignolin"]


ZMATRICES: dict[str, ZMatrix] = {"ala2-paper": paper_zmatrix()}
INSTANCES = [*BUILDERS, *ZMATRICES]
"""Molecules with their automatic z-matrix, and "molecule-name" with one by hand."""


@cache
def molecule(name: str) -> Molecule:
    return BUILDERS[name]()


@cache
def instance(name: str) -> tuple[Molecule, InternalCoordinates]:
    found = molecule(name.split("-")[0])
    return found, InternalCoordinates(ZMATRICES.get(name) or found.zmatrix())


def deviation(x: torch.Tensor, y: torch.Tensor) -> float:
    """Largest distance between atoms of structures (frames, atoms, 3) after superposition, in float64."""
    x, y = x.double(), y.double()
    x, y = x - x.mean(-2, keepdim=True), y - y.mean(-2, keepdim=True)
    u, _, vt = torch.linalg.svd(x.transpose(-1, -2) @ y)
    u = u * torch.stack([torch.ones(len(x)), torch.ones(len(x)), torch.linalg.det(u @ vt)], -1)[:, None]
    return (x @ u @ vt - y).norm(dim=-1).max().item()
