"""A molecule with its energy: all that sampling, training and analysis need to know about it."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from knotflow.extras import optional
from knotflow.molecules.force_field import (
    DEFAULT_FORCE_FIELD,
    Solvent,
    force_field_files,
    load_force_field,
    minimise,
    parametrise,
)
from knotflow.molecules.openmm_xml import deserialised
from knotflow.molecules.pdb_file import read_pdb
from knotflow.molecules.structure import (
    Structure,
    check_one_molecule,
    plain_stem,
    residue_label,
    with_hydrogens,
)
from knotflow.molecules.units import thermal_energy

if TYPE_CHECKING:
    import mdtraj
    import openmm

FORMAT = "knotflow-molecule-1"


@dataclass(frozen=True, eq=False)
class MolecularSystem:
    """One flexible molecule in vacuum or implicit solvent, at a temperature.

    Args:
        name: ``ala2``, the stem of a file, or a peptide sequence; only for display.
        topology: Atoms, residues and bonds.
        xml: The serialised OpenMM System, which is rebuilt without any force-field file.
        positions: An energy-minimised structure in nm, shape ``(atoms, 3)``.
        temperature: In K.
        origin: How the system was made (source, force-field files, solvent ...); JSON values.
        energy: The energy, if it is not the force field in ``xml``: JSON values that
            `knotflow.energies.force_field` understands. ``xml`` then holds masses, but no forces.

    Without OpenMM, a system made elsewhere can still be read, and its topology, structure and temperature
    used. Its System was checked where it was made.

    Raises:
        ValueError: if the parts do not fit together, or if not every coordinate of the System is free,
            because of constraints, a periodic box, virtual sites or massless particles.
    """

    name: str
    topology: mdtraj.Topology
    xml: str
    positions: NDArray[np.float64]
    temperature: float
    origin: dict[str, Any]
    energy: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", np.array(self.positions, dtype=np.float64))
        object.__setattr__(self, "temperature", float(self.temperature))
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be a positive number of K, got {self.temperature!r}.")
        if self.positions.shape != (self.topology.n_atoms, 3) or not np.isfinite(self.positions).all():
            raise ValueError(
                f"positions must be finite numbers of shape ({self.topology.n_atoms}, 3) in nm, one row per "
                f"atom of the topology, got shape {self.positions.shape}."
            )
        if importlib.util.find_spec("openmm"):
            _check_free(self.openmm_system(), self.n_atoms)

    @property
    def n_atoms(self) -> int:
        """Number of atoms."""
        return len(self.positions)

    @property
    def kT(self) -> float:  # noqa: N802
        """Thermal energy in kJ/mol."""
        return thermal_energy(self.temperature)

    @property
    def zero_kj(self) -> float:
        """In kJ/mol, subtracted from energies: 0 for a force field, else about that of ``positions``."""
        return 0.0 if self.energy is None else float(self.energy.get("zero_kj", 0.0))

    @cached_property
    def masses(self) -> NDArray[np.float64]:
        """Masses of the atoms in amu, shape ``(atoms,)``."""
        return _masses(self.openmm_system())

    @property
    def elements(self) -> list[str]:
        """Symbols of the elements, one per atom."""
        return [atom.element.symbol for atom in self.topology.atoms]

    @property
    def atomic_numbers(self) -> list[int]:
        """Atomic numbers, one per atom."""
        return [atom.element.atomic_number for atom in self.topology.atoms]

    @property
    def bonds(self) -> list[tuple[int, int]]:
        """Pairs of bonded atoms, the smaller index first, sorted."""
        return sorted((min(a.index, b.index), max(a.index, b.index)) for a, b in self.topology.bonds)

    def openmm_system(self) -> openmm.System:
        """A new OpenMM System on every call."""
        return deserialised(self.xml)

    def energy_inputs(self) -> dict[str, Any]:
        """What energies depend on, for fingerprints: not their zero, nor the folder of a potential's file."""
        if self.energy is None:
            return {"xml": self.xml}
        place = {"zero_kj", "source"} if self.energy.get("fingerprint") else {"zero_kj"}
        return {"xml": self.xml, "energy": {k: v for k, v in self.energy.items() if k not in place}}

    def need_force_field(self) -> None:
        """Raise a ValueError if the energy is not the force field in ``xml``, which then has no forces."""
        if self.energy is not None:
            raise ValueError(
                f"the energy of {self.name} is {self.energy.get('kind')!r}, not a force field; "
                "knotflow.energies.force_field finds the right one."
            )

    def with_temperature(self, temperature: float) -> Self:
        """The same molecule at another temperature in K."""
        return replace(self, temperature=temperature)

    def parametrised_again(self) -> Self:
        """The same molecule with its System rebuilt by OpenMM from the force-field files, for comparison.

        Neither ``xml`` nor the options it was made with are used: OpenMM's own defaults leave out no pair of
        atoms and constrain nothing.

        Raises:
            ValueError: if the origin names no files, or OpenMM cannot use them.
        """
        self.need_force_field()
        with optional("molecules"):
            import openmm
        files = self.origin.get("force_field")
        if not files:
            raise ValueError("the system does not say which force-field files it was made from.")
        force_field = load_force_field(files)
        try:
            rebuilt = force_field.createSystem(self.topology.to_openmm())
        except Exception as error:  # OpenMM raises several types
            raise ValueError(f"{' + '.join(files)} cannot describe the molecule again: {error}") from None
        return replace(self, xml=openmm.XmlSerializer.serialize(rebuilt))

    def plain(self) -> dict[str, Any]:
        """Everything as JSON values, without loss; `parse` reads them."""
        return {
            "format": FORMAT,
            "name": self.name,
            "temperature": self.temperature,
            "origin": self.origin,
            "topology": topology_to_plain(self.topology),
            "positions": self.positions.tolist(),
            "xml": self.xml,
            **({} if self.energy is None else {"energy": self.energy}),
        }

    @classmethod
    def parse(cls, plain: Mapping[str, Any]) -> Self:
        """Rebuild a system from the result of `plain`; no force-field file is needed.

        Raises:
            ValueError: if the dictionary has another format or is damaged.
        """
        if not isinstance(plain, Mapping):
            raise ValueError(f"expected a molecule of format {FORMAT}, got {type(plain).__name__}.")
        if not isinstance(plain.get("energy"), Mapping | None):
            raise ValueError("the description of a molecule is damaged: its energy must be a table.")
        if plain.get("format") != FORMAT:
            raise ValueError(f"expected a molecule of format {FORMAT}, got {plain.get('format')!r}.")
        try:
            return cls(
                name=plain["name"],
                topology=topology_from_plain(plain["topology"]),
                xml=plain["xml"],
                positions=np.array(plain["positions"], dtype=np.float64),
                temperature=plain["temperature"],
                origin=dict(plain["origin"]),
                energy=plain.get("energy"),
            )
        except (LookupError, TypeError, AttributeError, OverflowError, AssertionError) as error:
            raise ValueError(
                f"the description of a molecule is damaged: {type(error).__name__} {error}"
            ) from None


def ala2(temperature: float = 300.0, solvent: bool = True) -> MolecularSystem:
    """Alanine dipeptide, ACE-ALA-NME, 22 atoms: Amber ff99SB-ILDN, with implicit water (OBC) or in vacuum.

    The torsions phi and psi are those of atoms (4, 6, 8, 14) and (6, 8, 14, 16).
    """
    with resources.as_file(resources.files("knotflow.molecules") / "data" / "ala2.pdb") as path:
        structure = read_pdb(path)
    return assemble(
        "ala2", structure, solvent="obc" if solvent else "vacuum", temperature=temperature, source="ala2"
    )


def from_pdb(
    path: str | Path,
    force_field: Sequence[str] = DEFAULT_FORCE_FIELD,
    solvent: Solvent = "obc",
    temperature: float = 300.0,
    add_hydrogens: bool = False,
) -> MolecularSystem:
    """The molecule in a PDB or mmCIF file, compressed or not (in its first model, if there are several).

    Args:
        path: The file.
        force_field: OpenMM's XML files by name, or your own by path.
        solvent: ``"obc"`` adds the implicit water that goes with the force field; ``"vacuum"`` adds nothing.
        temperature: In K.
        add_hydrogens: Whether to add missing hydrogens, with the usual protonation at pH 7.

    Raises:
        OSError: if there is no such file.
        ValueError: if it does not contain exactly one complete molecule that the force field knows.
    """
    structure = read_pdb(path)
    notes = {"source": Path(path).name}
    if add_hydrogens:
        structure = with_hydrogens(structure)
        notes |= {"hydrogens": "added at pH 7"}
    return assemble(plain_stem(path), structure, force_field, solvent, temperature, **notes)


def assemble(
    name: str,
    structure: Structure,
    force_field: Sequence[str] = DEFAULT_FORCE_FIELD,
    solvent: Solvent = "obc",
    temperature: float = 300.0,
    **origin: Any,
) -> MolecularSystem:
    """Parametrise a structure with all atoms of one molecule, and minimise its energy.

    Arguments are as for `from_pdb`; ``origin`` is recorded next to the force field and the solvent.
    """
    files = force_field_files(force_field, solvent)
    system = parametrise(structure, load_force_field(files))
    return described(name, structure, system, temperature, **origin, force_field=files, solvent=str(solvent))


def described(
    name: str, structure: Structure, system: openmm.System, temperature: float = 300.0, **origin: Any
) -> MolecularSystem:
    """One molecule that an OpenMM System describes, at the minimum of its energy near the structure.

    Raises:
        ValueError: if not every coordinate of the System is free, or the structure is not one molecule.
    """
    with optional("molecules"):
        import mdtraj
        import openmm
    _check_free(system, len(structure.positions))
    check_one_molecule(structure)
    return MolecularSystem(
        name=name,
        topology=mdtraj.Topology.from_openmm(structure.topology),
        xml=openmm.XmlSerializer.serialize(system),
        positions=minimise(system, structure.positions),
        temperature=temperature,
        origin={**origin, "openmm": openmm.__version__},
    )


def only_masses(
    name: str, structure: Structure, energy: dict[str, Any], temperature: float = 300.0, **origin: Any
) -> MolecularSystem:
    """A structure with all atoms of one molecule whose energy is not a force field; nothing is minimised.

    `knotflow.energies.without_force_field` is what users call.

    Args:
        name: For display.
        structure: The atoms, with all bonds.
        energy: See `MolecularSystem`.
        temperature: In K.
        **origin: How it was made.

    Raises:
        ValueError: if an element is unknown, or the atoms are not one molecule.
    """
    with optional("molecules"):
        import mdtraj
        import openmm
    system = openmm.System()
    for atom in structure.topology.atoms():
        if atom.element is None:
            raise ValueError(
                f"the element of atom {atom.name} of {residue_label(atom.residue)} is unknown; an energy "
                "without a force field needs it, so name it in the file."
            )
        system.addParticle(atom.element.mass)
    check_one_molecule(structure)
    return MolecularSystem(
        name=name,
        topology=mdtraj.Topology.from_openmm(structure.topology),
        xml=openmm.XmlSerializer.serialize(system),
        positions=structure.positions,
        temperature=temperature,
        origin=origin,
        energy=energy,
    )


def topology_to_plain(topology: mdtraj.Topology) -> dict[str, Any]:
    """A topology as JSON values, in the layout of MDTraj's HDF5 files."""
    return {
        "chains": [
            {
                "index": chain.index,
                "chain_id": chain.chain_id,
                "residues": [
                    {
                        "index": residue.index,
                        "name": residue.name,
                        "resSeq": residue.resSeq,
                        "segmentID": residue.segment_id,
                        "atoms": [
                            {"index": atom.index, "name": atom.name, "element": atom.element.symbol}
                            for atom in residue.atoms
                        ],
                    }
                    for residue in chain.residues
                ],
            }
            for chain in topology.chains
        ],
        "bonds": [[a.index, b.index] for a, b in topology.bonds],
        "bond_metadata": [
            {"order": bond.order, "type": None if bond.type is None else repr(bond.type)}
            for bond in topology.bonds
        ],
    }


def topology_from_plain(plain: Mapping[str, Any]) -> mdtraj.Topology:
    """The inverse of `topology_to_plain`."""
    with optional("molecules"):
        import mdtraj
    topology = mdtraj.Topology()
    for chain_plain in plain["chains"]:
        chain = topology.add_chain(chain_plain["chain_id"])
        for residue_plain in chain_plain["residues"]:
            residue = topology.add_residue(
                residue_plain["name"], chain, residue_plain["resSeq"], residue_plain["segmentID"]
            )
            for atom in residue_plain["atoms"]:
                topology.add_atom(atom["name"], mdtraj.element.get_by_symbol(atom["element"]), residue)
    for (i, j), kind in zip(plain["bonds"], plain["bond_metadata"], strict=True):
        bond_type = None if kind["type"] is None else _bond_type(str(kind["type"]))
        topology.add_bond(topology.atom(i), topology.atom(j), type=bond_type, order=kind["order"])
    return topology


def _bond_type(name: str) -> Any:
    from mdtraj.core import topology as kinds

    found = getattr(kinds, name, None)
    if not isinstance(found, kinds.Singleton):
        raise ValueError(f"the description of a molecule is damaged: there is no bond type {name!r}.")
    return found


def _masses(system: openmm.System) -> NDArray[np.float64]:
    return np.array([system.getParticleMass(i)._value for i in range(system.getNumParticles())])


def _check_free(system: openmm.System, n_atoms: int) -> None:
    """Refuse a System that does not consist of ``n_atoms`` free atoms in open space."""
    particles, constraints = system.getNumParticles(), system.getNumConstraints()
    if particles != n_atoms:
        problem = f"has {particles} particles for {n_atoms} atoms; the numbers must be equal"
    elif constraints:
        problem = (
            f"has {constraints} constraints, but every coordinate must be free; make it with "
            "constraints=None and rigidWater=False, or choose another force field"
        )
    elif any(system.isVirtualSite(i) for i in range(particles)) or not (_masses(system) > 0).all():
        problem = (
            "has virtual sites or particles without mass, but every particle must be an atom; choose a force "
            "field without them"
        )
    elif system.usesPeriodicBoundaryConditions():
        problem = (
            "is periodic, but only vacuum and implicit solvent are supported; make it with "
            "nonbondedMethod=NoCutoff"
        )
    else:
        return
    raise ValueError(f"the OpenMM System {problem}.")
