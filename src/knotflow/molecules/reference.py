"""The force field of a molecule made once more from its files, to compare with."""

from __future__ import annotations

from dataclasses import replace

from knotflow.extras import optional
from knotflow.molecules.force_field import load_force_field
from knotflow.molecules.system import MolecularSystem


def rebuilt(system: MolecularSystem) -> MolecularSystem:
    """The same molecule with a force field that OpenMM makes anew from its files.

    Nothing of ``system.xml`` is used, nor the options it was made with: OpenMM's own defaults leave out no
    pair of atoms and constrain nothing.

    Raises:
        ValueError: if the origin of the system names no files, or OpenMM cannot use them.
    """
    with optional("molecules", "openmm", "molecules"):
        import openmm
    files = system.origin.get("force_field")
    if not files:
        raise ValueError("the system does not say which force-field files it was made of.")
    force_field = load_force_field(files)
    try:
        anew = force_field.createSystem(system.topology.to_openmm())
    except Exception as error:  # OpenMM raises several kinds
        raise ValueError(f"{' + '.join(files)} cannot describe the molecule again: {error}") from None
    return replace(system, xml=openmm.XmlSerializer.serialize(anew))
