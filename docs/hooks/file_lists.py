"""Lists of files in the documentation, made from their first sentences: none is missing or out of date.

``<!-- files: flows -->`` on a page becomes a table of the files of ``knotflow.flows``;
``<!-- files: . -->`` lists those beside the packages.
"""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

SOURCE = Path(__file__).parents[2] / "src" / "knotflow"
MARKER = re.compile(r"^<!-- files: (\S+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replaces every marker by a table.

    Raises:
        PluginError: If a package has no list on a page that lists others; the build then stops.
    """
    listed = MARKER.findall(markdown)
    if listed and (missing := sorted(packages() - set(listed))):
        raise PluginError(f"{page.file.src_uri}: no list of files for {', '.join(missing)}")
    return MARKER.sub(lambda found: table(SOURCE / found[1]), markdown)


def packages() -> set[str]:
    """Names of the packages of knotflow."""
    return {file.parent.name for file in SOURCE.glob("*/__init__.py")}


def table(folder: Path) -> str:
    """A row for each file of a folder, those of folders in it included unless it is the topmost."""
    files = sorted(folder.glob("*") if folder == SOURCE else folder.rglob("*"))
    rows = [(file.relative_to(folder), first_sentence(file)) for file in files]
    lines = [f"| `{name}` | {text} |" for name, text in rows if text]
    return "\n".join(["| file | what it is about |", "| --- | --- |", *lines])


def first_sentence(file: Path) -> str:
    """What a file says about itself first: its docstring, or its first comment in C++."""
    if file.name in ("__init__.py", "__main__.py"):
        return ""
    if file.suffix == ".py":
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        text = text.split("\n\n")[0]
    elif file.suffix in (".cpp", ".hpp"):
        comment = re.match(r"(?:// .*\n)+", file.read_text(encoding="utf-8"))
        text = re.split(r"\.\s", comment[0].replace("// ", ""))[0].rstrip(".") + "." if comment else ""
    else:
        return ""
    return text.replace("\n", " ").replace("``", "`").replace("|", "\\|")
