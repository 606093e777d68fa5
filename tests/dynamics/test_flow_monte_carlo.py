"""Exact samples with flows that are wrong: moments, distributions, detailed balance, rates, resuming."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import knotflow as kf
from knotflow.dynamics import ChainState, FlowEnergy, FlowMonteCarlo, Masses
from knotflow.dynamics.hybrid import HybridMove
from knotflow.energies import Energy, Mixed, Rings, TorchForceField
from knotflow.flows.sampling import Sampler
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.transforms import Domain, Interval, Line
from tests.analysis.generators import ala2_data, ala2_generator, chain, chain_generator, grids
from tests.dynamics.wrong_flows import bent, bent_chain_generator, boxed_chain_generator, exact_chain


class Step(Energy):
    """Density 1 + a on the left half of the unit interval, 1 - a on the right."""

    domains: tuple[Domain, ...] = (Interval(),)

    def __init__(self, a: float) -> None:
        self.a = a

    def energy(self, x: Tensor) -> Tensor:
        return -torch.log1p(self.a * torch.where(x[..., 0] < 0.5, 1.0, -1.0))


class Normal(Energy):
    domains: tuple[Domain, ...] = (Line(-5.0, 5.0),) * 2

    def energy(self, x: Tensor) -> Tensor:
        a, b = x.unbind(-1)
        return (a - 0.3).square() / (2 * 0.8**2) + (b - 0.5 * a).square() / (2 * 0.6**2)


def flow_on(domains: tuple[Domain, ...], size: float = 0.0) -> kf.Flow:
    torch.manual_seed(0)
    flow = kf.Flow.on(list(domains), rounds=1, transform={"bins": 4}, conditioner={"hidden": [8]}).double()
    bent(flow, size)
    return flow.requires_grad_(False)


def field() -> TorchForceField:
    return TorchForceField(chain(), compiled=False)


def bonds_and_angles(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    q = internal_coordinates(chain())(x)[0]
    return q[..., 0].numpy(), q[..., 3].numpy()


def p_values(x: Tensor) -> list[float]:
    """Of independent frames of the chain, against integrals of its exact densities over fine grids."""
    q = internal_coordinates(chain())(x)[0].numpy()
    b, a, density_b, density_a = grids()
    tests = [(column, b, density_b) for column in q.T[:3]] + [(column, a, density_a) for column in q.T[3:5]]
    found = [
        stats.kstest(column, lambda t, g=g, d=d: np.interp(t, g, np.cumsum(d) / d.sum())).pvalue
        for column, g, d in tests
    ]
    return [*found, stats.kstest(q.T[5], stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue]


# ---------------------------------------------------------------------------- flows on coordinates


def test_two_states_have_the_known_transitions_and_autocorrelation_time() -> None:
    a = 0.6
    sampler = FlowMonteCarlo(flow_on(Step.domains), Step(a))  # a flow that proposes uniformly
    chains = sampler.run(sampler.start(2000), 400)
    right = (chains.positions[..., 0] >= 0.5).double().numpy()
    # Half of the proposals are on the other side; to the left all are accepted, to the right (1 - a)/(1 + a).
    to_right, to_left = 0.5 * (1 - a) / (1 + a), 0.5
    before, after = right[:-1], right[1:]
    assert after[before == 0].mean() == pytest.approx(to_right, abs=0.002)
    assert after[before == 1].mean() == pytest.approx(1 - to_left, abs=0.003)
    memory = 1 - to_right - to_left
    assert chains.autocorrelation_time(right) == pytest.approx((1 + memory) / (1 - memory), rel=0.03)
    average = chains.average(right)
    assert average.value == pytest.approx((1 - a) / 2, abs=4 * average.error)
    # The error bar from chains is that of the autocorrelation time.
    expected = math.sqrt((1 - a) * (1 + a) / 4 / chains.effective_samples(right))
    assert average.error == pytest.approx(expected, rel=0.12)
    accepted = (1 - a) / 2 * 1 + (1 + a) / 2 * (0.5 + to_right)
    assert chains.moves["flow"].acceptance == pytest.approx(accepted, abs=0.003)


@pytest.mark.parametrize("size", [0.0, 0.3])
def test_moments_of_a_normal_do_not_depend_on_the_flow(size: float) -> None:
    sampler = FlowMonteCarlo(flow_on(Normal.domains, size), Normal())
    state = sampler.run(sampler.start(500, seed=1), 100).state
    x = sampler.run(state, 1).positions[0]
    a, b = x.T.numpy()
    # One state of each chain: independent samples.
    assert stats.kstest(a, stats.norm(0.3, 0.8).cdf).pvalue > 1e-3
    assert stats.kstest(b, stats.norm(0.15, math.hypot(0.6, 0.4)).cdf).pvalue > 1e-3
    chains = sampler.run(state, 400, every=2)
    for values, exact in [
        (chains.positions[..., 0], 0.3),
        (chains.positions[..., 1], 0.15),
        (chains.positions[..., 0].square(), 0.3**2 + 0.8**2),
        (chains.positions.prod(-1), 0.5 * (0.3**2 + 0.8**2)),
        (chains.energy, 1.0),
    ]:
        average = chains.average(values.numpy())
        assert average.error < 0.02
        assert average.value == pytest.approx(exact, abs=4 * average.error)


def test_mean_energy_of_rings_is_that_of_a_quadrature() -> None:
    energy = Rings()
    flow = flow_on(energy.domains, 0.3)
    sampler = FlowMonteCarlo(flow, energy, flow_moves=4)
    chains = sampler.run(sampler.run(sampler.start(400), 50).state, 50)
    low, high = energy.domains[0].low, energy.domains[0].high
    axis = torch.linspace(low, high, 1201, dtype=torch.float64)
    middle = (axis[1:] + axis[:-1]) / 2
    u = energy.energy(torch.cartesian_prod(middle, middle))
    exact = float((u * torch.softmax(-u, 0)).sum())
    average = chains.average(chains.energy.numpy())
    assert average.value == pytest.approx(exact, abs=4 * average.error)
    assert chains.moves["flow"].tried == 400 * 50 * 4 and chains.moves["hmc"].tried == 0
    assert math.isnan(chains.moves["hmc"].acceptance)


def test_flow_moves_are_in_detailed_balance() -> None:
    energy = Mixed()
    n = 20_000
    x = energy.sample(n, torch.Generator().manual_seed(3), dtype=torch.float64)
    sampler = FlowMonteCarlo(flow_on(energy.domains, 0.3), energy)
    run = sampler.run(sampler.start(x, seed=4), 1)
    y = run.positions[0]
    # Exact samples stay exact, and pairs (before, after) look the same backwards.
    assert 0.05 < run.moves["flow"].acceptance < 0.9
    for i in range(5):
        assert stats.ks_2samp(x[:, i].numpy(), y[:, i].numpy()).pvalue > 1e-3
    moved = (x != y).any(-1)
    f, g = torch.cat((x[:, :2].sin(), x[:, 2:]), 1)[moved], torch.cat((y[:, :2].sin(), y[:, 2:]), 1)[moved]
    for i, j in [(0, 1), (0, 4), (2, 3), (2, 4), (3, 4)]:
        difference = (f[:, i] * g[:, j] - g[:, i] * f[:, j]).numpy()
        assert abs(difference.mean()) < 4 * difference.std() / math.sqrt(len(difference))


# ---------------------------------------------------------------------------- molecules


def test_the_flows_own_energy_accepts_everything() -> None:
    model = bent_chain_generator()
    sampler = FlowMonteCarlo(model, FlowEnergy(model))
    assert sampler.run(sampler.start(50), 4).moves["flow"].acceptance == 1.0


@pytest.mark.parametrize(("flow_moves", "hmc_moves"), [(4, 0), (1, 1)])
def test_a_wrong_flow_gives_the_exact_distribution_of_a_molecule(flow_moves: int, hmc_moves: int) -> None:
    sampler = FlowMonteCarlo(
        bent_chain_generator(), field(), flow_moves=flow_moves, hmc_moves=hmc_moves, time_step=0.003
    )
    chains = sampler.run(sampler.start(1500, seed=5), 20, every=20)
    assert min(p_values(chains.positions[-1])) > 1e-3
    assert 0.05 < chains.moves["flow"].acceptance < 0.95
    # The flow alone is far from it.
    wrong = bent_chain_generator().sample(1500, generator=torch.Generator().manual_seed(0))
    assert min(p_values(wrong)) < 1e-6


def test_hmc_keeps_exact_frames_exact_and_is_reversible() -> None:
    x = exact_chain(3000, seed=6)
    sampler = FlowMonteCarlo(
        chain_generator().double(), field(), flow_moves=0, hmc_moves=1, md_steps=5, time_step=0.025
    )
    run = sampler.run(sampler.start(x, seed=7), 1)
    y = run.positions[0]
    # A step so long that a good part is refused: without the test of Metropolis this would fail.
    assert 0.3 < run.moves["hmc"].acceptance < 0.95
    assert min(p_values(y)) > 1e-3
    (bond, angle), (new_bond, new_angle) = bonds_and_angles(x), bonds_and_angles(y)
    for a, b, c, d in [(bond, new_angle, new_bond, angle), (bond**2, new_bond, new_bond**2, bond)]:
        a, b, c, d = (part - part.mean() for part in (a, b, c, d))
        difference = a * b - c * d
        assert abs(difference.mean()) < 4 * difference.std() / math.sqrt(len(difference))
    # The centre of mass, here of equal atoms, stands still.
    moved = (x != y).any(-1).any(-1)
    assert float((y - x)[moved].mean(1).abs().max()) < 1e-12 and float((y - x)[moved].abs().mean()) > 0.01


def test_hmc_without_the_test_of_metropolis_would_be_noticed() -> None:
    x = exact_chain(3000, seed=6)
    move = HybridMove(field(), Masses.of(chain()), steps=5, time_step=0.025)
    random = torch.Generator().manual_seed(7)
    for _ in range(3):
        x = move.propose(x, random)[0]
    assert min(p_values(x)) < 1e-3


def test_masses_do_not_matter_for_exact_frames() -> None:
    """Unequal masses: a centre of mass that is not the centre of the atoms, and stands still all the same."""
    x, masses = exact_chain(3000, seed=12), np.array([1.0, 12.0, 16.0, 40.0])
    sampler = FlowMonteCarlo(
        chain_generator().double(),
        field(),
        flow_moves=0,
        hmc_moves=1,
        md_steps=5,
        time_step=0.01,
        masses=masses,
    )
    run = sampler.run(sampler.start(x, seed=13), 2)
    y = run.positions[-1]
    assert 0.3 < run.moves["hmc"].acceptance < 0.98 and sampler.evaluations == 6
    assert min(p_values(y)) > 1e-3
    centre = torch.einsum("a,nad->nd", torch.tensor(masses), y - x) / masses.sum()
    assert float(centre.abs().max()) < 1e-12 and float((y - x).mean(1).abs().max()) > 0.001


def test_trajectories_that_fly_apart_are_refused() -> None:
    x = exact_chain(20, seed=14)
    positions, energy, gain = HybridMove(field(), Masses.of(chain()), steps=400, time_step=0.2).propose(
        x, torch.Generator().manual_seed(0)
    )
    assert (gain == -math.inf).all() and positions.isfinite().all() and energy.isfinite().all()


def test_a_flow_that_misses_part_of_the_molecule_is_exact_with_dynamics() -> None:
    model = boxed_chain_generator(reach=1.5)  # no density beyond 1.5 standard deviations
    sampler = FlowMonteCarlo(model, field(), hmc_moves=2, md_steps=10, time_step=0.003)
    chains = sampler.run(sampler.start(1000, seed=8), 30, every=10)
    assert min(p_values(chains.positions[-1])) > 1e-3
    outside = chains.log_prob[-1] == -math.inf
    assert 0.2 < float(outside.double().mean()) < 0.9
    assert torch.equal(outside, ~FlowEnergy(model).inside(chains.positions[-1]))
    # Nothing but dynamics moves those.
    still = FlowMonteCarlo(model, field(), flow_moves=3).run(chains.state, 1)
    assert torch.equal(still.positions[0][outside], chains.positions[-1][outside])


def test_log_weights_of_states_are_kept_right() -> None:
    model = bent_chain_generator()
    sampler = FlowMonteCarlo(model, field(), hmc_moves=1, time_step=0.003)
    chains = sampler.run(sampler.start(20), 5)
    x = chains.positions
    torch.testing.assert_close(chains.log_prob, model.log_prob(x.flatten(0, 1)).reshape(5, 20))
    torch.testing.assert_close(chains.energy, field().energy(x.flatten(0, 1)).reshape(5, 20))


def test_another_temperature_is_that_of_the_energy() -> None:
    hot = TorchForceField(chain(600.0), compiled=False)
    sampler = FlowMonteCarlo(bent_chain_generator(), hot, flow_moves=2, hmc_moves=1, md_steps=5)
    chains = sampler.run(sampler.run(sampler.start(500), 20).state, 20)
    average = chains.average(chains.energy.numpy())
    # Five harmonic coordinates at kT/2 each, but for their volume; exactly, by quadrature:
    assert average.value == pytest.approx(_mean_energy(600.0), abs=4 * average.error)
    assert average.error < 0.06


def _mean_energy(temperature: float) -> float:
    from tests.analysis.generators import ANGLE, ANGLE_CONSTANT, BOND_CONSTANT, LENGTH

    kT = 0.00831446261815324 * temperature
    b, a = np.linspace(0.01, 0.4, 200_001), np.linspace(1e-6, math.pi - 1e-6, 200_001)
    u_b, u_a = BOND_CONSTANT * (b - LENGTH) ** 2 / (2 * kT), ANGLE_CONSTANT * (a - ANGLE) ** 2 / (2 * kT)
    w_b, w_a = b**2 * np.exp(-u_b), np.sin(a) * np.exp(-u_a)
    return float(3 * (u_b * w_b).sum() / w_b.sum() + 2 * (u_a * w_a).sum() / w_a.sum())


def test_mirror_images_are_refused(tmp_path: Path) -> None:
    model = ala2_generator(ala2_data(tmp_path / "ala2.h5"), turning=True).requires_grad_(False)
    # On the flow's own energy nothing else is refused.
    sampler = FlowMonteCarlo(model, FlowEnergy(model))
    chains = sampler.run(sampler.start(200, seed=9), 5)
    assert model.chirality.matches(chains.positions).all()
    reference = Sampler(model, seed=10)
    reference.take(2000)
    share = 1 - reference.mirrored / reference.drawn
    assert 0.2 < share < 0.8
    error = math.sqrt(share * (1 - share) * (1 / 1000 + 1 / reference.drawn))
    assert chains.moves["flow"].acceptance == pytest.approx(share, abs=4 * error + 0.01)
    with pytest.raises(ValueError, match="right handedness"):
        sampler.start(-chains.positions[-1])


# ---------------------------------------------------------------------------- state, errors


def test_runs_go_on_from_a_file_bit_for_bit(tmp_path: Path) -> None:
    sampler = FlowMonteCarlo(bent_chain_generator().float(), field(), hmc_moves=1, time_step=0.003)
    whole = sampler.run(sampler.start(10, seed=11), 6)
    first = sampler.run(sampler.start(10, seed=11), 4)
    first.state.save(tmp_path / "chains.safetensors")
    second = sampler.run(ChainState.load(tmp_path / "chains.safetensors"), 2)
    assert torch.equal(torch.cat((first.positions, second.positions)), whole.positions)
    assert torch.equal(torch.cat((first.energy, second.energy)), whole.energy)
    assert int(second.state.cycles) == 6 and torch.equal(second.state.random, whole.state.random)
    other = sampler.run(sampler.start(10, seed=12), 6)
    assert not torch.equal(other.positions, whole.positions)
    (tmp_path / "bad").write_bytes(b"chains")
    with pytest.raises(ValueError, match=r"bad is not a \.safetensors file, or is damaged"):
        ChainState.load(tmp_path / "bad")


def test_progress_and_rows() -> None:
    sampler = FlowMonteCarlo(flow_on(Normal.domains), Normal())
    seen: list[tuple] = []
    chains = sampler.run(sampler.start(3), 6, every=3, progress=lambda *now: seen.append(now))
    assert [now[:3] for now in seen] == [("sampling", cycle, 6) for cycle in range(1, 7)]
    assert seen[-1][3] == f"accepted: flow {100 * chains.moves['flow'].acceptance:.3g} %"
    assert chains.positions.shape == (2, 3, 2)
    assert math.isnan(sampler.run(sampler.start(1), 2).average([[1.0], [2.0]]).error)
    with pytest.raises(ValueError, match=r"here \(2, 3\), got \(3,\)"):
        chains.average([1.0, 2.0, 3.0])


def test_what_does_not_fit_is_refused() -> None:
    model = bent_chain_generator()
    flow = flow_on(Normal.domains)
    for options, message in [
        ({"flow_moves": 0}, "at least 1, got 0"),
        ({"hmc_moves": -1}, "hmc_moves must be"),
        ({"time_step": 0.0}, "time_step must be a positive"),
        ({"hmc_moves": 1, "masses": [1.0, -2.0]}, "masses must be positive"),
        ({"hmc_moves": 1, "masses": [1.0, 2.0]}, "one for each of 4 atoms, got 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            FlowMonteCarlo(model, field(), **options)
    with pytest.raises(ValueError, match="hmc_moves need a Boltzmann generator"):
        FlowMonteCarlo(flow, Normal(), hmc_moves=1)
    with pytest.raises(ValueError, match="same domains"):
        FlowMonteCarlo(flow, Step(0.1))
    with pytest.raises(ValueError, match="BoltzmannGenerator with a MolecularEnergy"):
        FlowMonteCarlo(model, Normal())
    sampler = FlowMonteCarlo(model, field())
    with pytest.raises(ValueError, match=r"shape \(chains, 4, 3\), got \(4, 3\)"):
        sampler.start(exact_chain(1)[0])
    with pytest.raises(ValueError, match="multiple of every"):
        sampler.run(sampler.start(2), 5, every=2)
    nan = exact_chain(2)
    nan[0] = math.nan
    with pytest.raises(ValueError, match="finite energy"):
        sampler.start(nan)
