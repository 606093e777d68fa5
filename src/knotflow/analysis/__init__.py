"""How good is a flow? Exact answers where they can be had."""

from knotflow.analysis.quadrature import Comparison, compare, force_jump, log_normaliser

__all__ = ["Comparison", "compare", "force_jump", "log_normaliser"]
