"""Tables of numbers: read back, they are what was written."""

import csv
import io
import math

import numpy as np

from knotflow.analysis.frame_table import FrameTable
from knotflow.analysis.free_energy_profiles import Profile, marginal
from knotflow.analysis.learned_maps import LearnedMap
from knotflow.dynamics.record import Record
from knotflow.report import csv_files
from knotflow.report.verdicts import judge


def rows(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def seen(n: int, **structures: np.ndarray) -> FrameTable:
    x = np.arange(n, dtype=float)
    x[1] = np.nan
    replica, torsions = np.zeros(n, dtype=np.int32), {"ALA2": np.stack((x, x + 1), 1)}
    return FrameTable(x, x, -x, np.arange(n) % 2 == 0, x, x, replica, torsions, **structures)


def test_metrics_are_exact() -> None:
    value = -216.05308325986508
    plain = {
        "measures": {"nll": {"text": "NLL, of data", "value": value, "error": 0.04, "unit": "nats"}},
        "residues": {"ALA2": {"torus_w2": {"text": "W2", "value": None, "error": None, "note": 'a "b"'}}},
    }
    first, second = rows(csv_files.metrics(plain))
    assert float(first["value"]) == value and first["text"] == "NLL, of data" and first["residue"] == ""
    assert second == {
        "residue": "ALA2", "measure": "torus_w2", "value": "", "error": "", "unit": "", "text": "W2",
        "note": 'a "b"',
    }  # fmt: skip


def test_verdicts_have_their_rules() -> None:
    found = judge({})
    table = rows(csv_files.verdicts(found))
    assert [(row["subject"], row["level"], row["rule"]) for row in table] == [
        (v.subject, v.level.value, v.rule) for v in found
    ]


def test_frames_keep_six_digits_and_gaps(monkeypatch) -> None:
    table = rows(csv_files.frames(seen(5), {"log_weight": np.full(5, -math.inf)}))
    assert [row["energy"] for row in table] == ["-0", "", "-2", "-3", "-4"]
    assert table[4]["psi_ALA2"] == "5" and table[0]["log_weight"] == "-inf"
    assert [row["right_handed"] for row in table] == ["1", "0", "1", "0", "1"]
    monkeypatch.setattr(csv_files, "ROWS", 2)
    assert [row["log_prob"] for row in rows(csv_files.frames(seen(5)))] == ["0", "2"]


def test_free_energies_of_one_and_two_torsions() -> None:
    line = Profile(np.array([1.0, np.nan]), np.array([0.1, np.nan]))
    surface = Profile(np.array([[2.0, np.nan], [np.nan, 3.0]]), np.full((2, 2), 0.2))
    table = rows(
        csv_files.profiles({"ALA2": {"phi": {"MD": line}, "psi": {"MD": line}}}, {"ALA2": {"MD": surface}})
    )
    assert [(row["phi"], row["psi"], row["free_energy"]) for row in table] == [
        ("-1.5708", "", "1"), ("1.5708", "", ""), ("", "-1.5708", "1"), ("", "1.5708", ""),
        ("-1.5708", "-1.5708", "2"), ("1.5708", "1.5708", "3"),
    ]  # fmt: skip


def test_marginals_forces_and_maps() -> None:
    values = np.linspace(0, 1, 100)
    table = rows(csv_files.marginals([marginal("bond C0-C1", None, values, np.ones(100))]))
    assert {row["data"] for row in table} == {""}
    width = float(table[0]["high"]) - float(table[0]["low"])
    assert abs(sum(float(row["samples"]) for row in table) * width - 1) < 1e-4

    force = np.arange(2 * 2 * 3, dtype=float).reshape(2, 2, 3)
    kept = np.array([0, 2])
    drawn = seen(3, kept=kept, true_force=force, flow_force=force + 0.5)
    table = rows(csv_files.forces({"data": None, "samples": drawn}))
    assert len(table) == 12 and {row["on"] for row in table} == {"samples"}
    assert [table[7][key] for key in ("frame", "atom", "direction", "force_field", "flow")] == [
        "1", "0", "y", "7", "7.5",
    ]  # fmt: skip

    x = np.linspace(0, 1, 17)
    table = rows(csv_files.maps([LearnedMap("bond 0-1", 2, x, np.stack((x, x**2)), np.stack((x, 2 * x)))]))
    assert [row["y"] for row in table] == ["0", "0.5", "1", "0", "0.25", "1"]


def test_dynamics_over_time() -> None:
    potential = np.array([[1.0, 2.0], [3.0, np.nan]])
    record = Record(
        np.array([0.0, 0.5]), potential, potential, np.zeros((2, 2, 1, 3), np.float32),
        np.zeros(2, int), np.full(2, -1), 0, 3,
    )  # fmt: skip
    assert rows(csv_files.dynamics(record)) == [
        {"time": "0", "potential_0": "1", "potential_1": "2", "total_0": "2", "total_1": "4"},
        {"time": "0.5", "potential_0": "3", "potential_1": "", "total_0": "6", "total_1": ""},
    ]
