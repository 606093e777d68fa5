"""Calculators of ASE through worker processes, against the same calculators called by hand."""

import numpy as np
import pytest
import torch
from ase import units
from ase.build import molecule

from knotflow.energies import force_field, read_energy
from knotflow.molecules.system import MolecularSystem, only_masses
from tests import energy_factories
from tests.bare_molecules import bare

KT = units.kB * 300.0


def water(factory: str, **settings: int) -> MolecularSystem:
    energy = read_energy(f"ase:tests.energy_factories:{factory}", **settings)
    assert energy is not None
    return only_masses("water", bare("H2O"), energy)


@pytest.mark.parametrize("factory", ["emt", "lennard_jones", "morse"])
@pytest.mark.parametrize("workers", [1, 2])
def test_energies_and_forces_are_those_of_the_calculator(factory: str, workers: int) -> None:
    system = water(factory)
    x = torch.tensor(system.positions) + 0.005 * torch.randn(5, 3, 3, dtype=torch.float64)
    with force_field(system, workers=workers) as energy:
        u, force = energy.energy_and_force(x)
    atoms = molecule("H2O")
    atoms.calc = getattr(energy_factories, factory)()
    for frame, its_u, its_force in zip(x, u, force, strict=True):
        atoms.positions = frame.numpy() * 10
        assert its_u.item() == pytest.approx(atoms.get_potential_energy() / KT, rel=1e-6)
        np.testing.assert_allclose(its_force, atoms.get_forces() * 10 / KT, rtol=1e-6, atol=1e-9)


def test_charge_and_multiplicity_reach_the_calculator() -> None:
    system = water("Charged", charge=-1, multiplicity=2)
    assert force_field(system, workers=1).energy(torch.tensor(system.positions)).item() == pytest.approx(
        19 / KT
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_frames_that_fail_are_reported_once(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    system = water("fragile")
    x = torch.tensor(system.positions).repeat(6, 1, 1)
    x[3, 0, 0], x[5, 0, 0], x[0, 0, 0] = 0.5, -0.5, torch.nan
    with force_field(system, workers=workers) as energy:
        u, force = energy.energy_and_force(x)
        energy.energy_and_force(x[3:])
    assert u.isnan().tolist() == [True, False, False, True, False, True]
    assert force.isnan().any(-1).any(-1).tolist() == u.isnan().tolist()
    assert [record.getMessage() for record in caplog.records] == [
        "tests.energy_factories:fragile failed on frame 4 of 6: ArithmeticError: no convergence after 250 "
        "cycles. Such frames have no energy; further ones are not reported."
    ]


def test_a_calculator_that_only_fails_is_an_error() -> None:
    system = water("fragile")
    x = torch.tensor(system.positions)[None].clone()
    for place, said in ((0.5, "no convergence"), (-0.5, "not a finite number")):
        x[0, 0, 0] = place
        with (
            force_field(system, workers=1) as energy,
            pytest.raises(ValueError, match=rf"fragile failed on frame 1 of 1: .*{said}.*check its settings"),
        ):
            energy.energy_and_force(x)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        ("nowhere", "tests.energy_factories:nowhere cannot be used .*no attribute 'nowhere'"),
        ("broken", "broken cannot be used .RuntimeError: no licence"),
        ("not_a_calculator", "must return a calculator of ASE, got str"),
    ],
)
def test_no_calculator_is_refused(factory: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        force_field(water(factory), workers=1)


def test_modules_in_the_current_folder_are_found(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path)
    with open(f"{folder}/mine_for_ase.py", "w") as file:
        file.write("from ase.calculators.emt import EMT\nmade = EMT\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    system = only_masses("water", bare("H2O"), {"kind": "ase", "factory": "mine_for_ase:made"})
    with force_field(system, workers=2) as energy:
        u = energy.energy(torch.tensor(system.positions).repeat(3, 1, 1))
    atoms = molecule("H2O")
    atoms.calc = energy_factories.emt()
    assert u.tolist() == pytest.approx([atoms.get_potential_energy() / KT] * 3)
