"""A good start for a training: learn the density of each coordinate alone first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knotflow.flows import Conditioner, Coupling, Flow
from knotflow.progress import Progress, silent

RATE = 0.1
"""Learning rate of Adam, large because raw parameters change by several units."""
BATCH = 256


def fit_marginals(
    flow: Flow,
    x: Tensor,
    steps: int,
    *,
    context: Tensor | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> None:
    r"""Train only the output biases of all conditioners, by likelihood.

    A flow begins near the identity, whose density is flat over domains much wider than the data: a bond of
    alanine dipeptide fills a tenth of its interval. Networks would first have to learn, at the rate that
    suits their weights, to put knots where the data are. The biases are the part of the maps that does not
    depend on other coordinates. Alone they learn this in a few hundred steps, at a rate that suits them. So
    training proper begins from about $\prod_i p_i(x_i)$, the product of the marginals, whatever the seed.

    The part of the outputs that networks add to the biases is held constant. Where their last weights are
    zero, as at the start of most presets, networks are not evaluated at all.

    Args:
        flow: changed in place; conditioners other than `Conditioner` stay as they are.
        x: training data (n, d).
        steps: number of steps, each with `BATCH` points.
        context: context (n, m) of the data, for conditional flows.
        seed: seed of the order of the data.
        progress: called with the steps done, after each.
    """
    last = [module.last for module in flow.modules() if isinstance(module, Conditioner)]
    biases = [layer.weight if layer.bias is None else layer.bias for layer in last]
    if not biases or not steps:
        return
    wanted = {p: p.requires_grad for p in flow.parameters()}
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(biases, lr=RATE)
    still = [Coupling(c.transformed, c.transforms, c.read, _Still(c.conditioner)) for c in flow.couplings]
    fitted = flow.with_couplings(still)
    try:
        flow.requires_grad_(False)
        for bias in biases:
            bias.requires_grad_()
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (step + 1) / 10) * (1 - step / steps)
            rows = torch.randint(len(x), (min(BATCH, len(x)),), generator=generator).to(x.device)
            loss = -fitted.log_prob(x[rows], None if context is None else context[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress("fitting single coordinates", step + 1, steps)
    finally:
        for parameter, value in wanted.items():
            parameter.requires_grad_(value)


class _Still(nn.Module):
    """A conditioner whose outputs have derivatives only with respect to its biases."""

    def __init__(self, conditioner: nn.Module) -> None:
        super().__init__()
        self.conditioner = conditioner
        self._bias: Tensor | None = None
        if isinstance(conditioner, Conditioner) and not conditioner.last.weight.any():
            self._bias = conditioner.last.bias

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Raw parameters (..., outputs), or (outputs,) if they are the same for all points."""
        outputs: Tensor = self.conditioner(x.detach(), context) if self._bias is None else self._bias
        return outputs
