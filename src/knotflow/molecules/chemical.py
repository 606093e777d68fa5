"""Molecules of chemistry, without a force field: ``.sdf`` and ``.mol2`` files and SMILES, read by RDKit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from knotflow.extras import optional
from knotflow.molecules.structure import Structure
from knotflow.sentences import listed

if TYPE_CHECKING:
    from rdkit.Chem import Mol

ENDINGS: Final = (".sdf", ".mol", ".mol2")
SEED: Final = 1
"""Of the three-dimensional start: the same molecule always starts from the same structure."""
TRIALS: Final = 20
"""Structures that are made to see whether open stereochemistry matters; both hands are as likely."""
FLAT: Final = 1e-3
"""In Å: a drawing has all its atoms in one plane."""


class Chemical(NamedTuple):
    """A molecule as chemists write it."""

    structure: Structure
    charge: int
    """Sum of the formal charges, in e."""
    multiplicity: int
    """Number of unpaired electrons plus one."""


def is_chemical(molecule: str) -> bool:
    """Whether this is the name of a file that RDKit reads."""
    return Path(molecule).suffix.lower() in ENDINGS


def read_chemical(molecule: str, add_hydrogens: bool = False) -> Chemical:
    """The molecule in an ``.sdf``, ``.mol`` or ``.mol2`` file, or of a SMILES.

    Positions in space are kept. A drawing and a SMILES get hydrogens and a structure by distance geometry
    (ETKDG; Riniker & Landrum 2015), always the same.

    Args:
        molecule: The file, or a SMILES.
        add_hydrogens: Whether to add those missing in a file with positions in space.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is not exactly one molecule with all its stereochemistry, or hydrogens are missing.
    """
    with optional("molecules from .sdf, .mol2 and SMILES"):
        from rdkit import Chem, rdBase
    with rdBase.BlockLogs():
        mol = _file(Path(molecule)) if is_chemical(molecule) else _smiles(molecule)
        _check_one_molecule(molecule, mol)
        conformer = mol.GetConformer() if mol.GetNumConformers() else None
        if conformer is None or not (conformer.Is3D() or np.ptp(conformer.GetPositions()[:, 2]) > FLAT):
            embedded = _embedded(molecule, Chem.AddHs(mol))
            _check_stereo(molecule, mol)
            mol = embedded
        elif missing := sum(atom.GetNumImplicitHs() + atom.GetNumExplicitHs() for atom in mol.GetAtoms()):
            if not add_hydrogens:
                raise ValueError(
                    f"{molecule} lacks {missing} hydrogen atoms; add them yourself, or with --add-hydrogens."
                )
            mol = Chem.AddHs(mol, addCoords=True)
    unpaired = sum(atom.GetNumRadicalElectrons() for atom in mol.GetAtoms())
    return Chemical(_structure(mol), Chem.GetFormalCharge(mol), unpaired + 1)


def _file(path: Path) -> Mol:
    from rdkit import Chem

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    text = path.read_text(errors="replace")
    tripos = path.suffix.lower() == ".mol2"
    separator = "@<TRIPOS>MOLECULE" if tripos else "M  END"
    if (count := text.count(separator)) > 1:
        raise ValueError(f"{path} holds {count} molecules; keep one in the file.")
    read = Chem.MolFromMol2Block if tripos else Chem.MolFromMolBlock
    return _clean(str(path), read(text, sanitize=False, removeHs=False))


def _smiles(text: str) -> Mol:
    from rdkit import Chem

    return _clean(text, Chem.MolFromSmiles(text, sanitize=False) if text.strip() else None)


def _clean(what: str, mol: Mol | None) -> Mol:
    """A molecule with valences, rings, aromatic bonds and stereochemistry."""
    from rdkit import Chem

    if mol is None or not mol.GetNumAtoms():
        kind = "a molecule" if is_chemical(what) else "the name of a molecule, a file or a SMILES"
        raise ValueError(f"{what!r} cannot be read as {kind}; check it for mistakes.")
    unknown = next((atom for atom in mol.GetAtoms() if not atom.GetAtomicNum()), None)
    if unknown is not None:
        raise ValueError(
            f"{what}: atom {unknown.GetIdx() + 1} ({unknown.GetSymbol()}) is of no known element; write it "
            "out."
        )
    try:
        Chem.SanitizeMol(mol)
    except ValueError as error:  # all of RDKit's errors of chemistry
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{what} is no possible molecule: {reason}; correct it.") from None
    if mol.GetNumConformers() and mol.GetConformer().Is3D():
        Chem.AssignStereochemistryFrom3D(mol)
    else:
        Chem.AssignStereochemistry(mol, cleanIt=True, force=True)
    return mol


def _check_one_molecule(what: str, mol: Mol) -> None:
    from rdkit import Chem

    parts = Chem.GetMolFrags(mol, asMols=True)
    if len(parts) > 1:
        names = listed(Chem.MolToSmiles(Chem.RemoveHs(part)) for part in parts)
        raise ValueError(
            f"{what} has {len(parts)} fragments that no bonds connect ({names}), but only one molecule is "
            "supported; keep one of them."
        )


def _check_stereo(what: str, mol: Mol) -> None:
    """Refuse centres and double bonds whose arrangement is not given, if bonds allow more than one.

    In cages such as cubane they do not: all structures that can be made are then the same stereoisomer.
    """
    from rdkit import Chem

    unknown = [
        _stereo_name(mol, found)
        for found in Chem.FindPotentialStereo(mol)
        if found.specified == Chem.StereoSpecified.Unspecified
    ]
    if unknown and _isomers(mol) > 1:
        raise ValueError(
            f"{what} leaves the stereochemistry open at {listed(unknown)}, so it stands for "
            "several molecules; write it out (@ or @@ at a centre, / and \\ at a double bond)."
        )


def _isomers(mol: Mol) -> int:
    """Number of stereoisomers among some structures of a molecule."""
    from rdkit import Chem
    from rdkit.Chem.rdDistGeom import EmbedMultipleConfs

    full, found = Chem.AddHs(mol), set()
    for conformer in EmbedMultipleConfs(full, TRIALS, _settings()):
        one = Chem.Mol(full)
        Chem.AssignStereochemistryFrom3D(one, confId=conformer)
        found.add(Chem.MolToSmiles(Chem.RemoveHs(one)))
    return len(found)


def _stereo_name(mol: Mol, found: Any) -> str:
    from rdkit import Chem

    if found.type == Chem.StereoType.Bond_Double:
        bond = mol.GetBondWithIdx(found.centeredOn)
        pair = (f"{atom.GetSymbol()}{atom.GetIdx() + 1}" for atom in (bond.GetBeginAtom(), bond.GetEndAtom()))
        return f"the double bond {'='.join(pair)}"
    atom = mol.GetAtomWithIdx(found.centeredOn)
    return f"atom {atom.GetSymbol()}{atom.GetIdx() + 1}"


def _embedded(what: str, mol: Mol) -> Mol:
    """A molecule with positions in space, relaxed with MMFF94 if that knows its atoms."""
    from rdkit.Chem.rdDistGeom import EmbedMolecule
    from rdkit.Chem.rdForceFieldHelpers import MMFFHasAllMoleculeParams, MMFFOptimizeMolecule

    settings = _settings()
    if EmbedMolecule(mol, settings) != 0:
        settings.useRandomCoords = True
        if EmbedMolecule(mol, settings) != 0:
            raise ValueError(
                f"{what} cannot be embedded: RDKit finds no structure in space with these bonds and this "
                "stereochemistry; correct it, or give an .sdf file with positions in space."
            )
    if MMFFHasAllMoleculeParams(mol):
        MMFFOptimizeMolecule(mol, maxIters=2_000)
    return mol


def _settings() -> Any:
    from rdkit.Chem.rdDistGeom import ETKDGv3

    settings: Any = ETKDGv3()
    settings.randomSeed, settings.maxIterations = SEED, 100
    return settings


def _structure(mol: Mol) -> Structure:
    """Atoms are named by element and number: C1, C2, H1 ..."""
    with optional("molecules"):
        from openmm import app
    orders = {1.0: app.Single, 2.0: app.Double, 3.0: app.Triple, 1.5: app.Aromatic}
    topology = app.Topology()
    residue = topology.addResidue("MOL", topology.addChain("A"))
    count: dict[str, int] = {}
    for atom in mol.GetAtoms():
        symbol = atom.GetSymbol()
        count[symbol] = count.get(symbol, 0) + 1
        element = app.Element.getByAtomicNumber(atom.GetAtomicNum())
        topology.addAtom(f"{symbol}{count[symbol]}", element, residue)
    atoms = list(topology.atoms())
    for bond in mol.GetBonds():
        order = bond.GetBondTypeAsDouble()
        whole = int(order) if order in (1.0, 2.0, 3.0) else None
        topology.addBond(atoms[bond.GetBeginAtomIdx()], atoms[bond.GetEndAtomIdx()], orders.get(order), whole)
    return Structure(topology, np.array(mol.GetConformer().GetPositions(), dtype=np.float64) / 10)
