"""A refusal of contexts that no flow can use."""

from __future__ import annotations

from torch import Tensor


def refuse_not_finite(context: Tensor) -> None:
    """Raise ``ValueError`` for a context (..., m) with NaN or infinite components, unless they are hidden."""
    try:
        if bool(context.isfinite().all()):
            return
    except RuntimeError:  # vmap hides the values
        return
    bad = ~context.reshape(-1, context.shape[-1]).isfinite()
    first, points = int(bad.any(0).nonzero()[0]), int(bad.any(1).sum())
    raise ValueError(
        f"component {first} of the context is NaN or infinite; {points} of {len(bad)} contexts have such "
        "components: remove those points."
    )
