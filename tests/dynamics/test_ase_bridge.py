"""Flows and force fields inside of ASE: the same numbers, ASE's own derivatives, a short run."""

import ase
import numpy as np
import pytest
import torch
from ase.calculators.fd import calculate_numerical_forces
from ase.md.verlet import VelocityVerlet
from ase.units import fs, kB

import knotflow as kf
from knotflow.dynamics import FlowEnergy, ase_calculator
from knotflow.energies import MolecularEnergy, OpenMMEnergy, TorchForceField
from tests.analysis.generators import chain
from tests.dynamics.wrong_flows import bent_chain_generator, boxed_chain_generator, exact_chain

KT = 8.617333262e-5 * 300
"""In eV, CODATA 2018; ASE's own is of 2014."""


def atoms_at(x: torch.Tensor, calculator: object) -> ase.Atoms:
    return ase.Atoms("C4", 10 * x.numpy(), calculator=calculator)


def test_energies_and_forces_are_those_of_the_model() -> None:
    model = bent_chain_generator()
    calculator = kf.ase_calculator(model)
    for x in exact_chain(3):
        atoms = atoms_at(x, calculator)
        assert atoms.get_potential_energy() == pytest.approx(kB * 300 * float(model.energy(x)), rel=1e-10)
        np.testing.assert_allclose(atoms.get_forces(), kB * 30 * model.force(x).numpy(), rtol=1e-8, atol=1e-9)
        assert atoms.get_potential_energy() == pytest.approx(KT * float(model.energy(x)), rel=2e-6)
        assert atoms.get_potential_energy(force_consistent=True) == atoms.get_potential_energy()


@pytest.mark.parametrize("name", ["torch", "openmm"])
def test_force_fields_are_calculators_too(name: str) -> None:
    energy: MolecularEnergy
    energy = TorchForceField(chain(), compiled=False) if name == "torch" else OpenMMEnergy(chain(), workers=1)
    x = exact_chain(1)[0]
    atoms = atoms_at(x, ase_calculator(energy))
    u, force = energy.energy_and_force(x)
    assert atoms.get_potential_energy() == pytest.approx(kB * 300 * float(u), rel=1e-10)
    np.testing.assert_allclose(atoms.get_forces(), kB * 30 * force.numpy(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", ["flow", "force field"])
def test_forces_are_derivatives_of_the_energy_in_ase(kind: str) -> None:
    source = bent_chain_generator() if kind == "flow" else TorchForceField(chain(), compiled=False)
    atoms = atoms_at(exact_chain(1)[0], ase_calculator(source))
    np.testing.assert_allclose(
        atoms.get_forces(), calculate_numerical_forces(atoms, eps=1e-5), rtol=1e-5, atol=1e-5
    )


def test_a_short_run_conserves_energy_to_second_order() -> None:
    calculator = ase_calculator(FlowEnergy(bent_chain_generator()))
    swings = []
    for step in (0.4, 0.2):
        atoms = atoms_at(torch.tensor(chain().positions), calculator)
        noise = np.random.default_rng(0).standard_normal((4, 3))
        atoms.set_momenta(np.sqrt(kB * 300 * atoms.get_masses())[:, None] * noise)
        totals: list[float] = []
        dynamics = VelocityVerlet(atoms, timestep=step * fs)
        dynamics.attach(lambda atoms=atoms, totals=totals: totals.append(atoms.get_total_energy()))
        dynamics.run(round(16 / step))
        swings.append(np.ptp(totals))
    assert swings[1] < 0.01
    assert swings[0] / swings[1] == pytest.approx(4, rel=0.25)


def test_leaving_the_support_is_said() -> None:
    x = exact_chain(1)[0]
    x[0] += 1.0
    with pytest.raises(ValueError, match="left the support of the flow: bond"):
        atoms_at(x, ase_calculator(boxed_chain_generator(6.0))).get_forces()
    x[0] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        atoms_at(x, ase_calculator(TorchForceField(chain(), compiled=False))).get_potential_energy()


def test_other_atoms_are_refused() -> None:
    x = 10 * exact_chain(1)[0].numpy()
    calculator = ase_calculator(bent_chain_generator())
    with pytest.raises(ValueError, match="C C C C, got C C O C"):
        ase.Atoms("CCOC", x, calculator=calculator).get_potential_energy()
    with pytest.raises(ValueError, match="one molecule"):
        ase.Atoms("C3", x[:3], calculator=calculator).get_potential_energy()
    with pytest.raises(ValueError, match="4 atoms, got C C C"):
        field = ase_calculator(TorchForceField(chain(), compiled=False))
        ase.Atoms("C3", x[:3], calculator=field).get_potential_energy()
    with pytest.raises(ValueError, match="periodic"):
        ase.Atoms("C4", x, cell=[20, 20, 20], pbc=True, calculator=calculator).get_potential_energy()
    with pytest.raises(ValueError, match="BoltzmannGenerator or a MolecularEnergy, got str"):
        ase_calculator("model.safetensors")


def test_without_ase_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from knotflow.dynamics import ase_bridge

    ase_bridge._calculator_class.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "ase.units", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'knotflow\[ase\]'"):
        ase_calculator(bent_chain_generator())
