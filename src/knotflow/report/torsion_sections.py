"""The sections of a page on backbone torsions: Ramachandran plots and free energies, with error bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis.frame_table import FrameTable
from knotflow.analysis.free_energy_profiles import Profile, profile
from knotflow.report import figures
from knotflow.report import torsion_plots as plots
from knotflow.report.page import Picture, Section
from knotflow.statistics.estimates import blocks

Floats = NDArray[np.float64]

RESIDUES: Final = 8
"""Residues whose torsions are shown."""


class Torsions:
    """Pictures and numbers of (phi, psi), residue by residue.

    Args:
        samples: Of the flow.
        weight: Of the samples; None if all are zero.
        data: To compare with, if there are any.
        seed: Of error bars.
    """

    def __init__(
        self, samples: FrameTable, weight: Floats | None, data: FrameTable | None, seed: int = 0
    ) -> None:
        self.samples, self.data, self.weight = samples, data, weight
        self.residues = list(samples.torsions)[:RESIDUES]
        all_residues = len(samples.torsions)
        self.note = [f"The first {RESIDUES} of {all_residues} residues."] if all_residues > RESIDUES else []
        self.one: dict[str, dict[str, dict[str, Profile]]] = {}
        """By residue, torsion and source."""
        self.two: dict[str, dict[str, Profile]] = {}
        """By residue and source."""
        for residue in self.residues:
            sets = self._sets(residue)
            self.one[residue] = {
                angle: {
                    name: profile(angles[:, column], weight, block, seed=seed)
                    for name, (angles, weight, block) in sets.items()
                }
                for column, angle in enumerate(("phi", "psi"))
            }
            self.two[residue] = {
                name: profile(angles, weight, block, seed=seed)
                for name, (angles, weight, block) in sets.items()
            }

    def _sets(self, residue: str) -> dict[str, tuple[Floats, Floats | None, Any]]:
        """Angles, weights and blocks by source."""
        found: dict[str, tuple[Floats, Floats | None, Any]] = {}
        if self.data is not None:
            found[figures.MD] = (self.data.torsions[residue], None, blocks(self.data.replica))
        angles = self.samples.torsions[residue]
        found[figures.FLOW] = (angles, None, None)
        if self.weight is not None:
            found[figures.REWEIGHTED] = (angles, self.weight, None)
        return found

    def ramachandran(self) -> Section:
        """How often pairs of torsions occur."""
        pictures = []
        for residue in self.residues:
            for name, (angles, weight, _) in self._sets(residue).items():
                figure = plots.draw_ramachandran(f"{name}, {residue}", angles, weight)
                alt = f"Ramachandran plot of {residue}: how often pairs of phi and psi occur, {_source(name)}"
                pictures.append(Picture(figures.png(figure), alt))
        text = (
            "How often pairs of torsions (phi, psi) occur; darker is more often, white is never."
            if self.residues
            else "No residue has both torsions phi and psi, so there is no Ramachandran plot."
        )
        return Section("Ramachandran plots", [text, *self.note, *self._missing()], pictures=pictures)

    def profiles(self) -> Section:
        """Free energies along each torsion and on both."""
        if not self.residues:
            text = "No residue has both phi and psi; all other torsions are below."
            return Section("Free energy of torsions", [text])
        pictures = []
        for residue in self.residues:
            for angle, profiles in self.one[residue].items():
                floor = _floor(profiles)
                alt = f"Free energy along {angle} of {residue}: {', '.join(profiles)}, with bands of error"
                figure = plots.draw_profiles(angle, profiles, floor)
                pictures.append(Picture(figures.png(figure), alt, f"{angle} of {residue}"))
            floor = _floor(self.two[residue])
            for name, surface in self.two[residue].items():
                alt = f"Free energy of {residue} on phi and psi, {_source(name)}"
                figure = plots.draw_surface(f"F(phi, psi), {name}", surface, floor)
                pictures.append(Picture(figures.png(figure), alt))
            for name, surface in self.two[residue].items():
                alt = f"Standard error of the free energy of {residue} on phi and psi, {_source(name)}"
                figure = plots.draw_surface_error(f"error of F(phi, psi), {name}", surface)
                pictures.append(Picture(figures.png(figure), alt))
        text = (
            "F = -log p in kT; zero is the lowest of "
            f"{'MD' if self.data is not None else 'the flow'}. Bands are two standard errors: of MD "
            "over blocks of its replicas, of samples over samples. Without a band, or with a cross: too "
            "rarely visited to tell an error."
        )
        return Section("Free energy of torsions", [text, *self.note, *self._missing()], pictures=pictures)

    def _missing(self) -> list[str]:
        found = []
        if self.data is None:
            found.append("No data were at hand, so MD is missing.")
        if self.residues and self.weight is None:
            found.append("All weights are zero, so nothing can be reweighted.")
        return found


def _floor(profiles: Mapping[str, Profile]) -> float:
    """The lowest free energy of the first source."""
    values = next(iter(profiles.values())).value
    return float(np.nanmin(values)) if np.isfinite(values).any() else 0.0


def _source(name: str) -> str:
    return {
        figures.MD: "molecular dynamics",
        figures.FLOW: "samples of the flow",
        figures.REWEIGHTED: "samples of the flow, reweighted",
    }[name]
