"""Energies by xTB against tblite called by hand, with its own calculator for ASE, and finite differences."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from ase import units
from ase.build import molecule
from tblite.ase import TBLite
from torch import Tensor

from knotflow.energies import MolecularEnergy, force_field, read_energy, without_force_field
from knotflow.energies.settings import XTBSettings
from knotflow.energies.xtb import unpaired_electrons
from knotflow.molecules.system import MolecularSystem
from tests.bare_molecules import bare


@pytest.fixture(scope="module")
def system() -> MolecularSystem:
    return without_force_field("ethanol", bare("CH3CH2OH"), read_energy("xtb") or {}, source="by hand")


@pytest.fixture(scope="module")
def energy(system: MolecularSystem) -> Iterator[MolecularEnergy]:
    with force_field(system, workers=2) as energy:
        yield energy


def frames(system: MolecularSystem, n: int) -> Tensor:
    noise = np.random.default_rng(0).normal(0, 0.004, (n, system.n_atoms, 3))
    return torch.tensor(system.positions + noise)


@pytest.mark.parametrize("n", [1, 12])  # in this process, and in the workers
def test_energies_and_forces_are_those_of_tblite(
    system: MolecularSystem, energy: MolecularEnergy, n: int
) -> None:
    x = frames(system, n)
    u, force = energy.energy_and_force(x)
    atoms = molecule("CH3CH2OH")
    kT = units.kB * 300.0  # in eV
    for frame, its_u, its_force in zip(x, u, force, strict=True):
        atoms.positions = frame.numpy() * 10
        atoms.calc = TBLite(method="GFN2-xTB", verbosity=0)  # a new one: it would start from the last frame
        true = atoms.get_potential_energy() / kT - system.zero_kj / system.kT
        assert its_u.item() == pytest.approx(true, abs=1e-2)  # constants of nature of 2014 and 2018
        np.testing.assert_allclose(its_force, atoms.get_forces() * 10 / kT, rtol=1e-6, atol=1e-2)


def test_forces_are_slopes_of_the_energy(system: MolecularSystem, energy: MolecularEnergy) -> None:
    x = frames(system, 4).requires_grad_()
    direction = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    h = 1e-4
    with torch.no_grad():
        slope = (energy.energy(x + h * direction) - energy.energy(x - h * direction)) / (2 * h)
    (gradient,) = torch.autograd.grad(energy.energy(x).sum(), x)
    torch.testing.assert_close((gradient * direction).sum((1, 2)), slope, rtol=1e-4, atol=0.5)
    assert torch.equal(-gradient, energy.force(x))


def test_the_structure_is_a_minimum_and_the_zero_of_energy(
    system: MolecularSystem, energy: MolecularEnergy
) -> None:
    u, force = energy.energy_and_force(torch.tensor(system.positions))
    assert abs(u.item()) < 1e-6 and force.abs().max() < 4.0
    assert system.energy == {
        "kind": "xtb", "method": "GFN2-xTB", "charge": 0, "multiplicity": 1, "zero_kj": system.zero_kj
    }  # fmt: skip
    assert system.origin == {"source": "by hand"}


def test_charge_and_multiplicity_reach_tblite() -> None:
    water = bare("H2O")
    cation = without_force_field("H2O+", water, read_energy("xtb", charge=1, multiplicity=2) or {})
    atoms = molecule("H2O")
    atoms.positions = cation.positions * 10
    atoms.calc = TBLite(method="GFN2-xTB", charge=1, multiplicity=2, verbosity=0)
    assert cation.zero_kj == pytest.approx(atoms.get_potential_energy() / (units.kJ / units.mol), rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "unpaired"),
    [({}, 0), ({"multiplicity": 3}, 2), ({"charge": -1, "multiplicity": 2}, 1)],
)
def test_unpaired_electrons_of_water(settings: dict[str, int], unpaired: int) -> None:
    assert unpaired_electrons([8, 1, 1], XTBSettings.parse(settings)) == unpaired


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"charge": 1}, "9 electrons at charge 1, an odd number, so it is an open shell: give its mult"),
        ({"multiplicity": 2}, "10 electrons, at charge 0, cannot have the multiplicity 2"),
        ({"multiplicity": 13}, "cannot have the multiplicity 13"),
    ],
)
def test_electrons_that_do_not_fit_are_refused(settings: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        without_force_field("water", bare("H2O"), {"kind": "xtb", **settings})


def test_a_frame_on_which_xtb_fails_is_reported(
    system: MolecularSystem, caplog: pytest.LogCaptureFixture
) -> None:
    x = frames(system, 3)
    x[1, 0] = x[1, 1]  # two atoms in one place
    with force_field(system, workers=1) as energy:
        u, force = energy.energy_and_force(x)
        energy.energy_and_force(x)
    assert u.isnan().tolist() == [False, True, False] and force[1].isnan().all()
    (record,) = caplog.records
    assert record.getMessage().startswith("GFN2-xTB failed on frame 2 of 3: ")


def test_an_unknown_element_is_refused() -> None:
    uranium = bare("H2O")
    from openmm import app

    next(uranium.topology.atoms()).element = app.Element.getBySymbol("U")
    with pytest.raises(ValueError, match="GFN2-xTB cannot describe the molecule: No support for elements"):
        without_force_field("UH2", uranium, {"kind": "xtb"})
