"""Energies to sample from, and how to sample them: no network, no plot."""

from typing import TYPE_CHECKING

from knotflow.lazy import lazy_names

if TYPE_CHECKING:
    from knotflow.physics.energy import Energy, MolecularEnergy
    from knotflow.physics.monte_carlo import metropolis
    from knotflow.physics.openmm_energy import OpenMMEnergy
    from knotflow.physics.peptides import peptide
    from knotflow.physics.simulate import Simulation, SimulationPlan
    from knotflow.physics.system import MolecularSystem, ala2, from_pdb
    from knotflow.physics.torch_force_field import TorchForceField
    from knotflow.physics.toy import Mixed, Rings

__all__ = [
    "Energy",
    "Mixed",
    "MolecularEnergy",
    "MolecularSystem",
    "OpenMMEnergy",
    "Rings",
    "Simulation",
    "SimulationPlan",
    "TorchForceField",
    "ala2",
    "from_pdb",
    "metropolis",
    "peptide",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "knotflow.physics.energy": ["Energy", "MolecularEnergy"],
        "knotflow.physics.monte_carlo": ["metropolis"],
        "knotflow.physics.openmm_energy": ["OpenMMEnergy"],
        "knotflow.physics.peptides": ["peptide"],
        "knotflow.physics.simulate": ["Simulation", "SimulationPlan"],
        "knotflow.physics.system": ["MolecularSystem", "ala2", "from_pdb"],
        "knotflow.physics.torch_force_field": ["TorchForceField"],
        "knotflow.physics.toy": ["Mixed", "Rings"],
    },
)
