"""Molecules with their force field: made from PDB files, kept as JSON, refused when they make no sense."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import openmm
import pytest
from openmm import app

from knotflow.energies.torch_force_field import TorchForceField
from knotflow.molecules.structure import Structure
from knotflow.molecules.system import MolecularSystem, ala2, from_pdb, only_masses
from knotflow.molecules.units import BOLTZMANN

PDB = (resources.files("knotflow.molecules") / "data" / "ala2.pdb").read_text()
ATOMS = [line for line in PDB.splitlines() if line.startswith("ATOM")]
ORDER = "CH3 H1 H2 H3 C O N H CA HA CB HB1 HB2 HB3 C O N H C H1 H2 H3"


@pytest.fixture(scope="module")
def molecule() -> MolecularSystem:
    return ala2()


def energy_and_forces(system: openmm.System, positions: np.ndarray) -> tuple[float, np.ndarray]:
    """In kJ/mol and kJ/mol/nm."""
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    context.setPositions(positions)
    state = context.getState(getEnergy=True, getForces=True)
    return state.getPotentialEnergy()._value, np.array(state.getForces(asNumpy=True)._value)


def disturbed(molecule: MolecularSystem, n: int = 5) -> np.ndarray:
    noise = np.random.default_rng(1).normal(scale=0.01, size=(n, molecule.n_atoms, 3))
    return molecule.positions + noise


def written(folder: Path, *lines: str) -> Path:
    path = folder / "molecule.pdb"
    path.write_text("\n".join([*lines, "END", ""]))
    return path


def moved(line: str, x: float) -> str:
    """An ATOM line, shifted by ``x`` Å, in chain B."""
    return f"{line[:21]}B{line[22:30]}{float(line[30:38]) + x:8.3f}{line[38:]}"


@pytest.mark.parametrize("solvent", [True, False])
def test_ala2_has_the_energies_of_amber99sbildn(solvent: bool) -> None:
    molecule = ala2(solvent=solvent)
    with resources.as_file(resources.files("knotflow.molecules") / "data" / "ala2.pdb") as path:
        topology = app.PDBFile(str(path)).topology
    files = ["amber99sbildn.xml"] + solvent * ["amber99_obc.xml"]
    system = app.ForceField(*files).createSystem(topology, nonbondedMethod=app.NoCutoff)
    for positions in disturbed(molecule):
        expected, expected_forces = energy_and_forces(system, positions)
        energy, forces = energy_and_forces(molecule.openmm_system(), positions)
        assert energy == pytest.approx(expected, abs=1e-9)
        np.testing.assert_allclose(forces, expected_forces, rtol=0, atol=1e-6)


def test_ala2_is_l_alanine_between_caps(molecule: MolecularSystem) -> None:
    assert " ".join(atom.name for atom in molecule.topology.atoms) == ORDER
    assert [residue.name for residue in molecule.topology.residues] == ["ACE", "ALA", "NME"]
    assert molecule.n_atoms == 22 and len(molecule.bonds) == 21
    assert molecule.bonds == sorted({(min(pair), max(pair)) for pair in molecule.bonds})
    assert "".join(molecule.elements) == "CHHHCONHCHCHHHCONHCHHH"
    np.testing.assert_allclose(molecule.masses[[0, 1, 5, 6]], [12.011, 1.008, 15.999, 14.007], atol=2e-3)
    n, c, cb = molecule.positions[[6, 14, 10]] - molecule.positions[8]
    assert np.dot(np.cross(n, c), cb) > 2e-3  # nm³; -2.5e-3 for D-alanine


def test_ala2_is_minimised_and_free(molecule: MolecularSystem) -> None:
    system = molecule.openmm_system()
    assert np.sqrt((energy_and_forces(system, molecule.positions)[1] ** 2).mean()) < 10  # kJ/mol/nm
    assert system.getNumConstraints() == 0
    assert not {"CMMotionRemover", "MonteCarloBarostat"} & {type(f).__name__ for f in system.getForces()}


def test_temperature(molecule: MolecularSystem) -> None:
    assert molecule.kT == BOLTZMANN * 300
    hot = molecule.with_temperature(500)
    assert hot.kT == BOLTZMANN * 500 and hot.xml == molecule.xml
    assert ala2(temperature=400).temperature == 400


def test_json_rebuilds_the_system_exactly(molecule: MolecularSystem) -> None:
    again = MolecularSystem.parse(json.loads(json.dumps(molecule.plain())))
    assert again.topology == molecule.topology
    assert [str(atom) for atom in again.topology.atoms] == [str(atom) for atom in molecule.topology.atoms]
    assert [chain.chain_id for chain in again.topology.chains] == ["A"]
    assert (again.name, again.temperature, again.origin) == ("ala2", 300.0, molecule.origin)
    np.testing.assert_array_equal(again.positions, molecule.positions)
    for positions in disturbed(molecule, 2):
        assert (
            energy_and_forces(again.openmm_system(), positions)[0]
            == energy_and_forces(molecule.openmm_system(), positions)[0]
        )


def test_a_system_can_be_pickled(molecule: MolecularSystem) -> None:
    again = pickle.loads(pickle.dumps(molecule))
    assert again.xml == molecule.xml and again.topology == molecule.topology


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"format": "other"}, "expected a molecule of format knotflow-molecule-1, got 'other'"),
        ({"topology": {}}, "damaged: KeyError 'chains'"),
        ({"origin": None}, "damaged: TypeError"),
        ({"xml": "<System"}, "xml must be a serialised OpenMM System"),
        ({"positions": [[0, 0, 0]]}, r"shape \(22, 3\) in nm, .*, got shape \(1, 3\)"),
        ({"temperature": -1}, "temperature must be a positive number of K, got -1.0"),
    ],
)
def test_damaged_descriptions_are_refused(molecule: MolecularSystem, damage: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MolecularSystem.parse(molecule.plain() | damage)


def constrained(system: openmm.System) -> None:
    system.addConstraint(0, 1, 0.1)


def massless(system: openmm.System) -> None:
    system.setParticleMass(3, 0)


def virtual(system: openmm.System) -> None:
    system.setVirtualSite(3, openmm.TwoParticleAverageSite(0, 1, 0.5, 0.5))


def periodic(system: openmm.System) -> None:
    force = next(f for f in system.getForces() if isinstance(f, openmm.NonbondedForce))
    force.setNonbondedMethod(openmm.NonbondedForce.PME)


def larger(system: openmm.System) -> None:
    system.addParticle(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (constrained, "has 1 constraints, but every coordinate must be free"),
        (massless, "particles without mass"),
        (virtual, "virtual sites"),
        (periodic, "is periodic"),
        (larger, "has 23 particles for 22 atoms"),
    ],
)
def test_systems_that_are_not_free_are_refused(
    molecule: MolecularSystem, change: Callable[[openmm.System], None], message: str
) -> None:
    system = molecule.openmm_system()
    change(system)
    with pytest.raises(ValueError, match=message):
        replace(molecule, xml=openmm.XmlSerializer.serialize(system))


def test_positions_must_be_finite(molecule: MolecularSystem) -> None:
    with pytest.raises(ValueError, match="positions must be finite numbers"):
        replace(molecule, positions=np.where(molecule.positions > 0.2, np.nan, molecule.positions))


def test_a_pdb_file_is_read(tmp_path: Path, molecule: MolecularSystem) -> None:
    found = from_pdb(written(tmp_path, *ATOMS), temperature=310)
    assert found.name == "molecule" and found.temperature == 310
    assert found.xml == molecule.xml
    assert found.origin["source"] == "molecule.pdb" and found.origin["solvent"] == "obc"
    assert found.origin["force_field"] == ["amber99sbildn.xml", "amber99_obc.xml"]


def test_the_unit_cell_of_structures_that_are_no_crystals_is_ignored(tmp_path: Path) -> None:
    cell = "CRYST1    1.000    1.000    1.000  90.00  90.00  90.00 P 1           1"
    assert not from_pdb(written(tmp_path, cell, *ATOMS)).openmm_system().usesPeriodicBoundaryConditions()


def test_hydrogens_are_added_the_same_every_time(tmp_path: Path, molecule: MolecularSystem) -> None:
    path = written(tmp_path, *(line for line in ATOMS if line.split()[-1] != "H"))
    found, again = (from_pdb(path, add_hydrogens=True) for _ in range(2))
    np.testing.assert_array_equal(found.positions, again.positions)
    assert found.topology == molecule.topology
    n, c, cb = found.positions[[6, 14, 10]] - found.positions[8]
    assert np.dot(np.cross(n, c), cb) > 2e-3
    # Both structures relaxed into the same minimum.
    energies = [energy_and_forces(molecule.openmm_system(), m.positions)[0] for m in (found, molecule)]
    assert energies[0] == pytest.approx(energies[1], abs=0.5)


@pytest.mark.parametrize(
    ("force_field", "solvent_file"),
    [
        ("amber96.xml", "amber96_obc.xml"),
        ("amber03.xml", "amber03_obc.xml"),
        ("amber10.xml", "amber10_obc.xml"),
        ("amber14/protein.ff14SB.xml", "implicit/obc2.xml"),
    ],
)
def test_implicit_solvent_fits_the_force_field(tmp_path: Path, force_field: str, solvent_file: str) -> None:
    found = from_pdb(written(tmp_path, *ATOMS), [force_field])
    assert found.origin["force_field"] == [force_field, solvent_file]
    assert any("GB" in type(force).__name__ for force in found.openmm_system().getForces())


def test_a_force_field_of_ones_own(tmp_path: Path, molecule: MolecularSystem) -> None:
    path = written(tmp_path, *ATOMS)
    own = tmp_path / "own.xml"
    own.write_text('<ForceField><Include file="amber99sbildn.xml"/></ForceField>')
    assert from_pdb(path, [str(own)], "vacuum").xml == ala2(solvent=False).xml
    own.write_text(
        '<ForceField><AtomTypes><Type name="own" class="own" element="C" mass="12"/></AtomTypes></ForceField>'
    )
    assert from_pdb(path, [str(own), "amber99sbildn.xml"]).xml == molecule.xml
    with pytest.raises(ValueError, match="describe 2 implicit solvents at once"):
        from_pdb(path, ["amber14/protein.ff14SB.xml", "implicit/gbn2.xml"])


WATER = "HETATM   23  O   HOH A   4       9.000   9.000   9.000  1.00  0.00           O"
ION = "HETATM   23 NA    NA A   4       9.000   9.000   9.000  1.00  0.00          NA"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "cannot be read as a PDB file"),
        (["Dear reader,", "this is a letter."], "cannot be read as a PDB file"),
        (["ATOM  what", *ATOMS], "cannot be read as a PDB file"),
        (
            ["CRYST1   30.000   30.000   30.000  90.00  90.00  90.00 P 1           1", *ATOMS],
            "has a periodic box .* remove that line",
        ),
        (
            [*ATOMS, WATER],
            "contains 1 water molecules or ions .first residue HOH 4 of chain A., .* remove",
        ),
        ([*ATOMS, ION], "contains 1 water molecules or ions .first residue NA 4 of chain A., .* remove"),
        ([line for line in ATOMS if line.split()[-1] != "H"], "lacks 12 hydrogen atoms; .*--add-hydrogens"),
        ([line for line in ATOMS if line.split()[2] != "HB2"], "lacks 1 hydrogen atoms; .*--add-hydrogens"),
        (
            [line.replace("ALA", "LIG") for line in ATOMS],
            "no parameters for residue LIG 2 of chain A, whose bonds are unknown too",
        ),
        (
            [line for line in ATOMS if line[13:20] != "CB  ALA"],
            "residue ALA 2 of chain A lacks the heavy atom CB; add what is missing",
        ),
        (
            [*ATOMS, *(moved(line, 20) for line in ATOMS)],
            "expected one molecule, .* residue ACE 1 of chain B",
        ),
        (
            [line[:30] + f"{float(line[30:38]) + 9 * ('NME' in line):8.3f}" + line[38:] for line in ATOMS],
            "C of residue ALA 2 of chain A and N of residue NME 3 of chain A are bonded but 1.* nm apart",
        ),
        (
            [line.replace("  -1.873", "     nan") for line in ATOMS],
            "atom C of residue ACE 1 of chain A has a coordinate that is not a finite number",
        ),
        (
            [line[:30] + ATOMS[0][30:54] + line[54:] for line in ATOMS],
            "energy of the structure cannot be minimised, it stays at nan kJ/mol",
        ),
    ],
)
def test_structures_that_are_no_single_molecule_are_refused(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        from_pdb(written(tmp_path, *lines))
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_or_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no PDB file .*none\.pdb"):
        from_pdb(tmp_path / "none.pdb")
    path = tmp_path / "binary.pdb"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="cannot be read as a PDB file"):
        from_pdb(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="cannot be read as a PDB file"):
        from_pdb(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"force_field": ["amber98.xml"]}, 'Could not locate file "amber98.xml".*such as amber99sbildn.xml'),
        ({"force_field": "amber99sbildn.xml"}, "must be a list of XML files"),
        ({"force_field": []}, "must be a list of XML files"),
        ({"force_field": ["tip3p.xml"]}, "no parameters for residue ACE 1 of chain A"),
        ({"solvent": "water"}, "solvent must be one of obc, vacuum, got 'water'"),
        ({"temperature": float("nan")}, "temperature must be a positive number"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_pdb(written(tmp_path, *ATOMS), **options)


def test_another_energy_is_kept_and_no_force_field_computed(molecule: MolecularSystem) -> None:
    assert "energy" not in molecule.plain() and molecule.energy_inputs() == {"xml": molecule.xml}
    topology = molecule.topology.to_openmm()
    energy = {"kind": "xtb", "zero_kj": 3.0}
    other = only_masses("other", Structure(topology, molecule.positions), energy, 310.0, source="here")
    again = MolecularSystem.parse(json.loads(json.dumps(other.plain())))
    assert again.energy == energy and again.zero_kj == 3.0 and again.origin == {"source": "here"}
    assert again.energy_inputs() == {"xml": other.xml, "energy": {"kind": "xtb"}}
    assert other.openmm_system().getNumForces() == 0
    np.testing.assert_allclose(other.masses, molecule.masses, rtol=1e-3)
    for use in (other.need_force_field, other.parametrised_again, lambda: TorchForceField(other)):
        with pytest.raises(ValueError, match="the energy of other is 'xtb', not a force field"):
            use()


def test_an_atom_without_an_element_is_refused(molecule: MolecularSystem) -> None:
    topology = molecule.topology.to_openmm()
    next(topology.atoms()).element = None
    with pytest.raises(ValueError, match=r"the element of atom CH3 of residue ACE 1.* is unknown"):
        only_masses("other", Structure(topology, molecule.positions), {"kind": "xtb"})
