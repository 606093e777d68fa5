"""Molecular dynamics of many walkers, written to one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knotflow.lazy import lazy_names

if TYPE_CHECKING:
    from knotflow.simulation.plan import SimulationPlan
    from knotflow.simulation.run import Simulation

__all__ = [
    "Simulation",
    "SimulationPlan",
]

__getattr__, __dir__ = lazy_names(__name__)
