"""Any number of samples from a seed, without those of the wrong handedness."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.flow import like
from knotflow.transforms.base import check_count

BLOCK: Final = 1000
"""Candidates drawn at once. Larger blocks are not faster on a CPU, and need more memory."""
PATIENCE: Final = 100
"""Number of blocks after which `LEAST_SHARE` is checked."""
LEAST_SHARE: Final = 1e-3
"""Smallest fraction of candidates that a usable model must let through."""
MIRRORED_DATA: Final = (
    "most samples are of the other hand than the structure, so the data of the training probably were, too: "
    "import the trajectory with the structure that it was made with, and train again"
)
"""What to do about a model whose samples are mostly mirror images; more training would not help."""


class Sampler:
    r"""Draws molecules from a generator: one endless sequence for each seed.

    Candidates are drawn in blocks of `BLOCK` from one random generator. Those with a stereocentre of the
    wrong handedness are left out, and so are any that are not finite. `take` returns the next samples: the
    first n samples are the same, bit for bit, in whatever portions they are taken.

    Without mirror images the samples have the density $p(x) / P$ on structures of the right handedness. The
    constant $P$, the probability of that handedness, is unknown; ``1 - mirrored / drawn`` estimates it.
    Log-densities are $\log p(x)$, without that constant, which cancels from all weights.

    Args:
        model: The generator; its dtype and device are used.
        seed: Seed of the random numbers.
        keep_mirrored: Keep samples of any handedness.
    """

    def __init__(self, model: BoltzmannGenerator, seed: int = 0, *, keep_mirrored: bool = False) -> None:
        check_count("seed", seed, 0)
        self.model, self.keep_mirrored = model, keep_mirrored
        own = like(model)
        self._generator = torch.Generator(own.device).manual_seed(seed)
        self._x, self._log_prob = own.new_empty(0, model.n_atoms, 3), own.new_empty(0)
        self.drawn = 0
        """Candidates drawn so far."""
        self.mirrored = 0
        """Candidates with a stereocentre of the wrong handedness."""
        self.not_finite = 0
        """Candidates with a position or log-density that is infinite or NaN."""
        self._kept = 0

    @property
    def mostly_mirrored(self) -> bool:
        """Whether more than half of the candidates have a wrong handedness."""
        return 2 * self.mirrored > self.drawn

    def take(self, n: int) -> tuple[Tensor, Tensor]:
        """The next n samples: positions (n, atoms, 3) in nm, and their log-densities (n,).

        Raises:
            ValueError: if hardly any candidate can be kept.
        """
        check_count("n", n, 0)
        parts = [(self._x, self._log_prob)]
        while sum(len(x) for x, _ in parts) < n:
            parts.append(self._block())
        x, log_prob = (torch.cat(part) for part in zip(*parts, strict=True))
        self._x, self._log_prob = x[n:].clone(), log_prob[n:].clone()
        return x[:n], log_prob[:n]

    def _block(self) -> tuple[Tensor, Tensor]:
        """The samples to keep of one more block."""
        x, log_prob = self.model.sample_and_log_prob(BLOCK, generator=self._generator)
        finite = x.isfinite().all(-1).all(-1) & log_prob.isfinite()
        right = self.model.chirality.matches(x)
        keep = finite if self.keep_mirrored else finite & right
        self.drawn += BLOCK
        self.not_finite += int((~finite).sum())
        self.mirrored += int((finite & ~right).sum())
        self._kept += int(keep.sum())
        if self.drawn >= PATIENCE * BLOCK and self._kept < LEAST_SHARE * self.drawn:
            advice = "the model is damaged or hardly trained: train it again"
            if self.mostly_mirrored:
                advice = f"{MIRRORED_DATA}; or keep mirror images (--keep-mirrored)"
            raise ValueError(
                f"of {self.drawn:,} samples drawn, {self.mirrored:,} have a wrong handedness and "
                f"{self.not_finite:,} are not finite, so hardly any can be kept; {advice}."
            )
        return x[keep], log_prob[keep]
