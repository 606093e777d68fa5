"""Inputs of results: which are the same, and how others are refused."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from knotflow.files import read_json, write_json
from knotflow.inputs import among, file_fingerprint, fingerprint, refuse_others, refuse_strangers, same

INPUTS = {"seed": 3, "data": {"file": "a.h5", "frames": 10}, "layers": [{"bins": 8}, {"bins": 16}]}


def test_inputs_survive_a_file(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", {"inputs": {**INPUTS, "path": tmp_path, "ends": (0, 1)}})
    found = read_json(tmp_path / "result.json")["inputs"]
    assert same(found, {"ends": (0, 1), "path": tmp_path, **INPUTS})
    assert fingerprint(found) == fingerprint({"ends": (0, 1), "path": tmp_path, **INPUTS})


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 4},
        {"data": {"file": "a.h5", "frames": 11}},
        {"data": "a.h5"},
        {"layers": [{"bins": 8}]},
        {"layers": [{"bins": 8}, {"bins": 17}]},
        {"new": 1},
        {"seed": None},
    ],
)
def test_other_inputs_are_not_the_same(other: dict) -> None:
    assert not same(INPUTS, {**INPUTS, **other}) and not same({**INPUTS, **other}, INPUTS)
    assert fingerprint(INPUTS) != fingerprint({**INPUTS, **other})


def test_none_is_what_is_not_noted() -> None:
    assert same(INPUTS, {**INPUTS, "later": None}) and not same(None, {})
    assert among({"seed": 3, "besides": 1}, {"seed": 3, "later": None}) == {"seed": 3, "later": None}


def test_others_are_refused_with_what_differs() -> None:
    refuse_others(Path("out"), "chains", INPUTS, dict(INPUTS))
    wanted = {"seed": 4, "data": {"file": "a.h5", "frames": 11}, "layers": [{"bins": 8}, {"bins": 17}]}
    with pytest.raises(ValueError) as refused:
        refuse_others(Path("out"), "chains", INPUTS, wanted)
    assert str(refused.value) == (
        "out holds chains made with seed 3, data.frames 10, layers.1.bins 16, but you asked for seed 4, "
        "data.frames 11, layers.1.bins 17; ask for the same, or choose another name."
    )
    with pytest.raises(ValueError, match=r"made with model 000000000000…, but you asked for model unknown;"):
        refuse_others(Path("out"), "samples", {"model": "0" * 64}, {})
    with pytest.raises(ValueError, match=r"made with a 0, b 1, c 2, d 3, .* \(and 2 more differences\);"):
        refuse_others(Path("out"), "a run", dict(zip("abcdef", range(6), strict=True)), {})


def test_a_folder_without_a_note_must_be_empty_of_what_would_be_replaced(tmp_path: Path) -> None:
    note, files = tmp_path / "inputs.json", [tmp_path / name for name in ("a.h5", "b.json")]
    (tmp_path / "c").touch()
    refuse_strangers(note, "a run", files)
    files[1].touch()
    with pytest.raises(FileExistsError, match=r"holds b\.json, but no inputs\.json, .* of a run;"):
        refuse_strangers(note, "a run", files)
    note.touch()
    refuse_strangers(note, "a run", files)


def test_fingerprints_of_files_tell_contents_apart(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"same")
    b.write_bytes(b"same")
    assert file_fingerprint(a) == file_fingerprint(b)
    b.write_bytes(b"other")
    assert file_fingerprint(a) != file_fingerprint(b)


@dataclass
class Found:
    value: float


def test_json_files(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_json(file, {"all": [Found(1.5), Found(float("nan")), "±", tmp_path]})
    assert read_json(file) == {"all": [{"value": 1.5}, {"value": None}, "±", str(tmp_path)]}
    assert read_json(file, "all") == read_json(file)
    with pytest.raises(ValueError, match=r"a\.json has no none, and is damaged; remove it\."):
        read_json(file, "all", "none")
    file.write_text(file.read_text().replace("1.5", "1.25"))
    with pytest.raises(
        ValueError, match=r"a\.json is damaged or was changed by hand: its content does not fit"
    ):
        read_json(file)
    file.write_text('{"all": 1}')  # of an earlier version
    assert read_json(file) == {"all": 1}
    file.write_text("[]")
    with pytest.raises(ValueError, match=r"a\.json must hold a table of keys and values, and is damaged"):
        read_json(file)
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        for depth in (300, 100_000):
            file.write_text(opening * depth + "1" + closing * depth)
            with pytest.raises(
                ValueError, match=r"a\.json is not JSON, or is damaged \(it is nested more than"
            ):
                read_json(file)
    file.write_text("{")
    with pytest.raises(ValueError, match=r"a\.json is not JSON, or is damaged .*; remove it"):
        read_json(file)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")
