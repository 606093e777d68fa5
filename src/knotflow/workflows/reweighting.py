"""From one energy to another: weights, free energy and states of a generator's samples with a new energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from knotflow.analysis.frame_table import (
    FrameTable,
    check_same_molecule,
    check_samples,
    observe_data,
    observe_samples,
    rows_to_judge_by,
)
from knotflow.analysis.states import angles_for, your_states
from knotflow.analysis.two_energies import Side, TwoEnergies, compare_energies
from knotflow.dynamics.chain_run import ExactPlan, open_run
from knotflow.energies import MolecularEnergy, force_field, read_energy, without_force_field
from knotflow.extras import need
from knotflow.files import only_writer, read_json, write_json
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.inputs import file_fingerprint, fingerprint, refuse_others, refuse_strangers
from knotflow.molecules import MolecularSystem
from knotflow.molecules.conformation import ConformationAngle
from knotflow.molecules.force_field import Solvent
from knotflow.molecules.structure import Structure
from knotflow.molecules.system import assemble
from knotflow.progress import Progress, silent, titled
from knotflow.resources import check_time
from knotflow.storage import trajectory
from knotflow.storage.split import held_out
from knotflow.training.adaptation import BATCH, adapt
from knotflow.training.refinement import evaluations as refining
from knotflow.training.run import MODEL
from knotflow.transforms.base import check_count
from knotflow.version import __version__
from knotflow.workflows.models import CHAINS, model_file

RESULT: Final = "reweight.json"
"""File name of all numbers."""
STARTS: Final = ("start.safetensors", "start.h5")
"""The model before its adaptation, and chains that it learns from."""
CHAIN_PLAN: Final = ExactPlan.parse({"chains": 64, "rows": 20, "burn_in": 20, "every": 2, "md_steps": 10})
"""Chains on the new energy: they give samples of it that do not come from weights."""
STEPS: Final = 200
"""Steps of the adaptation, unless others are asked for."""


@dataclass(frozen=True, eq=False)
class Reweighting:
    """The results of `reweight`."""

    found: TwoEnergies
    acceptance: float | None
    """Share of the flow's proposals that chains on the new energy accept; None without chains."""
    evaluations: int
    """Evaluations of the new energy, roughly."""
    adapted: list[dict[str, Any]]
    """Figures of the adaptation, if there was one."""
    files: dict[str, Path]

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            **self.found.plain(),
            "acceptance": self.acceptance,
            "evaluations": self.evaluations,
            "adapted": self.adapted,
            "files": {name: file.name for name, file in self.files.items()},
        }


def with_energy(
    system: MolecularSystem,
    energy: str = "force-field",
    *,
    force_field: Sequence[str] = (),
    solvent: Solvent = "obc",
    charge: int | None = None,
    multiplicity: int | None = None,
) -> MolecularSystem:
    """The same molecule at the same temperature with another energy.

    Args:
        system: The molecule.
        energy: As on the command line, see `knotflow.energies.read_energy`.
        force_field: OpenMM's XML files or your own; only with ``"force-field"``.
        solvent: Of the force field.
        charge: Of the molecule, for ``xtb`` and ``ase``.
        multiplicity: Likewise.

    Raises:
        ValueError: if the molecule cannot have this energy.
        OSError: if there is no such file.
    """
    other = read_energy(energy, charge, multiplicity)
    structure = Structure(system.topology.to_openmm(), system.positions)
    source = system.origin.get("source", system.name)
    if other is not None:
        if force_field:
            raise ValueError(
                f"a force field and the energy {energy} are two energies; give only one of them."
            )
        return without_force_field(system.name, structure, other, system.temperature, source=source)
    if not force_field:
        raise ValueError(
            "the new energy is missing: give --energy xtb, ase:... or module:..., or --force-field with the "
            "files of another force field."
        )
    return assemble(system.name, structure, list(force_field), solvent, system.temperature, source=source)


def reweight(
    model: str | Path,
    target: MolecularSystem,
    out: str | Path,
    *,
    data: str | Path | None = None,
    samples: int = 10_000,
    exact: bool = True,
    refine: bool = False,
    steps: int = STEPS,
    states: Sequence[str] = (),
    seed: int = 0,
    progress: Progress = silent,
) -> Reweighting:
    """Bring the samples of a generator to another energy: weights, free energy, populations of states.

    The folder gets ``model.safetensors``, the flow with the new energy, which all commands take; exact chains
    on the new energy (``exact.h5``), and all numbers (`RESULT`). An interrupted call can be repeated: chains
    and adaptation go on where they were.

    Args:
        model: A model file, the folder of a training run, or ``"ala2"``, which comes with knotflow.
        target: Its molecule with the new energy, see `with_energy`.
        out: The folder.
        data: Frames of the first energy; None: ``data.h5`` beside the model, if the model was trained on it.
        samples: Number of structures that are drawn and weighted by both energies.
        exact: Whether to run chains on the new energy. They check the weights, and improve the free energy.
        refine: Whether to adapt the flow to the new energy first.
        steps: Steps of the adaptation.
        states: See `knotflow.workflows.evaluation.evaluate`.
        seed: Seed of all random numbers.
        progress: Called with the progress, stage by stage.

    Raises:
        ValueError: if model, data and target do not belong together, a state cannot be read, or the folder
            holds results of another model or energy.
        OSError: if a file is missing or damaged.
    """
    need("reweighting", "analysis")
    check_count("samples", samples, 2)
    check_count("steps", steps, 1)
    source, folder = model_file(model), Path(out)
    generator = BoltzmannGenerator.load(source).requires_grad_(False)
    if generator.temperatures is not None:
        generator = generator.at(generator.temperature)
    system = MolecularSystem.parse(generator.molecule)
    check_samples(samples)
    if refine:
        check_time(f"{steps:,} steps", steps * 1e-3)
    check_same_molecule(system, target)
    yours = your_states(states, system)
    angles, known = angles_for(system, yours), _data_of(source, data)
    if known is not None:
        check_same_molecule(system, trajectory.open_info(known).system)
    plan = CHAIN_PLAN.model_copy(update={"seed": seed})
    _claim(folder, source, target, {"adapted for": steps if refine else None, "seed": seed})
    adapted, evaluations, chains, moved = list[dict[str, Any]](), samples, None, None
    with only_writer(folder / "reweight"), force_field(target) as new:
        file = folder / MODEL
        start = folder / STARTS[0] if refine else file
        if not start.exists():
            BoltzmannGenerator(generator.coordinates, generator.flow, target.plain()).save(start)
        if refine:
            evaluations += _adapt(start, file, new, plan, steps, progress)
            adapted = notes(file)["adapted"]
        final = BoltzmannGenerator.load(file).requires_grad_(False)
        drawn = observe_samples(final, new, samples, seed, titled("new energy", progress), angles=angles)
        if exact:
            chains = open_run(folder / CHAINS, file, plan)
            chains.run(new, titled("chains on the new energy", progress))
            evaluations += chains.evaluations
            moved = _observed(final, chains.path, new, angles, progress)
    with force_field(system, evaluations=samples) as old:
        before = observe_samples(
            generator, old, samples, seed, titled("first energy", progress), angles=angles
        )
        split = notes(source).get("split")
        frames = None if known is None else _observed(generator, known, old, angles, progress, split)
    names = _names(system, target)
    found = compare_energies(
        system,
        Side(names[0], before, frames, "data", system.zero_kj),
        Side(names[1], drawn, moved, "chains", target.zero_kj),
        yours=yours,
        seed=seed,
    )
    acceptance = None if chains is None else chains.moves["flow"].acceptance
    files = {"model": file, "numbers": folder / RESULT}
    files |= {} if chains is None else {"chains": chains.path}
    result = Reweighting(found, acceptance, evaluations, adapted, files)
    about = {"molecule": system.name, "temperature": system.temperature, "samples": samples, "seed": seed}
    write_json(folder / RESULT, {"about": {**about, "knotflow": __version__}, **result.plain()})
    return result


def _data_of(model: Path, data: str | Path | None) -> Path | None:
    """The frames that are given, or those beside the model, if it was trained on them."""
    if data is not None:
        return Path(data)
    beside, split = model.with_name("data.h5"), notes(model).get("split")
    if not beside.exists():
        return None
    return None if held_out(split, beside, trajectory.open_info(beside).n_frames) is None else beside


def _claim(folder: Path, model: Path, target: MolecularSystem, more: dict[str, Any]) -> None:
    """Refuse a folder with results of another model, energy or adaptation, or of another command."""
    file = folder / "inputs.json"
    refuse_strangers(file, "a reweighting", [folder / name for name in (MODEL, *STARTS, CHAINS, RESULT)])
    energy = fingerprint(target.energy_inputs())
    wanted = {"model": file_fingerprint(model), "energy": energy, **more}
    if file.exists():
        refuse_others(folder, "a reweighting", read_json(file), wanted)
    else:
        write_json(file, wanted)


def _adapt(
    start: Path, file: Path, energy: MolecularEnergy, plan: ExactPlan, steps: int, progress: Progress
) -> int:
    """Write the adapted model, unless it is there; returns the evaluations, roughly."""
    run = open_run(start.with_suffix(".h5"), start, plan)
    run.run(energy, titled("chains to learn from", progress))
    if not file.exists():
        generator = BoltzmannGenerator.load(start)
        folder = file.with_name("refinement")
        found, cycles = adapt(
            generator, run.path, folder, energy, steps=steps, seed=plan.seed, progress=progress
        )
        found.save(file, adapted=cycles)
    return run.evaluations + round(refining(steps, BATCH))


def _observed(
    generator: BoltzmannGenerator,
    path: Path,
    energy: MolecularEnergy,
    angles: Sequence[ConformationAngle],
    progress: Progress,
    split: Mapping[str, Any] | None = None,
) -> FrameTable:
    """The frames of a file, or those that the split holds out."""
    rows, _ = rows_to_judge_by(split, path, trajectory.open_info(path).n_frames)
    return observe_data(generator, path, energy, rows, progress, angles=angles)


def _names(first: MolecularSystem, second: MolecularSystem) -> tuple[str, str]:
    """Short names of two energies, that differ."""

    def name(system: MolecularSystem) -> str:
        if system.energy is None:
            return "force field"
        return str(system.energy.get("method") or system.energy["kind"])

    a, b = name(first), name(second)
    return (a, b) if a != b else (f"first {a}", f"new {b}")
