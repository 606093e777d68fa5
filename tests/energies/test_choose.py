"""Torch or OpenMM."""

import openmm
import pytest

from knotflow.energies import OpenMMEnergy, TorchForceField, choose, force_field
from knotflow.molecules import MolecularSystem
from tests.analysis.generators import chain
from tests.molecules.molecules import frames, molecule


@pytest.mark.parametrize(
    ("options", "compiled"),
    [({}, False), ({"compiled": True}, True), ({"evaluations": choose.MANY}, True)],
)
def test_torch(options: dict[str, int], compiled: bool) -> None:
    with force_field(molecule("ala2"), **options) as energy:
        assert isinstance(energy, TorchForceField) and energy.compiled == compiled


def test_few_evaluations_are_left_to_openmm() -> None:
    with force_field(molecule("ala2"), evaluations=choose.MANY - 1, workers=2) as energy:
        assert isinstance(energy, OpenMMEnergy) and energy.workers == 2


@pytest.mark.parametrize("options", [{}, {"compiled": True}, {"evaluations": choose.MANY}])
def test_a_force_that_torch_does_not_know_is_left_to_openmm(options: dict[str, int]) -> None:
    inner = openmm.XmlSerializer.deserialize(chain().xml)
    extra = openmm.CustomBondForce("5*(r-0.3)^4")
    extra.addBond(0, 3, [])
    inner.addForce(extra)
    xml = openmm.XmlSerializer.serialize(inner)
    other = MolecularSystem("chain", chain().topology, xml, chain().positions, 300.0, {"source": "test"})
    with force_field(other, workers=1, **options) as energy:
        assert isinstance(energy, OpenMMEnergy)
        assert energy.energy(frames(other, 3)).isfinite().all()
