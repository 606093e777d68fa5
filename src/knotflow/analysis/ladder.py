r"""Free energies and averages at any temperature from the frames of a tempering run, by MBAR.

Frames $x_n$ with energies $U_n$ come from rungs $l$ with $N_l$ frames each. At every temperature $k$ of
interest, on a rung or between rungs, a frame has the weight (Shirts & Chodera, J. Chem. Phys. 129, 2008)

$$W_{nk} = \frac{e^{f_k - U_n/kT_k}}{\sum_l N_l\, e^{f_l - U_n/kT_l}}, \qquad \sum_n W_{nk} = 1 ,$$

where the last equation, for all $k$, defines the reduced free energies $f_k = F_k/kT_k = -\log Z_k$ up to a
constant. Averages at $T_k$ are $\sum_n W_{nk}\, a_n$. Error bars are linearised
(`knotflow.statistics.estimates`), with whole ladders as blocks: neighbours in time and walkers of one ladder
are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from knotflow.analysis.free_energy import import_pymbar
from knotflow.flows.temperature import SAME
from knotflow.molecules.units import BOLTZMANN
from knotflow.statistics.estimates import Estimate, Floats, Rows, blocks, spread
from knotflow.storage import trajectory


class LadderAverages:
    """Free energies and averages at some temperatures of a ladder.

    Args:
        energies: Potential energies of all frames in kJ/mol, shape ``(n,)``.
        temperature: Temperature in K at which each was sampled.
        block: The block of each frame.
        wanted: Temperatures in K; free energies are relative to the first.
    """

    def __init__(self, energies: Floats, temperature: Floats, block: Rows, wanted: Sequence[float]) -> None:
        self.energies, self.block = energies, block
        rungs, self._rung = np.unique(temperature, return_inverse=True)
        self._temperatures = np.concatenate((wanted, rungs))
        self._counts = np.concatenate((np.zeros(len(wanted), int), np.bincount(self._rung)))
        solved = import_pymbar().MBAR(energies / (BOLTZMANN * self._temperatures[:, None]), self._counts)
        self._free_energies: Floats = solved.f_k - solved.f_k[0]
        self._weights: Floats = solved.weights()
        # How the sums of weights change with the free energies. Those of the last rung stay: a constant is
        # free, and the sum of its weights follows from the others.
        slope = np.eye(len(self._temperatures)) - self._weights.T @ (self._weights * self._counts)
        sums = self._centred(self._weights)[:, :-1]
        self._moves = np.zeros_like(self._weights)
        self._moves[:, :-1] = -np.linalg.solve(slope[:-1, :-1], sums.T).T

    def free_energy(self, place: int) -> Estimate:
        """F/kT at a wanted temperature, less F/kT at the first."""
        influence = self._moves[:, place] - self._moves[:, 0]
        error = spread(influence, self.block) if place else 0.0
        return Estimate(float(self._free_energies[place]), error)

    def energy(self, place: int) -> Estimate:
        """Mean potential energy in kJ/mol."""
        return self._average(place, self.energies)

    def heat_capacity(self, place: int) -> Estimate:
        r"""Configurational heat capacity $(\langle U^2\rangle - \langle U\rangle^2)/kT^2$ in J/mol/K."""
        deviation = self.energies - self.energy(place).value
        per_variance = 1000 / BOLTZMANN / float(self._temperatures[place]) ** 2
        return self._average(place, deviation**2) * per_variance

    def _average(self, place: int, values: Floats) -> Estimate:
        """Weighted average, with the error from the values and from the free energies in the weights."""
        weight = self._weights[:, place]
        average = float(weight @ values)
        own = weight * (values - average)
        influence = self._centred(own[:, None])[:, 0] - self._moves @ (self._counts * (own @ self._weights))
        return Estimate(average, spread(influence, self.block))

    def _centred(self, values: Floats) -> Floats:
        """Values (n, m) less their mean over the frames of the same rung."""
        sums = np.zeros((int(self._rung.max()) + 1, values.shape[1]))
        np.add.at(sums, self._rung, values)
        centred: Floats = values - (sums / np.bincount(self._rung)[:, None])[self._rung]
        return centred


def ladder_averages(path: str | Path, wanted: Sequence[float]) -> LadderAverages | None:
    """The averages of a tempering run; None if there is no ladder, or it does not reach these temperatures.

    All frames are used, of the trajectory and of the ladder file beside it.

    Args:
        path: Trajectory of the target temperature.
        wanted: Temperatures in K.
    """
    file = trajectory.ladder_file(path)
    if not file.exists():
        return None
    parts = []
    for source, ladder in ((Path(path), False), (file, True)):
        usual = trajectory.open_info(source, ladder=ladder).system.temperature
        for frames in trajectory.pieces(source, ladder=ladder):
            temperature = np.full(len(frames), usual) if frames.temperature is None else frames.temperature
            parts.append((frames.energies, temperature, frames.replica, frames.frame))
    energies, temperature, replica, frame = (np.concatenate(part) for part in zip(*parts, strict=True))
    low, high = temperature.min(), temperature.max()
    if not all(low - SAME <= t <= high + SAME for t in wanted):
        return None
    order = np.lexsort((frame, replica))  # blocks are stretches of time
    return LadderAverages(energies[order], temperature[order], blocks(replica[order]), wanted)
