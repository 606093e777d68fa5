"""A base distribution with several modes: a trainable mixture of normals."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Mixture(nn.Module):
    r"""A mixture of K normals on m lines, in standard coordinates, with diagonal covariances.

    $$p(z) = \sum_k w_k \prod_i \mathcal N(z_i;\, \mu_{ki}, \sigma_{ki}^2) .$$

    Weights $w = \mathrm{softmax}(\text{logits})$, means and deviations are trained with the flow. It begins
    with equal weights, unit deviations, and means drawn with a deviation of `SPREAD`, as equal components
    would stay equal.

    Args:
        lines: number m of lines.
        components: number K of normals.
    """

    SPREAD = 0.5

    def __init__(self, lines: int, components: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(components))
        self.means = nn.Parameter(self.SPREAD * torch.randn(components, lines))
        self.log_deviations = nn.Parameter(torch.zeros(components, lines))

    def log_prob(self, z: Tensor) -> Tensor:
        """Log-density (...) of points (..., m)."""
        return torch.logsumexp(self.logits.log_softmax(-1) + self._log_normals(z).sum(-1), -1)

    def cdf(self, z: Tensor) -> Tensor:
        """Share (..., m) of the mixture below each coordinate of points (..., m)."""
        scaled = (z.unsqueeze(-2) - self.means) / self.log_deviations.exp()
        below: Tensor = torch.special.ndtr(scaled)
        return (self.logits.softmax(-1)[:, None] * below).sum(-2)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n points (n, m), with derivatives by the parameters unless gradients are turned off."""
        with torch.no_grad():
            which = torch.multinomial(self.logits.softmax(-1), n, replacement=True, generator=generator)
            like = self.means
            normal = torch.randn(n, like.shape[-1], generator=generator, dtype=like.dtype, device=like.device)
            z = self.means[which] + self.log_deviations.exp()[which] * normal
        return self._differentiable(z) if torch.is_grad_enabled() else z

    def _differentiable(self, z: Tensor) -> Tensor:
        r"""The same points, with derivatives by implicit reparametrisation (Figurnov et al., NeurIPS 2018).

        The choice of a component has no derivative. But $u_i = F(z_i \mid z_1 \dots z_{i-1})$, with the
        conditional distribution functions $F$ of the mixture, does not depend on the parameters, so

        $$0 = \frac{d u_i}{d\theta} = p(z_i \mid z_{<i}) \frac{d z_i}{d\theta}
              + \frac{\partial F}{\partial \theta} + \frac{\partial F}{\partial z_{<i}}
              \frac{d z_{<i}}{d\theta} .$$

        One coordinate follows from those before it.
        """
        log_weights, found = self.logits.log_softmax(-1).expand(len(z), -1), []
        for i, own in enumerate(z.unbind(-1)):
            column = slice(i, i + 1)
            weights = log_weights.softmax(-1)
            scaled = (own[:, None] - self.means[:, i]) / self.log_deviations[:, i].exp()
            below = (weights * torch.special.ndtr(scaled)).sum(-1)
            with torch.no_grad():
                density = (weights * self._log_normals(own[:, None], column)[..., 0].exp()).sum(-1)
            own = own - (below - below.detach()) / density
            found.append(own)
            log_weights = log_weights + self._log_normals(own[:, None], column)[..., 0]
        return torch.stack(found, -1)

    def _log_normals(self, z: Tensor, part: slice = slice(None)) -> Tensor:
        """Log-densities (..., K, m) of the normals of each component and line, or of some lines."""
        log_deviations = self.log_deviations[:, part]
        scaled = (z.unsqueeze(-2) - self.means[:, part]) * torch.exp(-log_deviations)
        return -0.5 * scaled.square() - log_deviations - 0.5 * math.log(2 * math.pi)
