"""A molecule, a generator and data of which everything is known; a small generator of alanine dipeptide."""

import math
from functools import cache
from pathlib import Path

import mdtraj
import numpy as np
import openmm
import torch

import knotflow as kf
from knotflow.energies import OpenMMEnergy
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules import MolecularSystem
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.simulation.engines import OpenMMEngine
from knotflow.storage import trajectory
from knotflow.storage.trajectory import Frames
from tests.molecules.molecules import molecule

LENGTH, ANGLE = 0.15, 2.0
BOND_CONSTANT, ANGLE_CONSTANT = 20_000.0, 60.0
"""In kJ/mol/nm² and kJ/mol/rad²."""
WIDTH, TILT = 1.2, 1.1
"""Standard deviations of the generator's bonds and angles, in units of the force field's."""


@cache
def chain(temperature: float = 300.0) -> MolecularSystem:
    """Four carbon atoms in a row, on springs, free to turn around the middle bond."""
    topology = mdtraj.Topology()
    residue = topology.add_residue("BUT", topology.add_chain())
    atoms = [topology.add_atom(f"C{i}", mdtraj.element.carbon, residue) for i in range(1, 5)]
    for i in range(3):
        topology.add_bond(atoms[i], atoms[i + 1])
    system = openmm.System()
    for _ in atoms:
        system.addParticle(12.0)
    springs, bends = openmm.HarmonicBondForce(), openmm.HarmonicAngleForce()
    for i in range(3):
        springs.addBond(i, i + 1, LENGTH, BOND_CONSTANT)
    for i in range(2):
        bends.addAngle(i, i + 1, i + 2, ANGLE, ANGLE_CONSTANT)
    system.addForce(springs)
    system.addForce(bends)
    xml = openmm.XmlSerializer.serialize(system)
    y = LENGTH * math.sin(ANGLE)
    z = -LENGTH * math.cos(ANGLE)
    positions = [[0, y, -z], [0, 0, 0], [0, 0, LENGTH], [y, 0, LENGTH + z]]
    return MolecularSystem("chain", topology, xml, np.array(positions), temperature, {"source": "test"})


def widths() -> tuple[float, float]:
    """Standard deviations of bonds and angles in the force field, without the volume of the coordinates."""
    kT = chain().kT
    return math.sqrt(kT / BOND_CONSTANT), math.sqrt(kT / ANGLE_CONSTANT)


def chain_generator() -> BoltzmannGenerator:
    """Independent Gaussians of bonds and angles, a uniform torsion: a flow that does nothing."""
    bond, angle = widths()
    domains = [kf.Line(LENGTH - 5 * WIDTH * bond, LENGTH + 5 * WIDTH * bond)] * 3
    domains += [kf.Line(ANGLE - 5 * TILT * angle, ANGLE + 5 * TILT * angle)] * 2
    flow = kf.Flow.on(
        [*domains, kf.Circle(-math.pi, math.pi)], rounds=1, transform={"bins": 4}, conditioner={"hidden": [4]}
    )
    return BoltzmannGenerator(internal_coordinates(chain()), flow, chain().plain())


def grids() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fine grids of bond and angle, and the target's density on them, not normalised, volume included."""
    bond, angle = widths()
    b = np.linspace(LENGTH - 8 * bond, LENGTH + 8 * bond, 20_001)
    a = np.linspace(max(1e-6, ANGLE - 8 * angle), min(math.pi - 1e-6, ANGLE + 8 * angle), 20_001)
    return (
        b,
        a,
        b**2 * np.exp(-((b - LENGTH) ** 2) / (2 * bond**2)),
        np.sin(a) * np.exp(-((a - ANGLE) ** 2) / (2 * angle**2)),
    )


def chain_data(path: Path, n: int = 4000, replicas: int = 20, seed: int = 0) -> Path:
    """Exact and independent frames of the chain, with energies and forces by OpenMM."""
    random = np.random.default_rng(seed)
    b, a, density_b, density_a = grids()

    def draw(x: np.ndarray, density: np.ndarray, k: int) -> np.ndarray:
        sums = np.cumsum(density)
        return np.interp(random.random((n, k)) * sums[-1], sums, x)

    torsion = random.uniform(-math.pi, math.pi, (n, 1))
    q = torch.tensor(np.concatenate((draw(b, density_b, 3), draw(a, density_a, 2), torsion), axis=1))
    x = internal_coordinates(chain()).inverse(q)[0].float().numpy()
    return write(path, chain(), x, np.arange(n) * replicas // n)


def write(path: Path, system: MolecularSystem, x: np.ndarray, replica: np.ndarray) -> Path:
    """A trajectory file of positions."""
    with OpenMMEnergy(system, workers=1) as energy:
        u, force = energy.energy_and_force(torch.tensor(x, dtype=torch.float64))
    rows = np.arange(len(x))
    trajectory.create(path, system, {})
    frames = Frames(x, force.numpy() * system.kT, u.numpy() * system.kT, replica, rows, rows)
    trajectory.append(path, frames, at=0)
    return path


def ala2_data(path: Path, frames: int = 60, replicas: int = 2) -> Path:
    """A short simulation of alanine dipeptide, a frame every 20 fs."""
    system, random = molecule("ala2"), np.random.default_rng(0)
    engine = OpenMMEngine(system, "Reference")
    engine.seed(1)
    temperature = np.full(replicas, system.temperature)
    x = np.repeat(system.positions[None], replicas, 0)
    v = np.concatenate([engine.thermal_velocities(temperature[:1], random) for _ in range(replicas)])
    found = []
    for _ in range(frames):
        now = engine.advance(x, v, temperature, 20)
        x, v = now.positions, now.velocities
        found.append(x)
    return write(path, system, np.concatenate(found), np.tile(np.arange(replicas), frames))


def ala2_generator(data: Path, *, turning: bool = False) -> BoltzmannGenerator:
    """Gaussians of internal coordinates as in data; or torsions all the way round, with either handedness."""
    system = trajectory.open_info(data).system
    coordinates = internal_coordinates(system)
    q, _ = coordinates(torch.from_numpy(trajectory.read(data).positions))
    reference = q[0, coordinates.torsions]
    q[:, coordinates.torsions] -= (
        2 * math.pi * torch.round((q[:, coordinates.torsions] - reference) / (2 * math.pi))
    )
    mean, width = q.double().mean(0).tolist(), q.double().std(0).tolist()
    domains = [kf.Line(m - 5 * s, m + 5 * s) for m, s in zip(mean, width, strict=True)]
    if turning:
        domains[coordinates.torsions] = [kf.Circle(-math.pi, math.pi)] * (system.n_atoms - 3)
    torch.manual_seed(0)
    flow = kf.Flow.on(domains, rounds=1, transform={"bins": 4}, conditioner={"hidden": [8]})
    return BoltzmannGenerator(coordinates, flow, system.plain())
