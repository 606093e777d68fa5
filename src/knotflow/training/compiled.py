"""One compiled graph for a whole loss, with eager PyTorch as fallback."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from knotflow.flows import Flow
from knotflow.training.objectives import Batch, Mix

log = logging.getLogger("knotflow")


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
        self._compiled = torch.compile(mix.__call__, fullgraph=True, dynamic=False) if enabled else None

    @property
    def compiled(self) -> bool:
        """Whether the next call runs the compiled graph."""
        return self._compiled is not None

    def __call__(self, flow: Flow, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if self._compiled is None:
            return self.mix(flow, batch)
        try:
            return self._compiled(flow, batch)
        except Exception as error:
            # Dynamo, AOTAutograd and Inductor raise too many types to name. If the fault was not theirs,
            # the eager call raises it again, in plain words.
            self._compiled = None
            result = self.mix(flow, batch)
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            log.warning("torch.compile failed (%s); training goes on eagerly, more slowly.", first_line)
            return result
