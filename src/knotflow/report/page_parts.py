"""What a page of a generator has beside sections: verdicts, structures to turn, style and script."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Final

from knotflow.extras import optional
from knotflow.report.molecule_view import MoleculeView
from knotflow.report.verdicts import Level, Verdict

SIGNS: Final = {
    Level.GOOD: '<circle cx="12" cy="12" r="10" fill="currentColor"/>'
    '<path d="M7 12.5l3.5 3.5L17 9" fill="none" stroke="#fff" stroke-width="2.4"/>',
    Level.FAIR: '<path d="M12 2L23 22H1z" fill="currentColor"/>'
    '<path d="M12 9v6.5M12 17.5v2.3" stroke="#fff" stroke-width="2.4"/>',
    Level.POOR: '<path d="M7.5 1h9L23 7.5v9L16.5 23h-9L1 16.5v-9z" fill="currentColor"/>'
    '<path d="M8 8l8 8M16 8l-8 8" stroke="#fff" stroke-width="2.4"/>',
    Level.UNKNOWN: '<circle cx="12" cy="12" r="9.5" fill="none" stroke="currentColor" stroke-width="2" '
    'stroke-dasharray="3 2"/><path d="M8 12h8" stroke="currentColor" stroke-width="2.4"/>',
}
"""Told by their shape: disc with a tick, triangle, octagon with a cross, dashed ring."""


def with_parts(html: str, verdicts: Sequence[Verdict], view: MoleculeView | None) -> str:
    """A page of `knotflow.report.page.render_page` with summary, view, style and script in their places."""
    with optional("pages", "jinja2", "plot"):
        from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("knotflow.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates = resources.files("knotflow.report") / "templates"
    summary = environment.get_template("verdicts.html.j2").render(verdicts=verdicts, signs=SIGNS)
    molecule, script = "", ""
    if view is not None:
        molecule = environment.get_template("molecule_view.html.j2").render(view=view)
        script = f"<script>\n{(templates / 'molecule_view.js').read_text(encoding='utf-8')}</script>\n"
    style = f"<style>\n{(templates / 'generator.css').read_text(encoding='utf-8')}</style>\n"
    top = f'<div class="top">\n{summary}\n{molecule}\n</div>\n'
    # There is one of each in the page, for all text is escaped.
    html = html.replace("</head>", f"{style}</head>").replace("</body>", f"{script}</body>")
    return html.replace("</header>", f"</header>\n{top}")
