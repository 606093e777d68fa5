"""Dynamics on any energy, a flow's included; exact samples with a flow; bridges to OpenMM and ASE."""

from typing import TYPE_CHECKING

from knotflow.lazy import lazy_names

if TYPE_CHECKING:
    from knotflow.dynamics.ase_bridge import ase_calculator
    from knotflow.dynamics.bonds import Bonds
    from knotflow.dynamics.chains import Chains, ChainState, Moves
    from knotflow.dynamics.flow_energy import FlowEnergy
    from knotflow.dynamics.flow_monte_carlo import FlowMonteCarlo
    from knotflow.dynamics.integrators import Langevin, State, Status, Verlet
    from knotflow.dynamics.masses import Masses
    from knotflow.dynamics.openmm_bridge import openmm_force
    from knotflow.dynamics.potentials import CoordinateEnergy, Potential
    from knotflow.dynamics.protocol import DynamicsConfig, run
    from knotflow.dynamics.record import Record, from_mdtraj, to_mdtraj
    from knotflow.dynamics.score import Drift, drift

__all__ = [
    "Bonds",
    "ChainState",
    "Chains",
    "CoordinateEnergy",
    "Drift",
    "DynamicsConfig",
    "FlowEnergy",
    "FlowMonteCarlo",
    "Langevin",
    "Masses",
    "Moves",
    "Potential",
    "Record",
    "State",
    "Status",
    "Verlet",
    "ase_calculator",
    "drift",
    "from_mdtraj",
    "openmm_force",
    "run",
    "to_mdtraj",
]

__getattr__, __dir__ = lazy_names(__name__)
