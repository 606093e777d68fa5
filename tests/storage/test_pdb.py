"""PDB files: what other programs read from them."""

from pathlib import Path

import mdtraj
import numpy as np
import pytest
from openmm import app, unit

from knotflow.molecules import MolecularSystem, ala2
from knotflow.storage.pdb import REACH, PdbFile
from tests.molecules.molecules import molecule


def write(path: Path, system: MolecularSystem, positions: np.ndarray) -> None:
    file = PdbFile(path, system.plain()["topology"])
    file.write(positions.astype(np.float32))
    file.close()
    file.close()


@pytest.mark.parametrize("name", ["ala2", "dimer", "GPCW"])
def test_other_programs_read_what_was_written(name: str, tmp_path: Path) -> None:
    path, system = tmp_path / "a.pdb", molecule(name)
    positions = system.positions + 0.01 * np.random.default_rng(0).normal(size=(3, *system.positions.shape))
    write(path, system, positions)
    mine, theirs = mdtraj.load(path), app.PDBFile(str(path))
    np.testing.assert_allclose(mine.xyz, positions, atol=6e-5)
    for model, frame in enumerate(positions):
        found = theirs.getPositions(asNumpy=True, frame=model).value_in_unit(unit.nanometer)
        np.testing.assert_allclose(found, frame, atol=6e-5)
    wanted = system.topology
    for topology in (mine.topology, mdtraj.Topology.from_openmm(theirs.topology)):
        assert [a.name for a in topology.atoms] == [a.name for a in wanted.atoms]
        assert [a.element.symbol for a in topology.atoms] == [a.element.symbol for a in wanted.atoms]
        assert [r.name for r in topology.residues] == [r.name for r in wanted.residues]
        bonds = {frozenset((a.index, b.index)) for a, b in topology.bonds}
        assert bonds == {frozenset((a.index, b.index)) for a, b in wanted.bonds}


def test_what_has_no_room_is_refused(tmp_path: Path) -> None:
    system = ala2()
    for far in (np.nan, 2 * REACH):
        with pytest.raises(ValueError, match=r"within 99\.9 nm of the origin, got .* nm; use \.h5"):
            write(tmp_path / "a.pdb", system, np.full((1, 22, 3), far))
