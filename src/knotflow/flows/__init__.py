"""Flows: conditioners, couplings, and densities of coordinates that have domains."""

from knotflow.flows.conditioner import Conditioner
from knotflow.flows.config import (
    ConditionerConfig,
    CouplingConfig,
    FlowConfig,
    FlowOptions,
    TransformConfig,
    default_config,
)
from knotflow.flows.coupling import Coupling
from knotflow.flows.flow import Flow
from knotflow.flows.io import load, save

__all__ = [
    "Conditioner",
    "ConditionerConfig",
    "Coupling",
    "CouplingConfig",
    "Flow",
    "FlowConfig",
    "FlowOptions",
    "TransformConfig",
    "default_config",
    "load",
    "save",
]
