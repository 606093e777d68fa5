"""Potentials in torch, from factories and files, against their closed form."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from knotflow.energies import force_field, read_energy, without_force_field
from knotflow.energies.module_energy import ModuleEnergy, load_module
from knotflow.energies.settings import ModuleSettings
from knotflow.inputs import file_fingerprint
from knotflow.molecules.system import MolecularSystem, only_masses
from tests.bare_molecules import bare
from tests.energy_factories import Springs

KT = 0.00831446261815324 * 300.0


def water(source: str = "tests.energy_factories:springs", **settings: str) -> MolecularSystem:
    energy = {"kind": "module", "source": source, **settings}
    return only_masses("water", bare("H2O"), energy)


def closed_form(x: Tensor, k: float, d: float) -> tuple[np.ndarray, np.ndarray]:
    """Energies and forces of `Springs` on water, pair by pair."""
    numbers, positions = [8, 1, 1], x.numpy()
    u, force = np.zeros(len(x)), np.zeros(x.shape)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        apart = positions[:, i] - positions[:, j]
        r = np.linalg.norm(apart, axis=1)
        stretch = r - d * (numbers[i] + numbers[j])
        u += 0.5 * k * stretch**2
        pull = (k * stretch / r)[:, None] * apart
        force[:, i] -= pull
        force[:, j] += pull
    return u, force


def frames(system: MolecularSystem, n: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(n, system.n_atoms, 3, generator=generator, dtype=torch.float64)
    return torch.tensor(system.positions) + 0.01 * noise


@pytest.mark.parametrize(
    ("energy_unit", "length_unit", "in_kj", "in_nm"),
    [
        ("eV", "angstrom", 96.48533212, 0.1),
        ("hartree", "angstrom", 2625.49963948, 0.1),
        ("kJ/mol", "nm", 1.0, 1.0),
    ],
)
def test_energies_and_forces_are_those_of_the_module(
    energy_unit: str, length_unit: str, in_kj: float, in_nm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("knotflow.energies.module_energy.ATOMS_AT_ONCE", 9)  # three frames at once
    system = water(energy_unit=energy_unit, length_unit=length_unit)
    x = frames(system)
    u_true, force_true = closed_form(x / in_nm, 20.0, 0.107)
    with force_field(system) as energy:
        u, force = energy.energy_and_force(x)
        torch.testing.assert_close(u, torch.tensor(u_true * in_kj / KT), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(force, torch.tensor(force_true * in_kj / in_nm / KT), rtol=1e-8, atol=1e-6)
        assert energy.energy(x[:6].reshape(2, 3, 3, 3)).shape == (2, 3)


def test_second_derivatives_are_those_of_autograd() -> None:
    energy = ModuleEnergy(water())
    x = frames(water(), 2)
    assert torch.autograd.gradgradcheck(energy.energy, x.requires_grad_(), eps=1e-5, atol=1e-2, rtol=1e-5)


def test_results_follow_the_dtype_of_the_positions() -> None:
    energy, x = ModuleEnergy(water()), frames(water())
    u, force = energy.energy_and_force(x.float())
    assert u.dtype == force.dtype == torch.float32
    torch.testing.assert_close(u.double(), energy.energy(x), rtol=1e-4, atol=1e-4)


def saved(path: Path) -> Path:
    """Springs in a file, exported or scripted by its suffix, for any number of frames."""
    module, water = Springs(20.0, 0.107), torch.tensor([8, 1, 1])
    if path.suffix == ".pt2":
        n = {0: torch.export.Dim("n", min=1)}
        example = torch.rand(4, 3, 3).double(), water
        torch.export.save(torch.export.export(module, example, dynamic_shapes=(n, None)), path)
        return path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but users have such files
        torch.jit.save(torch.jit.script(module), str(path))
    return path


@pytest.mark.parametrize("suffix", [".pt2", ".pt"])
def test_files_hold_the_same_potential(suffix: str, tmp_path: Path) -> None:
    path = saved(tmp_path / f"springs{suffix}")
    energy = read_energy(f"module:{path},eV,angstrom")
    assert energy is not None and energy["fingerprint"] == file_fingerprint(path)
    system = without_force_field("water", bare("H2O"), energy)
    x = frames(system)
    u, force = force_field(system).energy_and_force(x)
    u_true, force_true = closed_form(x * 10, 20.0, 0.107)
    zero = system.zero_kj / KT
    torch.testing.assert_close(u + zero, torch.tensor(u_true * 96.48533212 / KT), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(force, torch.tensor(force_true * 964.8533212 / KT), rtol=1e-8, atol=1e-6)


def test_another_or_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "springs.pt2"
    with pytest.raises(FileNotFoundError, match=r"there is no file .*springs\.pt2"):
        read_energy(f"module:{path}")
    path.write_bytes(b"no module")
    with pytest.raises(ValueError, match=r"springs.pt2 cannot be loaded .*torch.export.save"):
        load_module(ModuleSettings(source=str(path)))
    with pytest.raises(ValueError, match="is not the potential that was used before"):
        load_module(ModuleSettings(source=str(path), fingerprint="0"))
    path.unlink()
    with pytest.raises(FileNotFoundError, match="put it back"):
        load_module(ModuleSettings(source=str(path), fingerprint="0"))


def test_a_pickled_module_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "springs.pt"
    torch.save(Springs(1.0, 1.0), path)
    with pytest.raises(ValueError, match="Give a pickled module by a factory"):
        load_module(ModuleSettings(source=str(path)))


class Wrong(nn.Module):
    """Fails in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, positions: Tensor, numbers: Tensor) -> Tensor:
        energies = positions.sum((1, 2))
        if self.how == "raises":
            raise KeyError("no such species")
        if self.how == "detached":
            return energies.detach()
        return energies[:, None] if self.how == "shape" else energies * torch.nan


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (
            "raises",
            r"failed on 2 frames .KeyError: 'no such species'.; it is called with .*2, 3, 3.",
        ),
        ("detached", "autograd cannot differentiate the energies"),
        ("shape", r"must return one energy per frame, shape .2,., got .2, 1."),
    ],
)
def test_modules_that_do_otherwise_are_refused(
    how: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.energy_factories.springs", lambda: Wrong(how))
    with pytest.raises(ValueError, match=sentence):
        ModuleEnergy(water()).energy_and_force(frames(water(), 2))


def test_a_nan_energy_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.energy_factories.springs", lambda: Wrong("nan"))
    energy = ModuleEnergy(water())
    assert energy.energy_and_force(frames(water(), 2))[0].isnan().all()
    assert energy.failure == "tests.energy_factories:springs failed on frame 1 of 2: its energy is NaN"
    with pytest.raises(ValueError, match=r"cannot be minimised: .*springs failed on frame 1 of 1"):
        without_force_field("water", bare("H2O"), water().energy or {})


def test_wrong_units_are_noticed() -> None:
    """Springs in Å taken for nm: the bonds of the minimum are ten times as long."""
    with pytest.raises(ValueError, match=r"the bond .* went from 0\.09. to .* while .* check charge, units"):
        without_force_field("water", bare("H2O"), water(length_unit="nm").energy or {})
