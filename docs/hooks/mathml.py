"""Formulas become MathML when the site is built, so pages need no script and no network to show them."""

import re
from html import unescape
from typing import Any

from math_core import LatexError, LatexToMathML
from mkdocs.exceptions import PluginError

# What pymdownx.arithmatex leaves of $...$ and $$...$$.
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<block>.*?)\\\])</\1>', re.DOTALL
)
CONVERTER = LatexToMathML(fancy_error=False)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Replaces every formula of a page, those of docstrings included.

    Raises:
        PluginError: If a formula cannot be converted, or was not recognised; the build then stops.
    """

    def replace(found: re.Match[str]) -> str:
        block = found["inline"] is None
        latex = unescape(found["block"] if block else found["inline"])
        try:
            return CONVERTER.convert_with_local_state(latex, displaystyle=block)
        except LatexError as error:
            raise PluginError(f"{page.file.src_uri}: the formula {latex!r}: {error}") from error

    html = FORMULA.sub(replace, html)
    if 'class="arithmatex"' in html:
        raise PluginError(f"{page.file.src_uri}: a formula was not recognised; see docs/hooks/mathml.py")
    return html
