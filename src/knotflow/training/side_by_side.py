"""Train one flow from several seeds side by side: what small batches waste on overhead is spent once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from knotflow.flows import Conditioner, Coupling, Flow, FlowConfig
from knotflow.training.compiled import CompiledLoss
from knotflow.training.config import TrainingConfig
from knotflow.training.data import Batches
from knotflow.training.module import average_weight, learning_rate
from knotflow.training.objectives import Batch, Mix


class StackedConditioner(nn.Module):
    """Conditioners of one shape as one: rows of a batch come in equal blocks, one for each.

    Args:
        members: the conditioners.
    """

    def __init__(self, members: Sequence[Conditioner]) -> None:
        super().__init__()
        self.template = copy.deepcopy(members[0]).requires_grad_(False)
        layers = [[_linear(layer) for layer in member.layers] for member in members]
        self.weights = nn.ParameterList(
            torch.stack([layer.weight.detach().T for layer in column]) for column in zip(*layers, strict=True)
        )
        self.biases = nn.ParameterList(
            torch.stack([layer.bias.detach().unsqueeze(0) for layer in column])
            for column in zip(*layers, strict=True)
        )
        self.size = len(members)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Raw parameters (rows, outputs)."""
        h = self._blocks(self.template.features(x, context))
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, self.template.activation(h) if i else h, weight)
        return torch.flatten(h, 0, 1)

    def with_derivative(
        self, x: Tensor, tangent: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Raw parameters, and their derivative as the coordinates move along a tangent."""
        h = self._blocks(self.template.features(x, context))
        dh = self._blocks(self.template.feature_derivatives(x, tangent))
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            a, da = self.template.activated(h, dh) if i else (h, dh)
            update, dh = torch.bmm(torch.cat([a, da], 1), weight).chunk(2, 1)
            h = update + bias
        return h.flatten(0, 1), dh.flatten(0, 1)

    def _blocks(self, rows: Tensor) -> Tensor:
        blocks: Tensor = rows.unflatten(0, (self.size, -1))
        return blocks

    def member(self, number: int) -> dict[str, Tensor]:
        """The weights of one conditioner, as its ``state_dict`` has them."""
        state = {}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            state[f"layers.{i}.weight"] = weight.detach()[number].T.contiguous()
            state[f"layers.{i}.bias"] = bias.detach()[number, 0].clone()
        return state


def fit_side_by_side(
    config: FlowConfig,
    seeds: Sequence[int],
    train: Batch,
    mix: Mix,
    training: TrainingConfig,
    progress: Callable[[int, dict[str, Tensor]], None] | None = None,
) -> list[Flow]:
    """Train the same flow from several seeds, each with its own first weights and order of the data.

    Steps are those of `fit`: batches, learning rate, clipping and moving average of every seed are its own.
    There is no guard but that a seed whose gradient is not finite does not move, there are no checkpoints,
    and rounding differs, because products of all seeds are computed together.

    Args:
        config: of the flow; its conditioners must be plain and not residual.
        seeds: the seeds.
        train: training data.
        mix: the loss: means over the rows of a batch.
        training: how to train; its seed is not used.
        progress: told the number of steps done and the terms of the loss, means over seeds.

    Returns:
        The trained flows, in the order of the seeds.
    """
    members = []
    for seed in seeds:
        torch.manual_seed(seed)
        members.append(config.build())
    columns = zip(*(member.couplings for member in members), strict=True)
    stack = Flow(members[0].domains, [_stacked(column) for column in columns])
    average = copy.deepcopy(stack)
    moving, settled = (
        cast("list[Tensor]", [p for p in flow.parameters() if p.requires_grad]) for flow in (stack, average)
    )
    optimizer = torch.optim.AdamW(moving, lr=training.learning_rate, weight_decay=training.weight_decay)
    loss = CompiledLoss(mix, enabled=training.compile)
    orders = [Batches(train, training.batch_size, seed, 0, training.steps) for seed in seeds]
    for step, parts in enumerate(zip(*orders, strict=True)):
        x, *rest = (None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step)
        total, values = loss(stack, Batch(cast(Tensor, x), *rest))
        optimizer.zero_grad()
        # The loss is a mean over all rows; every seed wants that over its own.
        (total * len(seeds)).backward()
        _clip(moving, training.clip)
        optimizer.step()
        with torch.no_grad():
            weight = average_weight(training.ema, step) if training.ema else 1.0
            torch._foreach_lerp_(settled, moving, weight)
        if progress is not None:
            progress(step + 1, values)
    return [_member(average, number, config) for number in range(len(seeds))]


def _stacked(members: Sequence[Coupling]) -> Coupling:
    """Couplings of one shape as one."""
    conditioners = [member.conditioner for member in members]
    plain = [c for c in conditioners if isinstance(c, Conditioner) and not c.residual]
    if len(plain) < len(conditioners):
        raise ValueError("only plain conditioners without residual layers can be trained side by side.")
    first = members[0]
    return Coupling(first.transformed, first.transforms, first.read, StackedConditioner(plain))


def _clip(parameters: Sequence[Tensor], largest: float | None) -> None:
    """Bound the norm of the gradient of each seed; a gradient that is not finite becomes zero."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
    factor = torch.ones_like(norms) if largest is None else (largest / (norms + 1e-6)).clamp(max=1.0)
    finite = norms.isfinite()
    factor = torch.where(finite, factor, 0.0)
    for gradient in gradients:
        gradient.mul_(factor.view(-1, *[1] * (gradient.ndim - 1)))
        if not bool(finite.all()):
            gradient.nan_to_num_(0.0, 0.0, 0.0)


def _member(stack: Flow, number: int, config: FlowConfig) -> Flow:
    """One of the flows of a stack."""
    flow = config.build()
    for coupling, stacked in zip(flow.couplings, stack.couplings, strict=True):
        coupling.conditioner.load_state_dict(cast(StackedConditioner, stacked.conditioner).member(number))
    return flow


def _linear(layer: nn.Module) -> nn.Linear:
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        raise ValueError("a conditioner that reads nothing cannot be trained side by side.")
    return layer
