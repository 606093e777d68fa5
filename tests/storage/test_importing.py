"""Frames of other programs become a trajectory file, or a sentence that says what is wrong with them."""

from collections.abc import Iterator
from dataclasses import replace

import mdtraj
import numpy as np
import openmm
import pytest
import torch

from knotflow.energies import force_field, read_energy, without_force_field
from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.molecules.system import MolecularSystem, ala2
from knotflow.storage import trajectory
from knotflow.storage.importing import convert, total_frames
from tests.bare_molecules import bare


@pytest.fixture(scope="module")
def system() -> MolecularSystem:
    return ala2()


@pytest.fixture(scope="module")
def energy(system: MolecularSystem) -> Iterator[OpenMMEnergy]:
    with OpenMMEnergy(system, workers=1) as energy:
        yield energy


def jiggle(system: MolecularSystem, n: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(scale=0.003, size=(n, system.n_atoms, 3))
    return (system.positions + noise).astype(np.float32)


def oracle(system: MolecularSystem, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Energies in kJ/mol and forces in kJ/mol/nm, frame by frame."""
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system.openmm_system(), openmm.VerletIntegrator(0.001), platform)
    energies, forces = [], []
    for frame in positions:
        context.setPositions(frame.astype(float))
        state = context.getState(energy=True, forces=True)
        energies.append(state.getPotentialEnergy()._value)
        forces.append(state.getForces(asNumpy=True)._value)
    return np.array(energies), np.array(forces)


def test_arrays_with_energies_and_forces_are_kept_as_they_are(tmp_path, system, energy) -> None:
    positions = jiggle(system, 6000)  # more than one piece
    segment = np.repeat([0, 1, 0, 5], 1500)
    energies, forces = (a.astype(np.float32) for a in oracle(system, positions[:500]))
    # The first 500 frames again and again: what is checked is right, and quick to make.
    positions = np.tile(positions[:500], (12, 1, 1))
    energies, forces = np.tile(energies, 12), np.tile(forces, (12, 1, 1))
    np.savez(
        tmp_path / "a.npz", positions=positions, forces=forces, energies=energies, segment=segment,
        time=np.arange(6000) * 0.5,
    )  # fmt: skip
    read = []
    intake, _ = convert(
        [tmp_path / "a.npz"], system, energy, tmp_path / "out.h5", provenance={"x": 1}, progress=read.append
    )
    frames = trajectory.read(tmp_path / "out.h5")
    np.testing.assert_array_equal(frames.positions, positions)
    np.testing.assert_array_equal(frames.forces, forces)
    np.testing.assert_array_equal(frames.energies, energies)
    np.testing.assert_array_equal(frames.time, np.arange(6000) * 0.5)
    np.testing.assert_array_equal(frames.replica, segment)
    expected = np.concatenate([np.arange(1500), np.arange(1500), np.arange(1500, 3000), np.arange(1500)])
    np.testing.assert_array_equal(frames.frame, expected)
    assert read == sorted(read) and read[-1] == total_frames([tmp_path / "a.npz"]) == 6000 and len(read) > 2
    assert intake.used == 6000
    info = trajectory.open_info(tmp_path / "out.h5")
    assert info.provenance["x"] == 1 and info.provenance["sources"] == [str(tmp_path / "a.npz")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "out.h5"]


@pytest.mark.parametrize("given", [(), ("energies",), ("forces",)])
def test_what_is_missing_is_computed(tmp_path, system, energy, given) -> None:
    positions = jiggle(system, 50)
    energies, forces = oracle(system, positions)
    arrays = {"energies": energies, "forces": forces}
    np.savez_compressed(tmp_path / "a.npz", positions=positions, **{name: arrays[name] for name in given})
    intake, _ = convert([tmp_path / "a.npz"], system, energy, tmp_path / "out.h5")
    frames = trajectory.read(tmp_path / "out.h5")
    np.testing.assert_allclose(frames.energies, energies, rtol=0, atol=1e-2)
    np.testing.assert_allclose(frames.forces, forces, rtol=1e-4, atol=0.5)
    np.testing.assert_array_equal(frames.frame, np.arange(50))
    assert intake.used == 50


@pytest.mark.parametrize("suffix", ["dcd", "xtc", "trr", "nc", "pdb", "h5"])
def test_files_of_mdtraj_become_replicas(tmp_path, system, energy, suffix) -> None:
    pdb = tmp_path / "top.pdb"
    for seed in (0, 1):
        written = mdtraj.Trajectory(jiggle(system, 30, seed), system.topology, time=np.arange(30) * 2.0)
        written.save(str(tmp_path / f"{seed}.{suffix}"))
        written[0].save(str(pdb))
    sources = [tmp_path / f"{seed}.{suffix}" for seed in (0, 1)]
    convert(sources, system, energy, tmp_path / "out.h5", topology=pdb, stride=4)
    frames = trajectory.read(tmp_path / "out.h5")
    np.testing.assert_array_equal(frames.replica, np.repeat([0, 1], 8))
    np.testing.assert_array_equal(frames.frame, np.tile(np.arange(8), 2))
    originals = np.concatenate([jiggle(system, 30, seed)[::4] for seed in (0, 1)])
    precision = {"xtc": 6e-4, "pdb": 6e-5}.get(suffix, 1e-6)  # coarse formats round
    np.testing.assert_allclose(frames.positions, originals, rtol=0, atol=precision)
    np.testing.assert_allclose(frames.energies, oracle(system, frames.positions)[0], rtol=0, atol=1e-2)
    if suffix in ("xtc", "trr", "nc", "h5"):
        np.testing.assert_allclose(frames.time, np.tile(np.arange(0, 30, 4) * 2.0, 2))


def test_stride_counts_in_every_segment(tmp_path, system, energy) -> None:
    np.savez(tmp_path / "a.npz", positions=jiggle(system, 20), segment=np.repeat([3, 4], 10))
    np.savez(tmp_path / "b.npz", positions=jiggle(system, 5, 1))
    convert([tmp_path / "a.npz", tmp_path / "b.npz"], system, energy, tmp_path / "out.h5", stride=3)
    frames = trajectory.read(tmp_path / "out.h5")
    np.testing.assert_array_equal(frames.replica, [3] * 4 + [4] * 4 + [5] * 2)
    np.testing.assert_array_equal(frames.frame, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(frames.time[:5], [0, 3, 6, 9, 0])
    kept = np.concatenate([jiggle(system, 20)[[0, 3, 6, 9, 10, 13, 16, 19]], jiggle(system, 5, 1)[[0, 3]]])
    np.testing.assert_array_equal(frames.positions, kept)


def test_names_of_another_convention_are_accepted(tmp_path, system, energy) -> None:
    topology = system.topology.copy()
    for atom in topology.residue(2).atoms:
        atom.name = {"C": "CH3", "H1": "HH31", "H2": "HH32", "H3": "HH33"}.get(atom.name, atom.name)
    mdtraj.Trajectory(jiggle(system, 2), topology).save_hdf5(str(tmp_path / "a.h5"))
    assert convert([tmp_path / "a.h5"], system, energy, tmp_path / "out.h5").intake.used == 2


def test_rounding_stays_far_below_the_tolerances(system) -> None:
    """Justifies the tolerances: float32 positions against the same in double precision."""
    exact = system.positions + np.random.default_rng(0).normal(scale=0.003, size=(50, 22, 3))
    energies, forces = oracle(system, exact)
    rounded_energies, rounded_forces = oracle(system, exact.astype(np.float32))
    assert np.abs(rounded_energies - energies).max() < 5e-3
    assert np.abs(rounded_forces - forces).max() < 1e-4 * np.sqrt((forces**2).mean())
    other_energies, other_forces = oracle(ala2(solvent=False), exact)
    assert np.abs(other_energies - energies).min() > 5
    assert np.sqrt(((other_forces - forces) ** 2).mean((1, 2)) / (forces**2).mean((1, 2))).min() > 5e-3


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, system, energy, monkeypatch) -> None:
    np.savez(tmp_path / "a.npz", positions=jiggle(system, 20))

    def full(*_: object) -> None:
        raise OSError(28, "20 frames could not be written")

    monkeypatch.setattr(trajectory, "append", full)
    with pytest.raises(
        OSError, match=r"out\.h5 could not be written \(No space left on device.*\); free some space"
    ):
        convert([tmp_path / "a.npz"], system, energy, tmp_path / "out.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("given", [(), ("energies", "forces")])
def test_labels_of_hydrogens_become_those_of_the_structure(tmp_path, system, energy, given) -> None:
    """The same frames with two labels exchanged, forces included, give the same file."""
    positions = jiggle(system, 40)
    energies, forces = (a.astype(np.float32) for a in oracle(system, positions))
    order = np.arange(22)
    order[[2, 3]] = [3, 2]
    for name, atoms in (("a", np.arange(22)), ("b", order)):
        arrays = {"energies": energies, "forces": forces[:, atoms]}
        chosen = {key: arrays[key] for key in given}
        np.savez(tmp_path / f"{name}.npz", positions=positions[:, atoms], **chosen)
        intake, _ = convert([tmp_path / f"{name}.npz"], system, energy, tmp_path / f"{name}.h5")
        assert intake.exchanged == (40 if name == "b" else 0) and intake.used == 40
    a, b = (trajectory.read(tmp_path / f"{name}.h5") for name in "ab")
    np.testing.assert_array_equal(a.positions, b.positions)
    np.testing.assert_allclose(a.forces, b.forces, rtol=0, atol=1e-6 * np.abs(a.forces).max())
    np.testing.assert_allclose(a.energies, b.energies, rtol=0, atol=1e-9)


def test_mirror_images_are_set_aside_by_number(tmp_path, system, energy) -> None:
    positions = jiggle(system, 20)
    positions[[4, 12, 13]] *= -1
    np.savez(tmp_path / "a.npz", positions=positions, segment=np.repeat([0, 1], 10))
    intake, _ = convert([tmp_path / "a.npz"], system, energy, tmp_path / "out.h5", stride=2)
    frames = trajectory.read(tmp_path / "out.h5")
    assert (intake.seen, intake.mirrored) == (10, 2), "frame 13 is skipped anyway"
    np.testing.assert_array_equal(frames.positions, positions[[0, 2, 6, 8, 10, 14, 16, 18]])
    np.testing.assert_array_equal(frames.frame, [0, 1, 3, 4, 0, 2, 3, 4])
    np.testing.assert_array_equal(frames.replica, [0] * 4 + [1] * 4)
    np.testing.assert_array_equal(frames.time, [0, 2, 6, 8, 0, 4, 6, 8])


def test_a_trajectory_of_the_mirror_image_is_refused(tmp_path, system, energy) -> None:
    np.savez(tmp_path / "a.npz", positions=-jiggle(system, 20))
    with pytest.raises(
        ValueError, match=r"20 of 20 frames in .*a\.npz are of the other hand than the struct"
    ):
        convert([tmp_path / "a.npz"], system, energy, tmp_path / "out.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_energies_of_other_programs_are_absolute(tmp_path) -> None:
    settings = read_energy("module:tests.energy_factories:springs")
    water = without_force_field("water", bare("H2O"), settings or {})
    water = replace(water, energy={**(water.energy or {}), "zero_kj": -20.0})
    positions = jiggle(water, 5)
    computed = force_field(water)
    ours = computed.energy(torch.tensor(positions.astype(np.float64))).numpy() * water.kT
    np.savez(tmp_path / "a.npz", positions=positions, energies=ours + water.zero_kj)
    convert([tmp_path / "a.npz"], water, computed, tmp_path / "out.h5")
    np.testing.assert_allclose(trajectory.read(tmp_path / "out.h5").energies, ours, rtol=1e-5)
    np.savez(tmp_path / "b.npz", positions=positions, energies=ours)
    with pytest.raises(ValueError, match="frame 0 has the energy"):
        convert([tmp_path / "b.npz"], water, computed, tmp_path / "other.h5")
