"""The Lightning module: one training step, and the state of a training between steps."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import Any, cast

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from knotflow import ranks
from knotflow.compiled import Compiled
from knotflow.flows import Flow
from knotflow.training.config import TrainingConfig
from knotflow.training.data import OWN_STREAM, step_seed
from knotflow.training.data_module import FlowData
from knotflow.training.guard import Guard, diagnose
from knotflow.training.objectives import Batch, Mix
from knotflow.training.replay import DrawPool

log = logging.getLogger("knotflow")


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Learning rate of a step: a function of its number only, so there is no scheduler to save."""
    rate = config.learning_rate
    if config.warm_up:
        rate *= min(1.0, (step + 1) / config.warm_up)
    if config.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * step / config.steps))
    elif config.schedule == "exponential":
        rate *= config.decay ** (step // config.decay_every)
    return rate


Monitor = Callable[[Flow], dict[str, float]]
"""Computes numbers from a flow, to be logged and shown."""


class FlowModule(pl.LightningModule):
    """A flow in training: loss, optimiser, moving average and guard.

    Args:
        flow: the flow.
        mix: the loss.
        config: settings of the training.
        monitor: computes more numbers to log at every checkpoint.
        own: draws points of the model to train on.
    """

    def __init__(
        self,
        flow: Flow,
        mix: Mix,
        config: TrainingConfig,
        monitor: Monitor | None = None,
        own: DrawPool | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.flow, self.mix, self.config = flow, mix, config
        # The same random numbers, and so the same results, as eager code.
        options = {"fallback_random": True}
        self.loss = Compiled(mix, task="training", enabled=config.compile, options=options)
        self.average = AveragedModel(flow, multi_avg_fn=_moving_average(config.ema)) if config.ema else None
        if self.average is not None:
            self.average.requires_grad_(False)
        self.guard = Guard()
        self.optimizer = torch.optim.AdamW(
            flow.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.monitor, self.own = monitor, own
        self.watched: dict[str, float] = {}
        """Validation losses and monitored numbers at the last checkpoint."""
        self.values: dict[str, Tensor] = {}
        """Terms of the loss in the last step."""
        self.step = 0
        """Number of the current step, counted over the whole training."""
        self.seconds = 0.0
        """Time spent in all blocks so far; for interrupted runs up to their last checkpoint."""
        self._good: dict[str, Any] = {}

    @property
    def model(self) -> Flow:
        """The trained flow so far: the moving average if there is one."""
        return self.flow if self.average is None else cast(Flow, self.average.module)

    @property
    def latest(self) -> dict[str, float]:
        """`values` and `watched` as plain numbers."""
        return {name: float(value) for name, value in self.values.items()} | self.watched

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer

    def on_train_epoch_start(self) -> None:
        # While steps are being refused, the weights are in doubt: then keep the older good state.
        if not self._good or not self.guard.state["refused_in_a_row"]:
            self._good = copy.deepcopy(self._now())

    def own_samples(self, first: int) -> Batch | None:
        """The model's own points for the block of steps that begins at ``first``, or None.

        They depend on the state in the last checkpoint and on the seed, so a resumed training draws the same
        ones, as does every process of one training.
        """
        if self.own is None:
            return None
        pool = self.own(self.model, first, step_seed(self.config.seed + OWN_STREAM, first))
        self.step = first
        self._log({f"own_{name}": torch.tensor(value) for name, value in pool.figures.items()})
        return pool.batch

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        data: FlowData = self.trainer.datamodule  # type: ignore[attr-defined]
        self.step = data.first_step + batch_idx
        torch.manual_seed(step_seed(self.config.seed, self.step))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step) * self.guard.rate_factor
        total, values = self.loss(self.flow, batch, self.mix.shares(batch))
        self.optimizer.zero_grad()
        self.manual_backward(total)
        longest = min(self.config.clip or math.inf, self.guard.longest(self.config.clip_usual))
        norm = torch.nn.utils.clip_grad_norm_(self.flow.parameters(), longest)
        # Of the whole batch: all processes must make the same decision.
        self.values = _of_all({"loss": total.detach(), **values})
        loss = float(self.values.pop("loss"))
        used = norm.clamp(max=longest) if norm.isfinite() else norm
        if self.guard.accepts(loss, float(used)):
            self.optimizers().step()  # type: ignore[union-attr]
            if self.average is not None:
                self.average.update_parameters(self.flow)
        else:
            self._refuse(batch, loss)
        if (self.step + 1) % self.config.log_every == 0:
            rate = torch.tensor(self.optimizer.param_groups[0]["lr"])
            self._log(
                {"loss": torch.tensor(loss), "gradient_norm": norm, "learning_rate": rate, **self.values}
            )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        n = int(ranks.total(torch.tensor(len(batch.x))))
        for name, value in _of_all(self.mix.values(self.model, batch, self.mix.shares(batch))).items():
            self.log(f"validation_{name}", value, on_epoch=True, batch_size=n, logger=False)

    def on_validation_epoch_end(self) -> None:
        found = {k: v for k, v in self.trainer.callback_metrics.items() if k.startswith("validation_")}
        if self.monitor is not None:
            found |= {name: torch.tensor(value) for name, value in self.monitor(self.model).items()}
        if found and not self.trainer.sanity_checking:
            self._log(found)
            self.watched = {name: float(value) for name, value in found.items()}

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the training depends on, except the number of the step."""
        in_doubt = self.guard.state["refused_in_a_row"] > 0
        return {**self._now(), "good": self._good if in_doubt else None}

    def _now(self) -> dict[str, Any]:
        return {
            "flow": self.flow.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "guard": dict(self.guard.state),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to what `state` returned."""
        self._good = state["good"] or {}
        self._set(state)

    def _set(self, state: dict[str, Any]) -> None:
        self.flow.load_state_dict(state["flow"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        of_earlier_versions = {"halvings": state["guard"]["returns"]}
        self.guard.state = {**Guard().state, **of_earlier_versions, **state["guard"]}

    def _refuse(self, batch: Batch, loss: float) -> None:
        """Skip a bad step; if the weights themselves are bad, return to those of the last checkpoint."""
        if self.guard.state["refused_in_a_row"] == 1:
            reason = diagnose(self.flow, batch)
            log.warning("step %d was skipped, its loss is %.4g: %s.", self.step, loss, reason)
        if self.guard.lost:
            guard = dict(self.guard.state)
            self._set(copy.deepcopy(self._good))
            self.guard.state = guard
            self.guard.returned()
            log.warning(
                "training went back to the weights of the last checkpoint, with %.3g of the learning rate.",
                self.guard.rate_factor,
            )

    def _log(self, values: dict[str, Tensor]) -> None:
        plain = {name: float(value) for name, value in values.items()}
        for logger in self.loggers:
            logger.log_metrics(plain, step=self.step + 1)


def _of_all(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Values of the whole batch, given those of each process's share (`Mix.shares`)."""
    if ranks.size() == 1:
        return values
    means = ranks.total(torch.stack(list(values.values()))) / ranks.size()
    return dict(zip(values, means, strict=True))


def _moving_average(decay: float) -> Any:
    """Exponential average that forgets the first weights: early on it is over a tenth of the steps so far."""

    @torch.no_grad()
    def update(average: list[Tensor], current: list[Tensor], updates: Tensor | int) -> None:
        torch._foreach_lerp_(average, current, max(1 - decay, 10 / (int(updates) + 10)))

    return update
