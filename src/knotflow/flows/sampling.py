"""The samples of a seed, as many as one wants, without those of the wrong handedness."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.transforms.base import check_count

BLOCK: Final = 1000
"""Candidates drawn at once. Larger blocks are no faster on a CPU, and need more memory."""
PATIENCE: Final = 100
"""Blocks after which a model must have given samples that can be kept..."""
LEAST_SHARE: Final = 1e-3
"""...at least so many of its candidates."""


class Sampler:
    r"""Draws molecules from a generator: one endless sequence for each seed.

    Candidates come in blocks of `BLOCK`, all from one random generator. Those with a stereocentre of the
    wrong handedness are left out, and so are those that are not finite, should there be any. `take` gives
    what comes next of the rest: the first n samples are the same, bit for bit, however they are asked for.

    Without mirror images the samples have the density $p(x) / P$ on the structures of the right handedness,
    with the unknown constant $P$, the probability of that handedness; ``1 - mirrored / drawn`` estimates it.
    Log-densities are given as $\log p(x)$, without that constant, which cancels from all weights.

    Args:
        model: The generator; its dtype and device are used.
        seed: Of the random generator.
        keep_mirrored: Whether to keep samples of any handedness.
    """

    def __init__(self, model: BoltzmannGenerator, seed: int = 0, *, keep_mirrored: bool = False) -> None:
        check_count("seed", seed, 0)
        self.model, self.keep_mirrored = model, keep_mirrored
        like = next(model.parameters(), torch.empty(0))
        self._generator = torch.Generator(like.device).manual_seed(seed)
        self._x, self._log_prob = like.new_empty(0, model.n_atoms, 3), like.new_empty(0)
        self.drawn = 0
        """Candidates drawn so far."""
        self.mirrored = 0
        """Those of them that have a stereocentre of the wrong handedness."""
        self.not_finite = 0
        """Those of them with a position or log-density that is infinite or NaN."""
        self._kept = 0

    def take(self, n: int) -> tuple[Tensor, Tensor]:
        """The next n samples: positions (n, atoms, 3) in nm, and their log-densities (n,).

        Raises:
            ValueError: if hardly any candidate can be kept.
        """
        check_count("n", n, 0)
        x, log_prob, ready = [self._x], [self._log_prob], len(self._x)
        while ready < n:
            more = self._block()
            x.append(more[0])
            log_prob.append(more[1])
            ready += len(more[0])
        whole, densities = torch.cat(x), torch.cat(log_prob)
        self._x, self._log_prob = whole[n:].clone(), densities[n:].clone()
        return whole[:n], densities[:n]

    def _block(self) -> tuple[Tensor, Tensor]:
        """Those of one more block that are kept."""
        x, log_prob = self.model.sample_and_log_prob(BLOCK, generator=self._generator)
        finite = x.isfinite().all(-1).all(-1) & log_prob.isfinite()
        right = self.model.chirality.matches(x)
        keep = finite if self.keep_mirrored else finite & right
        self.drawn += BLOCK
        self.not_finite += int((~finite).sum())
        self.mirrored += int((finite & ~right).sum())
        self._kept += int(keep.sum())
        if self.drawn >= PATIENCE * BLOCK and self._kept < LEAST_SHARE * self.drawn:
            raise ValueError(
                f"of {self.drawn:,} samples drawn, {self.mirrored:,} have a wrong handedness and "
                f"{self.not_finite:,} are not finite, so hardly any can be kept; train the model better, or "
                "keep mirror images (--keep-mirrored)."
            )
        return x[keep], log_prob[keep]
