"""A tempering run of the chain of `tests.analysis.generators`, of which everything is known."""

import math
from pathlib import Path

import numpy as np
import torch

import knotflow as kf
from knotflow.energies import OpenMMEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.temperature import TemperatureRange
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.molecules.units import BOLTZMANN
from knotflow.storage import trajectory
from knotflow.storage.trajectory import Frames
from tests.analysis.generators import ANGLE, ANGLE_CONSTANT, BOND_CONSTANT, LENGTH, chain, chain_generator

RUNGS = (300.0, 380.0, 480.0, 600.0)


def densities(temperature: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Grids of bond and angle; minus their energies in kJ/mol over kT plus the logarithm of the volume."""
    kT = BOLTZMANN * temperature
    bond = math.sqrt(kT / BOND_CONSTANT)
    b = np.linspace(LENGTH - 9 * bond, LENGTH + 9 * bond, 20_001)
    a = np.linspace(1e-9, math.pi - 1e-9, 20_001)
    return (
        b,
        a,
        2 * np.log(np.abs(b)) - 0.5 * BOND_CONSTANT * (b - LENGTH) ** 2 / kT,
        np.log(np.sin(a)) - 0.5 * ANGLE_CONSTANT * (a - ANGLE) ** 2 / kT,
    )


def exact(temperature: float) -> tuple[float, float, float]:
    """log Z, mean energy in kJ/mol and its variance, by quadrature; three bonds, two angles, one torsion."""
    b, a, log_b, log_a = densities(temperature)
    log_z, mean, variance = math.log(2 * math.pi), 0.0, 0.0
    for n, x, log_p, u in (
        (3, b, log_b, 0.5 * BOND_CONSTANT * (b - LENGTH) ** 2),
        (2, a, log_a, 0.5 * ANGLE_CONSTANT * (a - ANGLE) ** 2),
    ):
        p = np.exp(log_p)
        z = np.trapezoid(p, x)
        first = np.trapezoid(p * u, x) / z
        log_z += n * math.log(z)
        mean += n * first
        variance += n * (np.trapezoid(p * u**2, x) / z - first**2)
    return log_z, mean, variance


def warm_generator(highest: float = 450.0) -> BoltzmannGenerator:
    """Gaussians of bonds and angles that widen with the temperature: near the target, but not equal to it."""
    plain = chain_generator()
    torch.manual_seed(0)
    options = {"rounds": 1, "transform": {"bins": 4}, "conditioner": {"hidden": [4]}}
    flow = kf.Flow.on(plain.flow.domains, context=1, **options)
    return BoltzmannGenerator(plain.coordinates, flow, plain.molecule, TemperatureRange(300.0, highest))


def ladder_data(path: Path, moments: int = 100, replicas: int = 12, seed: int = 0) -> Path:
    """Exact and independent frames on every rung, at the same moments, with energies and forces by OpenMM."""
    random, n = np.random.default_rng(seed), moments * replicas
    replica, frame = np.repeat(np.arange(replicas), moments), np.tile(np.arange(moments), replicas)
    found = []
    for temperature in RUNGS:
        b, a, log_b, log_a = densities(temperature)
        columns = []
        for x, log_p, k in ((b, log_b, 3), (a, log_a, 2)):
            sums = np.cumsum(np.exp(log_p))
            columns.append(np.interp(random.random((n, k)) * sums[-1], sums, x))
        columns.append(random.uniform(-math.pi, math.pi, (n, 1)))
        positions = internal_coordinates(chain()).inverse(torch.tensor(np.concatenate(columns, axis=1)))[0]
        with OpenMMEnergy(chain(), workers=1) as energy:
            u, force = (part.numpy() * chain().kT for part in energy.energy_and_force(positions))
        found.append((positions.numpy(), force, u, replica, frame, frame))
    trajectory.create(path, chain(), {})
    trajectory.append(path, Frames(*found[0]), at=0)
    hot = trajectory.ladder_file(path)
    trajectory.create(hot, chain(), {}, ladder=True)
    joined = [np.concatenate(part) for part in zip(*found[1:], strict=True)]
    trajectory.append(hot, Frames(*joined, temperature=np.repeat(RUNGS[1:], n)), at=0)
    return path
