"""``knotflow reproduce``: the figures and tables of the paper, one file per command."""

from __future__ import annotations

import typer

from knotflow.cli.reproduce import all_results, dynamics, engines, exact, field, mixed5d, table1, toy2d

app = typer.Typer(no_args_is_help=True)
app.command("all")(all_results.all_results)
app.command()(toy2d.toy2d)
app.command()(table1.table1)
app.command()(dynamics.dynamics)
app.command()(exact.exact)
app.command()(mixed5d.mixed5d)
app.command()(engines.engines)
app.command()(field.field)


@app.callback()
def _group() -> None:
    """Reproduce the figures and tables of Hong & Chun (AAAI 2023), and more.

    `all` puts the whole paper on one page; toy2d, table1 and dynamics make parts of it. The other commands
    go beyond the paper. A stopped run is continued by the same command.

    Examples:
        knotflow reproduce all --scale smoke

        knotflow reproduce all --data data/ala2.h5
    """
