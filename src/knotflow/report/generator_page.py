"""The page of a trained Boltzmann generator: summary, pictures, structures and all numbers in one file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis.free_energy_profiles import Marginal, marginal
from knotflow.analysis.measures import log_weights
from knotflow.analysis.portrait import LearnedMap, Portrait, reweighted
from knotflow.dynamics.record import Record
from knotflow.dynamics.score import drift
from knotflow.files import write_atomically
from knotflow.report import csv_files
from knotflow.report import generator_plots as plots
from knotflow.report.density_plots import Curve, draw_curves
from knotflow.report.dynamics_plots import EnergyPanel, draw_energies, reasons
from knotflow.report.dynamics_plots import number as with_error
from knotflow.report.molecule_view import MoleculeView, view_of
from knotflow.report.page import Download, Page, Picture, Section, Table, render_page
from knotflow.report.torsion_sections import Torsions
from knotflow.report.verdicts import Verdict, judge
from knotflow.simulation.summary import Average
from knotflow.statistics.weights import normalised

Floats = NDArray[np.float64]

SHOWN: Final = 24
"""Coordinates of each kind that are shown: of more, those that differ most from the data."""
STRUCTURES: Final = 50
"""Samples in the three-dimensional view."""


@dataclass(frozen=True, eq=False)
class GeneratorReport:
    """All that the page shows; what is None was not at hand, and the page says so."""

    model: str
    """Name of the model file."""
    molecule: Mapping[str, Any]
    """What `knotflow.molecules.MolecularSystem.plain` gives."""
    coordinates: Sequence[tuple[int, ...]]
    """The two, three or four atoms of each internal coordinate."""
    metrics: Mapping[str, Any]
    """What `knotflow.analysis.Evaluation.plain` gives, or the part of it that needs no data."""
    samples: Portrait
    data: Portrait | None = None
    maps: Sequence[LearnedMap] = ()
    training: Mapping[str, Curve] | None = None
    """Steps and values of all that was logged, by name."""
    record: Record | None = None
    """Of dynamics on the flow."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Further files to save from the page, by name: ``config.json``, ``log.csv``."""
    seed: int = 0
    """Of error bars."""

    def verdicts(self) -> list[Verdict]:
        """What the numbers mean."""
        return judge(
            self.metrics,
            unexplained=math.nan if self.data is None else self.data.unexplained,
            drift=None if self.record is None else drift(self.record).plain(),
        )


def write_generator_page(report: GeneratorReport, path: Path) -> None:
    """Write the page; an older file of that name stays until the new one is complete.

    Raises:
        ModuleNotFoundError: if matplotlib or jinja2, which are optional, are not installed.
    """
    write_atomically(path, render_generator_page(report).encode())


def render_generator_page(report: GeneratorReport) -> str:
    """The page as HTML that refers to nothing outside of it."""
    return render_page(_page(report), "generator.html.j2", verdicts=report.verdicts(), view=_view(report))


def _page(report: GeneratorReport) -> Page:
    name = report.molecule["name"]
    about, shown = report.metrics["about"], len(report.samples)
    data = about.get("data")
    compared = "not compared with data."
    if data:
        held = "held back in training" if data["rows"] == "validation" else "all there are"
        compared = f"compared with {data['frames']:,} frames of {data['file']} ({held})."
    lead = (
        f"{report.model}: {len(report.molecule['positions'])} atoms at {report.molecule['temperature']:g} K"
        f", a flow with {about['parameters']:,} parameters"
        + f"; numbers from {about['samples']:,} samples, {compared}"
        + ("" if about["samples"] == shown else f" Pictures are of {shown:,} samples.")
    )
    free = Torsions(report.samples, report.data, report.seed)
    marginals = _marginals(report)
    sections = [
        free.ramachandran(),
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
    return Page(f"Boltzmann generator of {name}", lead, sections)


def _forces(report: GeneratorReport) -> Section:
    pictures, text = [], []
    for name, portrait in (("data", report.data), ("samples", report.samples)):
        if portrait is None:
            text.append("No data were at hand, so forces are compared on samples only.")
        elif len(portrait.true_force) == 0:
            text.append(f"No forces on {name} are finite, so there is no picture of them.")
        else:
            figure = plots.draw_forces(f"on {name}", portrait.true_force, portrait.flow_force)
            alt = f"Force of the flow over force of the force field on {name}, one dot a component"
            caption = f"{len(portrait.true_force):,} frames; {_share(portrait.unexplained)} unexplained"
            pictures.append(Picture(plots.png(figure), alt, caption))
    intro = (
        "Components of the force on all atoms: the gradient of the flow's log-density, over the force of the "
        "force field; the dashed line is where both are equal (figure 3 of the paper). Darker is more often; "
        "forces beyond the frame are not shown. Unexplained: squared error as a share of the squared forces."
    )
    return Section("Forces", [intro, *text], pictures=pictures)


def _energies(report: GeneratorReport) -> Section:
    drawn = report.samples.seen
    weight = reweighted(drawn)
    potential: dict[str, tuple[Floats, Floats | None]] = {}
    if report.data is not None:
        potential[plots.MD] = (report.data.seen.energy, None)
    potential[plots.FLOW] = (drawn.energy, None)
    if np.isfinite(weight).all():
        potential[plots.REWEIGHTED] = (drawn.energy, weight)
    span = plots.energy_span(*(u for u, _ in potential.values()))
    figure = plots.draw_energies("energy of the force field", potential, "u, kT", span)
    alt = f"Histograms of the potential energy: {', '.join(potential)}"
    pictures = [Picture(plots.png(figure), alt)]
    shift = _log_z(report)
    for name, portrait in (("data", report.data), ("samples", report.samples)):
        if portrait is not None:
            seen = portrait.seen
            energies: dict[str, tuple[Floats, Floats | None]] = {
                plots.TRUTH: (seen.energy, None),
                plots.FLOW: (-seen.log_prob - shift, None),
            }
            figure = plots.draw_energies(f"two energies on {name}", energies, "energy, kT", span)
            alt = f"Histograms of the energies of force field and flow on {name}"
            pictures.append(Picture(plots.png(figure), alt))
    text = (
        "First: the energy of the force field, of MD, of samples, and of reweighted samples. Then, on the "
        "same frames, the energy of the force field and that of the flow, -log p - log Z, with log Z "
        f"{shift:.2f} (figures 7 to 9 of the paper). The legend has the share that is beyond the frame."
    )
    return Section("Energies", [text], pictures=pictures)


def _log_z(report: GeneratorReport) -> float:
    """The best estimate there is, or what makes the medians of both energies of samples equal."""
    found = report.metrics.get("measures", {})
    for key in ("log_z_bar", "log_z"):
        value = found.get(key, {}).get("value")
        if value is not None:
            return float(value)
    with np.errstate(invalid="ignore"):
        gap = -report.samples.seen.log_prob - report.samples.seen.energy
    return float(np.median(gap[np.isfinite(gap)])) if np.isfinite(gap).any() else 0.0


def _marginals(report: GeneratorReport) -> list[Marginal]:
    weight = reweighted(report.samples.seen)
    weight = weight if np.isfinite(weight).all() else np.zeros_like(weight)
    elements, kinds = _elements(report.molecule), {2: "bond", 3: "angle", 4: "torsion"}
    found = []
    for k, atoms in enumerate(report.coordinates):
        data = None if report.data is None else report.data.coordinates[:, k]
        values = report.samples.coordinates[:, k]
        name = f"{kinds[len(atoms)]} {'-'.join(f'{elements[i]}{i}' for i in atoms)}"
        # Torsions that live on a line may be anywhere around it.
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
            pictures.append(Picture(plots.png(plots.draw_marginal(m)), alt, label + apart))
        text = [
            "Flow: dashed; MD: solid. Per cent: total variation, the share that would have to move."
            if report.data is not None
            else "Of samples of the flow; no data were at hand."
        ]
        if len(members) > SHOWN:
            which = "that differ most" if report.data is not None else "that come first"
            text.append(f"The {SHOWN} of {len(members)} {which}; all are in marginals.csv.")
        sections.append(Section(heading, text, pictures=pictures))
    return sections


def _maps(report: GeneratorReport) -> Section:
    pictures = []
    for learned in report.maps:
        alt = f"Maps of the {learned.name} at {len(learned.y)} frames, and their slopes"
        pictures.append(Picture(plots.png(plots.draw_learned(learned)), alt))
    text = (
        "What the flow does to one coordinate in one coupling, given the others: a line for each of some "
        "frames (figure 2 of the paper), and the slopes below. Of each kind of coordinate, the map that "
        "depends most on the others. Coordinates are scaled to a standard length; smooth slopes make smooth "
        "forces."
    )
    return Section("Learned transforms", [text], pictures=pictures)


def _training(report: GeneratorReport) -> Section:
    log = report.training
    if not log:
        text = "There is no log.csv beside the model, so its training cannot be shown."
        return Section("Training", [text])
    pictures = []
    for name, label in (
        ("nll", "negative log-likelihood, nats"),
        ("force_matching", "error of forces, as trained on"),
        ("ess", "effective sample size, share"),
    ):
        curves = {"training": log[name]} if name in log else {}
        points = {"held back": log[f"validation_{name}"]} if f"validation_{name}" in log else {}
        if curves and points:  # a noisy curve goes pale behind points of the same name
            both = "held back; pale: training"
            curves, points = {both: log[name]}, {both: log[f"validation_{name}"]}
        if name == "ess":
            curves, points = {}, {"1,000 samples": log[name]} if name in log else {}
        if not curves and not points:
            continue
        figure = draw_curves(curves, points, label=label)
        figure.set_size_inches(3.6, 2.8)
        _without_the_start(figure.axes[0], [*curves.values(), *points.values()])
        pictures.append(Picture(plots.png(figure), f"Training: {label} over the steps"))
    text = "Likelihoods are those of internal coordinates. The first steps may be above the frame."
    return Section("Training", [text], pictures=pictures)


def _without_the_start(axis: Any, curves: Sequence[Curve]) -> None:
    """Limits that show what comes after the first tenth of the steps."""
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
    record = report.record
    if record is None:
        text = "There is no dynamics/record.npz of this model beside it; `knotflow dynamics` makes one."
        return Section("Dynamics", [text])
    found = drift(record).plain()
    panel, mover = EnergyPanel.of("", record), record.about.get("energy", "flow")
    pictures = [
        Picture(
            plots.png(draw_energies([panel], [quantity])),
            f"The {quantity} energy of {found['replicas']} replicas over time",
        )
        for quantity in ("total", "potential")
    ]
    text = (
        f"{found['replicas']} replicas moved by the forces of the {mover}: with a thermostat where it is "
        "grey, then without (figure 4 of the paper). Potential and total energies are less the median "
        f"potential at the start. Broken: {found['broken']}"
        + (f", by {reasons(found['reasons'])}" if found["broken"] else "")
        + f". Drift of the total energy: {with_error(found['slope'], found['slope_error'])} kT/ps for each "
        "degree of freedom."
    )
    return Section("Dynamics", [text], pictures=pictures)


def _numbers(report: GeneratorReport) -> list[Section]:
    found = report.metrics.get("measures", {})
    rows = [[m["text"], _number(m), m.get("unit", "")] for m in found.values()]
    notes = [f"{m['text']}: {m['note']}" for m in found.values() if m.get("note")]
    text = (
        "± standard errors: of data over blocks of replicas, of samples over samples. The paper's measure "
        "leaves out the volume of the rigid frame; it is there to compare with."
    )
    sections = [Section("All numbers", [text], Table(["measure", "value", "unit"], rows, notes=notes))]
    for residue, measures in report.metrics.get("residues", {}).items():
        keys = [key for key in measures if f"{key}_data" in measures and f"{key}_reweighted" in measures]
        cells = [
            [
                measures[key]["text"],
                *(_number(measures[k]) for k in (f"{key}_data", key, f"{key}_reweighted")),
                measures[key].get("unit", ""),
            ]
            for key in keys
        ]
        caption = "Distances from the data; column data: between its halves, but for free energies."
        table = Table(["measure", "data", "samples", "reweighted", "unit"], cells, caption)
        sections.append(Section(f"Torsions of {residue} in numbers", table=table))
    return sections


def _downloads(report: GeneratorReport, free: Torsions, marginals: Sequence[Marginal]) -> Section:
    seen, log_w = report.samples.seen, log_weights(report.samples.seen)
    files = {
        "metrics.json": (json.dumps(report.metrics, indent=1, ensure_ascii=False) + "\n").encode(),
        "metrics.csv": csv_files.metrics(report.metrics),
        "verdicts.csv": csv_files.verdicts(report.verdicts()),
        "samples.csv": csv_files.observed(seen, {"log_weight": log_w}),
        "marginals.csv": csv_files.marginals(marginals),
        "forces.csv": csv_files.forces({"data": report.data, "samples": report.samples}),
        "transforms.csv": csv_files.maps(report.maps),
    }
    if report.data is not None:
        files["data.csv"] = csv_files.observed(report.data.seen)
    if free.residues:
        files["free_energies.csv"] = csv_files.profiles(free.one, free.two)
    if report.record is not None:
        files["dynamics.csv"] = csv_files.dynamics(report.record)
        files["drift.json"] = (json.dumps(drift(report.record).plain(), indent=1) + "\n").encode()
    files |= report.files
    text = (
        "Tables have a head line; energies are in kT, lengths in nm, angles in rad. samples.csv and "
        f"data.csv have {csv_files.ROWS:,} frames at most, forces.csv {csv_files.FRAMES:,} of each."
    )
    downloads = [Download(name, content) for name, content in files.items()]
    return Section("Files to save", [text], downloads=downloads)


def _view(report: GeneratorReport) -> MoleculeView | None:
    """The first samples that are finite and of the right handedness; None if there are none."""
    seen, log_w = report.samples.seen, log_weights(report.samples.seen)
    usable = np.isfinite(report.samples.positions).all((1, 2)) & np.isfinite(seen.log_prob) & seen.handed
    rows = np.flatnonzero(usable)[:STRUCTURES]
    if len(rows) == 0:
        return None
    weight = normalised(log_w) * len(log_w)
    labels = []
    for number, row in enumerate(rows, 1):
        u = seen.energy[row]
        energy = f"energy {u:,.1f} kT" if abs(u) < 1e6 else "energy above 10⁶ kT"
        times = f"{weight[row]:.2g}" if weight[row] >= 0.001 else "below 0.001"
        labels.append(f"Sample {number} of {len(rows)}: {energy}, weight {times} times the mean")
    return view_of(report.molecule, report.samples.positions[rows], labels)


def _elements(molecule: Mapping[str, Any]) -> list[str]:
    chains = molecule["topology"]["chains"]
    return [a["element"] for chain in chains for residue in chain["residues"] for a in residue["atoms"]]


def _number(measure: Mapping[str, Any]) -> str | None:
    """As many digits as the error tells; None for what is not known."""
    value, error = measure.get("value"), measure.get("error")
    if value is None:
        return None
    if error is None:
        return f"{value:,.0f}" if value % 1 == 0 else f"{value:.4g}"
    if abs(value) >= 1e6 or 0 < error < 1e-6:
        return f"{value:.3g} ± {error:.1g}"
    return str(Average(value, error))


def _share(share: float) -> str:
    return "none" if math.isnan(share) else f"{100 * share:.3g} %"
