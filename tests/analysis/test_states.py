"""States: how users write them, how they are found, and that their populations are the right ones."""

import math
from pathlib import Path

import numpy as np
import pytest

from knotflow.analysis.evaluation import evaluate
from knotflow.analysis.states import (
    YOURS,
    Condition,
    Source,
    State,
    angles_for,
    automatic_states,
    compared_states,
    read_angles,
    states_of_file,
    your_states,
)
from knotflow.energies import TorchForceField
from knotflow.files import read_json
from tests.analysis.generators import chain, chain_data, chain_generator
from tests.molecules.molecules import molecule

TORSION = "C1-C2-C3-C4"
WELLS = {"gauche-": -65.0, "gauche+": 65.0, "anti": 180.0}
SHARES = {"gauche-": 0.15, "gauche+": 0.15, "anti": 0.7}


def butane(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A torsion with the wells of butane, in known shares."""
    random = np.random.default_rng(seed)
    well = random.choice(list(WELLS), n, p=list(SHARES.values()))
    angle = np.radians([WELLS[name] for name in well]) + random.normal(0, 0.2, n)
    return {TORSION: (angle + math.pi) % (2 * math.pi) - math.pi}


def test_states_as_users_write_them() -> None:
    ala2 = molecule("ala2")
    by_number = State.parse("left: torsion 4 6 8 14 in -180..0", ala2)
    by_name = State.parse("left:  torsion ACE1:C ALA2:N CA ALA2:C in  -180 .. 0", ala2)
    assert by_number == by_name and by_number.name == "left"
    assert by_name.definition == "torsion ACE1:C ALA2:N ALA2:CA ALA2:C in -180..0"
    assert State.parse(f"left: {by_name.definition}", ala2) == by_name
    helix = State.parse("helix: torsion 4 6 8 14 in -100..-30 and torsion 6 8 14 16 in -80.5..-5", ala2)
    assert len(helix.conditions) == 2 and State.parse(f"helix: {helix.definition}", ala2) == helix
    angles = {c.angle.name: np.radians([-60.0, -60, 60]) for c in helix.conditions}
    angles[helix.conditions[1].angle.name] = np.radians([-40.0, 140, -40])
    assert helix.holds(angles).tolist() == [True, False, False]


@pytest.mark.parametrize("arc", ["150..210", "150..-150", "-210..-150", "510..570"])
def test_an_arc_may_cross_the_seam(arc: str) -> None:
    condition = Condition.parse(f"torsion 0 1 2 3 in {arc}", chain())
    values = np.radians([-180.0, -151, -149, 0, 149, 151, 180, np.nan])
    assert condition.holds({TORSION: values}).tolist() == [True, True, False, False, False, True, True, False]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("torsion 0 1 2 3 in 0..180", "a name, a colon and a condition"),
        (": torsion 0 1 2 3 in 0..180", "a name, a colon and a condition"),
        ("anti: torsion 0 1 2 3", "a condition reads like"),
        ("anti: torsion 0 1 2 3 in 0-180", "a condition reads like"),
        ("anti: distance 0 1 in 0..180", "a condition reads like"),
        ("anti: torsion 0 1 2 in 0..180", "four different atoms"),
        ("anti: torsion 0 1 2 2 in 0..180", "four different atoms"),
        ("anti: torsion 0 1 2 4 in 0..180", "no atom 4; atoms are numbered from 0 to 3"),
        ("anti: torsion C1 C2 C3 CX in 0..180", "no atom CX"),
        ("anti: pucker 0 1 2 3 in 0..180", "a pucker cannot have 4 atoms"),
        ("anti: torsion 0 1 2 3 in 0..400", "at most 360"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s){why}.*A state reads like \"anti: torsion"):
        State.parse(text, chain())


def test_two_states_of_one_name_are_refused() -> None:
    text = "anti: torsion 0 1 2 3 in 120..240"
    with pytest.raises(ValueError, match="2 states are called 'anti'"):
        your_states([text, text], chain())


def test_wells_are_found_and_named() -> None:
    (group,) = automatic_states(chain(), butane(3000))
    assert group.name == TORSION and {state.name for state in group.states} == set(WELLS)
    angles = butane(3000, 1)
    members = group.members(angles)
    assert (members.sum(1) == 1).all()  # wells cover the circle and do not overlap
    for state in group.states:
        assert State.parse(f"{state.name}: {state.definition}", chain()) == state
    # A well that only samples visit is a state, and torsions all around have no wells.
    only_anti = {TORSION: np.random.default_rng(0).normal(math.pi, 0.2, 1000)}
    assert automatic_states(chain(), only_anti, butane(3000)) == [group]
    everywhere = {TORSION: np.linspace(-math.pi, math.pi, 3000)}
    assert automatic_states(chain(), everywhere) == automatic_states(chain(), only_anti) == []


def test_populations_side_by_side() -> None:
    """Samples with too much gauche are right again with weights; thin data give no error bars."""
    random = np.random.default_rng(5)
    angle = butane(4000)[TORSION]
    flat = random.choice(4000, 4000, p=(w := np.where(np.abs(angle) < 2, 3.0, 1.0)) / w.sum())
    sources = {
        "data": Source(butane(4000, 2), np.repeat(np.arange(20), 200)),
        "samples": Source({TORSION: angle[flat]}),
        "reweighted": Source({TORSION: angle[flat]}, weight=1 / w[flat]),
        "thin": Source({TORSION: np.radians(np.where(np.arange(50) < 2, 65.0, 180.0))}, np.repeat(0, 50)),
    }
    (found,) = compared_states(chain(), sources)
    for source in ("data", "reweighted"):
        for name, share in SHARES.items():
            got = found.population(name, source)
            assert abs(got.value - share) < 4 * got.error < 0.06
        gap = found.free_energy("gauche+", "anti", source)
        assert abs(gap.value - math.log(0.7 / 0.15)) < 4 * gap.error < 0.5
        back = found.free_energy("anti", "gauche+", source)
        assert (back.value, back.error) == (-gap.value, gap.error)
    assert found.population("anti", "samples").value == pytest.approx(0.7 / (0.7 + 3 * 0.3), abs=0.05)
    broken = Source({TORSION: np.full(10, np.nan)})
    assert list(compared_states(chain(), {**sources, "broken": broken})[0].sources) == list(sources)
    thin = found.population("gauche+", "thin")
    assert thin.value == pytest.approx(0.04) and math.isnan(thin.error)
    with pytest.raises(ValueError, match="has the states"):
        found.population("cis", "data")
    plain = found.plain()
    assert [len(plain[key]) for key in ("states", "differences")] == [3, 3]
    numbers = {state["name"]: state["population"]["thin"] for state in plain["states"]}
    assert numbers["gauche+"]["error"] is None and "too rarely" in numbers["gauche+"]["note"]
    assert "never visited" in str(plain["differences"]) and numbers["gauche-"]["value"] == 0


def test_states_of_an_evaluation(tmp_path: Path) -> None:
    """The torsion of the chain is free: half of everything is on each side, a third in a third."""
    data, exact = chain_data(tmp_path / "chain.h5", 1000), chain_data(tmp_path / "exact.h5", 1000, seed=3)
    texts = ["left: torsion 0 1 2 3 in -180..0", "third: torsion C1 C2 C3 C4 in 0..120"]
    energy = TorchForceField(chain(), compiled=False)
    options = {"samples": 1000, "states": texts, "chains": exact}
    for source in (data, None):
        found = evaluate(chain_generator(), source, energy, **options)
        (group,) = found.states
        assert group.group.name == YOURS and ("data" in group.sources) == (source is not None)
        for where in group.sources:
            for name, share in (("left", 1 / 2), ("third", 1 / 3)):
                got = group.population(name, where)
                assert abs(got.value - share) < 4 * got.error < 0.12
            gap = group.free_energy("third", "left", where)
            assert abs(gap.value - math.log(1.5)) < 4 * gap.error
    assert list(group.sources) == ["samples", "reweighted", "exact"]
    file, model = tmp_path / "metrics.json", tmp_path / "model.safetensors"
    chain_generator().save(model)
    found.write(file, model)
    written = read_json(file)
    assert written["about"]["states"] == texts and written["about"]["chains"]["file"] == "exact.h5"
    assert written["states"][0]["states"][0]["definition"] == "torsion C1 C2 C3 C4 in -180..0"
    with pytest.raises(ValueError, match="no atom CX"):
        evaluate(chain_generator(), data, energy, samples=10, states=["a: torsion 0 1 2 CX in 0..90"])


def test_angles_of_a_file(tmp_path: Path) -> None:
    state = State.parse("turned: torsion 3 2 1 0 in 0..90", chain())
    angles = angles_for(chain(), [state])
    assert [angle.name for angle in angles] == [TORSION, "C4-C3-C2-C1"]
    found, replica = read_angles(chain_data(tmp_path / "chain.h5", 100, replicas=4), angles)
    assert np.allclose(found[TORSION], found["C4-C3-C2-C1"])
    assert np.unique(replica).tolist() == [0, 1, 2, 3] and len(replica) == 100
    (group,) = states_of_file(tmp_path / "chain.h5", ["turned: torsion 3 2 1 0 in 0..90"])
    inside = state.holds(found)
    assert group.population("turned", "data").value == pytest.approx(inside.mean())
