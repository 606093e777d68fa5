"""Molecules that tests share, and random frames of them."""

from functools import cache

import mdtraj
import numpy as np
import openmm
import torch
from torch import Tensor

from knotflow.molecules.peptides import peptide
from knotflow.molecules.system import MolecularSystem, ala2

DIMER_LENGTH, DIMER_CONSTANT = 0.15, 20_000.0


@cache
def molecule(name: str) -> MolecularSystem:
    if name == "ala2":
        return ala2()
    if name == "vacuum":
        return ala2(solvent=False)
    return dimer() if name == "dimer" else peptide(name)


def dimer() -> MolecularSystem:
    """Two carbon atoms on a spring: everything about it is known."""
    topology = mdtraj.Topology()
    residue = topology.add_residue("DIM", topology.add_chain())
    atoms = [topology.add_atom(name, mdtraj.element.carbon, residue) for name in ("C1", "C2")]
    topology.add_bond(*atoms)
    system = openmm.System()
    for _ in atoms:
        system.addParticle(12.0)
    spring = openmm.HarmonicBondForce()
    spring.addBond(0, 1, DIMER_LENGTH, DIMER_CONSTANT)
    system.addForce(spring)
    xml = openmm.XmlSerializer.serialize(system)
    positions = np.array([[0.0, 0.0, 0.0], [DIMER_LENGTH, 0.0, 0.0]])
    return MolecularSystem("dimer", topology, xml, positions, 300.0, {"source": "test"})


def frames(system: MolecularSystem, n: int, noise: float = 0.01, seed: int = 0) -> Tensor:
    """The structure of a system, shaken and turned, in float64."""
    random = np.random.default_rng(seed)
    turned = []
    for _ in range(n):
        rotation, _ = np.linalg.qr(random.normal(size=(3, 3)))
        rotation *= np.sign(np.linalg.det(rotation))
        turned.append(system.positions @ rotation.T + noise * random.normal(size=system.positions.shape))
    return torch.tensor(np.array(turned))
