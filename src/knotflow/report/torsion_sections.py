"""Sections of a page on torsions: how often pairs of them occur, and free energies with error bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from knotflow.analysis.chain_summary import memory_of_angle
from knotflow.analysis.frame_table import FrameTable
from knotflow.analysis.free_energy_profiles import Profile, profile
from knotflow.report import figures
from knotflow.report import torsion_plots as plots
from knotflow.report.page import Picture, Section
from knotflow.statistics.estimates import Floats, blocks

RESIDUES: Final = 8
"""Residues whose torsions are shown."""
OTHERS: Final = 24
"""Further torsions that are shown: the slowest ones."""
STIFF: Final = 0.9
"""A torsion turns if the mean of its unit vectors is shorter than this: its spread is 26 degrees or more."""
SOURCES: Final = {
    figures.MD: "molecular dynamics",
    figures.FLOW: "samples of the flow",
    figures.REWEIGHTED: "samples of the flow, reweighted",
}
Sets = dict[str, tuple[Floats, Floats | None, Any]]
"""Angles, weights and blocks, by source."""


class Torsions:
    """Pictures and numbers of (phi, psi), residue by residue, and of all other torsions that turn.

    Args:
        sources: Tables and weights by source: the flow, and those of MD and reweighted samples that exist.
        seed: Seed of the error bars.
    """

    def __init__(self, sources: Mapping[str, tuple[FrameTable, Floats | None]], seed: int = 0) -> None:
        self.sources, self.seed = sources, seed
        self.sets: dict[str, Sets] = {}
        """Pairs of torsions, by residue or, of the two slowest torsions, by both names."""
        self.labels: dict[str, tuple[str, str]] = {}
        """Names of the two torsions of a pair."""
        self.one: dict[str, dict[str, dict[str, Profile]]] = {}
        """Profiles of one torsion, by residue, torsion and source."""
        self.two: dict[str, dict[str, Profile]] = {}
        """Profiles of pairs, by pair and source."""
        self.others: dict[str, dict[str, Profile]] = {}
        """Profiles of the other torsions that turn, the slowest first, by torsion and source."""
        residues = list(sources[figures.FLOW][0].torsions)
        for residue in residues[:RESIDUES]:
            sets = self._sets(partial(_pair_of, residue))
            self._add_pair(residue, ("phi", "psi"), sets)
            self.one[residue] = {
                angle: {name: profile(x[:, k], w, block, seed=seed) for name, (x, w, block) in sets.items()}
                for k, angle in enumerate(("phi", "psi"))
            }
        shown = {f"{angle} {residue}" for residue in self.one for angle in ("phi", "psi")}
        turning = self._turning()
        if len(turning) > 1 and not ({*turning[:2]} <= shown and self._of_one_residue(turning[:2])):
            first, second = turning[:2]
            sets = self._sets(lambda table: np.stack((table.angles[first], table.angles[second]), 1))
            self._add_pair(f"{first} and {second}", (first, second), sets)
        further = [name for name in turning if name not in shown]
        for angle in further[:OTHERS]:
            sets = self._sets(partial(_angle_of, angle))
            self.others[angle] = {
                name: profile(x, w, block, seed=seed) for name, (x, w, block) in sets.items()
            }
        self.reference = "MD" if figures.MD in sources else "the flow"
        self.notes: list[str] = []
        if len(residues) > RESIDUES:
            self.notes.append(f"The first {RESIDUES} of {len(residues)} residues.")
        if len(further) > OTHERS:
            self.notes.append(f"The {OTHERS} slowest of {len(further)} further torsions.")
        if figures.MD not in sources:
            self.notes.append("No data were available, so MD is missing.")
        if (self.sets or self.others) and figures.REWEIGHTED not in sources:
            self.notes.append("All weights are zero, so nothing can be reweighted.")

    def _sets(self, angles: Callable[[FrameTable], Floats]) -> Sets:
        return {
            name: (angles(table), weight, blocks(table.replica) if name == figures.MD else None)
            for name, (table, weight) in self.sources.items()
        }

    def _add_pair(self, pair: str, labels: tuple[str, str], sets: Sets) -> None:
        self.sets[pair], self.labels[pair] = sets, labels
        self.two[pair] = {name: profile(x, w, block, seed=self.seed) for name, (x, w, block) in sets.items()}

    def _turning(self) -> list[str]:
        """Torsions that turn in any source, the slowest in the data first, if there are data."""
        tables = [table for table, _ in self.sources.values()]
        names = [
            name
            for name in tables[-1].angles
            if not name.startswith("ring ") and any(_turns(table.angles[name]) for table in tables)
        ]
        if figures.MD not in self.sources:
            return names
        data = self.sources[figures.MD][0]
        times = {name: memory_of_angle(data.angles[name], data.replica).time for name in names}
        return sorted(names, key=lambda name: -np.nan_to_num(times[name], posinf=np.inf))

    @staticmethod
    def _of_one_residue(names: Sequence[str]) -> bool:
        return len({name.split(" ")[-1] for name in names}) == 1

    def maps(self) -> Section:
        """How often pairs of torsions occur."""
        pictures = []
        for pair, sets in self.sets.items():
            for name, (angles, weight, _) in sets.items():
                x, y = self.labels[pair]
                title = f"{name}, {pair}" if pair in self.one else name  # the axes say the rest
                figure = plots.draw_ramachandran(title, angles, weight, (x, y))
                kind = "Ramachandran plot" if pair in self.one else "Map"
                alt = f"{kind} of {pair}: how often pairs of {x} and {y} occur, {SOURCES[name]}"
                pictures.append(Picture(figures.png(figure), alt))
        text = ["How often pairs of torsions occur; darker is more often, white is never."]
        if slow := [pair for pair in self.sets if pair not in self.one]:
            chosen = "slowest in the data" if figures.MD in self.sources else "first that turn"
            text.append(f"{slow[0]}: the two torsions that are the {chosen}.")
        if not self.sets:
            text = ["No two torsions turn in this molecule, so there is no map of a pair."]
        return Section(
            "Ramachandran plots" if self.one else "Maps of torsions", [*text, *self.notes], pictures=pictures
        )

    def profiles(self) -> Section:
        """Free energies along each torsion and on pairs."""
        if not self.sets and not self.others:
            return Section("Free energy of torsions", ["No torsion turns in this molecule."])
        pictures = []
        for pair, surfaces in self.two.items():
            labels = self.labels[pair]
            on, F = " and ".join(labels), f"F({', '.join(labels)})" if pair in self.one else "F"
            of = f" of {pair}" if pair in self.one else ""
            for angle, profiles in self.one.get(pair, {}).items():
                pictures.append(_profile(angle, profiles, f"{angle} of {pair}"))
            for name, surface in surfaces.items():
                alt = f"Free energy{of} on {on}, {SOURCES[name]}"
                figure = plots.draw_surface(f"{F}, {name}", surface, _floor(surfaces), labels)
                pictures.append(Picture(figures.png(figure), alt))
            for name, surface in surfaces.items():
                alt = f"Standard error of the free energy{of} on {on}, {SOURCES[name]}"
                figure = plots.draw_surface_error(f"error of {F}, {name}", surface, labels)
                pictures.append(Picture(figures.png(figure), alt))
        pictures += [_profile(angle, profiles, angle) for angle, profiles in self.others.items()]
        text = (
            f"F = -log p in kT; zero is the minimum of {self.reference}. Bands are two standard errors: over "
            "blocks of replicas for MD, over samples for samples. No band, or a cross: too few visits for an "
            "error."
        )
        return Section("Free energy of torsions", [text, *self.notes], pictures=pictures)


def _pair_of(residue: str, table: FrameTable) -> Floats:
    return table.torsions[residue]


def _angle_of(name: str, table: FrameTable) -> Floats:
    return table.angles[name]


def _turns(angles: Floats) -> bool:
    known = angles[np.isfinite(angles)]
    return len(known) > 0 and float(np.abs(np.exp(1j * known).mean())) < STIFF


def _profile(label: str, profiles: Mapping[str, Profile], caption: str) -> Picture:
    alt = f"Free energy along {caption}: {', '.join(profiles)}, with bands of error"
    figure = plots.draw_profiles(label, profiles, _floor(profiles))
    return Picture(figures.png(figure), alt, caption)


def _floor(profiles: Mapping[str, Profile]) -> float:
    """The lowest free energy of the first source."""
    values = next(iter(profiles.values())).value
    return float(np.nanmin(values)) if np.isfinite(values).any() else 0.0
