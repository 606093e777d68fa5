r"""What a generator says about many temperatures: free energy, energy and heat capacity, with error bars.

At every temperature samples are drawn and weighted by the force field, as at one temperature:

$$\frac{F(T)}{kT} - \frac{F(T_0)}{kT_0} = -\log\frac{Z(T)}{Z(T_0)}, \qquad
  \langle U \rangle, \qquad C_V = \frac{\langle U^2\rangle - \langle U\rangle^2}{kT^2} ,$$

with $\log Z$ by importance sampling and averages over reweighted samples. $Z$ is the integral of $e^{-U/kT}$
over positions: the kinetic energy is not part of it, and would add $\tfrac32 Nk$ to the heat capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from knotflow.analysis import measures
from knotflow.analysis.frame_table import piece_size
from knotflow.analysis.free_energy import LogZ, importance
from knotflow.analysis.ladder import LadderAverages, ladder_averages
from knotflow.analysis.measures import Measure, Measures
from knotflow.energies.energy import MolecularEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.flow import like
from knotflow.molecules.units import BOLTZMANN, thermal_energy
from knotflow.progress import Progress, silent
from knotflow.ranks import OneByOne, Team, piece_seed
from knotflow.statistics import weights
from knotflow.statistics.estimates import Estimate, Floats, Rows, bootstrap, spread

FREE_ENERGY, ENERGY, HEAT_CAPACITY = "free_energy", "energy", "heat_capacity"


@dataclass(frozen=True)
class AtTemperature:
    """The results at one temperature."""

    temperature: float
    """In K."""
    measures: Measures
    """Of weighted samples of the model."""
    reference: Measures
    """Of the frames of a tempering run; empty without one."""

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "temperature": self.temperature,
            "measures": measures.plain_measures(self.measures),
            "reference": measures.plain_measures(self.reference),
        }


def at_temperatures(
    generator: BoltzmannGenerator,
    temperatures: Sequence[float],
    energy: MolecularEnergy,
    data: str | Path | None = None,
    *,
    samples: int = 10_000,
    seed: int = 0,
    progress: Progress = silent,
) -> list[AtTemperature]:
    """Free energies, energies and heat capacities of a generator at some temperatures.

    Free energies are relative to the temperature $T_0$ of the generator. All temperatures use the same random
    numbers, which lowers the error of differences.

    Args:
        generator: A generator that knows these temperatures.
        temperatures: In K.
        energy: The force field of the molecule, at any temperature.
        data: A trajectory; if it has a ladder file beside it, the same numbers are computed from both.
        samples: Number of samples at each temperature.
        seed: Seed of samples and error bars.
        progress: Called with the samples drawn.

    Raises:
        ValueError: if the model does not know a temperature.
    """
    lowest = generator.temperature
    wanted = [lowest, *(t for t in dict.fromkeys(temperatures) if t != lowest)]
    models = [generator.at(t) for t in wanted]
    reference = None if data is None else ladder_averages(data, wanted)
    found, first = {}, None
    for place, model in enumerate(models):
        energies, log_w = _weighted(model, energy, samples, seed, progress)
        z = importance(log_w)
        first = z if first is None else first
        found[model.temperature] = AtTemperature(
            model.temperature,
            {
                FREE_ENERGY: _named(FREE_ENERGY, _difference(z, first)),
                **_averages(energies, log_w, model.temperature, seed),
                "log_z": Measure.of("log Z, importance sampling", z.estimate(), unit="nats"),
                **measures.efficiency(log_w, seed),
            },
            {} if reference is None else _reference(reference, place),
        )
    return [found[t] for t in dict.fromkeys(temperatures)]


@torch.no_grad()
def _weighted(
    model: BoltzmannGenerator, energy: MolecularEnergy, n: int, seed: int, progress: Progress
) -> tuple[Floats, Floats]:
    """Potential energies in kJ/mol and log-weights of samples, (n,) each."""
    size, parts, work = piece_size(model.n_atoms), [], f"samples at {model.temperature:g} K"
    pieces = [
        (piece_seed(seed, number), min(size, n - first)) for number, first in enumerate(range(0, n, size))
    ]
    progress(work, 0, n)
    with Team("knotflow.analysis.temperatures:weigher", (model, energy)) as team:
        for part in team.stream(pieces):
            parts.append(part)
            progress(work, sum(len(u) for u, *_ in parts), n)
    u, log_p, handed = (np.concatenate(part) for part in zip(*parts, strict=True))
    energies = u * thermal_energy(energy.temperature)
    return energies, weights.log_weights(log_p, energies / thermal_energy(model.temperature), handed > 0)


def weigher(setup: tuple[BoltzmannGenerator, MolecularEnergy]) -> OneByOne:
    """Target of a `Team`: energies, log-densities and handedness of samples, by seed and number."""
    model, energy = setup

    @torch.no_grad()
    def work(piece: tuple[int, int]) -> list[Floats]:
        seed, n = piece
        random = torch.Generator(like(model).device).manual_seed(seed)
        x, log_prob = model.sample_and_log_prob(n, generator=random)
        columns = (energy.energy_and_force(x)[0], log_prob, model.chirality.matches(x))
        return [column.cpu().double().numpy() for column in columns]

    return OneByOne(work)


def _difference(z: LogZ, first: LogZ) -> Estimate:
    """-log Z/Z0 of samples that were drawn with the same random numbers."""
    return Estimate(first.value - z.value, 0.0 if z is first else spread(z.samples - first.samples))


def _averages(energies: Floats, log_w: Floats, temperature: float, seed: int) -> Measures:
    usable = np.isfinite(log_w)
    log_w, energies = weights.clipped(log_w)[usable], energies[usable]

    def statistic(rows: Rows) -> list[float]:
        w = weights.normalised(log_w[rows])
        mean = float(w @ energies[rows])
        variance = float(w @ (energies[rows] - mean) ** 2)
        return [mean, 1000 * variance / BOLTZMANN / temperature**2]

    rows = np.arange(len(log_w))
    errors = bootstrap(statistic, rows, seed=seed)
    found = [Estimate(value, float(error)) for value, error in zip(statistic(rows), errors, strict=True)]
    return {
        name: _named(name, estimate) for name, estimate in zip((ENERGY, HEAT_CAPACITY), found, strict=True)
    }


def _reference(ladder: LadderAverages, place: int) -> Measures:
    found = {
        FREE_ENERGY: ladder.free_energy(place),
        ENERGY: ladder.energy(place),
        HEAT_CAPACITY: ladder.heat_capacity(place),
    }
    return {name: _named(name, estimate) for name, estimate in found.items()}


def _named(name: str, estimate: Estimate) -> Measure:
    text, unit = {
        FREE_ENERGY: ("F/kT, less F/kT at the lowest", ""),
        ENERGY: ("mean potential energy", "kJ/mol"),
        HEAT_CAPACITY: ("heat capacity, without kinetic energy", "J/mol/K"),
    }[name]
    return Measure.of(text, estimate, unit=unit)
