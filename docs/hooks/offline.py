"""Pages must work without a network: the build stops if one loads anything from elsewhere. Links are fine."""

import re
from typing import Any

from mkdocs.exceptions import PluginError

LOADED = re.compile(r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//[^"]*"|<link\b[^>]*>')
FETCHED = re.compile(r'rel="(?:stylesheet|preconnect|preload|icon|modulepreload)"')
REMOTE = re.compile(r'(?:src|href)="(?:https?:)?//')


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Looks through a finished page.

    Raises:
        PluginError: If it loads a script, a style, a font or a picture from another host.
    """
    for tag in LOADED.findall(output):
        if REMOTE.search(tag) and (not tag.startswith("<link") or FETCHED.search(tag)):
            raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {tag}")
    return output
