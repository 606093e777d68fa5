"""Z-matrices and stereocentres of systems, and rebuilt force fields."""

from dataclasses import replace

import openmm
import pytest
import torch

from knotflow.energies.openmm_contexts import frame_energies, make_context
from knotflow.geometry import audit, paper_zmatrix
from knotflow.molecules.coordinates import chirality_of, internal_coordinates, zmatrix_of
from knotflow.molecules.system import MolecularSystem
from tests.molecules.molecules import frames, molecule


def with_softer_bonds(system: MolecularSystem) -> MolecularSystem:
    """The same but for one spring, so that the stored force field is not that of the files."""
    changed = system.openmm_system()
    spring = next(force for force in changed.getForces() if isinstance(force, openmm.HarmonicBondForce))
    i, j, length, constant = spring.getBondParameters(0)
    spring.setBondParameters(0, i, j, length, 0.9 * constant)
    return replace(system, xml=openmm.XmlSerializer.serialize(changed))


@pytest.mark.parametrize("name", ["ala2", "P"])
def test_along_bonds(name: str) -> None:
    system = molecule(name)
    found = audit(zmatrix_of(system), frames(system, 20), system.bonds)
    assert found.ok and found.along_bonds == 1.0
    coordinates = internal_coordinates(system)
    assert coordinates.zmatrix == zmatrix_of(system) and coordinates.n_coordinates == 3 * system.n_atoms - 6


@pytest.mark.parametrize("name", ["ala2", "A"])
def test_that_of_the_paper(name: str) -> None:
    assert zmatrix_of(molecule(name), "paper") == paper_zmatrix()
    assert internal_coordinates(molecule(name), "paper").zmatrix == paper_zmatrix()


def test_the_papers_refuses_other_molecules() -> None:
    with pytest.raises(ValueError, match="but P has 26 atoms instead of 22; use the z-matrix along bonds"):
        zmatrix_of(molecule("P"), "paper")
    system = molecule("ala2")
    swapped = system.topology.copy()
    swapped.atom(0).name, swapped.atom(1).name = "H1", "CH3"
    with pytest.raises(
        ValueError, match=r"atom 0 \(from 0\) of ala2 is H1 \(C\) of ACE instead of CH3 \(C\) of ACE"
    ):
        zmatrix_of(replace(system, topology=swapped), "paper")
    renamed = system.topology.copy()
    renamed.residue(1).name = "GLY"
    with pytest.raises(ValueError, match=r"atom 6 .* is N \(N\) of GLY instead of N \(N\) of ALA"):
        zmatrix_of(replace(system, topology=renamed), "paper")
    exchanged = system.topology.copy()
    exchanged.atom(5).element = exchanged.atom(6).element
    with pytest.raises(ValueError, match=r"atom 5 .* is O \(N\) of ACE instead of O \(O\) of ACE"):
        zmatrix_of(replace(system, topology=exchanged), "paper")


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="kind must be one of bonds, paper, got 'bond'"):
        zmatrix_of(molecule("ala2"), "bond")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 3 atoms, got 2"):
        zmatrix_of(molecule("dimer"))


def test_handedness() -> None:
    system = molecule("ala2")
    chirality = chirality_of(system)
    assert chirality.centres == (8,)
    x = frames(system, 3, 0.001)
    assert chirality.matches(x).all()
    assert not chirality.matches(x * torch.tensor([1.0, 1.0, -1.0])).any()


@pytest.mark.parametrize("name", ["ala2", "vacuum", "P"])
def test_a_rebuilt_force_field_is_that_of_the_files(name: str) -> None:
    system = molecule(name)
    x = frames(system, 3).numpy()

    def energies(system: MolecularSystem) -> list[float]:
        return frame_energies(make_context(system.xml, "Reference"), x)[0].tolist()

    assert energies(system.parametrised_again()) == pytest.approx(energies(system), abs=1e-9)
    softer = with_softer_bonds(system)
    assert energies(softer) != pytest.approx(energies(system), abs=1e-3)
    assert energies(softer.parametrised_again()) == pytest.approx(energies(system), abs=1e-9)


def test_a_force_field_without_files_cannot_be_rebuilt() -> None:
    with pytest.raises(ValueError, match="does not say which force-field files"):
        molecule("dimer").parametrised_again()
    system = molecule("ala2")
    with pytest.raises(ValueError, match=r"none\.xml cannot be loaded"):
        replace(system, origin={"force_field": ["none.xml"]}).parametrised_again()
    with pytest.raises(ValueError, match=r"tip3p\.xml cannot describe the molecule again: No template"):
        replace(system, origin={"force_field": ["tip3p.xml"]}).parametrised_again()
