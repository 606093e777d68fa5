"""Flows: conditioners, couplings, densities on coordinates with domains."""

from knotflow.flows.conditioner import Conditioner
from knotflow.flows.config import (
    BSplineConfig,
    BumpConfig,
    ConditionerConfig,
    CouplingConfig,
    DomainConfig,
    FlowConfig,
    FlowOptions,
    PaperConfig,
    RationalQuadraticConfig,
    SlopesConfig,
    default_config,
)
from knotflow.flows.coupling import Coupling
from knotflow.flows.flow import Flow
from knotflow.flows.io import load, save

__all__ = [
    "BSplineConfig",
    "BumpConfig",
    "Conditioner",
    "ConditionerConfig",
    "Coupling",
    "CouplingConfig",
    "DomainConfig",
    "Flow",
    "FlowConfig",
    "FlowOptions",
    "PaperConfig",
    "RationalQuadraticConfig",
    "SlopesConfig",
    "default_config",
    "load",
    "save",
]
