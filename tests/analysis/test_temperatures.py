"""Free energy, energy and heat capacity of a generator at many temperatures, against quadrature."""

import math

import numpy as np
import pytest

from knotflow.analysis.temperatures import AtTemperature, at_temperatures
from knotflow.energies import TorchForceField
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.units import BOLTZMANN
from tests.analysis.generators import chain, chain_generator
from tests.analysis.ladders import exact, warm_generator

N = 6_000


@pytest.fixture(scope="module")
def model() -> BoltzmannGenerator:
    return warm_generator()


def measured(model: BoltzmannGenerator, *temperatures: float, samples: int = N) -> list[AtTemperature]:
    energy = TorchForceField(chain(), compiled=False)
    return at_temperatures(model, temperatures, energy, samples=samples, seed=1)


def test_exact_numbers_within_error_bars(model: BoltzmannGenerator) -> None:
    wanted = (450.0, 300.0, 380.0)
    found = measured(model, *wanted)
    assert [result.temperature for result in found] == list(wanted)
    for result in found:
        log_z, mean, variance = exact(result.temperature)
        own, t = result.measures, result.temperature
        assert result.reference == {} and own["ess"].value > 0.3 and own["pareto_k"].value < 0.7
        for name, value, tight in (
            ("log_z", log_z, 0.05),
            ("free_energy", exact(300.0)[0] - log_z, 0.05),
            ("energy", mean, 0.03 * mean),
            ("heat_capacity", 1000 * variance / BOLTZMANN / t**2, 5.0),
        ):
            assert abs(own[name].value - value) <= 4 * own[name].error + 1e-12, (t, name)
            assert own[name].error < tight
    # The same random numbers at both temperatures make differences more precise than log Z itself.
    assert found[2].measures["free_energy"].error < found[2].measures["log_z"].error
    assert (found[1].measures["free_energy"].value, found[1].measures["free_energy"].error) == (0.0, 0.0)


def test_free_energies_have_the_slope_of_the_mean_energy(model: BoltzmannGenerator) -> None:
    """d(F/kT)/d(1/kT) = <U>, and d<U>/dT = C_V, by finite differences of independent results."""
    low, middle, high = measured(model, 370.0, 380.0, 390.0)
    beta = [1 / (BOLTZMANN * result.temperature) for result in (low, high)]
    slope = (high.measures["free_energy"].value - low.measures["free_energy"].value) / (beta[1] - beta[0])
    assert slope == pytest.approx(middle.measures["energy"].value, rel=0.03)
    rise = (high.measures["energy"].value - low.measures["energy"].value) / 20 * 1000
    assert rise == pytest.approx(middle.measures["heat_capacity"].value, rel=0.15)


def test_a_model_of_one_temperature_knows_that_one() -> None:
    (found,) = measured(chain_generator(), 300.0, samples=2000)
    assert found.temperature == 300.0 and math.isfinite(found.measures["energy"].error)
    with pytest.raises(ValueError, match="knows only 300 K, got 400 K"):
        measured(chain_generator(), 300.0, 400.0)


def test_plain_numbers(model: BoltzmannGenerator) -> None:
    (found,) = measured(model, 400.0, samples=500)
    plain = found.plain()
    assert plain["temperature"] == 400.0 and plain["reference"] == {}
    assert plain["measures"]["energy"]["unit"] == "kJ/mol"
    assert plain["measures"]["heat_capacity"]["value"] == found.measures["heat_capacity"].value
    assert np.isfinite(plain["measures"]["free_energy"]["error"])
