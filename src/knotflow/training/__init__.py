"""Training: objectives, data, and a Lightning loop whose interrupted runs resume.

Only the loop needs Lightning; objectives and batches work without it.
"""

from typing import TYPE_CHECKING

from knotflow.lazy import lazy_names

if TYPE_CHECKING:
    from knotflow.errors import TrainingError
    from knotflow.training.config import LossConfig, TrainingConfig
    from knotflow.training.objectives import (
        NLL,
        Batch,
        EnergyMatching,
        ForceMatching,
        Mix,
        ReverseKL,
        Term,
        make_loss,
    )
    from knotflow.training.replay import Pool, Replay
    from knotflow.training.run import fit

__all__ = [
    "NLL",
    "Batch",
    "EnergyMatching",
    "ForceMatching",
    "LossConfig",
    "Mix",
    "Pool",
    "Replay",
    "ReverseKL",
    "Term",
    "TrainingConfig",
    "TrainingError",
    "fit",
    "make_loss",
]

__getattr__, __dir__ = lazy_names(__name__)
