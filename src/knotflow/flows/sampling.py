"""Any number of samples from a seed, without those of the wrong handedness."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.flow import like
from knotflow.ranks import piece_seed
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


class Block(NamedTuple):
    """What is kept of a block of candidates."""

    x: Tensor
    """Positions in nm, (n, atoms, 3)."""
    log_prob: Tensor
    """Their log-densities, (n,)."""
    mirrored: int
    """Candidates with a stereocentre of the wrong handedness."""
    not_finite: int
    """Candidates with a position or log-density that is infinite or NaN."""


def draw_block(model: BoltzmannGenerator, seed: int, number: int, *, keep_mirrored: bool = False) -> Block:
    """Block ``number`` of a seed's sequence: it has a seed of its own, so anyone may draw it."""
    random = torch.Generator(like(model).device).manual_seed(piece_seed(seed, number))
    x, log_prob = model.sample_and_log_prob(BLOCK, generator=random)
    finite = x.isfinite().all(-1).all(-1) & log_prob.isfinite()
    right = model.chirality.matches(x)
    keep = finite if keep_mirrored else finite & right
    return Block(x[keep], log_prob[keep], int((finite & ~right).sum()), int((~finite).sum()))


class Sampler:
    r"""Draws molecules from a generator: one endless sequence for each seed.

    Candidates are drawn in blocks of `BLOCK`, each with its own seed. Those with a stereocentre of the wrong
    handedness are left out, and so are any that are not finite. `take` returns the next samples: the first n
    samples are the same, bit for bit, in whatever portions they are taken, and by whomever they are drawn.

    Without mirror images the samples have the density $p(x) / P$ on structures of the right handedness. The
    constant $P$, the probability of that handedness, is unknown; ``1 - mirrored / drawn`` estimates it.
    Log-densities are $\log p(x)$, without that constant, which cancels from all weights.

    Args:
        model: The generator; its dtype and device are used.
        seed: Seed of the random numbers.
        keep_mirrored: Keep samples of any handedness.
        draw: Draws the blocks of some numbers, in order; None: `draw_block`, one after the other.
        at_once: Blocks that ``draw`` likes to be asked for: a multiple of this number.
    """

    def __init__(
        self,
        model: BoltzmannGenerator,
        seed: int = 0,
        *,
        keep_mirrored: bool = False,
        draw: Callable[[range], Iterable[Block]] | None = None,
        at_once: int = 1,
    ) -> None:
        check_count("seed", seed, 0)
        self.model, self.keep_mirrored = model, keep_mirrored

        def one_by_one(numbers: range) -> Iterable[Block]:
            return (draw_block(model, seed, number, keep_mirrored=keep_mirrored) for number in numbers)

        self._draw, self._at_once = draw or one_by_one, at_once
        own = like(model)
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

    def take(self, n: int, *, then: int = 0) -> tuple[Tensor, Tensor]:
        """The next n samples: positions (n, atoms, 3) in nm, and their log-densities (n,).

        Args:
            n: Number of samples.
            then: Samples that will be taken after these, which may be drawn already.

        Raises:
            ValueError: if hardly any candidate can be kept.
        """
        check_count("n", n, 0)
        parts, ready = [(self._x, self._log_prob)], len(self._x)
        while ready < n:
            for block in self._draw(self._next_blocks(n - ready, then)):
                self._count(block)
                parts.append((block.x, block.log_prob))
                ready += len(block.x)
        x, log_prob = (torch.cat(part) for part in zip(*parts, strict=True))
        self._x, self._log_prob = x[n:].clone(), log_prob[n:].clone()
        return x[:n], log_prob[:n]

    def _next_blocks(self, missing: int, then: int) -> range:
        """Numbers of the next blocks, never more than are certainly needed: all machines draw as many."""
        enough = self._at_once * -(-missing // (self._at_once * BLOCK))
        first = self.drawn // BLOCK
        return range(first, first + min(enough, -(-(missing + then) // BLOCK)))

    def _count(self, block: Block) -> None:
        """Count what a block has lost; give up if hardly anything is left."""
        self.drawn += BLOCK
        self.not_finite += block.not_finite
        self.mirrored += block.mirrored
        self._kept += len(block.x)
        if self.drawn >= PATIENCE * BLOCK and self._kept < LEAST_SHARE * self.drawn:
            advice = "the model is damaged or hardly trained: train it again"
            if self.mostly_mirrored:
                advice = f"{MIRRORED_DATA}; or keep mirror images (--keep-mirrored)"
            raise ValueError(
                f"of {self.drawn:,} samples drawn, {self.mirrored:,} have a wrong handedness and "
                f"{self.not_finite:,} are not finite, so hardly any can be kept; {advice}."
            )
