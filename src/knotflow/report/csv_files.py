"""CSV files with the numbers behind the pictures of a Boltzmann generator, each with a header line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from knotflow.analysis.frame_table import FrameTable, spaced
from knotflow.analysis.free_energy_profiles import Marginal, Profile
from knotflow.analysis.learned_maps import LearnedMap
from knotflow.dynamics.record import Record
from knotflow.report.verdicts import Verdict

ROWS: Final = 10_000
"""Frames in a table of frames."""
FRAMES: Final = 50
"""Frames in a table of forces, which has a row for every component."""
RECORDS: Final = 1_000
"""Times in a table of dynamics."""
EVERY: Final = 8
"""One point of a map in this many is written."""

Columns = Mapping[str, NDArray[Any]]


def metrics(plain: Mapping[str, Any]) -> bytes:
    """All measures of an evaluation (`knotflow.analysis.Evaluation.plain`), in full precision."""
    parts = {"": plain.get("measures", {}), **plain.get("residues", {})}
    fields = ["value", "error", "unit", "text", "note"]
    rows = [
        [residue, key, *map(measure.get, fields)]
        for residue, found in parts.items()
        for key, measure in found.items()
    ]
    return _table(["residue", "measure", *fields], rows)


def verdicts(found: Iterable[Verdict]) -> bytes:
    """One row for each verdict."""
    rows = [[v.subject, v.level.value, v.sentence, v.rule] for v in found]
    return _table(["subject", "level", "sentence", "rule"], rows)


def frames(table: FrameTable, more: Columns | None = None) -> bytes:
    """Energies, log-densities, handedness, replicas and torsions of frames."""
    columns: dict[str, NDArray[Any]] = {
        "energy": table.energy,
        "log_prob": table.log_prob,
        **(more or {}),
        "right_handed": table.handed.astype(int),
        "replica": table.replica,
    }
    for residue, angles in table.torsions.items():
        columns |= {f"phi_{residue}": angles[:, 0], f"psi_{residue}": angles[:, 1]}
    rows = spaced(len(table), ROWS)
    return _columns({name: column[rows] for name, column in columns.items()})


def profiles(
    one: Mapping[str, Mapping[str, Mapping[str, Profile]]], two: Mapping[str, Mapping[str, Profile]]
) -> bytes:
    """Free energies along phi, along psi, and on both, with standard errors; empty if unknown.

    Args:
        one: Profiles of one torsion, by residue, torsion and source.
        two: Profiles of both, by residue and source; other pairs are left out.
    """
    rows: list[list[str]] = []
    for residue, of_angles in one.items():
        surfaces = two[residue]
        for angle, by_source in of_angles.items():
            for source, profile in by_source.items():
                for x, *numbers in zip(profile.middle, profile.value, profile.error, strict=True):
                    place = [_short(x), ""] if angle == "phi" else ["", _short(x)]
                    rows.append([residue, source, *place, *map(_short, numbers)])
        for source, surface in surfaces.items():
            middle = surface.middle
            for i, j in zip(*np.nonzero(np.isfinite(surface.value)), strict=True):
                cell = (middle[i], middle[j], surface.value[i, j], surface.error[i, j])
                rows.append([residue, source, *map(_short, cell)])
    return _table(["residue", "source", "phi", "psi", "free_energy", "error"], rows)


def torsions(others: Mapping[str, Mapping[str, Profile]]) -> bytes:
    """Free energies along torsions other than phi and psi, by torsion and source."""
    rows = [
        [torsion, source, *map(_short, row)]
        for torsion, by_source in others.items()
        for source, profile in by_source.items()
        for row in zip(profile.middle, profile.value, profile.error, strict=True)
    ]
    return _table(["torsion", "source", "angle", "free_energy", "error"], rows)


def states(groups: Iterable[Mapping[str, Any]]) -> bytes:
    """Populations of states, and free energies between them in kT (`ComparedStates.plain`)."""
    rows = []
    for group in groups:
        for kind, name in (("states", "name"), ("differences", "text")):
            for entry in group[kind]:
                numbers = entry["population" if kind == "states" else "free_energy"]
                text = entry.get("definition", ""), entry.get("unit", "")
                rows += [
                    [group["group"], entry[name], source, *map(found.get, ("value", "error")), *text]
                    for source, found in numbers.items()
                ]
    return _table(["group", "state", "source", "value", "error", "definition", "unit"], rows)


def marginals(found: Iterable[Marginal]) -> bytes:
    """Densities of internal coordinates in bins."""
    rows: list[list[str]] = []
    for m in found:
        data = np.full(len(m.samples), np.nan) if m.data is None else m.data
        columns = (m.edges[:-1], m.edges[1:], data, m.samples, m.reweighted)
        rows += [[m.name, *map(_short, row)] for row in zip(*columns, strict=True)]
    return _table(["coordinate", "low", "high", "data", "samples", "reweighted"], rows)


def forces(tables: Mapping[str, FrameTable | None]) -> bytes:
    """Components of forces in kT/nm, of evenly spaced frames."""
    rows: list[list[Any]] = []
    for name, table in tables.items():
        if table is None:
            continue
        true, flow = (force[spaced(len(force), FRAMES)] for force in table.forces)
        rows += [
            [name, frame, atom, "xyz"[axis], _short(t), _short(f)]
            for (frame, atom, axis), t, f in zip(np.ndindex(true.shape), true.flat, flow.flat, strict=True)
        ]
    return _table(["on", "frame", "atom", "direction", "force_field", "flow"], rows)


def maps(found: Sequence[LearnedMap]) -> bytes:
    """Learned maps at several frames, in standard coordinates."""
    rows = [
        [m.name, m.coupling, frame, *map(_short, (m.x[k], m.y[frame, k], m.slopes[frame, k]))]
        for m in found
        for frame in range(len(m.y))
        for k in range(0, len(m.x), EVERY)
    ]
    return _table(["coordinate", "coupling", "frame", "x", "y", "slope"], rows)


def dynamics(record: Record) -> bytes:
    """Potential and total energies in kT over time in ps, a column for each replica."""
    rows = spaced(len(record.time), RECORDS)
    columns: dict[str, NDArray[Any]] = {"time": record.time[rows]}
    for kind, energies in (("potential", record.potential), ("total", record.total)):
        columns |= {f"{kind}_{k}": column for k, column in enumerate(energies[rows].T)}
    return _columns(columns)


def _columns(columns: Columns) -> bytes:
    return _table(list(columns), [[_short(x) for x in row] for row in zip(*columns.values(), strict=True)])


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue().encode()


def _short(x: float) -> str:
    """Six digits; empty for NaN."""
    return "" if np.isnan(x) else f"{x:.6g}"
