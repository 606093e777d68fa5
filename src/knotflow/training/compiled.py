"""One compiled graph for a whole loss, with eager PyTorch as fallback."""

from __future__ import annotations

from torch import Tensor

from knotflow.compiled import Compiled
from knotflow.flows import Flow
from knotflow.training.objectives import Batch, Mix


class CompiledLoss:
    """A `Mix` compiled with the flow's forward pass and, for force matching, its score in one graph.

    Derivatives by coordinates are taken inside the graph, because PyTorch cannot differentiate twice through
    a compiled region. If compilation fails (no C++ compiler, an energy that is not pure torch), the loss runs
    eagerly and says so once; the results are the same up to rounding.

    Args:
        mix: the loss.
        enabled: whether to compile at all.
    """

    def __init__(self, mix: Mix, *, enabled: bool = True) -> None:
        self.mix = mix
        self._graph = Compiled(mix.__call__, task="training", enabled=enabled)

    @property
    def compiled(self) -> bool:
        """Whether the next call runs the compiled graph."""
        return self._graph.compiled

    def __call__(self, flow: Flow, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self._graph(flow, batch)
