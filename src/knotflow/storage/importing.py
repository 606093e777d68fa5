"""Import of other programs' frames into a trajectory file: checked, numbered, with energies and forces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from knotflow.energies.energy import MolecularEnergy
from knotflow.files import only_writer, unwritten
from knotflow.inputs import file_fingerprint, fingerprint
from knotflow.molecules.system import MolecularSystem
from knotflow.storage import trajectory
from knotflow.storage.intake import Intake
from knotflow.storage.other_programs import RawFrames, count_frames, read_frames
from knotflow.storage.plausible import check_plausible
from knotflow.storage.remarks import Remarks
from knotflow.storage.trajectory import Frames

ATOMS_AT_ONCE: Final = 50_000
"""Atoms in all frames of a piece: limits memory and the time between progress reports."""

SAMPLES: Final = 100
"""Number of frames, spread evenly, whose given energies and forces are compared with our own."""

ENERGY_TOLERANCE: Final = 0.5
FORCE_TOLERANCE: Final = 1e-3
"""In kJ/mol, and relative to the root mean square of the forces. Rounding positions to float32 changes the
energy of a peptide by some 1e-3 kJ/mol and its forces by 1e-5; another force field, unit or order of atoms
changes both far more."""


class Imported(NamedTuple):
    """What an import did to frames, and what it found about them."""

    intake: Intake
    remarks: Remarks


def total_frames(sources: Sequence[Path]) -> int | None:
    """Number of frames in all files; None if it is unknown before they are read."""
    counts = [count_frames(path) for path in sources]
    return None if None in counts else sum(count for count in counts if count is not None)


def import_inputs(
    sources: Sequence[Path], system: MolecularSystem, topology: Path | None, stride: int
) -> dict[str, Any]:
    """Everything that an imported file depends on; for the arguments see `convert`."""
    return {
        "sources": [file_fingerprint(path) for path in sources],
        "topology": file_fingerprint(topology) if topology is not None and topology.is_file() else None,
        "molecule": fingerprint(system.plain()),
        "stride": stride,
    }


def noted_inputs(path: Path) -> dict[str, Any] | None:
    """The inputs that an imported file notes; None if it is another file, or of an earlier version."""
    try:
        noted: dict[str, Any] | None = trajectory.open_info(path).provenance.get("inputs")
    except (OSError, ValueError):
        return None
    return noted


def convert(
    sources: Sequence[Path],
    system: MolecularSystem,
    energy: MolecularEnergy,
    out: Path,
    *,
    topology: Path | None = None,
    stride: int = 1,
    provenance: dict[str, Any] | None = None,
    progress: Callable[[int], None] = lambda read: None,
) -> Imported:
    """Write other programs' frames into a trajectory file, which appears when it is complete.

    Every file becomes a replica, or several if it numbers its segments. Missing energies and forces are
    computed; a sample of given ones is checked. Bonds of constant length, as constraints make them, get
    lengths from their equilibrium distribution (`Stretching`), because all bonds are flexible here. Labels of
    equivalent hydrogens are brought to the order of the structure, and mirror images are set aside
    (`Intake`).

    Args:
        sources: Files in the formats of `read_frames`.
        system: The molecule.
        energy: Its energy.
        out: The new file, which must not exist.
        topology: File with names and elements of the atoms, for formats without them.
        stride: Keep frames 0, ``stride``, ``2 * stride`` ... of every segment.
        provenance: How the frames were made; stored in the file.
        progress: Called with the number of frames read so far.

    Returns:
        The intake, which counts the frames in which labels were exchanged and those set aside, and remarks
        about order, rounding and constraints.

    Raises:
        ValueError: if frames are damaged, do not belong to this molecule and force field, or are mostly
            mirror images of the structure.
        OSError: if a file is missing or ``out`` exists.
    """
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}.")
    trajectory.check_new(out)
    part = out.with_name(f".{out.name}.part")
    notes = {**(provenance or {}), "sources": [str(path) for path in sources], "stride": stride}
    with only_writer(out):
        part.unlink(missing_ok=True)  # left by an import that was killed
        try:
            n_frames, intake, remarks = 0, Intake(system, sources), Remarks(system, energy)
            for frames in _checked(sources, intake, remarks, energy, topology, stride, progress):
                if n_frames == 0:
                    trajectory.create(part, system, notes | remarks.notes())
                _append(part, out, frames, n_frames)
                n_frames += len(frames)
            intake.conclude()
            remarks.conclude()
            if n_frames == 0:
                raise ValueError(f"there are no frames in {', '.join(map(str, sources))}.")
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
    return Imported(intake, remarks)


def _append(part: Path, out: Path, frames: Frames, at: int) -> None:
    try:
        trajectory.append(part, frames, at)
    except OSError as error:
        raise OSError(unwritten(out, error)) from error


def _checked(
    sources: Sequence[Path],
    intake: Intake,
    remarks: Remarks,
    energy: MolecularEnergy,
    topology: Path | None,
    stride: int,
    progress: Callable[[int], None],
) -> Iterator[Frames]:
    """All frames to keep, in pieces, complete and numbered."""
    system = intake.system
    check_every = max(1, (total_frames(sources) or 0) // (stride * SAMPLES))
    rows_at_once = max(16, ATOMS_AT_ONCE // system.n_atoms)
    seen: Counter[int] = Counter()
    n_read = n_kept = 0
    for path in sources:
        first_replica = max(seen, default=-1) + 1
        for found in read_frames(path, system, topology, rows_at_once, remarks.reordered):
            columns = {name: getattr(found, name) for name in ("positions", "energies", "forces")}
            check_plausible(path, found.row, system.n_atoms, **columns)
            _check_geometry(path, found, system)
            remarks.look(path, found.positions)
            replica = first_replica + found.segment
            number = _running_numbers(replica, seen)
            keep = number % stride == 0
            kept, usable = intake(found[keep])
            keep[keep] = usable
            if len(kept):
                sample = slice(-n_kept % check_every, None, check_every)
                given, kept = kept, remarks.flexible(path, kept)
                if kept is not given and not (given.energies is None and given.forces is None):
                    _energies_and_forces(path, given[sample], system, energy, slice(None))  # only checks them
                energies, forces = _energies_and_forces(path, kept, system, energy, sample)
                time = number[keep] if kept.time is None else kept.time  # 1 ps per frame if unknown
                yield Frames(kept.positions, forces, energies, replica[keep], number[keep] // stride, time)
            n_kept += len(kept)
            n_read += len(found)
            progress(n_read)


def _running_numbers(replica: NDArray[np.int64], seen: Counter[int]) -> NDArray[np.int64]:
    """Number of each frame within its replica; ``seen`` counts the frames of each replica so far."""
    number = np.empty_like(replica)
    for which in np.unique(replica).tolist():
        rows = np.flatnonzero(replica == which)
        number[rows] = seen[which] + np.arange(len(rows))
        seen[which] += len(rows)
    return number


def _energies_and_forces(
    path: Path, found: RawFrames, system: MolecularSystem, energy: MolecularEnergy, sample: slice
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Energies in kJ/mol and forces in kJ/mol/nm: the given ones, checked, or else ours.

    Given energies are those of the program, ours are relative to the zero of the molecule.
    """
    if found.energies is not None:
        found = replace(found, energies=found.energies - system.zero_kj)
    some = found if found.energies is None or found.forces is None else found[sample]
    u, f = energy.energy_and_force(torch.from_numpy(some.positions.astype(np.float64)))
    energies, forces = u.numpy() * system.kT, f.numpy() * system.kT
    check_plausible(path, some.row, system.n_atoms, energies=energies, forces=forces)
    for i, difference in _differences(some, energies, forces):
        raise ValueError(
            f"{path}: frame {some.row[i]} has {difference}; check molecule, force field, solvent, units "
            "(kJ/mol, nm) and the order of the atoms, or leave out energies and forces to have them computed."
        )
    return (
        energies if found.energies is None else found.energies,
        forces if found.forces is None else found.forces,
    )


def _differences(
    found: RawFrames, energies: NDArray[Any], forces: NDArray[Any]
) -> Iterator[tuple[np.intp, str]]:
    """Frames whose given energy or forces differ from ours, and how."""
    if found.energies is not None:
        for i in np.flatnonzero(np.abs(found.energies - energies) > ENERGY_TOLERANCE):
            yield i, f"the energy {found.energies[i]:.6g} kJ/mol, but ours is {energies[i]:.6g} kJ/mol"
    if found.forces is not None:
        error = np.sqrt(((found.forces - forces) ** 2).mean((1, 2)) / (forces**2).mean((1, 2)))
        for i in np.flatnonzero(error > FORCE_TOLERANCE):
            yield i, f"forces that differ from ours by {100 * error[i]:.2g} %"


def _check_geometry(path: Path, found: RawFrames, system: MolecularSystem) -> None:
    """Refuse impossible bond lengths."""
    i, j = np.array(system.bonds).T
    usual = np.linalg.norm(system.positions[i] - system.positions[j], axis=-1)
    length = np.linalg.norm(found.positions[:, i] - found.positions[:, j], axis=-1)
    ratio = length / usual
    wrong = np.argwhere((ratio < 0.5) | (ratio > 2))
    if not len(wrong):
        return
    frame, bond = wrong[0]
    typical = float(np.median(ratio[frame]))
    if 5 < typical < 20 or 0.05 < typical < 0.2:
        hint = (
            f"all bonds are about {typical:.2g} times as long as usual, so the unit may be wrong (nm, not Å)"
        )
    else:
        hint = (
            "the order of the atoms may be wrong (--topology with their names puts them in order), or a "
            "periodic box cut the molecule"
        )
    atoms = [str(system.topology.atom(atom)) for atom in (i[bond], j[bond])]
    raise ValueError(
        f"{path}: the bond from {atoms[0]} to {atoms[1]} in frame {found.row[frame]} is "
        f"{length[frame, bond]:.3g} nm long, usually {usual[bond]:.3g} nm; {hint}."
    )
