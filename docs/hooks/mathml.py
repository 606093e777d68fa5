"""Formulas become MathML when the site is built, so pages need no script and no network to show them."""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

# What pymdownx.arithmatex leaves of $...$ and $$...$$.
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<block>.*?)\\\])</\1>', re.DOTALL
)
COMMAND = re.compile(r"\\\W?\w*")
# Browsers set "log p" without a space, TeX with a thin one unless a bracket follows.
FUNCTION = re.compile(r"(?<!<msu[bp]>)(<mi>(?:cos|exp|log|sin)</mi>)(?=<m(?!o\b))")


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Replaces every formula of a page, those of docstrings included.

    Raises:
        PluginError: If a formula cannot be converted; the build then stops.
    """

    def replace(found: re.Match[str]) -> str:
        block = found["inline"] is None
        return mathml(unescape(found["block"] if block else found["inline"]), block, page.file.src_uri)

    html = FORMULA.sub(replace, html)
    if 'class="arithmatex"' in html:
        raise PluginError(f"{page.file.src_uri}: a formula was not recognised; see docs/hooks/mathml.py")
    return html


def mathml(latex: str, block: bool, page: str) -> str:
    """One formula as MathML."""
    try:
        result = convert(latex, display="block" if block else "inline")
    except Exception as error:
        raise PluginError(f"{page}: cannot convert the formula {latex!r}: {error!r}") from error
    # Commands that the converter does not know come out as text.
    if unknown := COMMAND.search(result):
        raise PluginError(f"{page}: unknown command {unknown[0]} in the formula {latex!r}")
    return FUNCTION.sub(r'\1<mspace width="0.17em" />', result)
