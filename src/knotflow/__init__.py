"""knotflow: smooth normalizing flows for physics."""

from typing import TYPE_CHECKING

from knotflow.lazy import lazy_names
from knotflow.version import __version__

if TYPE_CHECKING:
    from knotflow.dynamics.ase_bridge import ase_calculator
    from knotflow.dynamics.openmm_bridge import openmm_force
    from knotflow.flows import Conditioner, Coupling, Flow, FlowConfig, load, save
    from knotflow.flows.boltzmann import BoltzmannGenerator
    from knotflow.training import fit
    from knotflow.transforms import (
        Affine,
        BSpline,
        Bump,
        Chain,
        Circle,
        Domain,
        Interval,
        Line,
        Paper,
        RationalQuadratic,
        Slopes,
        Transform,
    )
    from knotflow.workflows.evaluation import evaluate
    from knotflow.workflows.molecule import load_molecule
    from knotflow.workflows.report import write_report
    from knotflow.workflows.reweighting import reweight
    from knotflow.workflows.run_summary import run
    from knotflow.workflows.sampling import sample
    from knotflow.workflows.simulation import simulate
    from knotflow.workflows.training import train

__all__ = [
    "Affine",
    "BSpline",
    "BoltzmannGenerator",
    "Bump",
    "Chain",
    "Circle",
    "Conditioner",
    "Coupling",
    "Domain",
    "Flow",
    "FlowConfig",
    "Interval",
    "Line",
    "Paper",
    "RationalQuadratic",
    "Slopes",
    "Transform",
    "__version__",
    "ase_calculator",
    "evaluate",
    "fit",
    "load",
    "load_molecule",
    "openmm_force",
    "reweight",
    "run",
    "sample",
    "save",
    "simulate",
    "train",
    "write_report",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    modules=[
        "adapters",
        "analysis",
        "dynamics",
        "energies",
        "flows",
        "geometry",
        "molecules",
        "simulation",
        "statistics",
        "storage",
        "training",
        "transforms",
    ],
)
