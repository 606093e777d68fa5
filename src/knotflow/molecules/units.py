"""Units: nm, ps, amu and K. Energies are in kJ/mol only in files and for OpenMM."""

from __future__ import annotations

from typing import Final

BOLTZMANN: Final = 0.00831446261815324
"""Boltzmann's constant in kJ/mol/K (the gas constant, CODATA 2018)."""


def thermal_energy(temperature: float) -> float:
    """$kT$ in kJ/mol at a temperature in K."""
    return BOLTZMANN * temperature
