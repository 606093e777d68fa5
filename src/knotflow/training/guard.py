"""Protection against steps that would ruin a flow: refuse them, explain them, return to good weights."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch

from knotflow.errors import TrainingError
from knotflow.flows import Conditioner, Flow
from knotflow.flows.conditioner import SeparateConditioners
from knotflow.training.objectives import Batch

log = logging.getLogger("knotflow")

JUMP = 30.0
"""A loss this many mean deviations above its running mean is refused."""
MEMORY = 0.98
"""Decay of the running mean and deviation of the loss."""
SETTLED = 100
"""Accepted steps before jumps of the loss are refused."""
PATIENCE = 5
"""Refused steps in a row after which the weights, not the data, are considered bad."""
FORGIVEN = 2
"""Returns after which the learning rate recovers …"""
RECOVERY = 500
"""… by a factor of two in so many steps; later ones slow the rest of the training."""
RETURNS = 8
"""Largest number of returns to the last good state; then training gives up."""


class Guard:
    """Judges every step before the weights change.

    A step is refused if its loss or gradient is not finite, or if the loss jumps far above its recent values.
    After `PATIENCE` refusals in a row the caller must return to its last good state, with half the learning
    rate. The rate recovers from the first `FORGIVEN` returns: most trouble is at the start, and passes.
    Everything the guard knows is in `state`, so a resumed training makes the same decisions.
    """

    def __init__(self) -> None:
        counts = dict.fromkeys(("accepted", "refused_in_a_row", "refused", "returns"), 0)
        means = dict.fromkeys(("mean", "deviation", "log_norm"), 0.0)
        self.state: dict[str, Any] = {**counts, **means, "halvings": 0.0}

    @property
    def rate_factor(self) -> float:
        """Factor of the learning rate: a half for every return from which it has not recovered."""
        return float(0.5 ** self.state["halvings"])

    def longest(self, factor: float | None) -> float:
        """Largest norm of a gradient: so many times the usual one, the geometric mean of recent norms.

        Adam divides by the size of past gradients, so a single long one would spoil a thousand steps.
        """
        if factor is None or not self.state["accepted"]:
            return math.inf
        return factor * math.exp(self.state["log_norm"])

    def accepts(self, loss: float, gradient_norm: float) -> bool:
        """Whether the step may be taken, given its loss and the norm of its gradient, as used."""
        s = self.state
        finite = math.isfinite(loss) and math.isfinite(gradient_norm)
        settled = s["accepted"] >= SETTLED
        if finite and not (settled and loss > s["mean"] + JUMP * s["deviation"]):
            # Running means start as plain means, so that the first values are soon forgotten.
            keep = min(MEMORY, s["accepted"] / (s["accepted"] + 1))
            if s["accepted"]:
                s["deviation"] = keep * s["deviation"] + (1 - keep) * abs(loss - s["mean"])
            s["mean"] = keep * s["mean"] + (1 - keep) * loss
            s["log_norm"] = keep * s["log_norm"] + (1 - keep) * math.log(max(gradient_norm, 1e-30))
            s["accepted"] += 1
            s["refused_in_a_row"] = 0
            if s["returns"] <= FORGIVEN:
                s["halvings"] = max(0.0, s["halvings"] - 1 / RECOVERY)
            return True
        s["refused"] += 1
        s["refused_in_a_row"] += 1
        return False

    @property
    def lost(self) -> bool:
        """Whether the weights must be bad, because too many steps in a row were refused."""
        return bool(self.state["refused_in_a_row"] >= PATIENCE)

    def returned(self) -> None:
        """Count a return of the caller.

        Raises:
            TrainingError: if there were too many.
        """
        s = self.state
        s["returns"] += 1
        s["halvings"] += 1
        s["refused_in_a_row"] = 0
        if s["returns"] > RETURNS:
            raise TrainingError(
                f"training became unstable {s['returns']} times although the learning rate was halved each "
                "time; start with a lower one, bound the slopes (parametrisation slopes), or check the data."
            )


def diagnose(flow: Flow, batch: Batch) -> str:
    """The layer and coordinate where a batch first goes wrong, or where slopes are most extreme, as text."""
    steepest, text = -1.0, "nothing unusual was found in the forward pass"
    with torch.no_grad():
        for number, (coupling, z, log_slopes) in enumerate(flow.layers(batch.x, batch.context)):
            for what, values, coordinates in (
                ("input", z, range(flow.dim)),
                ("log-slope", log_slopes, coupling.transformed),
            ):
                for column, coordinate in enumerate(coordinates):
                    bad = int((~values[..., column].isfinite()).sum())
                    if bad:
                        return (
                            f"layer {number}, coordinate {coordinate}: the {what} is not finite for {bad} of "
                            f"{len(batch.x)} points"
                        )
            slopes = log_slopes.abs().amax(0)
            if float(slopes.max()) > steepest:
                steepest, coordinate = float(slopes.max()), coupling.transformed[int(slopes.argmax())]
                text = (
                    f"the most extreme slope, e^{steepest:.1f}, is in layer {number}, coordinate {coordinate}"
                )
    return _bad_gradient(flow) or text


def _bad_gradient(flow: Flow) -> str | None:
    """The first layer whose gradient is not finite, and the coordinates concerned, as text."""
    for number, coupling in enumerate(flow.couplings):
        if all(p.grad is None or bool(p.grad.isfinite().all()) for p in coupling.parameters()):
            continue
        coordinates: list[int] = []
        if isinstance(coupling.conditioner, Conditioner | SeparateConditioners):
            bad = ~coupling.conditioner.output_gradient().isfinite()
            coordinates = [i for i, part in coupling.outputs.items() if bool(bad[part].any())]
        where = f"coordinate {', '.join(map(str, coordinates))}" if coordinates else "all coordinates"
        return f"layer {number}, {where}: the gradient of the weights is not finite"
    return None
