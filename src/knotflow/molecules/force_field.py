"""OpenMM ``System`` of a structure: force-field files, parameters, energy minimisation."""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from knotflow.files import check_file
from knotflow.molecules.structure import Structure, residue_label, with_hydrogens
from knotflow.sentences import listed

if TYPE_CHECKING:
    import openmm
    from openmm import app

log = logging.getLogger("knotflow")

Solvent = Literal["obc", "vacuum"]
"""``"obc"``: implicit water (Onufriev, Bashford and Case); ``"vacuum"``: nothing but the force field."""

DEFAULT_FORCE_FIELD = ("amber99sbildn.xml",)

SOLVENT_FILES = {
    "amber96": "amber96_obc.xml",
    "amber99": "amber99_obc.xml",
    "amber03": "amber03_obc.xml",
    "amber10": "amber10_obc.xml",
    "": "implicit/obc2.xml",
}
"""OpenMM's file of implicit water for a force field, by how the name of one of its files starts."""

SOLVENT_FORCES = ("GBSAOBCForce", "CustomGBForce", "AmoebaGeneralizedKirkwoodForce")

LARGE = 300
"""Above this many atoms, minimising in double precision takes many seconds."""

HOPELESS = 1e4
"""In kJ/mol per atom: far above the energy of any real structure."""


class Described(NamedTuple):
    """Atoms and bonds of a molecule, and the System that describes it."""

    topology: app.Topology
    system: openmm.System


def force_field_files(force_field: Sequence[str], solvent: Solvent) -> list[str]:
    """The files to load: those of the force field and, for implicit water, the one that goes with them.

    Args:
        force_field: OpenMM's files by name, or your own by path. They may contain Python code, which is run.
        solvent: ``"obc"`` or ``"vacuum"``.
    """
    if solvent not in get_args(Solvent):
        raise ValueError(f"solvent must be one of {', '.join(get_args(Solvent))}, got {str(solvent)!r}.")
    if isinstance(force_field, str) or not force_field:
        raise ValueError(
            f"force_field must be a list of XML files, got {force_field!r}; try {list(DEFAULT_FORCE_FIELD)}."
        )
    files = [str(file) for file in force_field]
    if solvent == "obc":
        names = [Path(file).name for file in files]
        water = next(
            file for start, file in SOLVENT_FILES.items() if any(name.startswith(start) for name in names)
        )
        if water not in files:
            files.append(water)
    return files


def load_force_field(files: Sequence[str]) -> app.ForceField:
    """Load force-field files into OpenMM.

    Raises:
        ValueError: if a file is missing or unusable.
    """
    from openmm import app

    for file in files:
        check_file(Path(file))
    try:
        return app.ForceField(*files)
    except Exception as error:  # of any type: the files may even contain code
        raise ValueError(
            f"the force field {' + '.join(files)} cannot be loaded ({error}); expected OpenMM's XML files "
            "such as amber99sbildn.xml, amber14-all.xml, amber03.xml or charmm36.xml, or paths of your own."
        ) from None


def parametrise(structure: Structure, force_field: app.ForceField) -> openmm.System:
    """The System of a molecule in open space: all pairs of atoms interact, no coordinate is constrained.

    Raises:
        ValueError: if the force field has no parameters for a residue, or describes the solvent twice.
    """
    try:
        system = _create_system(structure, force_field)
    except Exception as error:  # OpenMM raises several types
        raise ValueError(_why_no_parameters(structure, force_field, error)) from None
    solvents = [force for force in system.getForces() if type(force).__name__ in SOLVENT_FORCES]
    if len(solvents) > 1:
        raise ValueError(
            f"the force-field files describe {len(solvents)} implicit solvents at once; choose solvent "
            "'vacuum' if they include their own."
        )
    return system


def minimise(system: openmm.System, positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positions of the energy minimum near these positions, in nm, shape ``(atoms, 3)``.

    Raises:
        ValueError: if the energy stays far too high, as it does for atoms on top of each other.
    """
    import openmm

    name = "Reference" if len(positions) <= LARGE else "CPU"
    settings = {"DeterministicForces": "true"} if name == "CPU" else {}
    platform = openmm.Platform.getPlatformByName(name)
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform, settings)
    context.setPositions(positions)

    def energy() -> float:
        return float(context.getState(energy=True).getPotentialEnergy()._value)

    # From an infinite or NaN energy, the minimiser would never return.
    if math.isfinite(energy_kj := energy()):
        openmm.LocalEnergyMinimizer.minimize(context)
        energy_kj = energy()
    if not energy_kj < HOPELESS * len(positions):
        raise ValueError(
            f"the energy of the structure cannot be minimised, it stays at {energy_kj:.3g} kJ/mol, probably "
            "because atoms are on top of each other; repair the structure."
        )
    return np.array(context.getState(positions=True).getPositions(asNumpy=True)._value, dtype=np.float64)


def free_system(create: Callable[..., openmm.System], *arguments: Any, **options: Any) -> openmm.System:
    """A System of open space from one of OpenMM's ``createSystem``: no cutoff, nothing constrained."""
    from openmm import app

    return create(
        *arguments,
        nonbondedMethod=app.NoCutoff,
        constraints=None,
        rigidWater=False,
        removeCMMotion=False,  # would remove kinetic energy from three coordinates of a Langevin run
        **options,
    )


@contextmanager
def read_by_openmm(
    path: Path, kind: str, remedy: str = "check that it and all files it needs are complete"
) -> Iterator[None]:
    """Turn any error of OpenMM's readers in this block, and its warnings, into a sentence."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            yield
        texts = [str(warning.message) for warning in said if issubclass(warning.category, UserWarning)]
        for text in dict.fromkeys(" ".join(text.split()) for text in texts):
            log.warning(f"{path}: OpenMM warns: {text.rstrip('.')}.")
    except Exception as error:  # OpenMM's parsers raise many types
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(f"{path} cannot be read as {kind}: {reason}; {remedy}.") from None


def _create_system(structure: Structure, force_field: app.ForceField) -> openmm.System:
    return free_system(force_field.createSystem, structure.topology)


def _why_no_parameters(structure: Structure, force_field: app.ForceField, error: Exception) -> str:
    """Explain why a force field refuses a structure, and what to do."""
    complete = with_hydrogens(structure)
    unknown = force_field.getUnmatchedResidues(complete.topology)
    if not unknown and force_field.getUnmatchedResidues(structure.topology):
        missing = len(complete.positions) - len(structure.positions)
        return (
            f"the structure lacks {missing} hydrogen atoms; add them yourself, or with add_hydrogens=True "
            "(--add-hydrogens on the command line)."
        )
    if not unknown and re.search(r"GBSA|GB|[Ii]mplicit solvent", str(error)):
        return (
            f"there is no implicit water for this force field or molecule (OpenMM: {error}); choose solvent "
            "'vacuum' (--solvent vacuum), or add an XML file with its parameters."
        )
    if not unknown:
        return f"the force field cannot describe the molecule: {error}"
    for residue in unknown:
        if lacking := _missing_heavy_atoms(residue, force_field):
            atoms = "the heavy atom" if len(lacking) == 1 else "heavy atoms"
            return (
                f"{residue_label(residue)} lacks {atoms} {listed(lacking)}; add what is missing, for "
                "instance with PDBFixer."
            )
    # A residue without bonds first: its neighbours are refused only because of it.
    bare = next((residue for residue in unknown if not any(residue.internal_bonds())), None)
    if bare is not None:
        return (
            f"the force field has no parameters for {residue_label(bare)}, whose bonds are unknown too; "
            "add CONECT records for them and an XML file that describes the residue, or remove it."
        )
    return (
        f"the force field has no parameters for {residue_label(unknown[0])}{_hint(complete, force_field)}; "
        "correct its names, atoms and bonds, or add an XML file that describes the residue."
    )


def _missing_heavy_atoms(residue: app.topology.Residue, force_field: app.ForceField) -> list[str]:
    """Names of the atoms that the force field's residue of this name has, but this one has not."""
    template = force_field._templates.get(residue.name)
    here = {atom.name for atom in residue.atoms()}
    expected = [] if template is None else [a.name for a in template.atoms if a.element is not None]
    if not here <= set(expected):  # other names, or another residue
        return []
    light = {a.name for a in template.atoms if a.element is not None and a.element.symbol == "H"}
    return [name for name in expected if name not in here | light]


def _hint(structure: Structure, force_field: app.ForceField) -> str:
    """OpenMM's guess why no template matches the first unknown residue."""
    try:
        _create_system(structure, force_field)
    except Exception as error:
        # "No template found for residue 3 (LIG).  <guess>. <advice>.  For more information, see <address>"
        guess = re.search(r"\)\.\s+(.*?)\.\s", str(error), re.DOTALL)
        return f" ({guess[1]})" if guess else ""
    return ""
