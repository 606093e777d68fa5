"""Frames on their way in: labels of hydrogens as in a structure; mirror images and nonsense set aside.

Trajectories of other programs, training and evaluation all take their frames through an `Intake`. It counts
what it does, and says so in one line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.energies.equivalence import interchangeable
from knotflow.geometry import HydrogenLabels
from knotflow.molecules.coordinates import chirality_of, labels_of
from knotflow.molecules.system import MolecularSystem
from knotflow.sentences import listed
from knotflow.storage.other_programs import RawFrames
from knotflow.storage.plausible import NOT_SO, plausible
from knotflow.storage.trajectory import Frames

log = logging.getLogger("knotflow")

Bools = NDArray[np.bool_]
Some = TypeVar("Some", Frames, RawFrames)


class Intake:
    """Brings frames of a molecule to the labels and the handedness of its structure.

    Labels of equivalent hydrogens are exchanged where they have the other orientation (`HydrogenLabels`), in
    positions and forces; energies do not change. Groups that the force field tells apart are left as they
    are. Frames with a stereocentre of the other handedness are set aside, and those with numbers that are not
    finite or absurdly large (`knotflow.storage.plausible`).

    Args:
        system: The molecule.
        sources: Names of the files, for messages.
        labels: The order of labels; None: that of the structure.
        reference: What the frames are brought to, for messages: "the structure", "the model".
    """

    def __init__(
        self,
        system: MolecularSystem,
        sources: Iterable[object],
        *,
        labels: HydrogenLabels | None = None,
        reference: str = "the structure",
    ) -> None:
        self.system, self.sources, self.reference = system, [str(path) for path in sources], reference
        self.chirality, self.labels = chirality_of(system), labels or labels_of(system)
        self.seen = 0
        """Frames so far."""
        self.mirrored = 0
        """Frames set aside as mirror images."""
        self.absurd: list[str] = []
        """Frames set aside because of their numbers."""
        self.exchanged = 0
        """Frames in which labels were exchanged."""
        self._wrong_centres = np.zeros(len(self.chirality.centres), dtype=bool)
        self._wrong_groups = np.zeros(len(self.labels.groups), dtype=bool)

    @property
    def used(self) -> int:
        """Frames that were not set aside."""
        return self.seen - self.mirrored - len(self.absurd)

    def __call__(self, frames: Some) -> tuple[Some, Bools]:
        """The frames to use, and which of those given they are, shape ``(n,)``."""
        right = plausible(frames.positions, frames.forces, frames.energies)
        self.absurd += [_number(frames, row) for row in np.flatnonzero(~right).tolist()]
        x = torch.from_numpy(frames.positions[right].astype(np.float64))
        agrees = self.chirality.agrees(x)
        alike: Bools = agrees.all(-1).numpy()
        right[right] = alike
        self.seen += len(right)
        self.mirrored += int((~alike).sum())
        self._wrong_centres |= (~agrees).any(0).numpy()
        kept, differs = frames[right], self.labels.differs(x).numpy()[alike]
        if not differs.any():
            return kept, right
        self._wrong_groups |= differs.any(0)
        return self._exchanged(kept, differs & self._alike), right

    def conclude(self) -> None:
        """Say what was done, after the last frame.

        Raises:
            ValueError: if more than half of the frames have another handedness, or numbers that are nonsense.
        """
        if self.absurd:
            found = f"{len(self.absurd):,} of {self.seen:,} frames in {listed(self.sources)}"
            what = f"have positions, energies or forces that are {NOT_SO} ({listed(self.absurd)})"
            if 2 * len(self.absurd) > self.seen:
                raise ValueError(f"{found} {what}; make the file again, or leave out such frames.")
            log.warning(f"{found} {what}, and were set aside.")
        wrong = [self.chirality.centres[i] for i in np.flatnonzero(self._wrong_centres)]
        there = f"{self.reference} at {listed(str(self.system.topology.atom(atom)) for atom in wrong)}"
        if 2 * self.mirrored > self.seen:
            raise ValueError(
                f"{self.mirrored:,} of {self.seen:,} frames in {listed(self.sources)} are of the other hand "
                f"than {there}, as in a mirror; import the trajectory with the structure it was made with."
            )
        if self.mirrored:
            log.warning(
                f"{self.mirrored:,} of {self.seen:,} frames are of the other hand than {there}, and were set "
                "aside."
            )
        if self.exchanged:
            log.warning(
                f"In {self.exchanged:,} of {self.used:,} frames the labels of equivalent hydrogens "
                f"({self._named(self._alike)}) were exchanged to match {self.reference}."
            )
        if self._wrong_groups.any() and self._named(~self._alike):
            log.warning(
                f"Some hydrogens ({self._named(~self._alike)}) are labelled in another order than in "
                f"{self.reference}; the force field tells them apart, so they were left as they are."
            )

    @cached_property
    def _alike(self) -> Bools:
        """Groups that the force field does not tell apart, shape ``(groups,)``."""
        return interchangeable(self.system, self.labels)

    def _exchanged(self, frames: Some, wanted: Bools) -> Some:
        self.exchanged += int(wanted.any(1).sum())
        order = self.labels.order(torch.from_numpy(wanted)).numpy()[..., None]
        columns = {name: getattr(frames, name) for name in ("positions", "forces")}
        return replace(
            frames,
            **{name: np.take_along_axis(x, order, 1) for name, x in columns.items() if x is not None},
        )

    def _named(self, groups: Bools) -> str:
        """Those of some groups that were found in another order: "H2/H3 of ACE1"."""
        pairs = [self.labels.pairs[i] for i in np.flatnonzero(self._wrong_groups & groups)]
        atoms = [[self.system.topology.atom(i) for i in pair] for pair in pairs]
        return listed(f"{a.name}/{b.name} of {a.residue}" for a, b in atoms)


def _number(frames: Frames | RawFrames, row: int) -> str:
    """A frame, as its file numbers it."""
    if isinstance(frames, RawFrames):
        return f"frame {frames.row[row]}"
    return f"frame {frames.frame[row]} of replica {frames.replica[row]}"
