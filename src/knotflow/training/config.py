"""Configuration of a training."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from knotflow.config import Config

Count = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LossConfig(Config):
    """Weights of the terms of the loss; a term of weight 0 costs nothing."""

    nll: Weight = 1.0
    force_matching: Weight = 0.0
    force_limit: Annotated[float, Field(gt=0)] | None = None
    """Errors of forces above it count linearly; None: all errors are squared."""
    energy_matching: Weight = 0.0
    """Needs data with densities, see `EnergyMatching`."""
    reverse_kl: Weight = 0.0
    reverse_kl_samples: Count = 256

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.nll == self.force_matching == self.energy_matching == self.reverse_kl == 0:
            raise ValueError(
                "one of nll, force_matching, energy_matching and reverse_kl must have a positive weight"
            )
        return self


class TrainingConfig(Config):
    """How a flow is trained. The defaults suit a few coordinates on a CPU."""

    steps: Count = 5000
    """Number of optimiser steps."""
    batch_size: Count = 512
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2e-3
    """Largest learning rate of Adam."""
    schedule: Literal["constant", "cosine", "exponential"] = "cosine"
    """How the rate falls: not at all, to zero along a cosine, or by ``decay`` every ``decay_every`` steps."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.7
    decay_every: Count = 1000
    marginals: Annotated[int, Field(ge=0)] = 0
    """Steps before the training proper, which train only the output biases; see `fit_marginals`."""
    warm_up: Annotated[int, Field(ge=0)] = 100
    """Steps over which the rate rises from zero."""
    weight_decay: Weight = 0.0
    clip: Annotated[float, Field(gt=0)] | None = 20.0
    """Largest norm of the gradient; None: no clipping."""
    clip_usual: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """The same in units of the usual norm, the geometric mean of recent ones."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the moving average of the weights, which is the final model; 0: use the last weights."""
    loss: LossConfig = LossConfig()
    own_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of points made by the model itself in every batch, renewed at each checkpoint; 0: none."""
    checkpoint_every: Count = 500
    """Steps between checkpoints and validations; an interrupted run resumes from the last one."""
    log_every: Count = 50
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    compile: bool = False
    """Compile the loss to one graph, for GPUs; the start takes minutes. On CPUs eager code is fast."""
