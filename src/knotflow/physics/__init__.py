"""Energies to sample from, and how to sample them: no network, no plot."""

from knotflow.physics.energy import Energy
from knotflow.physics.monte_carlo import metropolis
from knotflow.physics.toy import Mixed, Rings

__all__ = ["Energy", "Mixed", "Rings", "metropolis"]
