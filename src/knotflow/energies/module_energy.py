"""Energies by a potential in torch, such as a machine-learned one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from knotflow.energies.energy import MolecularEnergy
from knotflow.energies.frames import from_factory
from knotflow.energies.settings import MODULE_FILES, ModuleSettings, parse_settings
from knotflow.inputs import file_fingerprint
from knotflow.molecules.system import MolecularSystem
from knotflow.molecules.units import EV, HARTREE

IN_KJ: Final = {"kJ/mol": 1.0, "eV": EV, "hartree": HARTREE}
PER_NM: Final = {"nm": 1.0, "angstrom": 10.0}

ATOMS_AT_ONCE: Final = 2**14
"""A batch is divided into parts with at most this many atoms."""


class ModuleEnergy(MolecularEnergy):
    r"""The reduced energy $u = U / kT$ of a molecule by a ``torch.nn.Module``.

    The module is called with positions of shape ``(n, atoms, 3)`` and atomic numbers (int64) of shape
    ``(atoms,)``. It returns energies of shape ``(n,)`` that autograd can differentiate. Units are in the
    settings. Positions have the dtype of its parameters (float64 if it has none) and their own device.

    Args:
        system: The molecule, with the energy ``"module"``.

    Raises:
        ValueError: if the module cannot be loaded or, when it is used, does not do as described.
    """

    def __init__(self, system: MolecularSystem) -> None:
        self.recipe = partial(ModuleEnergy, system)
        settings = parse_settings(system.energy or {})
        if not isinstance(settings, ModuleSettings):
            raise ValueError(f"expected a molecule with the energy 'module', got {settings.kind!r}.")
        self.n_atoms, self.temperature = system.n_atoms, system.temperature
        self.name = settings.source
        self._module = load_module(settings)
        floats = [p.dtype for p in self._module.parameters() if p.is_floating_point()]
        self._dtype = floats[0] if floats else torch.float64
        self._numbers = torch.tensor(system.atomic_numbers)
        self._per_nm = PER_NM[settings.length_unit]
        self._per_kT = IN_KJ[settings.energy_unit] / system.kT
        self._zero = settings.zero_kj / system.kT

    def energy(self, x: Tensor) -> Tensor:
        self.check_positions(x)
        frames = x.reshape(-1, self.n_atoms, 3)
        parts = [self._part(part) for part in frames.split(max(1, ATOMS_AT_ONCE // self.n_atoms))]
        u = torch.cat(parts).to(x.dtype).reshape(x.shape[:-2])
        lost = (u.isnan() & x.isfinite().all(-1).all(-1)).reshape(-1)
        if bool(lost.any()):
            index = int(lost.long().argmax()) + 1
            self.failure = f"{self.name} failed on frame {index} of {len(frames):,}: its energy is NaN"
        return u

    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            u = self.energy(x)
            try:
                (gradient,) = torch.autograd.grad(u.sum(), x)
            except RuntimeError as error:
                raise ValueError(
                    f"autograd cannot differentiate the energies of {self.name} ({_line(error)}); the module "
                    "must compute them with torch, and not detach them."
                ) from None
        return u.detach(), -gradient

    def _part(self, x: Tensor) -> Tensor:
        """Energies (n,) in float64."""
        if self._numbers.device != x.device:
            self._numbers = self._numbers.to(x.device)
            self._module.to(x.device)
        try:
            found = self._module(x.to(self._dtype) * self._per_nm, self._numbers)
        except Exception as error:  # of any type: the module is the user's
            raise ValueError(
                f"{self.name} failed on {len(x):,} frames ({type(error).__name__}: {_line(error)}); it is "
                f"called with positions {tuple(x.shape)} and atomic numbers {tuple(self._numbers.shape)}."
            ) from None
        if not isinstance(found, Tensor) or found.shape != x.shape[:1]:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"{self.name} must return one energy per frame, shape ({len(x)},), got {shape}; wrap it in a "
                "module that does."
            )
        u: Tensor = found.double() * self._per_kT - self._zero
        return u


def load_module(settings: ModuleSettings) -> nn.Module:
    """The module, with constant weights.

    Files are those of ``torch.export.save`` (``.pt2``) and of TorchScript (``torch.jit.save``); a pickled
    module is refused, because reading it could run any code.

    Raises:
        ValueError: if there is no such module.
    """
    source = settings.source
    if Path(source).suffix in MODULE_FILES:
        module = _from_file(Path(source), settings.fingerprint)
    else:
        module = from_factory(source)
        if not isinstance(module, nn.Module):
            raise ValueError(f"{source} must return a torch.nn.Module, got {type(module).__name__}.")
        module.eval()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def _from_file(path: Path, expected: str | None) -> nn.Module:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path} with the potential; put it back there.")
    if expected is not None and file_fingerprint(path) != expected:
        raise ValueError(f"{path} is not the potential that was used before; put that file back.")
    load: Callable[[Path], nn.Module] = _exported if path.suffix == ".pt2" else _scripted
    try:
        return load(path)
    except Exception as error:  # torch raises errors of many types
        raise ValueError(
            f"{path} cannot be loaded ({_line(error)}); expected a file of torch.export.save (.pt2) or of "
            "torch.jit.save. Give a pickled module by a factory, package.module:factory, that loads it."
        ) from None


def _exported(path: Path) -> nn.Module:
    return torch.export.load(path).module()


def _scripted(path: Path) -> nn.Module:
    module: nn.Module = torch.jit.load(str(path), map_location="cpu")
    return module.eval()


def _line(error: Exception) -> str:
    """The beginning of an error's text, as one line."""
    return " ".join(str(error).split())[:200]
