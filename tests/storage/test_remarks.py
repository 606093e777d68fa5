"""What an import says about order, rounding and constraints, and what it does about them."""

import logging
from collections.abc import Iterator
from pathlib import Path

import mdtraj
import numpy as np
import pytest
import torch

from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.molecules.system import MolecularSystem, ala2
from knotflow.storage import trajectory
from knotflow.storage.importing import convert
from tests.storage.test_importing import jiggle, oracle


@pytest.fixture(scope="module")
def system() -> MolecularSystem:
    return ala2()


@pytest.fixture(scope="module")
def energy(system: MolecularSystem) -> Iterator[OpenMMEnergy]:
    with OpenMMEnergy(system, workers=1) as energy:
        yield energy


@pytest.fixture
def folder(tmp_path: Path, caplog) -> Path:
    caplog.set_level(logging.WARNING)
    return tmp_path


def reordered(system: MolecularSystem, order: np.ndarray, named: bool) -> mdtraj.Topology:
    """The atoms in another order, within their residues, or without names in one residue."""
    topology = mdtraj.Topology()
    chain = topology.add_chain()
    residues = [r.name for r in system.topology.residues] if named else ["LIG"]
    made = [topology.add_residue(name, chain) for name in residues]
    for k, i in enumerate(order):
        atom = system.topology.atom(int(i))
        name = atom.name if named else f"X{k}"
        topology.add_atom(name, atom.element, made[atom.residue.index if named else 0])
    return topology


@pytest.mark.parametrize("named", [True, False])
def test_atoms_in_another_order_are_put_in_order(folder, caplog, system, energy, named) -> None:
    """By names all positions and forces come back; by bonds equivalent hydrogens may be exchanged."""
    random = np.random.default_rng(1)
    x = jiggle(system, 20)
    energies, forces = oracle(system, x)
    groups = [[a.index for a in r.atoms] for r in system.topology.residues] if named else [list(range(22))]
    order = np.concatenate([random.permutation(group) for group in groups])
    mdtraj.Trajectory(x[:1, order], reordered(system, order, named)).save_hdf5(str(folder / "top.h5"))
    np.savez(folder / "a.npz", positions=x[:, order], forces=forces[:, order], energies=energies)
    imported = convert([folder / "a.npz"], system, energy, folder / "out.h5", topology=folder / "top.h5")
    found = trajectory.read(folder / "out.h5")
    how = "residue and atom name" if named else "elements and bonds"
    assert imported.remarks.moved > 0 and f"were moved, matched by {how}." in caplog.text
    assert trajectory.open_info(folder / "out.h5").provenance["moved_atoms"] == imported.remarks.moved
    heavy = [i for i, element in enumerate(system.elements) if element != "H" or named]
    np.testing.assert_array_equal(found.positions[:, heavy], x[:, heavy])
    np.testing.assert_allclose(found.forces[:, heavy], forces[:, heavy], rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(found.energies, oracle(system, found.positions)[0], atol=1e-2)
    # Labels of hydrogens are those of the structure: no frame differs from it.
    assert not imported.intake.labels.differs(torch.tensor(found.positions.astype(float))).any()


def test_rounding_is_measured(folder, caplog, system, energy) -> None:
    """The change that is said is the one that rounding makes."""
    x = system.positions + np.random.default_rng(0).normal(scale=0.0015, size=(2000, 22, 3))
    rounded = np.round(x, 3)
    np.savez(folder / "a.npz", positions=rounded.astype(np.float32))
    imported = convert([folder / "a.npz"], system, energy, folder / "a.h5")
    change = (oracle(system, rounded)[0] - oracle(system, x)[0]).mean() / system.kT
    assert 0.2 < change < 0.4 and imported.remarks.rounding == pytest.approx(change, abs=0.1)
    assert "are rounded to 0.001 nm, as in XTC and GRO files, which changes energies by" in caplog.text
    mdtraj.Trajectory(x, system.topology).save(str(folder / "b.xtc"))
    assert convert([folder / "b.xtc"], system, energy, folder / "b.h5").remarks.rounding is not None
    np.savez(folder / "c.npz", positions=x.astype(np.float32))
    assert convert([folder / "c.npz"], system, energy, folder / "c.h5").remarks.rounding is None


def constrained(system: MolecularSystem, n: int) -> np.ndarray:
    """Frames with all bonds to hydrogen at the length of the structure."""
    coordinates = internal_coordinates(system)
    rest, _ = coordinates.forward(torch.tensor(system.positions))
    q, _ = coordinates.forward(torch.tensor(jiggle(system, n).astype(np.float64)))
    pairs = coordinates.atoms[coordinates.bonds]
    fixed = [i for i, pair in enumerate(pairs) if "H" in {system.elements[atom] for atom in pair}]
    q[:, fixed] = rest[fixed]
    return np.ascontiguousarray(coordinates.inverse(q)[0].numpy(), dtype=np.float32)


@pytest.mark.parametrize("given", [False, True])
def test_constrained_bonds_become_flexible(folder, caplog, system, energy, given) -> None:
    """They get a spread and new energies; angles, torsions and other bonds do not change."""
    x = constrained(system, 300)
    energies, forces = oracle(system, x)
    arrays = {"energies": energies, "forces": forces} if given else {}
    np.savez(folder / "a.npz", positions=x, **arrays)
    imported = convert([folder / "a.npz"], system, energy, folder / "a.h5", stride=2)
    found = trajectory.read(folder / "a.h5")
    assert len(imported.remarks.constrained) == 12 and imported.remarks.redrawn == 150
    assert "12 of 21 bonds have a constant length, as constraints make it (CH3-H1 of ACE1" in caplog.text
    assert "in 150 frames their lengths were drawn anew" in caplog.text and "in rings" not in caplog.text
    assert len(trajectory.open_info(folder / "a.h5").provenance["constrained_bonds"]) == 12
    coordinates = internal_coordinates(system)
    before, after = (
        coordinates.forward(torch.tensor(y.astype(np.float64)))[0].numpy() for y in (x[::2], found.positions)
    )
    pairs = coordinates.atoms[coordinates.bonds]
    drawn = [i for i, pair in enumerate(pairs) if {*pair} in [{*b} for b in imported.remarks.constrained]]
    others = np.delete(np.arange(60), drawn)
    turned = np.abs(np.remainder(after - before + np.pi, 2 * np.pi) - np.pi)[:, others]
    assert turned.max() < 1e-4
    spread = after[:, drawn].std(0)
    # Amber's bonds to hydrogen: k = 284,512 (C-H) and 363,171 (N-H) kJ/mol/nm².
    assert (np.abs(spread / np.sqrt(system.kT / 284_512) - 1) < 0.25).all(), spread
    ours = oracle(system, found.positions)
    np.testing.assert_allclose(found.energies, ours[0], atol=1e-2)
    np.testing.assert_allclose(found.forces, ours[1], rtol=1e-4, atol=0.5)
    # Half a kT for each bond that is free again.
    assert (found.energies.mean() - energies[::2].mean()) / system.kT == pytest.approx(6, abs=1)


def test_constrained_angles_are_named(folder, caplog, system, energy) -> None:
    """Not only bonds to hydrogen, but also the distances between hydrogens of a methyl group."""
    x = jiggle(system, 50)
    methyl = [
        next(a.index for a in system.topology.atoms if a.name == name) for name in ("CH3", "H1", "H2", "H3")
    ]
    x[:, methyl] = x[:, methyl[:1]] + system.positions[methyl] - system.positions[methyl[0]]
    np.savez(folder / "a.npz", positions=x)
    remarks = convert([folder / "a.npz"], system, energy, folder / "a.h5").remarks
    assert len(remarks.constrained) == len(remarks.rigid_angles) == 3
    assert "3 angles are constant, as constraints on angles make them (H1-CH3-H2 of ACE1, " in caplog.text


def test_wrong_energies_of_constrained_frames_are_refused(folder, system, energy) -> None:
    x = constrained(system, 20)
    np.savez(folder / "a.npz", positions=x, energies=oracle(system, x)[0] + 5)
    with pytest.raises(ValueError, match="frame 0 has the energy"):
        convert([folder / "a.npz"], system, energy, folder / "a.h5")


def test_flexible_frames_are_not_touched(folder, caplog, system, energy) -> None:
    np.savez(folder / "a.npz", positions=jiggle(system, 50))
    imported = convert([folder / "a.npz"], system, energy, folder / "a.h5")
    np.testing.assert_array_equal(trajectory.read(folder / "a.h5").positions, jiggle(system, 50))
    assert not imported.remarks.constrained and not imported.remarks.rigid_angles and not caplog.messages
    assert "constrained_bonds" not in trajectory.open_info(folder / "a.h5").provenance
