"""Files of samples: what is written can be read, by us and by MDTraj; nothing is half-written."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import h5py
import mdtraj
import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from knotflow.molecules.system import MolecularSystem
from knotflow.storage import trajectory
from knotflow.storage.samples import SampleWriter, read_samples
from tests.molecules.molecules import frames, molecule

FORMATS = [".h5", ".xtc", ".dcd", ".pdb"]
ROUNDING = {".h5": 1e-6, ".xtc": 6e-4, ".dcd": 1e-6, ".pdb": 6e-5}
"""In nm: float32, and what the formats keep."""


@pytest.fixture
def system() -> MolecularSystem:
    return molecule("ala2")


def drawn(system: MolecularSystem, n: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, log-densities and reduced energies."""
    random = np.random.default_rng(3)
    return frames(system, n) + 5.0, torch.tensor(random.normal(size=n)), torch.tensor(random.normal(size=n))


def write(path: Path, system: MolecularSystem, pieces: int = 1, weights: bool = True, **options) -> None:
    x, log_prob, u = drawn(system)
    with SampleWriter(path, system.plain(), weights=weights, **options) as writer:
        for part in torch.arange(len(x)).chunk(pieces):
            writer.write(x[part], log_prob[part], u[part] if weights else None)
        writer.complete({"seed": 3})


def load(path: Path, system: MolecularSystem) -> mdtraj.Trajectory:
    knows = path.suffix in (".h5", ".pdb")
    return mdtraj.load(str(path), **({} if knows else {"top": system.topology}))


def internal_distances(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x[:, :, None] - x[:, None], axis=-1)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("pieces", [1, 3])
def test_an_hdf5_file_comes_back(tmp_path: Path, system: MolecularSystem, pieces: int) -> None:
    path = tmp_path / "new" / "samples.h5"
    write(path, system, pieces)
    x, log_prob, u = drawn(system)
    found = read_samples(path)
    assert len(found) == 7 and found.positions.dtype == np.float32
    np.testing.assert_array_equal(found.log_prob, log_prob.numpy())
    np.testing.assert_allclose(found.energies, u.numpy() * system.kT, rtol=1e-15)
    np.testing.assert_allclose(found.log_weights, -u.numpy() - log_prob.numpy(), rtol=1e-15)
    np.testing.assert_allclose(internal_distances(found.positions), internal_distances(x.numpy()), atol=1e-6)
    assert found.molecule == system.plain() and found.system.topology == system.topology
    assert found.provenance["seed"] == 3 and found.provenance["knotflow"]
    np.testing.assert_array_equal(read_samples(path, slice(2, 7, 2)).log_prob, found.log_prob[2:7:2])
    assert names(path.parent) == ["samples.h5"]


def test_without_weights(tmp_path: Path, system: MolecularSystem) -> None:
    write(tmp_path / "samples.h5", system, weights=False)
    found = read_samples(tmp_path / "samples.h5")
    assert found.energies is None and found.log_weights is None and len(found.log_prob) == 7
    with h5py.File(tmp_path / "samples.h5") as file:
        assert set(file) == {"coordinates", "knotflow", "logProbability", "topology"}
    write(tmp_path / "samples.dcd", system, weights=False)
    assert (tmp_path / "samples.csv").read_text().splitlines()[0] == "logProbability"


@pytest.mark.parametrize("suffix", FORMATS)
def test_mdtraj_reads_every_format_in_its_units(tmp_path: Path, system: MolecularSystem, suffix: str) -> None:
    path = tmp_path / f"samples{suffix}"
    write(path, system, pieces=2)
    x, _, _ = drawn(system)
    found = load(path, system)
    assert found.n_frames == 7 and found.unitcell_lengths is None
    assert [str(a) for a in found.topology.atoms] == [str(a) for a in system.topology.atoms]
    # MDTraj has nm, whatever the file has.
    np.testing.assert_allclose(
        internal_distances(found.xyz), internal_distances(x.numpy()), atol=4 * ROUNDING[suffix]
    )
    phi = mdtraj.compute_phi(found)[1][:, 0]
    expected = mdtraj.compute_phi(mdtraj.Trajectory(x.numpy(), system.topology))[1][:, 0]
    np.testing.assert_allclose(phi, expected, atol=0.02)


@pytest.mark.parametrize("suffix", FORMATS)
def test_samples_lie_over_the_structure(tmp_path: Path, system: MolecularSystem, suffix: str) -> None:
    path = tmp_path / f"samples{suffix}"
    write(path, system)
    reference = system.positions - system.positions.mean(0)
    for frame in load(path, system).xyz.astype(float):
        np.testing.assert_allclose(frame.mean(0), system.positions.mean(0), atol=ROUNDING[suffix])
        turn, _ = Rotation.align_vectors(reference, frame - frame.mean(0))
        assert turn.magnitude() < 5 * ROUNDING[suffix] / 0.1


@pytest.mark.parametrize("suffix", [".xtc", ".dcd", ".pdb"])
def test_the_table_has_every_digit(tmp_path: Path, system: MolecularSystem, suffix: str) -> None:
    write(tmp_path / f"samples{suffix}", system, pieces=3)
    with (tmp_path / "samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    _, log_prob, u = drawn(system)
    assert list(rows[0]) == ["logProbability", "potentialEnergy", "logWeight"]
    assert [float(row["logProbability"]) for row in rows] == log_prob.tolist()
    assert [float(row["potentialEnergy"]) for row in rows] == (u * system.kT).tolist()
    assert [float(row["logWeight"]) for row in rows] == (-u - log_prob).tolist()
    assert names(tmp_path) == ["samples.csv", f"samples{suffix}"]


def test_single_precision_and_energies_that_are_not_finite(tmp_path: Path, system: MolecularSystem) -> None:
    x, log_prob, u = drawn(system)
    u[2], u[4] = np.nan, np.inf
    with SampleWriter(tmp_path / "samples.h5", system.plain(), weights=True) as writer:
        writer.write(x.float(), log_prob.float(), u)
        writer.complete({})
    found = read_samples(tmp_path / "samples.h5")
    np.testing.assert_array_equal(found.log_prob, log_prob.float().numpy())
    assert np.isnan(found.log_weights[2]) and found.log_weights[4] == -np.inf
    assert writer.effective.not_finite == 2 and writer.effective.n == 7


@pytest.mark.parametrize("suffix", FORMATS)
def test_existing_files_are_kept_unless_told_otherwise(
    tmp_path: Path, system: MolecularSystem, suffix: str
) -> None:
    path = tmp_path / f"samples{suffix}"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"exists already; .*--overwrite"):
        write(path, system)
    assert path.read_text() == "mine" and names(tmp_path) == [path.name]
    write(path, system, overwrite=True)
    assert load(path, system).n_frames == 7


def test_an_existing_table_is_kept_too(tmp_path: Path, system: MolecularSystem) -> None:
    (tmp_path / "samples.csv").write_text("mine")
    with pytest.raises(FileExistsError, match=r"samples\.csv exists already"):
        write(tmp_path / "samples.xtc", system)
    assert names(tmp_path) == ["samples.csv"]
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write(_folder(tmp_path / "samples.h5"), system, overwrite=True)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_not_completed_leaves_nothing(tmp_path: Path, system: MolecularSystem, suffix: str) -> None:
    path = tmp_path / f"samples{suffix}"
    write(path, system)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    x, log_prob, _ = drawn(system)
    with (
        pytest.raises(KeyboardInterrupt),
        SampleWriter(path, system.plain(), overwrite=True) as writer,
    ):
        writer.write(x, log_prob)
        assert len(names(tmp_path)) > len(before)  # it is being written, under another name
        raise KeyboardInterrupt
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("suffix", [".h5", ".xtc"])
def test_a_full_disk_is_explained(
    tmp_path: Path, system: MolecularSystem, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        OSError, match=r"samples\.\w+ could not be written \(No space left on device.*\); free some space"
    ):
        write(tmp_path / f"samples{suffix}", system)
    assert names(tmp_path) == []


def test_parts_of_a_process_that_was_killed_are_removed(tmp_path: Path, system: MolecularSystem) -> None:
    (tmp_path / ".samples.xtc.part.xtc").write_text("half")
    (tmp_path / ".samples.xtc.part.csv").write_text("half")
    write(tmp_path / "samples.xtc", system)
    assert names(tmp_path) == ["samples.csv", "samples.xtc"]


def test_one_writer_at_a_time(tmp_path: Path, system: MolecularSystem) -> None:
    path = tmp_path / "samples.h5"
    code = (
        "import json, sys; from knotflow.storage.samples import SampleWriter\n"
        "SampleWriter(sys.argv[1], json.load(open(sys.argv[2]))).__enter__()"
    )
    (tmp_path / "molecule.json").write_text(json.dumps(system.plain()))
    with SampleWriter(path, system.plain()):
        done = subprocess.run(
            [sys.executable, "-c", code, str(path), str(tmp_path / "molecule.json")],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert "is being written by another process" in done.stderr


def test_mistakes_are_explained(tmp_path: Path, system: MolecularSystem) -> None:
    x, log_prob, u = drawn(system)
    with pytest.raises(ValueError, match=r"ending in \.h5, \.xtc, \.dcd or \.pdb, got 'a\.npz'"):
        SampleWriter("a.npz", system.plain())
    with SampleWriter(tmp_path / "samples.h5", system.plain()) as writer:
        with pytest.raises(ValueError, match="has energies for all of its samples, or for none"):
            writer.write(x, log_prob, u)
        with pytest.raises(ValueError, match=r"logProbability must have shape \(7,\)"):
            writer.write(x, log_prob[:3])
        with pytest.raises(ValueError, match="same shape"):
            writer.write(x[:, :4], log_prob)


def test_other_files_are_refused(tmp_path: Path, system: MolecularSystem) -> None:
    path = tmp_path / "samples.h5"
    with pytest.raises(FileNotFoundError, match="knotflow sample"):
        read_samples(path)
    path.write_text("no")
    with pytest.raises(ValueError, match="is not an HDF5 file"):
        read_samples(path)
    path.unlink()
    trajectory.create(path, system, {})
    with pytest.raises(ValueError, match="holds no samples of knotflow"):
        read_samples(path)
    path.unlink()
    write(path, system)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match="cut off or damaged"):
        read_samples(path)
    path.write_bytes(whole)
    with h5py.File(path, "r+") as file:
        file["knotflow"].attrs["samples"] = 9
    with pytest.raises(ValueError, match="version 9, but this knotflow"):
        read_samples(path)
    # A trajectory it is not, either.
    with pytest.raises(ValueError):
        trajectory.read(path)


WITHOUT_OPENMM = """
import json, sys
sys.modules["openmm"] = None  # as if it were not installed
import mdtraj, torch
from knotflow.storage.samples import SampleWriter, read_samples
molecule = json.load(open("molecule.json"))
x = torch.tensor(molecule["positions"])[None].repeat(3, 1, 1)
for suffix in ("h5", "xtc", "dcd", "pdb"):
    with SampleWriter(f"a-{suffix}.{suffix}", molecule) as writer:
        writer.write(x, torch.zeros(3))
        writer.complete({})
assert read_samples("a-h5.h5").system.n_atoms == 22
assert mdtraj.load("a-xtc.xtc", top="a-pdb.pdb").n_frames == 3
"""


WITH_NOTHING = """
import json, sys
for name in ("openmm", "mdtraj", "h5py", "tables"):
    sys.modules[name] = None  # as if it were not installed
import torch
from knotflow.storage.samples import SampleWriter
molecule = json.load(open("molecule.json"))
with SampleWriter("a.pdb", molecule) as writer:
    writer.write(torch.tensor(molecule["positions"])[None].repeat(3, 1, 1), torch.zeros(3))
    writer.complete({})
"""


def test_pdb_files_need_no_other_package(tmp_path: Path, system: MolecularSystem) -> None:
    (tmp_path / "molecule.json").write_text(json.dumps(system.plain()))
    done = subprocess.run(
        [sys.executable, "-c", WITH_NOTHING],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(mdtraj.load(tmp_path / "a.pdb").xyz[2], system.positions, atol=6e-5)


def test_no_openmm_is_needed(tmp_path: Path, system: MolecularSystem) -> None:
    (tmp_path / "molecule.json").write_text(json.dumps(system.plain()))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPENMM],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
