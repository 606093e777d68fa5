"""Training: objectives, data, and a loop on Lightning that can be killed and resumed."""

import importlib.util

if importlib.util.find_spec("lightning") is None:
    raise ModuleNotFoundError(
        "training needs Lightning, not installed here; run: pip install 'knotflow[train]'"
    )

from knotflow.errors import TrainingError
from knotflow.training.config import LossConfig, TrainingConfig
from knotflow.training.objectives import NLL, Batch, ForceMatching, Mix, ReverseKL, Term
from knotflow.training.own_samples import OwnSamples, Pool
from knotflow.training.run import fit, make_loss

__all__ = [
    "NLL",
    "Batch",
    "ForceMatching",
    "LossConfig",
    "Mix",
    "OwnSamples",
    "Pool",
    "ReverseKL",
    "Term",
    "TrainingConfig",
    "TrainingError",
    "fit",
    "make_loss",
]
