"""A table of states on the screen: populations, and free energies between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from knotflow.cli.output import align_right


def state_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    """Populations of states and free energies between them, source by source."""
    from knotflow.analysis.states import numbers_of, sources_in

    sources = sources_in(groups)
    table = Table(
        "", *sources,
        title="States: populations, and free energies between them in kT",
        caption="without ±: visited too rarely for an error bar, so not known; –: never visited",
    )  # fmt: skip
    align_right(table, slice(1, 1 + len(sources)))
    for group in groups:
        table.add_section()
        table.add_row(Text(group["group"], "bold"))
        for state in group["states"]:
            table.add_row(state["name"], *numbers_of(state["population"], sources))
        for pair in group["differences"]:
            table.add_row(pair["text"], *numbers_of(pair["free_energy"], sources))
    return table
