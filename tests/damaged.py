"""Files of every kind that knotflow reads, and ways to damage them."""

import json
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import typer

import knotflow as kf
from knotflow.cli import settings
from knotflow.dynamics import Record
from knotflow.dynamics.chains import ChainState
from knotflow.files import read_json, write_json
from knotflow.flows.io import notes
from knotflow.log_file import as_text, read_log
from knotflow.molecules.pdb_file import read_pdb
from knotflow.molecules.serialised import read_system
from knotflow.simulation.run import RunState
from knotflow.storage import journal, trajectory
from knotflow.storage.arrays import read_arrays, write_arrays
from knotflow.storage.other_programs import read_frames
from knotflow.storage.samples import SampleWriter, read_samples
from knotflow.storage.trajectory import Frames
from knotflow.training.checkpoint import read_checkpoint, write_checkpoint
from tests.molecules.molecules import frames, molecule

N = 5


class Kind(NamedTuple):
    """A kind of file."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]
    sealed: bool = True
    """Whether damage is noticed; texts and files of other programs have no checksum."""
    damaged: Callable[[Path], Path] = lambda path: path
    """The file to damage, if it is not the one that is read."""


def random() -> np.random.Generator:
    return np.random.default_rng(1)


def some_frames(n: int = N) -> Frames:
    x = frames(molecule("dimer"), n).numpy()
    rows = np.arange(n)
    return Frames(x, random().normal(size=x.shape), random().normal(size=n), rows // 2, rows % 2, rows * 0.1)


def write_trajectory(path: Path) -> None:
    trajectory.create(path, molecule("dimer"), {"command": "test"})
    trajectory.append(path, some_frames(), 0)


def read_trajectory(path: Path) -> object:
    info = trajectory.open_info(path)
    return info.system.plain(), info.provenance, info.n_frames, trajectory.read(path)


def write_samples(path: Path) -> None:
    x, system = frames(molecule("dimer"), N), molecule("dimer")
    with SampleWriter(path, system.plain(), weights=True) as writer:
        writer.write(x, x[:, 0, 0], x[:, 1, 0])
        writer.complete({"seed": 3})


def write_interrupted(path: Path) -> None:
    """A file with the journal of a change that was not carried out."""
    path.write_bytes(random().bytes(2000))
    journal._write_journal(path, [(10, random().bytes(500)), (900, random().bytes(30))], 2000)


def read_interrupted(path: Path) -> object:
    seen = journal.pending(path)
    return None if seen is None else seen.read()


def write_state(path: Path) -> None:
    RunState.fresh(random().normal(size=(3, 3)), 2, 2).save(path)


def chain_state() -> ChainState:
    x = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    return ChainState(x, x[:, 0, 0].double(), x[:, 1, 0].double(), torch.arange(50).byte(), torch.tensor(3))


def write_record(path: Path) -> None:
    table = random().normal(size=(4, 2))
    rows = np.arange(4.0)
    about = {"config": {"dt": 0.001}, "seconds": 1.0, "steps": 4}
    x = random().normal(size=(4, 2, 3, 3)).astype(np.float32)
    Record(rows, table, table + 1, x, np.zeros(2, int), np.full(2, -1), 1, 6, about).save(path)


def write_numbers(path: Path) -> None:
    write_json(path, {"amounts": {"frames": 100, "steps": None}, "spent": {"simulate": 1.25}, "name": "ä"})


def write_log(path: Path) -> None:
    path.write_text(as_text([(i, "loss", float(i) / 7) for i in range(30)], header=True))


def write_settings(path: Path) -> None:
    path.write_text('seed = 3\nname = "runs/a"\n[more]\nx = [1, 2.5, [3]]\nwhen = 2020-01-01\n')


def read_settings(path: Path) -> object:
    app = typer.Typer()
    app.command()(lambda: None)
    return settings.load(typer.main.get_command(app), path)


def write_import(path: Path) -> None:
    np.savez_compressed(path, positions=frames(molecule("dimer"), 20).numpy(), energies=np.arange(20.0))


def write_tensors(path: Path) -> None:
    tree = {"a": [1, 2.5, None, "x"], "b": (torch.arange(12.0).view(3, 4), {"c": torch.tensor(3)}), 5: True}
    write_checkpoint(path, tree)


KINDS = {
    "model.safetensors": Kind(
        lambda path: kf.save(kf.Flow.on([kf.Circle()] * 2, rounds=1), path, about={"seed": 1}),
        lambda path: (kf.load(path).state_dict(), notes(path)),
    ),
    "last.ckpt": Kind(write_tensors, read_checkpoint),
    "chains.state": Kind(lambda path: chain_state().save(path), ChainState.load),
    "data.h5": Kind(write_trajectory, read_trajectory),
    "samples.h5": Kind(write_samples, read_samples),
    "run.h5.state": Kind(write_state, RunState.load),
    "journalled": Kind(
        write_interrupted, read_interrupted, damaged=lambda path: path.with_name(f".{path.name}.journal")
    ),
    "record.npz": Kind(write_record, Record.load),
    "maps.npz": Kind(lambda path: write_arrays(path, {"x": np.eye(3), "of": np.array("a")}), read_arrays),
    "plan.json": Kind(write_numbers, read_json),
    "log.csv": Kind(write_log, read_log, sealed=False),
    "settings.toml": Kind(write_settings, read_settings, sealed=False),
    "frames.npz": Kind(
        write_import, lambda path: list(read_frames(path, molecule("dimer"), None, 7)), sealed=False
    ),
    "molecule.pdb": Kind(
        lambda path: path.write_bytes((Path(kf.__file__).parent / "molecules/data/ala2.pdb").read_bytes()),
        read_pdb,
        sealed=False,
    ),
    "system.xml": Kind(lambda path: path.write_text(molecule("dimer").xml), read_system, sealed=False),
}


def damage(content: bytes, random: np.random.Generator) -> bytes:
    """The content with one accident: flipped bits, a cut, an insertion, exchanged or blank pieces."""
    size = len(content)
    # Half of the accidents hit the beginning or the end, where headers are.
    near = min(size, 600)
    at = int(random.integers(size))
    if random.random() < 0.5:
        at = int(random.choice([random.integers(near), size - 1 - random.integers(near)]))
    length = int(min(size - at, 2 ** random.integers(0, 9)))
    other = int(random.integers(size - length + 1))
    piece, rest = content[at : at + length], content[at + length :]
    match random.integers(7):
        case 0:
            return content[:at] + bytes([content[at] ^ 1 << int(random.integers(8))]) + content[at + 1 :]
        case 1:
            return content[:at]
        case 2:
            return content[:at] + random.bytes(length) + content[at:]
        case 3:
            return content[:at] + random.bytes(length) + rest
        case 4:
            return content[:at] + bytes(length) + rest
        case 5:
            return content[:at] + rest
        case _:
            return content[:at] + content[other : other + length] + rest if other != at else content + piece


ODD: list[Any] = [None, -1, 0, True, 1e300, 10**12, -(10**30), math.nan, "x", "1", [], [[1]], {}, {"a": 1}]


def odd(value: Any, random: np.random.Generator) -> Any:
    """JSON values with one of them missing, or replaced by something else."""
    if not isinstance(value, dict | list) or not value or random.random() < 0.05:
        return ODD[random.integers(len(ODD))]
    changed: Any = value.copy()
    key = random.integers(len(value)) if isinstance(value, list) else list(value)[random.integers(len(value))]
    if random.random() < 0.1:
        del changed[key]
    else:
        changed[key] = odd(value[key], random)
    return changed


def plain(value: Any) -> Any:
    """A value that can be compared, with all bits of its arrays."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return json.dumps(value) if isinstance(value, float) else value
