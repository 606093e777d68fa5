"""The page on a trained Boltzmann generator: summary, pictures, structures and all numbers in one file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from knotflow.analysis.frame_table import FrameTable
from knotflow.analysis.free_energy_profiles import Marginal, marginal
from knotflow.analysis.learned_maps import LearnedMap
from knotflow.analysis.measures import log_weights, reweighted
from knotflow.analysis.states import numbers_of, sources_in
from knotflow.dynamics.record import Record
from knotflow.dynamics.score import drift
from knotflow.files import json_bytes
from knotflow.molecules.atom_names import atom_names, coordinate_name
from knotflow.molecules.system import topology_from_plain
from knotflow.report import csv_files
from knotflow.report.curve_plots import Curve, draw_curves
from knotflow.report.dynamics_plots import EnergyPanel, draw_energies, reasons
from knotflow.report.figures import FLOW, MD, REWEIGHTED, TRUTH, png
from knotflow.report.force_plots import draw_forces
from knotflow.report.histogram_plots import draw_energy_histograms, draw_marginal, energy_span
from knotflow.report.map_plots import draw_learned
from knotflow.report.molecule_view import MoleculeView, view_of
from knotflow.report.page import Download, Page, Picture, Section, Table, write_page
from knotflow.report.torsion_sections import Torsions
from knotflow.report.verdicts import Verdict, judge
from knotflow.statistics.estimates import Estimate, Floats
from knotflow.statistics.weights import normalised

SHOWN: Final = 24
"""At most this many coordinates of a kind are shown: those that differ most from the data."""
STRUCTURES: Final = 50
"""Samples in the three-dimensional view."""


@dataclass(frozen=True, eq=False)
class GeneratorReport:
    """The content of the page, which names the missing parts (None)."""

    model: str
    """Name of the model file."""
    molecule: Mapping[str, Any]
    """The result of `knotflow.molecules.MolecularSystem.plain`."""
    coordinates: Sequence[tuple[int, ...]]
    """The two, three or four atoms of each internal coordinate."""
    metrics: Mapping[str, Any]
    """The result of `knotflow.analysis.Evaluation.plain`, or the part of it that needs no data."""
    samples: FrameTable
    data: FrameTable | None = None
    maps: Sequence[LearnedMap] = ()
    training: Mapping[str, Curve] | None = None
    """Steps and values of everything that was logged, by name."""
    record: Record | None = None
    """A record of dynamics on the flow."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Further files to save from the page, by name: ``config.json``, ``log.csv``."""
    seed: int = 0
    """Seed of the error bars."""

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The verdicts on all numbers."""
        unexplained = Estimate(math.nan) if self.data is None else self.data.unexplained
        return judge(self.metrics, unexplained=unexplained, drift=self.drift)

    @cached_property
    def drift(self) -> dict[str, Any] | None:
        """The drift score of the dynamics."""
        return None if self.record is None else drift(self.record).plain()

    @cached_property
    def log_weights(self) -> Floats:
        """Log-weights of the samples."""
        return log_weights(self.samples)

    @cached_property
    def weight(self) -> Floats | None:
        """Normalised weights of the samples, the largest clipped; None if all are zero."""
        weight = reweighted(self.samples)
        return weight if np.isfinite(weight).all() else None

    @property
    def sources(self) -> dict[str, tuple[FrameTable, Floats | None]]:
        """Tables with weights, by the names they have in legends; sources that do not exist are left out."""
        found = {MD: (self.data, None), FLOW: (self.samples, None), REWEIGHTED: (self.samples, self.weight)}
        if self.weight is None:
            del found[REWEIGHTED]
        return {name: (table, weight) for name, (table, weight) in found.items() if table is not None}

    @property
    def tables(self) -> dict[str, FrameTable | None]:
        """Data and samples, by the names they have on the page."""
        return {"data": self.data, "samples": self.samples}


def write_generator_page(report: GeneratorReport, path: Path) -> None:
    """Write the self-contained page; an existing one stays until the new one is complete.

    Raises:
        ModuleNotFoundError: if matplotlib or jinja2, which are optional, are not installed.
    """
    parts = {"verdicts": report.verdicts, "view": _view(report)}
    write_page(_page(report), path, "generator.html.j2", **parts)


def _page(report: GeneratorReport) -> Page:
    about = report.metrics["about"]
    data = about.get("data")
    compared = "not compared with data."
    if data:
        held = "held out in training" if data["rows"] == "validation" else "all of them"
        compared = f"compared with {data['frames']:,} frames of {data['file']} ({held})."
    lead = (
        f"{report.model}: {about['atoms']} atoms at {about['temperature']:g} K, a flow with "
        f"{about['parameters']:,} parameters; numbers from {about['samples']:,} samples, {compared}"
    )
    free = Torsions(report.sources, report.seed)
    marginals = _marginals(report)
    sections = [
        *_states(report),
        free.maps(),
        free.profiles(),
        _forces(report),
        _energies(report),
        *_coordinates(report, marginals),
        _maps(report),
        _training(report),
        _dynamics(report),
        *_numbers(report),
        _downloads(report, free, marginals),
    ]
    return Page(f"Boltzmann generator of {report.molecule['name']}", lead, sections)


def _states(report: GeneratorReport) -> list[Section]:
    groups = report.metrics.get("states", ())
    if not groups:
        return []
    sources = sources_in(groups)
    populations = [
        [f"{group['group']}: {state['name']}", *numbers_of(state["population"], sources), state["definition"]]
        for group in groups
        for state in group["states"]
    ]
    differences = [
        [f"{group['group']}: {pair['text']}", *numbers_of(pair["free_energy"], sources)]
        for group in groups
        for pair in group["differences"]
    ]
    text = (
        "Populations, from 0 to 1; definitions are in degrees. Without ±: visited too rarely for an error "
        "bar, so not known."
    )
    between = "In kT, between all pairs of states; a dash where one is never visited."
    return [
        Section("States", [text], Table(["state", *sources, "definition"], populations)),
        Section("Free energies between states", [between], Table(["pair", *sources], differences)),
    ]


def _forces(report: GeneratorReport) -> Section:
    pictures, text = [], []
    for name, table in report.tables.items():
        if table is None:
            text.append("No data were available, so forces are compared on samples only.")
        elif len(table.forces[0]) == 0:
            text.append(f"No forces on {name} are finite, so there is no picture of them.")
        else:
            figure = draw_forces(f"on {name}", *table.forces)
            alt = f"Force of the flow over force of the force field on {name}, one dot per component"
            unexplained = table.unexplained.value
            share = "none" if math.isnan(unexplained) else f"{100 * unexplained:.3g} %"
            caption = f"{len(table.forces[0]):,} frames; {share} unexplained"
            pictures.append(Picture(png(figure), alt, caption))
    intro = (
        "Components of the forces on all atoms: the gradient of the flow's log-density over the force of the "
        "force field; both are equal on the dashed line (figure 3 of the paper). Darker is more frequent; "
        "forces beyond the frame are not shown. Unexplained: squared error as a share of the squared forces."
    )
    return Section("Forces", [intro, *text], pictures=pictures)


def _energies(report: GeneratorReport) -> Section:
    potential = {name: (table.energy, weight) for name, (table, weight) in report.sources.items()}
    span = energy_span(*(u for u, _ in potential.values()))
    figure = draw_energy_histograms("energy of the force field", potential, "u, kT", span)
    alt = f"Histograms of the potential energy: {', '.join(potential)}"
    pictures = [Picture(png(figure), alt)]
    shift = _log_z(report)
    for name, table in report.tables.items():
        if table is not None:
            energies: dict[str, tuple[Floats, Floats | None]] = {
                TRUTH: (table.energy, None),
                FLOW: (-table.log_prob - shift, None),
            }
            figure = draw_energy_histograms(f"two energies on {name}", energies, "energy, kT", span)
            alt = f"Histograms of the energies of force field and flow on {name}"
            pictures.append(Picture(png(figure), alt))
    text = (
        "First: the energy of the force field for MD, samples and reweighted samples. Then, on the same "
        f"frames, the energy of the force field and that of the flow, -log p - log Z, with log Z {shift:.2f} "
        "(figures 7 to 9 of the paper). The legend gives the share that is beyond the frame."
    )
    return Section("Energies", [text], pictures=pictures)


def _log_z(report: GeneratorReport) -> float:
    """The best estimate available, or the value at which both energies of samples have equal medians."""
    found = report.metrics.get("measures", {})
    for key in ("log_z_bar", "log_z"):
        value = Estimate.read(found.get(key, {})).value
        if math.isfinite(value):
            return value
    with np.errstate(invalid="ignore"):
        gap = -report.samples.log_prob - report.samples.energy
    return float(np.median(gap[np.isfinite(gap)])) if np.isfinite(gap).any() else 0.0


def _marginals(report: GeneratorReport) -> list[Marginal]:
    kept = report.samples.kept
    weight = np.zeros(len(kept)) if report.weight is None else report.weight[kept]
    names = atom_names(topology_from_plain(report.molecule["topology"]))
    found = []
    for k, atoms in enumerate(report.coordinates):
        data = None if report.data is None else report.data.coordinates[:, k]
        values = report.samples.coordinates[:, k]
        name = coordinate_name(atoms, names)
        # Torsions on a line may go around more than once.
        turns = len(atoms) == 4 and all(
            np.nanmax(np.abs(part), initial=0) <= math.pi + 1e-5
            for part in (data, values)
            if part is not None
        )
        found.append(marginal(name, data, values, weight, turns=turns))
    return found


def _coordinates(report: GeneratorReport, marginals: Sequence[Marginal]) -> list[Section]:
    sections = []
    headings = {"bond": "Bonds, nm", "angle": "Angles, degrees", "torsion": "Torsions, degrees"}
    for kind, heading in headings.items():
        members = [m for m in marginals if m.name.startswith(kind)]
        if not members:
            continue
        shown = sorted(members, key=lambda m: -m.difference)[:SHOWN] if len(members) > SHOWN else members
        pictures = []
        for m in shown:
            label = m.name.split(" ", 1)[1]
            apart = "" if math.isnan(m.difference) else f", {100 * m.difference:.0f}\u00a0%"
            sources = "flow" if m.data is None else "MD and flow"
            alt = f"Distribution of the {m.name}: {sources}"
            pictures.append(Picture(png(draw_marginal(m)), alt, label + apart))
        text = [
            "Flow: dashed; MD: solid. Per cent: total variation, the share that would have to move."
            if report.data is not None
            else "Samples of the flow; no data were available."
        ]
        if len(members) > SHOWN:
            which = "that differ most" if report.data is not None else "that come first"
            text.append(f"The {SHOWN} of {len(members)} {which}; all are in marginals.csv.")
        sections.append(Section(heading, text, pictures=pictures))
    return sections


def _maps(report: GeneratorReport) -> Section:
    pictures = [
        Picture(png(draw_learned(m)), f"Maps of the {m.name} at {len(m.y)} frames, and their slopes")
        for m in report.maps
    ]
    text = (
        "How one coupling of the flow transforms one coordinate, given the others: one line per frame "
        "(figure 2 of the paper), with the slopes below. Of each kind of coordinate, the map that depends "
        "most on the others. Coordinates are scaled to a standard length; smooth slopes make smooth forces."
    )
    return Section("Learned transforms", [text], pictures=pictures)


def _training(report: GeneratorReport) -> Section:
    log = report.training
    if not log:
        text = "There is no log.csv beside the model, so its training cannot be shown."
        return Section("Training", [text])
    pictures = []
    for label, trained, validated in (
        ("negative log-likelihood, nats", "nll", "validation_nll"),
        ("error of forces, as trained on", "force_matching", "validation_force_matching"),
        ("effective sample size, share", "", "ess"),
    ):
        curves = {"training": log[trained]} if trained in log else {}
        points = {"held out" if trained else "1,000 samples": log[validated]} if validated in log else {}
        if curves and points:  # a noisy curve goes pale behind points of the same name
            both = "held out; pale: training"
            curves, points = {both: log[trained]}, {both: log[validated]}
        if curves or points:
            figure = draw_curves(curves, points, label=label)
            figure.set_size_inches(3.6, 2.8)
            _without_the_start(figure.axes[0], [*curves.values(), *points.values()])
            pictures.append(Picture(png(figure), f"Training: {label} over the steps"))
    text = "Likelihoods are those of internal coordinates. The first steps may be above the frame."
    return Section("Training", [text], pictures=pictures)


def _without_the_start(axis: Any, curves: Sequence[Curve]) -> None:
    """Limit the axis to the values after the first tenth of the steps."""
    if axis.get_yscale() == "log":
        return
    last = max(float(np.max(steps)) for steps, _ in curves)
    late = np.concatenate([values[steps >= last / 10] for steps, values in curves])
    late = late[np.isfinite(late)]
    if len(late):
        low, high = np.quantile(late, (0.005, 0.995))
        margin = 0.1 * float(high - low) or 0.5
        axis.set_ylim(low - margin, high + margin)


def _dynamics(report: GeneratorReport) -> Section:
    record, found = report.record, report.drift
    if record is None or found is None:
        text = "There is no dynamics/record.npz of this model beside it; run `knotflow dynamics` to make one."
        return Section("Dynamics", [text])
    panel, mover = EnergyPanel.of("", record), record.about.get("energy", "flow")
    pictures = [
        Picture(
            png(draw_energies([panel], [quantity])),
            f"The {quantity} energy of {found['replicas']} replicas over time",
        )
        for quantity in ("total", "potential")
    ]
    slope = Estimate.read(found, "slope", "slope_error")
    broken = f"{found['broken']}, by {reasons(found['reasons'])}" if found["broken"] else "0"
    text = (
        f"{found['replicas']} replicas moved by the forces of the {mover}, first with a thermostat (grey), "
        "then without (figure 4 of the paper). The median potential at the start is subtracted from the "
        f"potential and total energies. Broken: {broken}. Drift of the total energy: {slope} kT/ps for each "
        "degree of freedom."
    )
    return Section("Dynamics", [text], pictures=pictures)


def _numbers(report: GeneratorReport) -> list[Section]:
    found = report.metrics.get("measures", {})
    rows = [[m["text"], str(Estimate.read(m)), m.get("unit", "")] for m in found.values()]
    notes = [f"{m['text']}: {m['note']}" for m in found.values() if m.get("note")]
    text = (
        "± standard errors: over blocks of replicas for data, over samples for samples. The paper's measure "
        "leaves out the volume of the rigid frame; it is given for comparison."
    )
    sections = [Section("All numbers", [text], Table(["measure", "value", "unit"], rows, notes=notes))]
    for residue, measures in report.metrics.get("residues", {}).items():
        cells = []
        for key, measure in measures.items():
            three = [measures.get(f"{key}{kind}") for kind in ("_data", "", "_reweighted")]
            if all(three):
                numbers = (str(Estimate.read(m)) for m in three)
                cells.append([measure["text"], *numbers, measure.get("unit", "")])
            elif key in ("ess_left", "ess_right"):
                cells.append([measure["text"], "", str(Estimate.read(measure)), "", ""])
        caption = "Distances from the data; column data: between its halves, except for free energies."
        table = Table(["measure", "data", "samples", "reweighted", "unit"], cells, caption)
        sections.append(Section(f"Torsions of {residue} in numbers", table=table))
    return sections


def _downloads(report: GeneratorReport, free: Torsions, marginals: Sequence[Marginal]) -> Section:
    files = {
        "metrics.json": json_bytes(report.metrics),
        "metrics.csv": csv_files.metrics(report.metrics),
        "verdicts.csv": csv_files.verdicts(report.verdicts),
        "samples.csv": csv_files.frames(report.samples, {"log_weight": report.log_weights}),
        "marginals.csv": csv_files.marginals(marginals),
        "forces.csv": csv_files.forces(report.tables),
        "transforms.csv": csv_files.maps(report.maps),
    }
    if report.data is not None:
        files["data.csv"] = csv_files.frames(report.data)
    if free.one:
        files["free_energies.csv"] = csv_files.profiles(free.one, free.two)
    if free.others:
        files["torsions.csv"] = csv_files.torsions(free.others)
    if report.metrics.get("states"):
        files["states.csv"] = csv_files.states(report.metrics["states"])
    if report.record is not None:
        files["dynamics.csv"] = csv_files.dynamics(report.record)
        files["drift.json"] = json_bytes(report.drift)
    files |= report.files
    text = (
        "Tables have a header line; energies are in kT, lengths in nm, angles in rad. samples.csv and "
        f"data.csv have at most {csv_files.ROWS:,} frames, forces.csv {csv_files.FRAMES:,} of each."
    )
    downloads = [Download(name, content) for name, content in files.items()]
    return Section("Files to save", [text], downloads=downloads)


def _view(report: GeneratorReport) -> MoleculeView | None:
    """The first samples that are finite and of the right handedness; None if there are none."""
    shown = report.samples.pictured()
    usable = np.isfinite(shown.positions).all((1, 2)) & np.isfinite(shown.log_prob) & shown.handed
    rows = np.flatnonzero(usable)[:STRUCTURES]
    if len(rows) == 0:
        return None
    weight = (normalised(report.log_weights) * len(report.samples))[report.samples.kept]
    labels = []
    for number, row in enumerate(rows, 1):
        u = shown.energy[row]
        energy = f"energy {u:,.1f} kT" if abs(u) < 1e6 else "energy above 10⁶ kT"
        times = f"{weight[row]:.2g}" if weight[row] >= 0.001 else "below 0.001"
        labels.append(f"Sample {number} of {len(rows)}: {energy}, weight {times} times the mean")
    return view_of(report.molecule, shown.positions[rows], labels)
