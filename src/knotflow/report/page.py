"""One self-contained HTML page: text, tables, pictures and data in a single file."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any, Final

from knotflow.extras import optional
from knotflow.files import write_atomically
from knotflow.report.figures import DPI

Cell = str | float | int | None
"""What a table holds: None is a value that is missing."""

PNG: Final = b"\x89PNG\r\n\x1a\n"
GAP: Final = "–"
"""What is shown of a value that is missing."""
MEDIA_TYPES: Final = {".csv": "text/csv", ".json": "application/json"}


@dataclass(frozen=True)
class Table:
    """Rows under named columns. Numbers go to the right, text to the left."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    """One cell for each column; the first names the row."""
    caption: str = ""
    notes: Sequence[str] = ()
    """Small print under the table, a line each."""
    highlight: Collection[int] = ()
    """Numbers of the rows that stand out, from 0."""

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"every row of table {self.caption!r} needs {len(self.columns)} cells, one for each "
                    f"column, row {number} has {len(row)}; use None for a missing value."
                )
        strangers = [number for number in self.highlight if not 0 <= number < len(self.rows)]
        if strangers:
            raise ValueError(
                f"table {self.caption!r} has {len(self.rows)} rows, numbered from 0, and cannot highlight "
                f"{strangers}; correct the numbers."
            )

    @property
    def numeric(self) -> list[bool]:
        """Whether a column holds only numbers, text that starts like one (``"-1.31 ± 0.02"``) and gaps."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        filled = [[cell for cell in column if cell not in (None, GAP)] for column in columns]
        return [bool(cells) and all(map(_is_numeric, cells)) for cells in filled]


@dataclass(frozen=True)
class Picture:
    """A PNG with the words for those who do not see it."""

    image: Path | bytes
    """The file or what is in it. A file is read when the page is written."""
    alt: str
    """What the picture shows, in a sentence."""
    caption: str = ""

    def __post_init__(self) -> None:
        if not self.alt.strip():
            raise ValueError(
                "a picture needs an alt text, got an empty one; say in a sentence what the picture shows."
            )

    def content(self) -> bytes:
        """The bytes of the PNG.

        Raises:
            ValueError: if they are something else.
        """
        content = self.image if isinstance(self.image, bytes) else self.image.read_bytes()
        if not content.startswith(PNG):
            source = "bytes" if isinstance(self.image, bytes) else str(self.image)
            raise ValueError(f"expected a PNG picture, got {source} that start otherwise; save it as .png.")
        return content


@dataclass(frozen=True)
class Download:
    """A small file that a reader can save from the page."""

    name: str
    """Its name, ending in one of `MEDIA_TYPES`."""
    content: bytes
    label: str = ""
    """What the link says, the name if missing."""

    def __post_init__(self) -> None:
        if PurePath(self.name).suffix not in MEDIA_TYPES:
            raise ValueError(f"expected a download ending in {', '.join(MEDIA_TYPES)}, got {self.name!r}.")

    @property
    def media_type(self) -> str:
        """The type of the file, from its name."""
        return MEDIA_TYPES[PurePath(self.name).suffix]


@dataclass(frozen=True)
class Section:
    """A heading and what is under it, in the order of the fields."""

    heading: str
    paragraphs: Sequence[str] = ()
    """Plain text: nothing in it is taken for HTML."""
    table: Table | None = None
    pictures: Sequence[Picture] = ()
    downloads: Sequence[Download] = ()


@dataclass(frozen=True)
class Page:
    """A report."""

    title: str
    lead: str
    """A sentence or two with the main result."""
    sections: Sequence[Section] = ()


def render_page(page: Page, template: str = "page.html.j2", **parts: Any) -> str:
    """The page as HTML that refers to nothing outside of it.

    Args:
        page: The page.
        template: Of the folder ``templates``; one that extends ``page.html.j2`` fills its blocks: ``style``,
            ``top`` (ahead of all sections) and ``script``.
        parts: What that template shows besides.

    Raises:
        ValueError: if a picture is not a PNG.
        OSError: if the file of a picture cannot be read.
        ModuleNotFoundError: if jinja2, which is optional, is not installed.
    """
    with optional("pages"):
        from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("knotflow.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(cell=format_cell, base64=_base64, size=_size)
    return environment.get_template(template).render(page=page, **parts)


def write_page(page: Page, path: Path) -> None:
    """Write a page; an older file of that name stays until the new one is complete.

    Raises:
        ValueError: if a picture is not a PNG.
        OSError: if a picture cannot be read or the page cannot be written.
        ModuleNotFoundError: if jinja2, which is optional, is not installed.
    """
    write_atomically(path, render_page(page).encode())


def format_cell(cell: Cell) -> str:
    """A cell as text: four significant digits of a float, thousands apart, a dash if missing or NaN."""
    if isinstance(cell, str):
        return cell
    if cell is None or math.isnan(cell):
        return GAP
    if math.isinf(cell):
        return "∞" if cell > 0 else "-∞"
    if isinstance(cell, Integral):
        return f"{int(cell):,}"
    if 999.95 <= abs(cell) < 1e6:
        return f"{cell:,.0f}"
    return f"{cell:#.4g}"


def _is_numeric(cell: Cell) -> bool:
    return (
        re.match(r"[-+−<>≤≥~(]*\s*\d", cell) is not None if isinstance(cell, str) else isinstance(cell, Real)
    )


def _base64(content: bytes) -> str:
    return b64encode(content).decode()


def _size(png: bytes) -> tuple[int, int]:
    """Width and height of a PNG on the page, where its letters are as large as on paper.

    Its first chunk starts with both in pixels, of which the pictures of this package have `DPI` to the inch;
    CSS counts 96.
    """
    return int.from_bytes(png[16:20]) * 96 // DPI, int.from_bytes(png[20:24]) * 96 // DPI
