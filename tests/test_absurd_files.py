"""Files that were made to deceive, and files of earlier versions, which have no checksum but still open."""

import contextlib
import json
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import h5py
import mdtraj
import numpy as np
import openmm
import pytest
import torch
import typer
from safetensors.torch import save_file

import knotflow as kf
from knotflow.cli import settings
from knotflow.dynamics import DynamicsConfig, Record
from knotflow.dynamics.chains import ChainState
from knotflow.dynamics.protocol import run_inputs
from knotflow.files import read_json, write_json
from knotflow.flows.io import notes
from knotflow.log_file import read_log
from knotflow.molecules.serialised import read_system
from knotflow.molecules.system import MolecularSystem
from knotflow.simulation.run import RunState
from knotflow.storage import journal, trajectory
from knotflow.storage.arrays import read_arrays
from knotflow.storage.other_programs import count_frames, read_frames
from knotflow.training.checkpoint import read_checkpoint
from knotflow.workflows.dynamics import frames_of
from tests.damaged import KINDS, chain_state, plain, some_frames, write_interrupted, write_trajectory
from tests.molecules.molecules import molecule

DEEP = "[" * 100_000


def model_with(config: Any, path: Path, **metadata: str) -> None:
    known = {"format": "knotflow-flow-1", "config": json.dumps(config), "notes": "{}"}
    save_file({"a": torch.zeros(2)}, path, {**known, **metadata})


def absurd_model(path: Path) -> None:
    config = kf.Flow.on([kf.Circle()] * 2, rounds=1).config.plain()
    config["couplings"][0]["conditioner"]["hidden"] = [10**12, 10**12]
    model_with(config, path)


def absurd_trajectory(path: Path) -> None:
    """Rows that are declared, but not stored."""
    write_trajectory(path)
    with h5py.File(path, "r+") as file:
        for column in trajectory.COLUMNS.values():
            file[column.name].resize(10**12, axis=0)


def absurd_text(path: Path) -> None:
    write_trajectory(path)
    with h5py.File(path, "r+") as file:
        del file["knotflow"]["provenance"]
        raw = np.frombuffer(DEEP.encode(), np.uint8)
        file["knotflow"].create_dataset("provenance", data=raw)


def other_record(path: Path) -> None:
    note = np.array(json.dumps({"format": "knotflow-dynamics-1", "about": {}}))
    np.savez(path, note=note, production=np.arange(3), degrees_of_freedom=np.array(1))


def journal_of(head: str) -> Any:
    def write(path: Path) -> None:
        path.write_bytes(bytes(100))
        path.with_name(f".{path.name}.journal").write_text(head + "\n")

    return write


def toml(path: Path) -> object:
    app = typer.Typer()
    app.command()(lambda: None)
    return settings.load(typer.main.get_command(app), path)


REFUSED = {
    "sizes of a model": (absurd_model, kf.load, r"file: (the weights do not fit|no flow can be built)"),
    "depth of a model": (
        lambda path: model_with({}, path, notes=DEEP),
        notes,
        r"file has no usable 'notes' in its metadata: it is nested more than 200",
    ),
    "rows of a trajectory": (
        absurd_trajectory,
        trajectory.read,
        r"file is cut off or damaged \(/\w+ would have .* bytes, [\d,]+ are stored\)",
    ),
    "depth of a trajectory": (
        absurd_text,
        trajectory.open_info,
        r"file is cut off or damaged \(it is nested",
    ),
    "another checkpoint": (
        lambda path: save_file({}, path, {"format": "knotflow-checkpoint-1", "tree": '{"tensor": "7"}'}),
        read_checkpoint,
        r"file is damaged \(KeyError\('7'\)\); remove it to start over",
    ),
    "another state": (lambda path: save_file({"x": torch.zeros(1)}, path), ChainState.load, "file does not"),
    "a number for a table": (
        lambda path: np.savez(path.open("wb"), positions=np.array(1.0)),
        RunState.load,
        r"the state of the run, .*file, is missing or damaged",
    ),
    "another record": (
        lambda path: other_record(path.open("wb")),  # type: ignore[arg-type]
        Record.load,
        r"file is damaged \(.*\); remove it\.",
    ),
    "depth of a journal": (journal_of(DEEP), journal.pending, r"\.file\.journal.* is damaged"),
    "words in a journal": (journal_of('{"size": 100, "patches": [["a", 1]]}'), journal.pending, "is damaged"),
    "no table in a journal": (journal_of("3"), journal.pending, r"\.file\.journal.* is damaged"),
    "size of a journal": (journal_of('{"size": 1000000000000, "patches": []}'), journal.pending, "cut off"),
    "length in a journal": (journal_of('{"size": 1, "patches": [[0, 999]]}'), journal.pending, "add up"),
    "depth of settings": (lambda path: path.write_text(f"a = {DEEP}"), toml, "file is not TOML"),
    "a log": (lambda path: path.write_bytes(b"step,name,value\n1,\0\n"), read_log, "file must hold rows"),
    "a long field": (lambda path: path.write_text(f"a\n{'x' * 200_000}\n"), read_log, "file must hold rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_sentence(case: str, tmp_path: Path) -> None:
    write, read, message = REFUSED[case]
    path = tmp_path / "file"
    write(path)
    with pytest.raises((ValueError, OSError)) as found:
        read(path)
    said = str(found.value)
    assert re.search(message, said) and "file" in said and "\n" not in said and len(said) < 600, said


class Pickled:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, state: object) -> None:
        """PythonForce wants a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("written", ["PythonForce", "Python&#70;orce", "&a;Force"])
def test_no_pickle_in_a_system_is_opened(written: str, tmp_path: Path) -> None:
    """Models and trajectories hold the System of their molecule, and OpenMM would open it."""
    dimer, trace = molecule("dimer"), tmp_path / "trace"
    system = dimer.openmm_system()
    system.addForce(openmm.PythonForce(Pickled(trace)))
    xml = openmm.XmlSerializer.serialize(system).replace('type="PythonForce"', f'type="{written}"')
    if written.startswith("&a"):
        xml = xml.replace("?>", '?><!DOCTYPE System [<!ENTITY a "Python">]>', 1)
    with pytest.raises(ValueError, match="must hold no code"):
        MolecularSystem.parse(dimer.plain() | {"xml": xml})
    path = tmp_path / "system.xml"
    path.write_text(xml)
    with pytest.raises(ValueError, match=r"system\.xml cannot be read .* must hold no code"):
        read_system(path)
    assert not trace.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_no_pickle_in_a_file_of_mdtraj_is_opened(protocol: int, tmp_path: Path) -> None:
    """PyTables, by which mdtraj reads its own format, opens pickles in attributes."""
    dimer, path, trace = molecule("dimer"), tmp_path / "frames.h5", tmp_path / "trace"
    mdtraj.Trajectory(some_frames().positions, dimer.topology).save_hdf5(str(path))
    assert len(list(read_frames(path, dimer, None, 10))) == 1
    with h5py.File(path, "r+") as file:
        code = pickle.dumps(Pickled(trace), protocol)
        file["coordinates"].attrs["units"] = np.bytes_(code)
    with pytest.raises(ValueError, match=r"frames\.h5 holds Python objects in /coordinates, attribute units"):
        list(read_frames(path, dimer, None, 10))
    assert count_frames(path) is None and not trace.exists()
    with contextlib.suppress(Exception):
        mdtraj.load(str(path))
    assert trace.exists(), "otherwise the test shows nothing"


def test_only_bond_types_are_looked_up() -> None:
    dimer = molecule("dimer").plain()
    dimer["topology"]["bond_metadata"][0]["type"] = "itertools"
    with pytest.raises(ValueError, match="there is no bond type 'itertools'"):
        MolecularSystem.parse(dimer)


def unsealed(path: Path) -> None:
    """Rewrite a file as earlier versions did."""
    content = path.read_bytes()
    if path.suffix == ".npz" or content.startswith(b"PK"):
        arrays = read_arrays(path)
        np.savez(path.open("wb"), **arrays)
    elif path.suffix == ".json":
        table = json.loads(content)
        del table["checksum"]
        path.write_text(json.dumps(table))
    else:
        tensors, metadata = _safetensors(path)
        del metadata["checksum"]
        save_file(tensors, path, metadata)


def _safetensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "last.ckpt", "chains.state", "run.h5.state", "record.npz", "maps.npz", "plan.json"],
)
def test_files_of_earlier_versions_open(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that is resumed from one says so; other commands do not."""
    kind, path = KINDS[name], tmp_path / name
    kind.write(path)
    whole = plain(kind.read(path))
    assert caplog.messages == []
    unsealed(path)
    assert plain(kind.read(path)) == whole
    assert [message.partition(", without")[0] for message in caplog.messages] == (
        [f"{path} is of an earlier version"] if name in ("last.ckpt", "run.h5.state") else []
    )


def test_json_that_lost_its_checksum_is_not_of_an_earlier_version(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_json(path, {"name": "run"})
    content = path.read_bytes()
    start, end = content.index(b'",\n "checksum'), content.rindex(b'"')
    path.write_bytes(content[:start] + content[end:])
    assert json.loads(path.read_bytes()) == {"name": "run"}
    with pytest.raises(ValueError, match=r"plan\.json is damaged"):
        read_json(path)


def test_a_journal_of_an_earlier_version_is_carried_out(tmp_path: Path) -> None:
    path, hidden = tmp_path / "file", tmp_path / ".file.journal"
    write_interrupted(path)
    waiting = journal.pending(path)
    assert waiting is not None
    head, _, body = hidden.read_bytes().partition(b"\n")
    table = json.loads(head)
    del table["checksum"]
    hidden.write_bytes(json.dumps(table).encode() + b"\n" + body)
    expected = waiting.read()
    journal.settle(path)
    assert path.read_bytes() == expected


def test_frames_are_appended_to_a_trajectory_of_an_earlier_version(tmp_path: Path) -> None:
    path, old = tmp_path / "new.h5", tmp_path / "old.h5"
    write_trajectory(path)
    with h5py.File(path) as new, h5py.File(old, "w", libver=("v110", "v110")) as file:
        file.attrs.update(new.attrs)
        new.copy("knotflow", file)
        file["topology"] = new["topology"][()]
        for column in trajectory.COLUMNS.values():
            found = new[column.name]
            made = file.create_dataset(
                column.name, data=found[()], chunks=found.chunks, maxshape=found.maxshape
            )
            made.attrs.update(found.attrs)
    for either in (path, old):
        trajectory.append(either, some_frames(7), 3)
    assert plain(trajectory.read(old)) == plain(trajectory.read(path))
    assert len(trajectory.read(old)) == 10
    np.testing.assert_array_equal(mdtraj.load(str(path)).xyz, mdtraj.load(str(old)).xyz)


def test_a_flipped_bit_in_a_frame_is_noticed_by_who_reads_and_who_appends(tmp_path: Path) -> None:
    path = tmp_path / "data.h5"
    write_trajectory(path)
    raw = some_frames().positions.astype(np.float32).tobytes()[:40]
    content = bytearray(path.read_bytes())
    content[content.index(raw) + 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match=r"data\.h5 is cut off or damaged"):
        trajectory.read(path)
    with pytest.raises(OSError, match=r"data\.h5 is cut off or damaged"):
        trajectory.append(path, some_frames(), 5)


def test_dynamics_start_from_no_nonsense(tmp_path: Path) -> None:
    system, path = molecule("dimer"), tmp_path / "data.h5"
    trajectory.create(path, system, {})
    frames = some_frames()
    frames.positions[3, 1, 2] = np.nan
    trajectory.append(path, frames, 0)
    other = tmp_path / "data.npz"
    np.savez(other, positions=frames.positions)
    for file in (path, other):
        with pytest.raises(
            ValueError, match=rf"{file.name}: frame 3 has positions that are not finite or abs"
        ):
            frames_of(file, system, 5)
    with pytest.raises(ValueError, match="frame 3 has positions that are not finite"):
        run_inputs(system, frames.positions, DynamicsConfig(replicas=5))


def test_the_state_of_chains_is_sealed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.state"
    with caplog.at_level(logging.WARNING):
        chain_state().save(path)
        assert plain(ChainState.load(path)) == plain(chain_state())
    assert caplog.messages == []
