"""``knotflow import`` as a user runs it: what it says at the end, and refusals that leave nothing behind."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import mdtraj
import numpy as np
import pytest

from knotflow.molecules.system import MolecularSystem, ala2
from knotflow.storage import trajectory

COMMAND = str(Path(sys.executable).parent / "knotflow")


@pytest.fixture(scope="module")
def system() -> MolecularSystem:
    return ala2()


@pytest.fixture
def run(run_here) -> Callable[..., tuple[int, str]]:
    return partial(run_here, "import")


def jiggle(system: MolecularSystem, n: int) -> np.ndarray:
    noise = np.random.default_rng(0).normal(scale=0.003, size=(n, system.n_atoms, 3))
    return (system.positions + noise).astype(np.float32)


def test_a_process_of_its_own_prints_what_it_made(tmp_path, system) -> None:
    np.savez(tmp_path / "a.npz", positions=jiggle(system, 200), segment=np.repeat([0, 1], 100))
    done = subprocess.run(
        [COMMAND, "import", "a.npz", "--out", "new/data.h5", "--temperature", "310"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = re.search(
        r"200 frames of ala2 in 2 replicas, mean energy (\S+) ± (\S+) kT: new/data\.h5", done.stdout
    )
    assert said is not None, done.stdout
    path = tmp_path / "new" / "data.h5"
    info = trajectory.open_info(path)
    assert info.system.temperature == 310 and info.provenance["command"] == "import"
    assert float(said[1]) == pytest.approx(trajectory.read(path).energies.mean() / info.system.kT, abs=0.06)
    assert mdtraj.load(str(path)).n_frames == 200
    assert sorted(p.name for p in path.parent.iterdir()) == ["data.h5", "data.h5.toml"]


def test_dcd_with_a_topology(run, tmp_path, system) -> None:
    frames = mdtraj.Trajectory(jiggle(system, 12), system.topology)
    frames.save("a.dcd")
    frames[0].save("a.pdb")
    status, said = run("a.dcd", "--topology", "a.pdb", "--out", "data.h5", "--stride", "5")
    assert status == 0 and "3 frames of ala2 in 1 replica, mean energy" in said and " kT: data.h5" in said


def write(name: str, system: MolecularSystem, **changes: object) -> None:
    np.savez(name, **({"positions": jiggle(system, 10)} | changes))


def bad_energies(system: MolecularSystem) -> None:
    write("a.npz", system, energies=np.full(10, -5.0), forces=np.zeros((10, 22, 3)))


def bad_forces(system: MolecularSystem) -> None:
    write("a.npz", system, forces=np.ones((10, 22, 3)))


def bad_frame(system: MolecularSystem) -> None:
    positions = jiggle(system, 10)
    positions[7, 3, 1] = np.nan
    write("a.npz", system, positions=positions)


def bad_given_force(system: MolecularSystem) -> None:
    forces = np.zeros((10, 22, 3))
    forces[4, 0, 0] = np.inf
    write("a.npz", system, forces=forces, energies=np.zeros(10))


def angstrom(system: MolecularSystem) -> None:
    write("a.npz", system, positions=10 * jiggle(system, 10))


def shuffled(system: MolecularSystem) -> None:
    write("a.npz", system, positions=jiggle(system, 10)[:, ::-1])


def few_atoms(system: MolecularSystem) -> None:
    write("a.npz", system, positions=jiggle(system, 10)[:, :-1])


def cut(system: MolecularSystem) -> None:
    write("whole.npz", system)
    Path("a.npz").write_bytes(Path("whole.npz").read_bytes()[:2000])


def pickled(system: MolecularSystem) -> None:
    np.savez("a.npz", positions=np.array([None, None], dtype=object))


def bomb(system: MolecularSystem) -> None:
    """Many zeros in few bytes."""
    with (
        ZipFile("a.npz", "w", ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("positions.npy", "w") as file,
    ):
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f8", "fortran_order": False, "shape": (600_000, 22, 3)}
        )
        for _ in range(3168):
            file.write(bytes(10**5))


def declared(system: MolecularSystem) -> None:
    with ZipFile("a.npz", "w") as archive, archive.open("positions.npy", "w") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 22, 3)}
        np.lib.format.write_array_header_1_0(file, header)


def damaged_header(text: bytes) -> Callable[[MolecularSystem], None]:
    def prepare(system: MolecularSystem) -> None:
        with ZipFile("a.npz", "w") as archive:
            header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
            archive.writestr("positions.npy", header)

    return prepare


def other_compression(system: MolecularSystem) -> None:
    write("a.npz", system)
    content = Path("a.npz").read_bytes()
    at = content.index(b"PK\x01\x02") + 10
    Path("a.npz").write_bytes(content[:at] + b"\x63\x00" + content[at + 2 :])


UNREADABLE = r"a\.npz cannot be read as an \.npz file: "
REFUSALS = {
    "bomb": (bomb, r"a\.npz cannot be .*: its .* bytes would become 316,800,.* in memory, too many for"),
    "declared": (declared, r"positions would have 528,000,.* bytes by its shape .*, but there are 0"),
    "0-d": (lambda s: np.savez("a.npz", positions=np.array(1.0)), r"a\.npz: positions must be an array with"),
    "empty": (lambda s: np.savez("a.npz"), r"a\.npz cannot be read as an \.npz file: it is empty\."),
    "nested": (damaged_header(b"(" * 9000 + b"\n"), UNREADABLE),
    "token": (damaged_header(b"{'descr': 'f8', 'shape': (1L, \n"), UNREADABLE),
    "compression": (other_compression, UNREADABLE),
    "absurd": (
        lambda s: write("a.npz", s, energies=np.full(10, 1e30), forces=np.zeros((10, 22, 3))),
        r"a\.npz: frame 0 has energies that are not finite or absurdly large; leave out such frames\.",
    ),
    "energies": (bad_energies, r"a\.npz: frame 0 has the energy -5 kJ/mol, but ours is .* kJ/mol; check"),
    "forces": (bad_forces, r"a\.npz: frame 0 has forces that differ from ours by 1e\+02 %; check molecule"),
    "not finite": (bad_frame, r"a\.npz: frame 7 has positions that are not finite or absurdly large"),
    "force not finite": (bad_given_force, r"a\.npz: frame 4 has forces that are not finite or"),
    "unit": (angstrom, r"bond from ACE1-CH3 to ACE1-H1 in frame 0 is 1\.\d+ nm long, usually 0\.109 nm; all "
             r"bonds are about 10 times as long as usual, so the unit may be wrong \(nm, not Å\)\."),
    "order": (shuffled, r"nm; the order of the atoms may be wrong .--topology .*, or a periodic box cut"),
    "shape": (few_atoms, r"positions must have shape \(10, 22, 3\) for the 22 atoms of ala2, got \(10, 21"),
    "no positions": (lambda s: np.savez("a.npz", x=np.zeros(3)), r"a\.npz has no array 'positions'; "),
    "cut": (cut, UNREADABLE),
    "pickle": (pickled, r"a\.npz cannot be read as an .*: positions must be an array of plain numbers"),
    "text": (lambda s: Path("a.npz").write_text("hello"), UNREADABLE),
    "no frames": (lambda s: write("a.npz", s, positions=np.zeros((0, 22, 3))), r"there are no frames in a\."),
    "segment": (lambda s: write("a.npz", s, segment=np.zeros(10)), r"segment must hold whole numbers, got "),
    "negative": (lambda s: write("a.npz", s, segment=np.arange(10) - 9), r"segment must hold numbers from 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_arrays_are_refused_in_one_sentence(run, tmp_path, system, case) -> None:
    prepare, message = REFUSALS[case]
    prepare(system)
    before = sorted(tmp_path.iterdir())
    status, said = run("a.npz", "--out", "data.h5")
    assert status == 2 and re.search(message, said), said
    assert sorted(tmp_path.iterdir()) == before


def exchange(topology: mdtraj.Topology, i: int, j: int) -> mdtraj.Topology:
    """A topology with the names and elements of two atoms exchanged."""
    topology = topology.copy()
    a, b = topology.atom(i), topology.atom(j)
    a.name, b.name = b.name, a.name
    a.element, b.element = b.element, a.element
    return topology


def test_atoms_that_differ_are_named(run, tmp_path, system) -> None:
    frames = mdtraj.Trajectory(jiggle(system, 3), system.topology)
    frames.save("a.dcd")
    mdtraj.Trajectory(frames.xyz[:1], exchange(system.topology, 8, 9)).save_hdf5("order.h5")
    mdtraj.Trajectory(frames.xyz[:1], exchange(system.topology, 8, 14)).save_hdf5("names.h5")
    other = system.topology.copy()
    other.atom(8).element = mdtraj.element.nitrogen
    mdtraj.Trajectory(frames.xyz[:1], other).save_hdf5("other.h5")
    frames[0].atom_slice(range(21)).save("few.pdb")
    frames[0].atom_slice([i for i in range(22) if i != 10]).save("heavy.pdb")
    frames.atom_slice(range(21)).save("few.dcd")
    before = sorted(tmp_path.iterdir())
    for arguments, message in (
        (["a.dcd", "--topology", "order.h5"], r"by the names in order\.h5, the bond from .* is .* nm long"),
        (["order.h5"], r"by the names in order\.h5, the bond from .*; give the topology that belongs to"),
        (["a.dcd", "--topology", "names.h5"], r"by the names in names\.h5, the bond from .* is .* nm long"),
        (["a.dcd", "--topology", "other.h5"], r"atom 8 \(from 0\) is CA \(N\) of ALA2 in other\.h5, but CA"),
        (["a.dcd", "--topology", "few.pdb"], r"but ala2 has 22, whose hydrogen H3 of NME3 is missing there"),
        (["a.dcd", "--topology", "heavy.pdb"], r"but ala2 has 22, whose heavy atom CB of ALA2 is missing"),
        (["few.dcd"], r"few\.dcd cannot be read as a trajectory of the 22 atoms of ala2: .*21"),
        (["a.dcd", "--topology", "none.pdb"], r"there is no topology none\.pdb"),
        (["a.dcd", "--peptide", "GG"], r"a\.dcd cannot be read as a trajectory of the 26 atoms of"),
    ):  # fmt: skip
        status, said = run(*arguments, "--out", "data.h5")
        assert status == 2 and re.search(message, said), said
        assert sorted(tmp_path.iterdir()) == before


def test_files_that_cannot_be_used_are_named(run, tmp_path, system) -> None:
    frames = mdtraj.Trajectory(jiggle(system, 3), system.topology)
    frames.save("a.xtc")
    boxed = mdtraj.Trajectory(frames.xyz, system.topology, unitcell_lengths=[[3.0] * 3] * 3,
                              unitcell_angles=[[90.0] * 3] * 3)  # fmt: skip
    boxed.save("boxed.xtc")
    Path("cut.xtc").write_bytes(Path("a.xtc").read_bytes()[:150])
    Path("a.foo").write_text("")
    Path("old.h5").write_bytes(b"mine")
    trajectory.create("ours.h5", system, {})
    before = sorted(tmp_path.iterdir())
    for arguments, message in (
        (["boxed.xtc", "--out", "data.h5"], r"boxed\.xtc has a periodic unit cell of 3 nm, but only vacuum"),
        (["cut.xtc", "--out", "data.h5"], r"cut\.xtc cannot be read as a trajectory of the 22 atoms of ala2"),
        (["a.foo", "--out", "data.h5"], r"a\.foo cannot be read as a trajectory .*\.foo"),
        (["ours.h5", "--out", "data.h5"], r"ours\.h5 is a trajectory of knotflow already; use it as it is\."),
        (["none.xtc", "--out", "data.h5"], r"there is no file none\.xtc\."),
        (["a.xtc", "--out", "old.h5"], r"old\.h5 exists already; remove it or choose another name\."),
        (["a.xtc", "--out", "data.csv"], r"--out must be a file ending in \.h5, got 'data\.csv'\."),
        (["a.xtc", "--out", "data.h5", "--stride", "0"], "Invalid value for '--stride'"),
    ):  # fmt: skip
        status, said = run(*arguments)
        assert status == 2 and re.search(message, said), said
        assert sorted(tmp_path.iterdir()) == before
    assert Path("old.h5").read_bytes() == b"mine"


def test_an_interrupt_leaves_nothing(tmp_path, system) -> None:
    np.savez(tmp_path / "a.npz", positions=np.tile(jiggle(system, 1000), (200, 1, 1)))
    process = subprocess.Popen(
        [COMMAND, "import", "a.npz", "--out", "data.h5"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    part = tmp_path / ".data.h5.part"
    end = time.monotonic() + 60
    while not part.exists() or part.stat().st_size < 300_000:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0 and "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_what_was_exchanged_and_set_aside_is_said_in_a_line_each(run, tmp_path, system) -> None:
    positions = jiggle(system, 20)
    positions[5:, [2, 3]] = positions[5:, [3, 2]]
    positions[:2] *= -1
    np.savez("a.npz", positions=positions)
    done = subprocess.run(
        [COMMAND, "import", "a.npz", "--out", "data.h5", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert "2 of 20 frames are of the other hand than the structure at ALA2-CA, and were set aside." in lines
    assert (
        "In 15 of 18 frames the labels of equivalent hydrogens (H2/H3 of ACE1) were exchanged to match the "
        "structure."
    ) in lines
    found = json.loads(done.stdout)
    assert (found["frames"], found["relabelled"], found["mirrored"]) == (18, 15, 2)


def test_a_mirrored_trajectory_is_refused(run, tmp_path, system) -> None:
    np.savez("a.npz", positions=-jiggle(system, 20))
    status, said = run("a.npz", "--out", "data.h5")
    assert (
        status == 2 and "20 of 20 frames in a.npz are of the other hand than the structure at ALA2-CA" in said
    )
    assert "import the trajectory with the structure it was made with." in said
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_nothing_but_json_is_on_standard_output(tmp_path, system) -> None:
    """The reader of DCD files prints on its own."""
    mdtraj.Trajectory(jiggle(system, 12), system.topology).save(str(tmp_path / "a.dcd"))
    done = subprocess.run(
        [COMMAND, "import", "a.dcd", "--out", "data.h5", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["frames"] == 12 and found["constrained_bonds"] == 0 and found["rounding"] is None
