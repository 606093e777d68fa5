"""Units: nm, ps, amu and K. Energies are in kJ/mol only in files and for OpenMM."""

from __future__ import annotations

from typing import Final

BOLTZMANN: Final = 0.00831446261815324
"""Boltzmann's constant in kJ/mol/K (the gas constant, CODATA 2018)."""

EV: Final = 96.48533212331
"""An electronvolt in kJ/mol (CODATA 2018)."""
HARTREE: Final = 2625.4996394799
"""A hartree in kJ/mol (CODATA 2018)."""
BOHR: Final = 0.0529177210903
"""A bohr in nm (CODATA 2018)."""


def thermal_energy(temperature: float) -> float:
    """$kT$ in kJ/mol at a temperature in K."""
    return BOLTZMANN * temperature
