"""``knotflow reproduce field`` as a user runs it; the work itself is tested in tests/paper."""

import json
from pathlib import Path

import pytest

from knotflow.cli.reproduce.field import Molecule
from knotflow.files import read_json
from knotflow.paper import field


@pytest.fixture
def run(run_here, monkeypatch):
    """The command without the work; returns also which molecules it asked for."""
    asked = []

    def nothing(folder: Path, scale: str, names: list[str], **_: object) -> list:
        asked.append((folder, scale, names))
        folder.mkdir(parents=True, exist_ok=True)
        return []

    monkeypatch.setattr(field, "run", nothing)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *options: (*run_here("reproduce", "field", *options), asked)


def test_published_figures_are_shown_before_ours_are_measured(run) -> None:
    status, said, asked = run("--scale", "smoke")
    assert status == 0 and asked == [(Path("runs/field-smoke"), "smoke", list(field.SYSTEMS))]
    assert "68.6" in said and "not yet measured" in said and "numbers mean nothing" in said
    assert {path.name for path in Path("runs/field-smoke").iterdir()} >= {
        "index.html",
        "field.md",
        "field.json",
    }


def test_json_and_a_choice_of_molecules(run) -> None:
    status, said, asked = run("--molecule", "AAA", "--molecule", "AAA", "--out", "here", "--json", "--quiet")
    found = json.loads(said)
    assert status == 0 and asked[0][1:] == ("small", ["AAA"])
    assert found["results"] == {} and found["published"]["AAA"]["cmt"] == 68.6
    assert found == {"page": "here/index.html", **read_json(Path("here/field.json"))}


def test_unknown_molecules_are_refused(run) -> None:
    status, said, asked = run("--molecule", "GGG")
    assert status == 2 and "GGG" in said and not asked


def test_the_options_name_all_molecules() -> None:
    assert [molecule.value for molecule in Molecule] == list(field.SYSTEMS)
