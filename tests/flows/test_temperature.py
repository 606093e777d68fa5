"""Flows that depend on the temperature: laws of the density at every temperature, and model files."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

import knotflow as kf
from knotflow.flows import default_config
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.flows.temperature import TemperatureRange
from tests.flows.generators import make, positions

RANGE = TemperatureRange(300.0, 600.0)
TEMPERATURES = [300.0, 411.0, 600.0]
DOMAINS = [kf.Line(-1.0, 3.0), kf.Circle(-math.pi, math.pi), kf.Interval(0.0, 2.0), kf.Line(0.0, 0.2)]


def shaken(flow: kf.Flow, size: float = 0.3) -> kf.Flow:
    """With other weights, so that it is far from the identity and depends on its context."""
    with torch.no_grad():
        for number, parameter in enumerate(flow.parameters()):
            random = torch.Generator().manual_seed(number)
            parameter += size * torch.randn(parameter.shape, generator=random).to(parameter)
    return flow


def conditional(*, whitened: bool = False) -> kf.Flow:
    options = {"rounds": 2, "transform": {"bins": 4}, "conditioner": {"hidden": [8, 8]}}
    config = default_config(DOMAINS, context=1, **options).model_copy(update={"whitened": whitened})
    flow = shaken(config.build().double())
    if whitened:
        x = flow.sample(200, torch.zeros(1), generator=torch.manual_seed(5))
        x[:, 3] += 0.05 * x[:, 0]
        flow.whiten(x)
        assert not torch.equal(flow._mixing, torch.eye(2).double())
    return flow


def generator(name: str = "ala2, lines") -> BoltzmannGenerator:
    """A generator of many temperatures, with the domains of a named one."""
    plain = make(name)
    options = {"rounds": 1, "transform": {"bins": 4}, "conditioner": {"hidden": [8]}}
    flow = shaken(kf.Flow.on(plain.flow.domains, context=1, **options).double())
    return BoltzmannGenerator(plain.coordinates, flow, plain.molecule, RANGE)


# --- a flow at one context --------------------------------------------------------------------------------


@pytest.mark.parametrize("networks", [(1,), (1, 1, 3)], ids=str)
@pytest.mark.parametrize("domains", [DOMAINS[1:3], DOMAINS[2:3]], ids=["several", "nothing to read"])
@pytest.mark.parametrize("hidden", [(8, 8), ()])
def test_given_a_context_a_flow_is_an_ordinary_one(
    domains: list[kf.Domain], networks: tuple[int, ...], hidden: tuple[int, ...], tmp_path: Path
) -> None:
    transform = {"family": "bump", "components": 4} if len(networks) > 1 else {"bins": 4}
    options = {"hidden": list(hidden), "networks": list(networks)}
    flow = shaken(kf.Flow.on(domains, context=2, rounds=2, transform=transform, conditioner=options).double())
    context = torch.tensor([0.3, -0.8], dtype=torch.float64)
    x, log_prob = flow.sample_and_log_prob(50, context, generator=torch.manual_seed(0))
    before = {name: value.clone() for name, value in flow.state_dict().items()}
    found = flow.given(context)
    torch.testing.assert_close(found.log_prob(x), log_prob, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.score(x), flow.score(x, context), rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(found.sample(50, generator=torch.manual_seed(0)), x, rtol=0, atol=1e-9)
    assert all(torch.equal(value, before[name]) for name, value in flow.state_dict().items())
    kf.save(found, tmp_path / "given.safetensors")
    loaded = kf.load(tmp_path / "given.safetensors")
    assert loaded.context == 0 and torch.equal(loaded.log_prob(x), found.log_prob(x))


def test_contexts_that_do_not_fit() -> None:
    flow = conditional()
    with pytest.raises(ValueError, match=r"expected a context of shape \(1,\), got one of shape \(2,\)"):
        flow.given(torch.zeros(2))
    with pytest.raises(ValueError, match="expected no context"):
        flow.given(torch.zeros(1)).given(torch.zeros(1))
    own = [kf.Coupling([0], [kf.BSpline(4, domain=kf.Line(-5.0, 5.0))], [], torch.nn.Identity())]
    with pytest.raises(ValueError, match="a conditioner of the type Identity keeps its context"):
        kf.Flow([kf.Line(-1.0, 1.0)], own, context=1).given(torch.zeros(1))


# --- a flow at one temperature ----------------------------------------------------------------------------


@pytest.mark.parametrize("whitened", [False, True])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_density_at_a_temperature_is_that_of_cooled_points(
    temperature: float, whitened: bool, tmp_path: Path
) -> None:
    """Against the formula of the docstring, with the conditional flow itself."""
    flow = conditional(whitened=whitened)
    found = RANGE.at(flow, temperature)
    kf.save(found, tmp_path / "at.safetensors")
    found = kf.load(tmp_path / "at.safetensors")
    q = found.sample(100, generator=torch.manual_seed(0))
    ratio = RANGE.lowest / temperature
    y = q.clone()
    y[:, 0] = 1.0 + (q[:, 0] - 1.0) * math.sqrt(ratio)
    y[:, 3] = 0.1 + (q[:, 3] - 0.1) * math.sqrt(ratio)
    t = torch.full((100,), temperature, dtype=torch.float64)
    torch.testing.assert_close(RANGE.cooled(q, t, DOMAINS), y, rtol=0, atol=1e-12)
    context = torch.full((100, 1), 2 * math.log(temperature / 300) / math.log(2) - 1, dtype=torch.float64)
    torch.testing.assert_close(RANGE.context(t), context)
    expected = flow.log_prob(y, context) + 0.5 * 2 * math.log(ratio)
    torch.testing.assert_close(found.log_prob(q), expected, rtol=0, atol=1e-9)
    stretch = RANGE.stretch(t, DOMAINS)
    torch.testing.assert_close(found.score(q) * stretch, flow.score(y, context), rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_densities_are_normalised_at_every_temperature(temperature: float) -> None:
    domains = [kf.Line(-1.0, 1.0), kf.Circle(0.0, 2.0)]
    options = {"rounds": 1, "transform": {"bins": 4}, "conditioner": {"hidden": [8]}, "context": 1}
    found = RANGE.at(shaken(kf.Flow.on(domains, **options).double()), temperature)

    reach = 3 * math.sqrt(temperature / 300)
    x, angle = torch.linspace(-reach, reach, 2001).double(), torch.linspace(0.0, 2.0, 201).double()[:-1]
    with torch.no_grad():
        density = found.log_prob(torch.cartesian_prod(x, angle)).exp().reshape(2001, 200)
    assert np.trapezoid(2.0 * density.mean(1), x) == pytest.approx(1, abs=1e-4)


def test_a_harmonic_well_needs_no_learning() -> None:
    """The flow that does nothing is exact at all temperatures, if it is at the lowest."""
    flow = kf.Flow.on([kf.Line(-5.0, 15.0)], context=1).double()  # deviation 2 at 300 K
    for temperature in TEMPERATURES:
        x = torch.linspace(-9.0, 19.0, 50, dtype=torch.float64)
        exact = norm.logpdf(x.numpy(), 5.0, 2.0 * math.sqrt(temperature / 300))
        found = RANGE.at(flow, temperature).log_prob(x[:, None])
        np.testing.assert_allclose(found.detach().numpy(), exact, atol=1e-9)


@pytest.mark.parametrize("temperature", [299.0, 601.0, -300.0, math.nan])
def test_temperatures_outside_are_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match=r"was trained from 300 to 600 K, got .* K; choose"):
        RANGE.at(conditional(), temperature)


@pytest.mark.parametrize(("low", "high"), [(300.0, 300.0), (400.0, 300.0), (0.0, 1.0), (1.0, math.inf)])
def test_ranges_go_up(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="from a lower to a higher one"):
        TemperatureRange(low, high)


# --- generators -------------------------------------------------------------------------------------------


def by_hand(model: BoltzmannGenerator, x: Tensor, temperature: float) -> Tensor:
    """Log-density of positions from the conditional flow, without `at`."""
    flow = model._conditional[0]
    q, ladj = model.internal(x)
    t = torch.full((len(x),), temperature, dtype=torch.float64)
    stiff = sum(isinstance(domain, kf.Line) for domain in flow.domains)
    y = RANGE.cooled(q, t, flow.domains)
    return flow.log_prob(y, RANGE.context(t)) + ladj + 0.5 * stiff * math.log(300 / temperature)


@pytest.mark.parametrize("name", ["ala2, lines", "ring"])
def test_a_generator_at_a_temperature(name: str) -> None:
    model = generator(name)
    x = positions(model, 10)
    for temperature in TEMPERATURES:
        found = model.at(temperature)
        assert found.temperature == temperature and found.temperatures is None
        assert found.molecule == {**model.molecule, "temperature": temperature}
        torch.testing.assert_close(found.log_prob(x), by_hand(model, x, temperature), rtol=0, atol=1e-8)
        drawn, log_prob = found.sample_and_log_prob(20, generator=torch.manual_seed(1))
        torch.testing.assert_close(found.log_prob(drawn), log_prob, rtol=0, atol=1e-6)
    assert model.temperature == 300.0
    torch.testing.assert_close(model.log_prob(x), model.at(300.0).log_prob(x), rtol=0, atol=0)
    assert not torch.allclose(model.log_prob(x), model.at(600.0).log_prob(x))


def test_forces_are_finite_differences() -> None:
    found = generator().at(450.0)
    x = positions(found, 1)
    force = found.force(x)[0].detach()
    for atom, axis in ((0, 0), (5, 1), (21, 2)):
        step = torch.zeros_like(x)
        step[0, atom, axis] = 1e-6
        difference = (found.log_prob(x + step) - found.log_prob(x - step)).detach() / 2e-6
        assert float(force[atom, axis]) == pytest.approx(float(difference), rel=1e-4, abs=1e-2)


def test_files_of_all_temperatures_and_of_one(tmp_path: Path) -> None:
    model = generator()
    x = positions(model, 10)
    every, one = tmp_path / "every.safetensors", tmp_path / "one.safetensors"
    model.save(every)
    assert notes(every)["temperatures"] == {"lowest": 300.0, "highest": 600.0}
    loaded = BoltzmannGenerator.load(every)
    assert loaded.temperatures == RANGE and loaded.temperature == 300.0
    for temperature in TEMPERATURES:
        assert torch.equal(loaded.at(temperature).log_prob(x), model.at(temperature).log_prob(x))
    # At one temperature it is an ordinary model, which knows no other.
    loaded.at(411.0).save(one)
    assert "temperatures" not in notes(one)
    hot = BoltzmannGenerator.load(one)
    assert hot.temperature == 411.0 and torch.equal(hot.log_prob(x), model.at(411.0).log_prob(x))
    assert hot.at(411.0) is hot
    with pytest.raises(ValueError, match=r"knows only 411 K, got 300 K; .*--temperatures"):
        hot.at(300.0)


def test_precision_follows_the_generator(tmp_path: Path) -> None:
    model = generator().float()
    assert {p.dtype for p in model.at(411.0).parameters()} == {torch.float32}
    model.save(tmp_path / "single.safetensors")
    loaded = BoltzmannGenerator.load(tmp_path / "single.safetensors")
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    x = positions(model, 10)
    single, double = loaded.at(411.0).log_prob(x), loaded.double().at(411.0).log_prob(x.double())
    torch.testing.assert_close(single.double(), double, rtol=0, atol=0.05)
    assert sum(p.numel() for p in loaded.parameters()) == sum(
        p.numel() for p in loaded.at(411.0).parameters()
    )


def test_a_molecule_outside_the_range_is_refused() -> None:
    model = generator()
    with pytest.raises(ValueError, match="from 350 to 600 K, got 300 K"):
        BoltzmannGenerator(
            model.coordinates, model._conditional[0], model.molecule, TemperatureRange(350.0, 600.0)
        )
