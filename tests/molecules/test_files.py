"""Files of MD programs give the energies that OpenMM's readers and a closed form give."""

import warnings
from importlib import resources
from pathlib import Path

import numpy as np
import openmm
import pytest
from openmm import app

from knotflow.molecules import MolecularSystem, ala2, from_files
from knotflow.molecules.force_field import read_by_openmm
from tests.molecules import peroxide


def energy(system: openmm.System, positions: np.ndarray) -> float:
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    context.setPositions(positions)
    return float(context.getState(energy=True).getPotentialEnergy()._value)


def check(found: MolecularSystem, own: openmm.System, expected: float) -> None:
    at = peroxide.POSITIONS
    assert energy(found.openmm_system(), at) == pytest.approx(energy(own, at), abs=1e-6)
    assert energy(own, at) == pytest.approx(expected, rel=2e-5)
    assert found.bonds == [*peroxide.BONDS] and found.elements == ["H", "O", "O", "H"]
    assert energy(own, found.positions) < energy(own, at)


def test_amber(tmp_path: Path) -> None:
    inpcrd, prmtop = peroxide.write_amber(tmp_path)
    own = app.AmberPrmtopFile(str(prmtop)).createSystem()
    found = from_files(inpcrd, [str(prmtop)], "vacuum", 310)
    check(found, own, peroxide.energy(peroxide.POSITIONS))
    assert found.name == "hooh" and found.temperature == 310
    assert found.origin["parameters"] == ["hooh.prmtop"] and found.origin["solvent"] == "vacuum"
    assert not any("CMMotion" in type(force).__name__ for force in found.openmm_system().getForces())
    wet = app.AmberPrmtopFile(str(prmtop)).createSystem(implicitSolvent=app.OBC2)
    found = from_files(inpcrd, [str(prmtop)])
    assert energy(found.openmm_system(), peroxide.POSITIONS) == pytest.approx(
        energy(wet, peroxide.POSITIONS), abs=1e-6
    )
    # Amber calls prmtop files .top as well.
    prmtop.rename(tmp_path / "amber.top")
    assert from_files(inpcrd, [str(tmp_path / "amber.top")]).xml == found.xml


def test_gromacs(tmp_path: Path) -> None:
    gro, top = peroxide.write_gromacs(tmp_path)
    own = app.GromacsTopFile(str(top)).createSystem()
    check(from_files(gro, [str(top)], "vacuum"), own, peroxide.energy(peroxide.POSITIONS))
    with pytest.raises(ValueError, match="GROMACS, which has no implicit water; choose --solvent vacuum"):
        from_files(gro, [str(top)])


def test_charmm(tmp_path: Path) -> None:
    crd, psf, prm = peroxide.write_charmm(tmp_path)
    own = app.CharmmPsfFile(str(psf)).createSystem(app.CharmmParameterSet(str(prm)))
    found = from_files(crd, [str(psf), str(prm)], "vacuum")
    check(found, own, peroxide.energy(peroxide.POSITIONS, coulomb_14=1, lj_14=1))
    assert from_files(crd, [str(prm), str(psf)]).origin["solvent"] == "obc"


def ala2_pdb(folder: Path) -> Path:
    path = folder / "mol.pdb"
    path.write_text((resources.files("knotflow.molecules") / "data" / "ala2.pdb").read_text())
    return path


def saved(folder: Path, **options: object) -> Path:
    """A System as users save it, with OpenMM's defaults."""
    pdb = app.PDBFile(str(ala2_pdb(folder)))
    field = app.ForceField("amber99sbildn.xml", "amber99_obc.xml")
    path = folder / "system.xml"
    path.write_text(openmm.XmlSerializer.serialize(field.createSystem(pdb.topology, **options)))
    return path


def test_a_saved_system(tmp_path: Path) -> None:
    path = saved(tmp_path)
    found, ours = from_files(ala2_pdb(tmp_path), [str(path)]), ala2()
    assert energy(found.openmm_system(), ours.positions) == pytest.approx(
        energy(ours.openmm_system(), ours.positions), abs=1e-6
    )
    kinds = [type(force).__name__ for force in found.openmm_system().getForces()]
    assert "CMMotionRemover" not in kinds and found.origin["solvent"] == "as in the System"
    np.testing.assert_allclose(found.positions, ours.positions, atol=1e-6)


def test_systems_that_are_not_free_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = str(saved(tmp_path, constraints=app.HBonds))
    with pytest.raises(
        ValueError, match=r"has 12 constraints, .* constraints=None, .* can still be imported"
    ):
        from_files(ala2_pdb(tmp_path), [path])
    path = saved(tmp_path)
    path.write_text(path.read_text().replace('type="NonbondedForce"', 'type="None"'))
    with pytest.raises(ValueError, match="cannot be read as a serialised OpenMM System"):
        from_files(ala2_pdb(tmp_path), [str(path)])
    path = saved(tmp_path)
    text = path.read_text()
    path.write_text(text.replace('method="0"', 'method="2"', 1))
    with pytest.raises(ValueError, match=r"is periodic, .* nonbondedMethod=NoCutoff"):
        from_files(ala2_pdb(tmp_path), [str(path)])


def test_a_saved_system_with_its_atoms_in_another_order_is_refused(tmp_path: Path) -> None:
    """Neither the number of atoms nor a System tells; bonds do."""
    path, pdb = saved(tmp_path), ala2_pdb(tmp_path)
    lines = pdb.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if " N   ALA" in line)
    lines[first], lines[first + 1] = lines[first + 1], lines[first]  # N and H
    pdb.write_text("\n".join([*lines, ""]))
    with pytest.raises(
        ValueError, match=r"has no bond from .* of residue .*; give the structure that it was"
    ):
        from_files(pdb, [str(path)])


def test_boxes_are_refused(tmp_path: Path) -> None:
    inpcrd, prmtop = peroxide.write_amber(tmp_path, box=True)
    with pytest.raises(ValueError, match=r"hooh\.prmtop has a periodic box"):
        from_files(inpcrd, [str(prmtop)])
    _, prmtop = peroxide.write_amber(tmp_path)
    (tmp_path / "boxed").mkdir()
    inpcrd, _ = peroxide.write_amber(tmp_path / "boxed", box=True)
    with pytest.raises(ValueError, match=r"hooh\.inpcrd has a periodic box"):
        from_files(inpcrd, [str(prmtop)])
    gro, top = peroxide.write_gromacs(tmp_path, box=3.0)
    with pytest.raises(ValueError, match=r"hooh\.gro has a periodic box .*0 0 0"):
        from_files(gro, [str(top)], "vacuum")


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    inpcrd, prmtop = (str(path) for path in peroxide.write_amber(tmp_path))
    gro, top = (str(path) for path in peroxide.write_gromacs(tmp_path))
    crd, psf, prm = (str(path) for path in peroxide.write_charmm(tmp_path))
    pdb = str(ala2_pdb(tmp_path))
    two = tmp_path / "two.top"
    two.write_text(Path(top).read_text().replace("HPO 1\n", "HPO 2\n"))
    double = tmp_path / "two.gro"
    lines = Path(gro).read_text().splitlines()
    double.write_text("\n".join([lines[0], "8", *lines[2:6], *lines[2:6], lines[6], ""]))
    virtual = tmp_path / "virtual.top"
    virtual.write_text(Path(top).read_text().replace("O 8 15.999", "O 0 15.999"))
    (tmp_path / "lost.top").write_text('#include "nowhere.itp"\n')
    for molecule, files, message in (
        (prmtop, [], "describes an energy, not positions; give it as --force-field"),
        (gro, [], "has no elements and bonds; add .* --force-field topol.top"),
        (inpcrd, ["amber99sbildn.xml"], "add .* --force-field mol.prmtop"),
        (pdb, [prmtop], "has 22 atoms, but the force field describes 4"),
        (inpcrd, [prmtop, top], "must be the only --force-field"),
        (crd, [psf], "has no parameters; add its parameter files"),
        (crd, [psf, top.replace("topol.top", "x.xml")], "is no parameter file of CHARMM"),
        (str(double), [str(two)], "expected one molecule, but no bonds lead"),
        (gro, [str(virtual)], "atom O1 of residue HPO .* has no known element"),
        (gro, [str(tmp_path / "lost.top")], "nowhere.itp; put all files that it includes beside it"),
        (gro, [prm, psf], None),
    ):
        if message is None:
            assert from_files(molecule, files, "vacuum").n_atoms == 4
            continue
        with pytest.raises(ValueError, match=message) as caught:
            from_files(molecule, files, "vacuum")
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="so hydrogens cannot be added"):
        from_files(inpcrd, [prmtop], add_hydrogens=True)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.prmtop"):
        from_files(inpcrd, [str(tmp_path / "none.prmtop")])
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.inpcrd"):
        from_files(tmp_path / "none.inpcrd", [prmtop])


def test_warnings_of_openmm_name_the_file(tmp_path: Path, caplog) -> None:
    path = tmp_path / "mine.prmtop"
    path.touch()
    with read_by_openmm(path, "a file"):
        warnings.warn("Non-optimal GB parameters\n  detected", UserWarning, stacklevel=1)
        warnings.warn("unclosed file", ResourceWarning, stacklevel=1)
    assert caplog.messages == [f"{path}: OpenMM warns: Non-optimal GB parameters detected."]
