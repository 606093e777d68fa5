"""Evaluation of a Boltzmann generator: one pass over data and samples, all measures with error bars.

The target is the Boltzmann distribution of the force field, restricted to the handedness of the molecule:
samples of the wrong handedness have weight zero, and so have those whose energy or density is not finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knotflow.analysis import measures
from knotflow.analysis.frame_table import (
    Clock,
    FrameTable,
    check_same_molecule,
    check_samples,
    intake_for,
    observe_data,
    observe_samples,
    rows_to_judge_by,
)
from knotflow.analysis.measures import Measures, plain_measures
from knotflow.analysis.states import (
    ComparedStates,
    Source,
    angles_for,
    compared_states,
    read_angles,
    your_states,
)
from knotflow.analysis.temperatures import AtTemperature
from knotflow.energies.energy import MolecularEnergy
from knotflow.extras import need
from knotflow.files import read_json, write_json
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.flow import dtype_name, like
from knotflow.flows.io import notes
from knotflow.inputs import file_fingerprint, made_of
from knotflow.molecules.system import MolecularSystem
from knotflow.progress import Progress, silent
from knotflow.ranks import Team
from knotflow.statistics.estimates import blocks
from knotflow.storage import trajectory
from knotflow.transforms.base import check_count
from knotflow.version import __version__


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of `evaluate`."""

    about: dict[str, Any]
    """Molecule, model, data and samples that were compared."""
    measures: Measures
    residues: dict[str, Measures]
    """Measures of the torsions (phi, psi) of each residue that has both."""
    seconds: dict[str, float]
    """Wall time of each kind of work."""
    samples: FrameTable
    """The table of samples behind the measures."""
    data: FrameTable | None
    states: Sequence[ComparedStates] = ()
    """Populations of states and free energies between them, group by group."""
    temperatures: Sequence[AtTemperature] = ()
    """Free energies, energies and heat capacities at other temperatures, if they were asked for."""

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        found = {
            "about": self.about,
            "measures": plain_measures(self.measures),
            "residues": {residue: plain_measures(found) for residue, found in self.residues.items()},
            "states": [group.plain() for group in self.states],
            "seconds": {work: round(seconds, 3) for work, seconds in self.seconds.items()},
        }
        warm = [result.plain() for result in self.temperatures]
        return {**found, "temperatures": warm} if warm else found

    def write(self, file: Path, model: Path, **more: Any) -> dict[str, Any]:
        """Write all numbers as JSON, with a fingerprint of the model file and more entries; return them."""
        plain = self.plain()
        numbers = {**plain, "about": {**plain["about"], "model": file_fingerprint(model)}, **more}
        write_json(file, numbers)
        return numbers


def evaluate(
    generator: BoltzmannGenerator,
    data: str | Path | None,
    energy: MolecularEnergy,
    *,
    split: Mapping[str, Any] | None = None,
    samples: int = 10_000,
    seed: int = 0,
    states: Sequence[str] = (),
    chains: str | Path | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Compare a generator with data of its molecule and with the force field.

    Memory is bounded: frames are read, and samples drawn, in pieces. Equal arguments give equal numbers.

    Args:
        generator: The generator; densities and forces of the flow are computed in its dtype.
        data: A trajectory file of the same molecule at the same temperature. Without it, only the measures
            that need no data are computed.
        energy: The force field of the molecule, for the samples.
        split: The note ``split`` of the model: if ``data`` is the file it was trained on, only the held-out
            rows are used. Otherwise, or if missing, all rows.
        samples: Number of samples to draw.
        seed: Seed of samples and error bars.
        states: The states to compare (`knotflow.analysis.states.State.parse`); by default the wells of all
            turning torsions and rings.
        chains: Exact chains of the same molecule, a trajectory file, whose states are given beside.
        progress: Called with the progress.

    Raises:
        ValueError: if a state cannot be read, or if the data are of another molecule, temperature or force
            field, or have no frames.
        OSError: if the file is missing or damaged.
    """
    check_count("samples", samples, 1)
    check_samples(samples)
    need("evaluations", "analysis")
    clock, doing = Clock(), "distances and error bars"
    about: dict[str, Any] = {
        "molecule": generator.molecule["name"],
        "atoms": generator.n_atoms,
        "temperature": generator.temperature,
        "dtype": dtype_name(like(generator).dtype),
        "parameters": sum(p.numel() for p in generator.parameters()),
        "energy": type(energy).__name__,
        "samples": samples,
        "seed": seed,
        "knotflow": __version__,
    }
    system = MolecularSystem.parse(generator.molecule)
    yours = your_states(states, system)
    angles = angles_for(system, yours)
    about["states"] = list(states)
    if chains is not None:
        check_same_molecule(system, trajectory.open_info(chains).system)
        about["chains"] = {"file": Path(chains).name, "fingerprint": trajectory.fingerprint(chains)}

    def states_of(drawn: FrameTable, frames: FrameTable | None) -> list[ComparedStates]:
        sources = {} if frames is None else {"data": Source(frames.angles, frames.replica)}
        sources["samples"] = Source(drawn.angles)
        sources["reweighted"] = Source(drawn.angles, weight=measures.reweighted(drawn))
        if chains is not None:
            sources["exact"] = Source(*read_angles(chains, angles))
        return compared_states(system, sources, yours, seed=seed)

    if data is None:
        drawn = observe_samples(generator, energy, samples, seed, progress, clock, angles)
        with clock(doing):
            found = measures.without_data(drawn, seed)
            compared = states_of(drawn, None)
        return Evaluation(about, found, {}, clock.seconds, drawn, None, compared)

    n_frames = trajectory.open_info(data).n_frames
    selected, rows = rows_to_judge_by(split, data, n_frames)
    intake = intake_for(generator, data)
    frames = observe_data(generator, data, energy, selected, progress, clock, intake, angles)
    drawn = observe_samples(generator, energy, samples, seed, progress, clock, angles)
    block, tasks = blocks(frames.replica), measures.tasks(frames.torsions)
    setup = (frames, drawn, block, seed)
    with clock(doing), Team("knotflow.analysis.measures:measurer", setup) as team:
        done: dict[tuple[str, str], Measures] = {}
        progress(doing, 0, len(tasks) + 1)
        for number, found in team.imap_unordered(tasks):
            done[tasks[number]] = found
            progress(doing, len(done), len(tasks) + 1)
        overall = measures.joined(done["", part] for part in measures.PARTS)
        residues = {
            residue: measures.joined(done[residue, part] for part in measures.OF_TORSIONS)
            for residue in frames.torsions
        }
        compared = states_of(drawn, frames)
    progress(doing, len(tasks) + 1, len(tasks) + 1)
    about["data"] = {
        "file": Path(data).name,
        "fingerprint": trajectory.fingerprint(data),
        "rows": rows,
        "frames": len(frames),
        "frames_in_file": n_frames,
        "relabelled": intake.exchanged,
        "mirrored": intake.mirrored,
        "replicas": len(np.unique(frames.replica)),
        "blocks": len(np.unique(block)),
    }
    return Evaluation(about, overall, residues, clock.seconds, drawn, frames, compared)


def evaluation_inputs(
    model: Path,
    data: Path | None,
    *,
    samples: int = 10_000,
    seed: int = 0,
    all_frames: bool = False,
    float64: bool = False,
    energy: MolecularEnergy | str | None = None,
    states: Sequence[str] | None = None,
    chains: Path | None = None,
) -> dict[str, Any]:
    """Everything that the numbers of an evaluation depend on, in the form of `noted_evaluation`.

    Args:
        model: The model file.
        data: The trajectory, or None to accept any.
        samples: Number of samples.
        seed: Seed of samples and error bars.
        all_frames: Whether to include frames that the model was trained on.
        float64: Whether the flow computes in double precision, whatever the file says.
        energy: The energy, or the name of its class; None: OpenMM's or, without a force field, the usual one.
        states: The states that are compared; None to accept any.
        chains: Exact chains, or None to accept any.

    Raises:
        ValueError: if a file is of another kind, or damaged.
        OSError: if a file is missing or damaged.
    """
    noted: dict[str, Any] = {}
    if data is not None:
        split = None if all_frames else notes(model).get("split")
        rows = rows_to_judge_by(split, data, trajectory.open_info(data).n_frames)[1]
        noted = {"data": {"fingerprint": trajectory.fingerprint(data), "rows": rows}}
    if chains is not None:
        noted["chains"] = {"fingerprint": trajectory.fingerprint(chains)}
    if states is not None:
        noted["states"] = list(states)
    generator = BoltzmannGenerator.load(model)
    if energy is None:
        kind = (generator.molecule.get("energy") or {}).get("kind")
        energy = {None: "OpenMMEnergy", "module": "ModuleEnergy"}.get(kind, "FrameEnergy")
    return {
        "model": file_fingerprint(model),
        **noted,
        "samples": samples,
        "seed": seed,
        "dtype": "float64" if float64 else dtype_name(like(generator).dtype),
        "energy": energy if isinstance(energy, str) else type(energy).__name__,
        "knotflow": __version__,
    }


def noted_evaluation(file: Path) -> dict[str, Any] | None:
    """The inputs recorded in the file of an evaluation; None if it is missing or unreadable."""
    try:
        about = read_json(file)["about"]
        noted = {
            key: about.get(key)
            for key in ("model", "samples", "seed", "dtype", "energy", "knotflow", "states")
        }
        noted["chains"] = {"fingerprint": (about.get("chains") or {}).get("fingerprint")}
        return noted | {"data": {key: about["data"].get(key) for key in ("fingerprint", "rows")}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_evaluation_of(file: Path, inputs: Mapping[str, Any]) -> bool:
    """Whether a file holds the evaluation of these inputs (`evaluation_inputs`)."""
    return made_of(noted_evaluation(file), inputs)
