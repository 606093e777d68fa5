"""Sections on torsions: those that turn, the slowest first, and the map of the two slowest."""

import math

import numpy as np

from knotflow.analysis.frame_table import COLUMNS, FrameTable
from knotflow.report.figures import FLOW, MD, REWEIGHTED
from knotflow.report.torsion_sections import Torsions

ROWS, REPLICAS = 200, 4


def table(seed: int, **stay: float) -> FrameTable:
    """Torsions that jump between two wells, staying with some probability; one that does not turn."""
    random = np.random.default_rng(seed)
    angles = {"stiff": random.normal(math.pi, 0.1, ROWS * REPLICAS)}
    for name, s in stay.items():
        x = random.random((ROWS, REPLICAS)) < 0.5
        for row in range(1, ROWS):
            kept = random.random(REPLICAS) < s
            x[row, kept] = x[row - 1, kept]
        angles[name] = np.where(x, 1.0, -2.0).T.ravel() + 0.1 * random.normal(size=ROWS * REPLICAS)
    columns = dict.fromkeys(COLUMNS, np.zeros(ROWS * REPLICAS))
    columns["replica"] = np.repeat(np.arange(REPLICAS), ROWS).astype(np.int32)
    return FrameTable(**columns, torsions={}, angles={**angles, "ring A": angles["stiff"]})


def test_the_two_slowest_torsions_are_mapped() -> None:
    stay = {"fast": 0.0, "slow": 0.95, "middle": 0.8}
    flow, weight = table(1, **stay), np.ones(ROWS * REPLICAS)
    found = Torsions({MD: (table(0, **stay), None), FLOW: (flow, None), REWEIGHTED: (flow, weight)})
    assert list(found.others) == ["slow", "middle", "fast"]
    assert found.labels == {"slow and middle": ("slow", "middle")} and not found.one
    maps, profiles = found.maps(), found.profiles()
    assert maps.heading == "Maps of torsions" and len(maps.pictures) == 3
    assert "slowest in the data" in maps.paragraphs[1]
    assert len(profiles.pictures) == 3 + 3 + 3
    assert "Free energy on slow and middle, molecular dynamics" in [p.alt for p in profiles.pictures]
    without = Torsions({FLOW: (flow, None)})
    assert (
        list(without.others) == ["fast", "slow", "middle"]
        and "first that turn" in without.maps().paragraphs[1]
    )


def test_a_single_torsion_has_a_profile_but_no_map() -> None:
    found = Torsions({FLOW: (table(0, only=0.5), None)})
    assert list(found.others) == ["only"] and not found.two
    assert "No two torsions turn" in found.maps().paragraphs[0]
    nothing = Torsions({FLOW: (table(0), None)})
    assert nothing.profiles().paragraphs == ["No torsion turns in this molecule."]
