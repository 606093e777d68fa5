"""Atoms are named so that people and the parser mean the same one."""

import mdtraj
import pytest

from knotflow.molecules.atom_names import atom_names, find_atom, joined_names
from tests.molecules.molecules import molecule


def test_names_are_unique_and_found_again() -> None:
    for topology in (molecule("ala2").topology, molecule("dimer").topology, _anonymous()):
        names = atom_names(topology)
        assert len(set(names)) == topology.n_atoms
        assert [find_atom(name, topology) for name in names] == list(range(topology.n_atoms))
        assert [find_atom(str(i), topology) for i in range(topology.n_atoms)] == list(range(len(names)))


def test_a_residue_is_named_once() -> None:
    topology = molecule("ala2").topology
    assert joined_names((4, 6, 8, 14), atom_names(topology)) == "ACE1:C-ALA2:N-CA-C"
    assert joined_names((0, 1), atom_names(molecule("dimer").topology)) == "C1-C2"
    assert find_atom("CA", topology) == find_atom("ALA2:CA", topology) == 8
    assert find_atom("DIM0:C2", molecule("dimer").topology) == 1


def test_unknown_atoms_are_refused() -> None:
    topology = molecule("ala2").topology
    with pytest.raises(ValueError, match=r"no atom 22; atoms are numbered from 0 to 21"):
        find_atom("22", topology)
    with pytest.raises(ValueError, match=r"no atom XX; give a number from 0 to 21.*ACE1:"):
        find_atom("XX", topology)
    with pytest.raises(ValueError, match=r"2 atoms are called N: ALA2:N \(6\), NME3:N \(16\)"):
        find_atom("N", topology)


def _anonymous() -> mdtraj.Topology:
    topology = mdtraj.Topology()
    residue = topology.add_residue("MOL", topology.add_chain())
    for element in (mdtraj.element.carbon, mdtraj.element.carbon, mdtraj.element.oxygen):
        topology.add_atom(element.symbol, element, residue)
    return topology
