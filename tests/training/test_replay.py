"""Points that a model makes for its own training: weights, resampling, scores, wells, and their files."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import knotflow as kf
from knotflow.dynamics.masses import Masses
from knotflow.energies import MolecularEnergy, OpenMMEnergy, TorchForceField
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules import MolecularSystem
from knotflow.ranks import piece_seed
from knotflow.training import Replay, replay
from knotflow.training.molecules import load_data
from knotflow.training.replay import (
    ADDED,
    CANDIDATES,
    FEWEST,
    HEAVIEST,
    KEPT,
    REJECTED,
    TRUST,
    WORST,
    Wells,
    effective_share,
    trusted,
)
from tests.analysis.generators import (
    ANGLE,
    LENGTH,
    TILT,
    WIDTH,
    ala2_data,
    ala2_generator,
    chain,
    chain_generator,
    grids,
    widths,
    write,
)

NO_WELLS = Wells({})


def made(
    generator: BoltzmannGenerator,
    folder: Path,
    n: int,
    *,
    energy: MolecularEnergy | None = None,
    wells: Wells = NO_WELLS,
    offset: int = 0,
) -> Replay:
    system = MolecularSystem.parse(generator.molecule)
    energy = TorchForceField(system, compiled=False) if energy is None else energy
    masses = Masses.molecule(system.masses, system.temperature)
    return Replay(generator, energy, masses, wells, folder / "replay", n=n, offset=offset)


# --- weights ----------------------------------------------------------------------------------------------


def test_good_weights_are_only_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    log_w = np.zeros(400)
    log_w[7], log_w[9] = math.log(1e4), -math.inf
    mean = (398 + 1e4) / 400
    monkeypatch.setattr(replay, "TRUST", 0.0)
    for shift in (0.0, 1000.0, -1000.0):
        weight = trusted(log_w + shift)
        assert weight[7] == pytest.approx(HEAVIEST) and weight[9] == 0
        assert weight[0] == pytest.approx(1 / mean)
    monkeypatch.undo()
    even = 0.3 * np.random.default_rng(0).normal(size=1000)
    np.testing.assert_allclose(trusted(even), np.exp(even) / np.exp(even).mean())


def test_bad_weights_enter_with_the_largest_power_that_can_be_trusted() -> None:
    log_w = 5 * np.random.default_rng(1).normal(size=2000)
    log_w[::10] = -math.inf
    assert effective_share(log_w) < 0.1 * TRUST
    weight = trusted(log_w)
    assert (weight[::10] == 0).all() and weight.max() <= HEAVIEST
    free = (weight > 0) & (weight < HEAVIEST)
    power, _ = np.polyfit(log_w[free], np.log(weight[free]), 1)
    assert 0 < power < 1
    assert effective_share(power * log_w) == pytest.approx(TRUST, rel=1e-3)
    # Even where nothing but the allowed points counts.
    few = np.full(2000, -math.inf)
    few[: int(0.5 * TRUST * 2000)] = 9 * np.random.default_rng(2).normal(size=int(0.5 * TRUST * 2000))
    np.testing.assert_allclose(trusted(few)[np.isfinite(few)], 2 / TRUST, rtol=1e-4)


def test_weights_of_nothing() -> None:
    assert (trusted(np.full(3, -math.inf)) == 0).all()
    assert effective_share(np.full(3, -math.inf)) == 0
    even = np.random.default_rng(0).normal(size=1000)
    expected = np.exp(even).sum() ** 2 / np.exp(2 * even).sum() / 1000
    assert effective_share(even) == pytest.approx(expected)


# --- rounds -----------------------------------------------------------------------------------------------


def test_samples_have_the_moments_of_the_target_though_the_flow_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bonds and angles of the chain by quadrature: the flow's are too wide and know no volume."""
    monkeypatch.setattr(replay, "TRUST", 0.0)  # weights count in full
    generator, n = chain_generator(), 20_000
    rows, figures = made(generator, tmp_path, n).round(generator.flow, 1)
    drawn = round(REJECTED * n)
    assert rows.x.shape == rows.force.shape == (n + drawn, 6)
    assert rows.x.dtype == rows.force.dtype == rows.log_target.dtype == rows.weight.dtype == torch.float32
    assert (rows.weight[:n] == 1).all() and (rows.weight[n:] == 0).all()
    b, a, of_bond, of_angle = grids()
    bond, angle = widths()
    share, wrong = 1.0, 0
    for i in range(5):
        x, target = (b, of_bond) if i < 3 else (a, of_angle)
        middle, width = (LENGTH, WIDTH * bond) if i < 3 else (ANGLE, TILT * angle)
        target = target / np.trapezoid(target, x)
        proposal = np.exp(-((x - middle) ** 2) / (2 * width**2)) / (width * math.sqrt(2 * math.pi))
        share *= 1 / np.trapezoid(target**2 / proposal, x)
        q = rows.x[:n, i].double().numpy()
        for power in (1, 2):
            f = ((x - middle) / width) ** power
            exact = np.trapezoid(f * target, x)
            # Of a weighted average: mean of w² (f - exact)² over the flow's samples, divided by n.
            error = math.sqrt(np.trapezoid((f - exact) ** 2 * target**2 / proposal, x) / share / n)
            assert (((q - middle) / width) ** power).mean() == pytest.approx(exact, abs=5 * error)
            of_flow = np.trapezoid(f * proposal, x)
            wrong += abs(of_flow - exact) > 10 * error
    assert wrong >= 7, "the flow itself is far off"
    assert figures["ess"] == pytest.approx(share, rel=0.05) and figures["ess_clipped"] >= figures["ess"]
    assert set(figures) == {"ess", "ess_clipped", "ess_trimmed"}, "the torsion has no wells"


def test_moves_keep_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variance of the three bonds together, by quadrature; moving only repeats would widen it."""
    monkeypatch.setattr(replay, "TRUST", 0.0)
    generator, n = chain_generator(), 10_000
    own = made(generator, tmp_path, n)
    moved = []
    original = own._moved

    def counted(q: Tensor, random: torch.Generator) -> Tensor:
        moved.append(len(q))
        return original(q, random)

    monkeypatch.setattr(own, "_moved", counted)
    some = own.round(generator.flow, 1)[0].x[:n]
    assert 0.1 * n < sum(moved) < 0.9 * n
    every = original(some, torch.Generator().manual_seed(0))
    assert float((some != every).any(-1).float().mean()) > 0.9
    b, _, density, _ = grids()
    f = ((b - LENGTH) / widths()[0]) ** 2
    exact = np.trapezoid(f * density, b) / np.trapezoid(density, b)
    for q in (some, every):
        found = ((q[:, :3].double().numpy() - LENGTH) / widths()[0]) ** 2
        error = found.std() / math.sqrt(3 * n * 0.7)  # of effective samples
        assert found.mean() == pytest.approx(exact, abs=4 * error)


def test_every_row_has_its_own_score_and_density(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in many pieces, and where repeated points were moved; hardly a point is there twice."""
    monkeypatch.setattr(replay, "PIECE", 70)
    generator, n = chain_generator(), 300
    own = made(generator, tmp_path, n)
    rows, _ = own.round(generator.flow, 1)
    monkeypatch.setattr(replay, "PIECE", 1000)
    score, log_target = own.judged(rows.x)
    torch.testing.assert_close(rows.force[:n], score[:n], rtol=1e-6, atol=1e-3)
    assert (rows.force[n:] == 0).all()
    log_prob = generator.flow.log_prob(rows.x).double()
    fine = log_target[n:] > log_prob[n:] - WORST / 2 + (log_target - log_prob)[:n].median()
    assert fine.float().mean() > 0.3
    torch.testing.assert_close(rows.log_target[:n], log_target[:n].float(), rtol=0, atol=1e-3)
    torch.testing.assert_close(rows.log_target[n:][fine], log_target[n:][fine].float(), rtol=0, atol=1e-3)
    seeds = [torch.Generator().manual_seed(piece_seed(1, number)) for number in range(5)]
    pieces = [
        generator.flow.sample(size, generator=random)
        for size, random in zip([70, 70, 70, 70, 20], seeds, strict=True)
    ]
    drawn = {tuple(q) for q in torch.cat(pieces).tolist()}
    assert all(tuple(q) in drawn for q in rows.x[n:].tolist()), "as drawn"
    different = {tuple(q) for q in rows.x[:n].tolist()}
    assert len(different) > 0.8 * n > len(different & drawn) > 0.3 * n


def test_rounds_depend_on_their_seed_only(tmp_path: Path) -> None:
    generator = chain_generator()
    own = made(generator, tmp_path, 300)
    (first, figures), (second, others) = own.round(generator.flow, 1), own.round(generator.flow, 2)
    torch.manual_seed(5)
    again, same = own.round(generator.flow, 1)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert figures == same != others and not torch.equal(first.x, second.x)


@pytest.fixture(scope="module")
def ala2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ala2_data(tmp_path_factory.mktemp("ala2") / "ala2.h5")


def test_scores_are_those_of_frames_of_a_simulation(ala2: Path, tmp_path: Path) -> None:
    """The same positions, once as samples and once as a trajectory with forces by OpenMM."""
    generator = ala2_generator(ala2)
    system = MolecularSystem.parse(generator.molecule)
    q = generator.flow.sample(120, generator=torch.Generator().manual_seed(3))
    score, log_target = made(generator, tmp_path, 10).judged(q)
    x, ladj = generator.coordinates.inverse(q.double())
    loaded = load_data(
        write(tmp_path / "x.h5", system, x.float().numpy(), np.arange(120) // 10), generator.coordinates
    )
    held = torch.from_numpy(loaded.split.mask())
    for part, rows in ((loaded.train, ~held), (loaded.validation, held)):
        expected = generator.unwound(q[rows])
        torch.testing.assert_close(generator.unwound(part.x), expected, rtol=0, atol=2e-6)
        error = (part.force - score[rows]).abs()
        assert (error <= 1e-4 * score.abs().amax(0) + 0.05).all()
    with OpenMMEnergy(system, workers=1) as energy:
        u = energy.energy(x)
    usable = (generator.unwound(q) == q).all(-1) & generator.chirality.matches(x)
    assert usable.sum() > 80
    torch.testing.assert_close(log_target, torch.where(usable, ladj - u, -math.inf), rtol=0, atol=1e-2)


def test_mirror_images_have_no_weight(ala2: Path, tmp_path: Path) -> None:
    generator = ala2_generator(ala2, turning=True)
    own = made(generator, tmp_path, 400)
    q = generator.flow.sample(400, generator=torch.Generator().manual_seed(0))
    _, log_target = own.judged(q)
    right = generator.chirality.matches(generator.coordinates.inverse(q)[0])
    assert 50 < int(right.sum()) < 350
    assert (log_target[~right] == -math.inf).all() and log_target[right].isfinite().float().mean() > 0.9
    rows, _ = own.round(generator.flow, 0)
    target = rows.x[rows.weight > 0]
    assert len(target) == 400
    assert generator.chirality.matches(generator.coordinates.inverse(target)[0]).all()
    assert rows.log_target.isfinite().all(), "of mirror images too, which should get less density"


def test_a_torsion_counts_in_one_turn_only(ala2: Path, tmp_path: Path) -> None:
    """Of a torsion on a line, the same structure a turn further on must not count again."""
    generator = ala2_generator(ala2)
    own = made(generator, tmp_path, 10)
    q = generator.unwound(generator.flow.sample(10, generator=torch.Generator().manual_seed(0)))
    wound = q.clone()
    wound[:5, generator.coordinates.torsions.start] += 2 * math.pi
    assert own.judged(q)[1].isfinite().all()
    assert (own.judged(wound)[1] == -math.inf).tolist() == [True] * 5 + [False] * 5


def test_hopeless_samples_are_no_samples_of_the_target(tmp_path: Path) -> None:
    class Cold(TorchForceField):
        def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
            u, force = super().energy_and_force(x)
            return torch.full_like(u, math.nan), force

    generator = chain_generator()
    rows, figures = made(generator, tmp_path, 60, energy=Cold(chain(), compiled=False)).round(
        generator.flow, 0
    )
    assert len(rows.x) == round(REJECTED * 60) and (rows.weight == 0).all()
    assert rows.log_target.isfinite().all() and set(figures.values()) == {0.0}
    wide = kf.Flow.on(
        [kf.Interval(1e-3, 0.3)] * 3 + [kf.Interval(0.01, 3.1)] * 2 + [kf.Circle(-math.pi, math.pi)]
    )
    own = made(BoltzmannGenerator(generator.coordinates, wide, chain().plain()), tmp_path, 1000)
    rows, figures = own.round(wide, 0)
    assert 0 < figures["ess"] < 0.2 and rows.log_target.isfinite().all() and rows.force.isfinite().all()
    # Bounded below, so that clashes do not count for all.
    log_w = (rows.log_target - wide.log_prob(rows.x))[rows.weight == 0]
    assert float(log_w.max() - log_w.min()) < WORST + 20


# --- wells ------------------------------------------------------------------------------------------------


class Tilted(TorchForceField):
    """The chain with two wells of its torsion: the one around 0 has little mass."""

    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u, force = super().energy_and_force(x)
        return u + torch.func.vmap(self.more)(x), force - torch.func.vmap(torch.func.grad(self.more))(x)

    @staticmethod
    def more(x: Tensor) -> Tensor:
        b1, b2, b3 = x[1] - x[0], x[2] - x[1], x[3] - x[2]
        n1, n2 = torch.linalg.cross(b1, b2), torch.linalg.cross(b2, b3)
        cos = (n1 * n2).sum() / (n1.norm() * n2.norm())
        return 1.5 * cos - 1.5 * (2 * cos.square() - 1)


def test_rare_wells_are_evened_out_and_weigh_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "TRUST", 0.0)  # weights count in full
    generator, n = chain_generator(), 20_000
    phi = np.linspace(-math.pi, math.pi, 20_001)
    density = np.exp(-1.5 * np.cos(phi) + 1.5 * np.cos(2 * phi))
    share = density[abs(phi) < math.pi / 2].sum() / density.sum()
    wells = Wells({5: np.array([-math.pi / 2, math.pi / 2])})
    own = made(generator, tmp_path, n, energy=Tilted(chain(), compiled=False), wells=wells)
    rows, figures = own.round(generator.flow, 1)
    assert 0.01 < share < replay.EVEN
    target = rows.weight > 0
    rare = (rows.x[:, 5].abs() < math.pi / 2)[target]
    weight = rows.weight[target]
    assert float(rare.float().mean()) > 1.5 * share, "there are more of them"
    assert float(weight[rare].mean()) < 0.7 * float(weight[~rare].mean()), "each counts less"
    assert float(weight[rare].sum() / weight.sum()) == pytest.approx(share, rel=0.1)
    assert float(weight.mean()) == pytest.approx(1.0)
    assert 0 < figures["ess_least"] <= 1
    # By hand: the effective sample size inside each well.
    q, log_prob, _, _ = own.drawn(generator.flow, 1)
    log_w = (own.judged(q)[1] - log_prob.double()).numpy()
    inside = (q[:, 5].abs() < math.pi / 2).numpy()
    expected = min(effective_share(log_w[inside]), effective_share(log_w[~inside]))
    assert figures["ess_least"] == pytest.approx(expected, rel=1e-3)


def test_a_rare_well_has_the_points_of_many_more_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The torsion of the chain is uniform: the share of an arc is found better than draws alone allow."""
    monkeypatch.setattr(replay, "TRUST", 0.0)
    monkeypatch.setattr(replay, "MOVED", 0.0)  # points stay as they were drawn
    generator, n, width = chain_generator(), 20_000, 0.15
    wells = Wells({5: np.array([0.0, width])})
    own = made(generator, tmp_path, n, wells=wells)
    q, *_ = own.drawn(generator.flow, 1)
    rare, drawn = own._rare(q), int(wells.inside(q, own._rare(q)).sum())
    inside = (q[:, 5] >= 0) & (q[:, 5] < width)
    assert len(rare) == 1 and drawn == int(inside.sum()), "the arc, and not the rest of the circle"
    rows, figures = own.round(generator.flow, 1)
    target = rows.weight > 0
    within = torch.from_numpy(wells.inside(rows.x, rare)) & target
    assert len({tuple(x) for x in rows.x[within].tolist()}) > 0.6 * CANDIDATES * drawn
    share = width / (2 * math.pi)
    found = float(rows.weight[within].sum() / rows.weight[target].sum())
    assert found == pytest.approx(share, abs=4 * math.sqrt(share / (CANDIDATES * n * figures["ess"])))
    log_w = own.judged(q)[1] - generator.flow.log_prob(q).double()
    assert figures == pytest.approx(own.figures(q, log_w.detach().numpy())), "of the draws alone"


def test_not_more_wells_than_pay_get_more_points(tmp_path: Path) -> None:
    """The rarest first, until they would add half of all points."""
    edges = np.array([-3.0, -2.95, -2.85, -2.7, 0.0])  # shares of about 0.008, 0.016, 0.024, and two of more
    own = made(chain_generator(), tmp_path, 10_000, wells=Wells({5: edges}))
    q, *_ = own.drawn(own.generator.flow, 3)
    counts = [int(member.sum()) for member in own.wells.members(q)]
    assert [counts[well] for well in own._rare(q)] == sorted(counts)[:3]
    three, four = ((CANDIDATES - 1) * sum(sorted(counts)[:n]) for n in (3, 4))
    assert three <= ADDED * len(q) < four
    assert made(chain_generator(), tmp_path, 100)._rare(q) == []


def test_wells_of_data() -> None:
    random = np.random.default_rng(0)
    q = torch.tensor(random.normal(size=(3000, 6)) * 0.1)
    q[:, 5] = torch.tensor(np.concatenate([random.vonmises(-1.5, 9, 2500), random.vonmises(1.2, 9, 500)]))
    wells = Wells.of(chain_generator().flow, q)
    assert set(wells.edges) == {5} and len(wells.edges[5]) == 2
    members = wells.members(q)
    assert sorted(int(own.sum()) for own in members) == pytest.approx([500, 2500], abs=25)
    assert (np.sum(members, axis=0) == 1).all()
    assert NO_WELLS.members(q) == []
    assert Wells.of(chain_generator().flow, q[:, [0, 1, 2, 3, 5, 4]]).edges == {}, "lines have no wells"


def test_nothing_is_said_of_wells_with_few_points(tmp_path: Path) -> None:
    own = made(chain_generator(), tmp_path, 10, wells=Wells({5: np.array([-1.0, 1.0])}))
    q = torch.full((2 * FEWEST, 6), 2.0)
    q[: FEWEST - 1, 5] = 0.0
    log_w = np.zeros(2 * FEWEST)
    log_w[: FEWEST - 1] = np.linspace(0, 50, FEWEST - 1)
    assert own.figures(q, log_w)["ess_least"] == pytest.approx(1.0)
    q[FEWEST - 1, 5] = 0.0
    assert own.figures(q, log_w)["ess_least"] < 0.1


# --- rounds in a folder -----------------------------------------------------------------------------------


def test_a_pool_has_the_rows_of_the_last_rounds(tmp_path: Path) -> None:
    generator, n = chain_generator(), 60
    own = made(generator, tmp_path, n)
    size = n + round(REJECTED * n)
    found = [own.round(generator.flow, 100 + i) for i in range(KEPT + 2)]
    rounds = [rows.x for rows, _ in found]
    for i in range(KEPT + 2):
        pool = own(generator.flow, 10 * i, 100 + i)
        expected = torch.cat(rounds[max(0, i + 1 - KEPT) : i + 1])
        assert torch.equal(pool.batch.x, expected) and len(expected) == min(i + 1, KEPT) * size
        assert pool.batch.weight.shape == (len(expected),)
        assert pool.figures == found[i][1]
        assert len(list(own.folder.iterdir())) == min(i + 1, KEPT), "others are removed"
    own.clear()
    assert not own.folder.exists()
    own.clear()  # nothing to do


def test_an_interrupted_training_gets_the_rows_it_had(tmp_path: Path) -> None:
    """Another process, another flow: rows that were drawn are read; a half-written file does not count."""
    generator = chain_generator()
    first = made(generator, tmp_path, 60)
    for step in (0, 10):
        expected = first(generator.flow, step, step)
    (first.folder / ".round-00000020.rows.abc").write_bytes(b"half")
    with torch.no_grad():
        for parameter in generator.flow.parameters():
            parameter += 0.1
    again = made(generator, tmp_path, 60)(generator.flow, 10, 10)
    assert again.figures == expected.figures
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(again.batch, expected.batch, strict=True))
    # Going back to an earlier round, later rows are not used.
    assert len(made(generator, tmp_path, 60)(generator.flow, 0, 0).batch.x) == len(again.batch.x) // 2


def test_a_second_training_goes_on_with_other_points(tmp_path: Path) -> None:
    generator = chain_generator()
    own = made(generator, tmp_path, 60)
    first = own(generator.flow, 0, 7)
    own.offset += 50
    second = own(generator.flow, 0, 7)
    rows = len(first.batch.x)
    assert len(second.batch.x) == 2 * rows and torch.equal(second.batch.x[:rows], first.batch.x)
    assert not torch.equal(second.batch.x[rows:], first.batch.x)
