"""Quality of flows and simulations: exact numbers where possible, error bars elsewhere."""

from knotflow.analysis.agreement import Agreement, Ensemble, agreement, observe
from knotflow.analysis.evaluation import Evaluation, evaluate
from knotflow.analysis.frame_table import FrameTable
from knotflow.analysis.measures import Measure
from knotflow.analysis.quadrature import Comparison, compare, force_jump, log_normaliser
from knotflow.analysis.states import ComparedStates, State, states_of_file

__all__ = [
    "Agreement",
    "ComparedStates",
    "Comparison",
    "Ensemble",
    "Evaluation",
    "FrameTable",
    "Measure",
    "State",
    "agreement",
    "compare",
    "evaluate",
    "force_jump",
    "log_normaliser",
    "observe",
    "states_of_file",
]
