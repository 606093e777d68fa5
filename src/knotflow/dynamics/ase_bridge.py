"""Flows and force fields as calculators for ASE, the Atomic Simulation Environment."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from knotflow.dynamics.flow_energy import FlowEnergy
from knotflow.energies.energy import MolecularEnergy
from knotflow.extras import optional
from knotflow.flows.boltzmann import BoltzmannGenerator

if TYPE_CHECKING:
    from ase.calculators.calculator import Calculator


def ase_calculator(model: BoltzmannGenerator | MolecularEnergy) -> Calculator:
    r"""An ASE calculator: energies $U = kT\,u$ in eV and forces in eV/Å.

    For a flow $u = -\log p$, and $kT$ belongs to the temperature it was trained at, with ASE's constant
    (``ase.units.kB * temperature``). Energies and forces are computed in the model's dtype; give
    ``model.double()`` for optimisers and for energies conserved to many digits. A molecule that leaves the
    flow's support ends a run with a ``ValueError`` that names the coordinate.

    Args:
        model: A generator, or an energy such as `TorchForceField` or `OpenMMEnergy`. It is not copied.

    Raises:
        ValueError: when calculating, if the atoms are not those of the molecule, or periodic.
        ModuleNotFoundError: without ASE.
    """
    if not isinstance(model, BoltzmannGenerator | MolecularEnergy):
        raise ValueError(
            f"ase_calculator takes a BoltzmannGenerator or a MolecularEnergy, got {type(model).__name__}."
        )
    with optional("ASE calculators"):
        kind = _calculator_class()
    calculator: Calculator = kind(model)
    return calculator


@cache
def _calculator_class() -> Any:
    """The class, defined at the first call, because ASE may be missing."""
    import ase.units
    from ase.calculators.calculator import Calculator, all_changes

    class KnotflowCalculator(Calculator):  # type: ignore[misc]
        """Energy and forces of a `MolecularEnergy`."""

        implemented_properties: ClassVar = ["energy", "free_energy", "forces"]

        def __init__(self, model: BoltzmannGenerator | MolecularEnergy) -> None:
            super().__init__()
            if isinstance(model, BoltzmannGenerator):
                model = FlowEnergy(model)
            self.energy = model
            self.elements = _elements(model.model) if isinstance(model, FlowEnergy) else None
            self.kT = ase.units.kB * model.temperature

        def calculate(
            self, atoms: Any = None, properties: Any = ("energy",), system_changes: Any = all_changes
        ) -> None:
            super().calculate(atoms, properties, system_changes)
            self._check()
            x = torch.tensor(self.atoms.positions * (ase.units.Ang / ase.units.nm), dtype=torch.float64)
            u, force = self.energy.energy_and_force(x)
            if not bool(u.isfinite() & force.isfinite().all()):
                raise ValueError(_why(self.energy, x))
            energy = self.kT * float(u)
            self.results = {
                "energy": energy,
                "free_energy": energy,
                "forces": self.kT / ase.units.nm * force.numpy(),
            }

        def _check(self) -> None:
            found = self.atoms.get_chemical_symbols()
            if len(found) != self.energy.n_atoms or (self.elements is not None and found != self.elements):
                expected = " ".join(self.elements) if self.elements else f"{self.energy.n_atoms} atoms"
                raise ValueError(
                    f"this calculator is for one molecule, {expected}, got {' '.join(found) or 'no atoms'}; "
                    "give all atoms in the order of the topology."
                )
            if self.atoms.pbc.any():
                raise ValueError(
                    "the atoms are periodic, but this calculator is for one molecule in open space; set "
                    "atoms.pbc = False."
                )

    return KnotflowCalculator


def _elements(model: BoltzmannGenerator) -> list[str]:
    return [
        atom["element"]
        for chain in model.molecule["topology"]["chains"]
        for residue in chain["residues"]
        for atom in residue["atoms"]
    ]


def _why(energy: MolecularEnergy, x: torch.Tensor) -> str:
    why = energy.why_outside(x) if isinstance(energy, FlowEnergy) else ""
    if why:
        return f"the molecule has left the support of the flow: {why}"
    return "energy or force is not finite here; start from a better structure, or take shorter steps."
