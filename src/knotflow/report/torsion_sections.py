"""Sections of a page on backbone torsions: Ramachandran plots, and free energies with error bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from knotflow.analysis.frame_table import FrameTable
from knotflow.analysis.free_energy_profiles import Profile, profile
from knotflow.report import figures
from knotflow.report import torsion_plots as plots
from knotflow.report.page import Picture, Section
from knotflow.statistics.estimates import Floats, blocks

RESIDUES: Final = 8
"""Residues whose torsions are shown."""
SOURCES: Final = {
    figures.MD: "molecular dynamics",
    figures.FLOW: "samples of the flow",
    figures.REWEIGHTED: "samples of the flow, reweighted",
}


class Torsions:
    """Pictures and numbers of (phi, psi), residue by residue.

    Args:
        sources: Tables and weights by source: the flow, and those of MD and reweighted samples that exist.
        seed: Seed of the error bars.
    """

    def __init__(self, sources: Mapping[str, tuple[FrameTable, Floats | None]], seed: int = 0) -> None:
        self.sets: dict[str, dict[str, tuple[Floats, Floats | None, Any]]] = {}
        """Angles, weights and blocks, by residue and source."""
        self.one: dict[str, dict[str, dict[str, Profile]]] = {}
        """Profiles of one torsion, by residue, torsion and source."""
        self.two: dict[str, dict[str, Profile]] = {}
        """Profiles of both torsions, by residue and source."""
        residues = list(sources[figures.FLOW][0].torsions)
        for residue in residues[:RESIDUES]:
            sets = self.sets[residue] = {
                name: (table.torsions[residue], weight, blocks(table.replica) if name == figures.MD else None)
                for name, (table, weight) in sources.items()
            }
            self.one[residue] = {
                angle: {name: profile(x[:, k], w, block, seed=seed) for name, (x, w, block) in sets.items()}
                for k, angle in enumerate(("phi", "psi"))
            }
            self.two[residue] = {
                name: profile(x, w, block, seed=seed) for name, (x, w, block) in sets.items()
            }
        self.reference = "MD" if figures.MD in sources else "the flow"
        self.notes: list[str] = []
        if len(residues) > RESIDUES:
            self.notes.append(f"The first {RESIDUES} of {len(residues)} residues.")
        if figures.MD not in sources:
            self.notes.append("No data were available, so MD is missing.")
        if residues and figures.REWEIGHTED not in sources:
            self.notes.append("All weights are zero, so nothing can be reweighted.")

    def ramachandran(self) -> Section:
        """How often pairs of torsions occur."""
        pictures = []
        for residue, sets in self.sets.items():
            for name, (angles, weight, _) in sets.items():
                figure = plots.draw_ramachandran(f"{name}, {residue}", angles, weight)
                alt = f"Ramachandran plot of {residue}: how often pairs of phi and psi occur, {SOURCES[name]}"
                pictures.append(Picture(figures.png(figure), alt))
        text = (
            "How often pairs of torsions (phi, psi) occur; darker is more often, white is never."
            if self.sets
            else "No residue has both torsions phi and psi, so there is no Ramachandran plot."
        )
        return Section("Ramachandran plots", [text, *self.notes], pictures=pictures)

    def profiles(self) -> Section:
        """Free energies along each torsion and on both."""
        if not self.sets:
            text = "No residue has both phi and psi; all other torsions are below."
            return Section("Free energy of torsions", [text])
        pictures = []
        for residue, surfaces in self.two.items():
            for angle, profiles in self.one[residue].items():
                alt = f"Free energy along {angle} of {residue}: {', '.join(profiles)}, with bands of error"
                figure = plots.draw_profiles(angle, profiles, _floor(profiles))
                pictures.append(Picture(figures.png(figure), alt, f"{angle} of {residue}"))
            for name, surface in surfaces.items():
                alt = f"Free energy of {residue} on phi and psi, {SOURCES[name]}"
                figure = plots.draw_surface(f"F(phi, psi), {name}", surface, _floor(surfaces))
                pictures.append(Picture(figures.png(figure), alt))
            for name, surface in surfaces.items():
                alt = f"Standard error of the free energy of {residue} on phi and psi, {SOURCES[name]}"
                figure = plots.draw_surface_error(f"error of F(phi, psi), {name}", surface)
                pictures.append(Picture(figures.png(figure), alt))
        text = (
            f"F = -log p in kT; zero is the minimum of {self.reference}. Bands are two standard errors: over "
            "blocks of replicas for MD, over samples for samples. No band, or a cross: too few visits for an "
            "error."
        )
        return Section("Free energy of torsions", [text, *self.notes], pictures=pictures)


def _floor(profiles: Mapping[str, Profile]) -> float:
    """The lowest free energy of the first source."""
    values = next(iter(profiles.values())).value
    return float(np.nanmin(values)) if np.isfinite(values).any() else 0.0
