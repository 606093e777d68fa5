"""Checks of molecules: they pass where all is well, and fail where one thing is wrong."""

import math
from dataclasses import replace

import numpy as np
import openmm
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from knotflow.analysis import check
from knotflow.analysis.check import Check, check_molecule
from knotflow.energies import force_terms, openmm_energy, read_energy, without_force_field
from knotflow.energies.openmm_energy import OpenMMEnergy
from knotflow.geometry import Chirality, InternalCoordinates, internal
from knotflow.geometry.superpose import superposed
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.molecules.peptides import peptide
from knotflow.molecules.system import MolecularSystem, only_masses
from tests.bare_molecules import bare
from tests.molecules.molecules import molecule

FEW = 10


def broken(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if not check.ok}


def check_of(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


@pytest.mark.parametrize("name", ["ala2", "vacuum", "P"])
def test_all_promises_are_kept(name: str) -> None:
    checks = check_molecule(molecule(name), FEW)
    assert not broken(checks)
    value = {check.name: check.value for check in checks}
    # Far better than promised, and measured at all.
    assert 0 < value["energy, torch float64"] < 1e-9 and 0 < value["force, torch float64"] < 1e-8
    assert 1e-7 < value["energy, torch float32"] < 1e-3 and 1e-8 < value["force, torch float32"] < 2e-5
    assert 1e-9 < value["round trip, float32"] < 1e-6 and 0 < value["round trip, float64"] < 1e-13
    assert 0 < value["forces there and back"] < 1e-12
    assert value["log-determinant"] < 1e-10
    assert value["frames of other handedness"] == value["problems of the z-matrix"] == 0
    assert check_of(checks, "frames of other handedness").note == "the molecule has 1 chiral centre"
    assert "100% of rows along bonds" in check_of(checks, "problems of the z-matrix").note


def test_worker_processes_chunks_and_progress(monkeypatch) -> None:
    monkeypatch.setattr(check, "LEAST_CHUNK", 33)  # more than OpenMMEnergy does in its own process
    monkeypatch.setattr(check, "ATOMS_AT_ONCE", 1)
    told: list[tuple[str, int, int]] = []
    checks = check_molecule(molecule("ala2"), 40, progress=lambda *now: told.append(now))
    assert not broken(checks)
    for doing, total in (("simulation", 40), ("energies and forces", 40), ("coordinates", 400)):
        done = [now[1] for now in told if now[0] == doing]
        assert done == sorted(done) and (done[0], done[-1]) == (0, total) and len(done) > 2
        assert {now[2] for now in told if now[0] == doing} == {total}


@pytest.mark.parametrize("platform", ["Reference", "CPU"])
def test_platforms_have_the_promises_of_their_precision(platform: str, monkeypatch) -> None:
    monkeypatch.setattr(openmm_energy, "fastest_platform", lambda xml, positions: platform)
    checks = check_molecule(molecule("ala2"), FEW)
    assert not broken(checks)
    energy, force = (check_of(checks, f"{kind}, OpenMM {platform}") for kind in ("energy", "force"))
    if platform == "Reference":
        assert (energy.limit, force.limit, force.unit) == (1e-3, 1e-2, "kT/nm")
        assert energy.value == pytest.approx(0, abs=1e-9)
    else:
        assert (energy.limit, force.limit, force.unit) == (pytest.approx(22e-4), 1e-4, "of max")
        assert 1e-7 < energy.value < 1e-3 and 1e-8 < force.value < 1e-5


def test_any_energy_keeps_its_promises() -> None:
    energy = read_energy("xtb")
    checks = check_molecule(without_force_field("water", bare("H2O"), energy or {}), FEW)
    assert not broken(checks)
    value = {check.name: check.value for check in checks}
    assert 0 < value["forces against energies"] < 1e-4 and value["energy after a rotation"] < 1e-6
    assert 0 < value["forces there and back"] < 1e-4 and value["log-determinant"] < 1e-10


def test_forces_of_another_energy_and_a_preferred_direction_are_found() -> None:
    """The first atom is pulled down by 0.5 eV/Å, which its force does not know."""
    energy = read_energy("module:tests.energy_factories:lopsided")
    system = only_masses("water", bare("H2O"), energy or {})
    assert broken(check_molecule(system, FEW)) == {"forces against energies", "energy after a rotation"}


def test_frames_follow_the_seed(monkeypatch) -> None:
    monkeypatch.setattr(openmm_energy, "fastest_platform", lambda xml, positions: "Reference")
    first, again, other = (check_molecule(molecule("ala2"), 2, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_wrong_constant_of_the_torch_force_field_is_found(monkeypatch) -> None:
    monkeypatch.setattr(force_terms, "COULOMB", (1 + 1e-3) * force_terms.COULOMB)
    names = broken(check_molecule(molecule("ala2"), FEW))
    assert names >= {"energy, torch float64", "force, torch float64"}
    assert all("torch" in name for name in names)


def test_a_stored_force_field_that_is_not_that_of_its_files_is_found() -> None:
    system = molecule("ala2")
    changed = system.openmm_system()
    torsions = next(force for force in changed.getForces() if isinstance(force, openmm.PeriodicTorsionForce))
    *parameters, constant = torsions.getTorsionParameters(0)
    torsions.setTorsionParameters(0, *parameters, 1.1 * constant + openmm.unit.Quantity(0.1, constant.unit))
    wrong = replace(system, xml=openmm.XmlSerializer.serialize(changed))
    names = broken(check_molecule(wrong, FEW))
    assert "energy, torch float64" in names and any(name.startswith("energy, OpenMM") for name in names)
    # Without the files there is nothing to compare with, which is said.
    checks = check_molecule(replace(wrong, origin={}), FEW)
    assert not broken(checks)
    assert "stored system only: the system does not say which" in checks[0].note


def test_one_bad_frame_is_found(monkeypatch) -> None:
    honest = OpenMMEnergy.energy_and_force

    def one_nan(self: OpenMMEnergy, x: Tensor) -> tuple[Tensor, Tensor]:
        u, f = honest(self, x)
        f[3, 7, 1] = math.nan
        return u, f

    monkeypatch.setattr(OpenMMEnergy, "energy_and_force", one_nan)
    names = broken(check_molecule(molecule("ala2"), FEW))
    assert len(names) == 1 and names.pop().startswith("force, OpenMM")


def test_a_wrong_volume_is_found(monkeypatch) -> None:
    monkeypatch.setattr(internal, "_log_volume", lambda bonds, angles: 2 * bonds.log().sum(0))
    assert broken(check_molecule(molecule("ala2"), 1)) == {"log-determinant"}


def test_molecules_that_come_back_as_mirror_images_are_found(monkeypatch) -> None:
    honest = InternalCoordinates.inverse
    monkeypatch.setattr(
        InternalCoordinates,
        "inverse",
        lambda self, q: honest(self, torch.cat((q[..., : self.torsions.start], -q[..., self.torsions]), -1)),
    )
    checks = check_molecule(molecule("ala2"), 1)
    assert broken(checks) >= {"round trip, float32", "round trip, float64", "forces there and back"}


def test_handedness_and_problems_of_the_zmatrix_are_told(monkeypatch) -> None:
    monkeypatch.setattr(check, "internal_coordinates", lambda system: internal_coordinates(system, "paper"))
    monkeypatch.setattr(Chirality, "matches", lambda self, x: torch.arange(len(x)) % 2 == 0)
    checks = check_molecule(molecule("ala2"), FEW)
    assert not broken(checks)
    assert check_of(checks, "frames of other handedness").value == 5 * FEW
    zmatrix = check_of(checks, "problems of the z-matrix")
    assert zmatrix.value == zmatrix.note.count("problem: ") > 0
    assert "atom 1 takes its bond from atom 4, to which it is not bonded" in zmatrix.note


def test_forces_that_torch_does_not_know_are_no_failure() -> None:
    checks = check_molecule(peptide("G", ["amber14-all.xml"]), 2)
    assert not broken(checks)
    torch_energy = check_of(checks, "energy, torch")
    assert torch_energy.value is None and torch_energy.ok
    assert torch_energy.note.startswith("not available: ") and "CustomGBForce" in torch_energy.note
    assert any(check.name.startswith("force, OpenMM") for check in checks)


@pytest.mark.slow
def test_compiled() -> None:
    checks = check_molecule(molecule("ala2"), FEW, compiled=True)
    assert not broken(checks)
    assert check_of(checks, "energy, torch float32, compiled").value < 1e-3


def hot(system: MolecularSystem) -> MolecularSystem:
    """At a temperature at which nothing holds together."""
    return system.with_temperature(1e9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_molecule(molecule("ala2"), 0), "frames must be a whole number of at least 1, got 0"),
        (lambda: check_molecule(molecule("dimer")), "at least 3 atoms, got 2"),
        (lambda: check_molecule(hot(molecule("ala2")), 1), r"flew apart in a short run at 2e\+09 K"),
    ],
)
def test_mistakes_are_explained(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_value_that_is_not_a_number_breaks_a_promise() -> None:
    assert Check("x", 1.0, 1.0).ok and not Check("x", 1.1, 1.0).ok
    assert not Check("x", math.nan, 1.0).ok
    assert Check("x", None, 1.0).ok and Check("x", 5.0, None).ok


def test_superposition_is_that_of_scipy() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 8, 3, generator=generator, dtype=torch.float64)
    # Structures that differ, one of them by a mirror, for which the best rotation is no reflection.
    y = x[:, torch.randperm(8, generator=generator)] + 0.3
    y[0], y[1] = x[0] * torch.tensor([1, 1, -1]), x[1]
    found = superposed(x, y)
    for one, other, moved in zip(x.numpy(), y.numpy(), found.numpy(), strict=True):
        one, other, centre = one - one.mean(0), other - other.mean(0), other.mean(0)
        turn, _ = Rotation.align_vectors(other, one)
        np.testing.assert_allclose(moved, turn.apply(one) + centre, atol=1e-10)
    assert (found[1] - y[1]).abs().max() < 1e-14 < 1e-2 < (found[0] - y[0]).abs().max()
    assert superposed(x.float(), y.float()).dtype == torch.float32


def test_a_moved_and_turned_structure_comes_back() -> None:
    x = torch.from_numpy(molecule("ala2").positions)
    turn = torch.from_numpy(Rotation.random(7, random_state=0).as_matrix())
    moved = x @ turn.mT + torch.arange(7.0, dtype=x.dtype)[:, None, None]
    assert (superposed(moved, x.expand(7, -1, -1)) - x).abs().max() < 1e-13
    with pytest.raises(ValueError, match=r"same shape .* got \(22, 3\) and \(7, 22, 3\)"):
        superposed(x, moved)
