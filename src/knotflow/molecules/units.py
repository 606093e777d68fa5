"""Units: nm, ps, amu and K; energies in kJ/mol only where files and OpenMM want them."""

from __future__ import annotations

from typing import Final

BOLTZMANN: Final = 0.00831446261815324
"""Boltzmann's constant in kJ/mol/K (the gas constant, CODATA 2018)."""


def thermal_energy(temperature: float) -> float:
    """$kT$ in kJ/mol at a temperature in K."""
    return BOLTZMANN * temperature
