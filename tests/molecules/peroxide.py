"""Hydrogen peroxide as the files of four MD programs, and its energy in closed form."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

NAMES, MASSES, NUMBERS = ("H1", "O1", "O2", "H2"), (1.008, 15.999, 15.999, 1.008), (1, 8, 8, 1)
BONDS, ANGLES = ((0, 1), (1, 2), (2, 3)), ((0, 1, 2), (1, 2, 3))
CHARGES = (0.4, -0.4, -0.4, 0.4)
POSITIONS = np.array([[0.02, 0.09, 0.03], [0.0, 0.0, 0.0], [0.146, 0.0, 0.0], [0.16, -0.05, 0.085]])
"""In nm; not a minimum."""

# In kcal/mol and Å, with energies k (x - x0)^2 and V (1 + cos(2 phi)).
OH, OO, HOO, TORSION = (500.0, 0.97), (300.0, 1.46), (60.0, 100.0), 1.5
DEPTH, RADIUS = 0.02, 1.2
"""Of the Lennard-Jones energy between hydrogens: kcal/mol, and half of the distance of its minimum in Å."""
KCAL, COULOMB = 4.184, 138.93545764
"""In kJ/mol, and in kJ/mol nm."""


def energy(x: np.ndarray, coulomb_14: float = 1 / 1.2, lj_14: float = 1 / 2) -> float:
    """In kJ/mol, without solvent; positions in nm."""
    x = 10 * x
    total = 0.0
    for (i, j), (k, length) in zip(BONDS, (OH, OO, OH), strict=True):
        total += k * (np.linalg.norm(x[i] - x[j]) - length) ** 2
    for i, j, k in ANGLES:
        a, b = x[i] - x[j], x[k] - x[j]
        angle = np.arccos(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        total += HOO[0] * (angle - np.radians(HOO[1])) ** 2
    b1, b2, b3 = np.diff(x, axis=0)
    n1, n2 = np.cross(b1, b2), np.cross(b2, b3)
    phi = np.arctan2(np.linalg.norm(b2) * b1 @ n2, n1 @ n2)
    total += TORSION * (1 + np.cos(2 * phi))
    r = np.linalg.norm(x[0] - x[3])
    ratio = (2 * RADIUS / r) ** 6
    total += lj_14 * DEPTH * (ratio**2 - 2 * ratio)
    return total * KCAL + coulomb_14 * COULOMB * CHARGES[0] * CHARGES[3] / (r / 10)


def write_amber(folder: Path, box: bool = False) -> tuple[Path, Path]:
    """A prmtop and an inpcrd file."""
    a12, b6 = DEPTH * (2 * RADIUS) ** 12, 2 * DEPTH * (2 * RADIUS) ** 6
    pointers = [0] * 31
    # NATOM NTYPES NBONH MBONA NTHETH MTHETA NPHIH MPHIA ... NNB NRES NBONA NTHETA NPHIA NUMBND NUMANG NPTRA
    pointers[:8] = 4, 2, 2, 1, 2, 0, 1, 0
    pointers[10:18] = 6, 1, 1, 0, 0, 2, 1, 1
    pointers[18], pointers[27], pointers[28] = 2, int(box), 4
    sections: dict[str, tuple[str, Iterable[object]]] = {
        "TITLE": ("20a4", ["HOOH"]),
        "POINTERS": ("10I8", pointers),
        "ATOM_NAME": ("20a4", NAMES),
        "CHARGE": ("5E16.8", [18.2223 * q for q in CHARGES]),
        "ATOMIC_NUMBER": ("10I8", NUMBERS),
        "MASS": ("5E16.8", MASSES),
        "ATOM_TYPE_INDEX": ("10I8", [1, 2, 2, 1]),
        "NUMBER_EXCLUDED_ATOMS": ("10I8", [3, 2, 1, 1]),
        "NONBONDED_PARM_INDEX": ("10I8", [1, 2, 2, 3]),
        "RESIDUE_LABEL": ("20a4", ["HPO"]),
        "RESIDUE_POINTER": ("10I8", [1]),
        "BOND_FORCE_CONSTANT": ("5E16.8", [OH[0], OO[0]]),
        "BOND_EQUIL_VALUE": ("5E16.8", [OH[1], OO[1]]),
        "ANGLE_FORCE_CONSTANT": ("5E16.8", [HOO[0]]),
        "ANGLE_EQUIL_VALUE": ("5E16.8", [np.radians(HOO[1])]),
        "DIHEDRAL_FORCE_CONSTANT": ("5E16.8", [TORSION]),
        "DIHEDRAL_PERIODICITY": ("5E16.8", [2.0]),
        "DIHEDRAL_PHASE": ("5E16.8", [0.0]),
        "SCEE_SCALE_FACTOR": ("5E16.8", [1.2]),
        "SCNB_SCALE_FACTOR": ("5E16.8", [2.0]),
        "SOLTY": ("5E16.8", [0.0, 0.0]),
        "LENNARD_JONES_ACOEF": ("5E16.8", [a12, 0.0, 0.0]),
        "LENNARD_JONES_BCOEF": ("5E16.8", [b6, 0.0, 0.0]),
        "HBOND_ACOEF": ("5E16.8", []),
        "HBOND_BCOEF": ("5E16.8", []),
        "BONDS_INC_HYDROGEN": ("10I8", [0, 3, 1, 6, 9, 1]),
        "BONDS_WITHOUT_HYDROGEN": ("10I8", [3, 6, 2]),
        "ANGLES_INC_HYDROGEN": ("10I8", [0, 3, 6, 1, 3, 6, 9, 1]),
        "ANGLES_WITHOUT_HYDROGEN": ("10I8", []),
        "DIHEDRALS_INC_HYDROGEN": ("10I8", [0, 3, 6, 9, 1]),
        "DIHEDRALS_WITHOUT_HYDROGEN": ("10I8", []),
        "EXCLUDED_ATOMS_LIST": ("10I8", [2, 3, 4, 3, 4, 4, 0]),
        "AMBER_ATOM_TYPE": ("20a4", ["HO", "OH", "OH", "HO"]),
        "RADII": ("5E16.8", [1.2, 1.5, 1.5, 1.2]),
        "SCREEN": ("5E16.8", [0.85, 0.85, 0.85, 0.85]),
    }
    if box:
        sections["SOLVENT_POINTERS"] = ("3I8", [1, 1, 2])
        sections["ATOMS_PER_MOLECULE"] = ("10I8", [4])
        sections["BOX_DIMENSIONS"] = ("5E16.8", [90.0, 30.0, 30.0, 30.0])
    text = "%VERSION  VERSION_STAMP = V0001.000  DATE = 01/01/26  00:00:00\n"
    for name, (style, values) in sections.items():
        text += f"%FLAG {name}\n%FORMAT({style})\n" + "".join(_lines(style, list(values)))
    prmtop, inpcrd = folder / "hooh.prmtop", folder / "hooh.inpcrd"
    prmtop.write_text(text)
    numbers = "".join(f"{v:12.7f}" + "\n" * (i % 6 == 5) for i, v in enumerate((10 * POSITIONS).ravel()))
    inpcrd.write_text(
        f"HOOH\n    4\n{numbers}" + ("".join(f"{30 + 60 * (i > 2):12.7f}" for i in range(6)) if box else "")
    )
    return inpcrd, prmtop


def _lines(style: str, values: list[object]) -> Iterable[str]:
    per_line, write = {
        "20a4": (20, lambda v: f"{v:<4}"),
        "10I8": (10, lambda v: f"{v:8d}"),
        "3I8": (3, lambda v: f"{v:8d}"),
        "5E16.8": (5, lambda v: f"{v:16.8E}"),
    }[style]
    if not values:
        yield "\n"
    for start in range(0, len(values), per_line):
        yield "".join(write(v) for v in values[start : start + per_line]) + "\n"


def write_gromacs(folder: Path, box: float = 0.0) -> tuple[Path, Path]:
    """A gro and a top file."""
    sigma, epsilon = RADIUS / 10 * 2 / 2 ** (1 / 6), DEPTH * KCAL
    atoms = "".join(
        f"{i + 1} {name[0]} 1 HPO {name} 1 {q} {mass}\n"
        for i, (name, q, mass) in enumerate(zip(NAMES, CHARGES, MASSES, strict=True))
    )
    bonds = "".join(
        f"{i + 1} {j + 1} 1 {length / 10:.8f} {2 * k * KCAL * 100:.6f}\n"
        for (i, j), (k, length) in zip(BONDS, (OH, OO, OH), strict=True)
    )
    angles = "".join(f"{i + 1} {j + 1} {k + 1} 1 {HOO[1]} {2 * HOO[0] * KCAL:.6f}\n" for i, j, k in ANGLES)
    top, gro = folder / "topol.top", folder / "hooh.gro"
    top.write_text(
        "[ defaults ]\n1 2 yes 0.5 0.8333333333\n[ atomtypes ]\n"
        f"H 1 1.008 0.0 A {sigma:.10f} {epsilon:.10f}\nO 8 15.999 0.0 A 0.1 0.0\n"
        f"[ moleculetype ]\nHPO 3\n[ atoms ]\n{atoms}[ bonds ]\n{bonds}[ pairs ]\n1 4 1\n[ angles ]\n{angles}"
        f"[ dihedrals ]\n1 2 3 4 1 0.0 {TORSION * KCAL} 2\n[ system ]\nHOOH\n[ molecules ]\nHPO 1\n"
    )
    lines = "".join(
        f"    1HPO  {name:>5}{i + 1:5d}" + "".join(f"{v:8.3f}" for v in x) + "\n"
        for i, (name, x) in enumerate(zip(NAMES, POSITIONS, strict=True))
    )
    gro.write_text(f"HOOH\n    4\n{lines}" + f"{box:10.5f}" * 3 + "\n")
    return gro, top


def write_charmm(folder: Path) -> tuple[Path, Path, Path]:
    """A crd, a psf and a prm file."""
    atoms = "".join(
        f"{i + 1:8d} A    1    HPO  {name:<4} {name[0]:<4} {q:10.6f}     {mass:9.4f}           0\n"
        for i, (name, q, mass) in enumerate(zip(NAMES, CHARGES, MASSES, strict=True))
    )

    def table(groups: Iterable[tuple[int, ...]]) -> str:
        return "".join(f"{i + 1:8d}" for group in groups for i in group) + "\n\n"

    psf, prm, crd = folder / "hooh.psf", folder / "hooh.prm", folder / "hooh.crd"
    empty = "".join(
        f"{0:8d} !{name}\n\n\n" for name in ("NIMPHI: impropers", "NDON: donors", "NACC: acceptors", "NNB")
    )
    psf.write_text(
        f"PSF\n\n{1:8d} !NTITLE\n REMARKS HOOH\n\n{4:8d} !NATOM\n{atoms}\n"
        f"{3:8d} !NBOND: bonds\n{table(BONDS)}{2:8d} !NTHETA: angles\n{table(ANGLES)}"
        f"{1:8d} !NPHI: dihedrals\n{table([(0, 1, 2, 3)])}{empty}"
        f"{1:8d}{0:8d} !NGRP NST2\n{0:8d}{0:8d}{0:8d}\n\n"
    )
    prm.write_text(
        "* HOOH\n*\nATOMS\nMASS -1 H 1.008 H\nMASS -1 O 15.999 O\n\n"
        f"BONDS\nH O {OH[0]} {OH[1]}\nO O {OO[0]} {OO[1]}\n\nANGLES\nH O O {HOO[0]} {HOO[1]}\n\n"
        f"DIHEDRALS\nH O O H {TORSION} 2 0.0\n\n"
        f"NONBONDED nbxmod 5\nH 0.0 -{DEPTH} {RADIUS}\nO 0.0 0.0 1.0\n\nEND\n"
    )
    lines = "".join(
        f"{i + 1:5d}    1 HPO  {name:<4}" + "".join(f"{v:10.5f}" for v in 10 * x) + " A    1      0.00000\n"
        for i, (name, x) in enumerate(zip(NAMES, POSITIONS, strict=True))
    )
    crd.write_text(f"* HOOH\n*\n    4\n{lines}")
    return crd, psf, prm
