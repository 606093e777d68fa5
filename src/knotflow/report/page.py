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
"""Content of a table; None is a missing value."""

PNG: Final = b"\x89PNG\r\n\x1a\n"
GAP: Final = "–"
"""Shown for a missing value."""
MEDIA_TYPES: Final = {".csv": "text/csv", ".json": "application/json"}


@dataclass(frozen=True)
class Table:
    """Rows under named columns. Numbers are aligned to the right, text to the left."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    """One cell for each column; the first names the row."""
    caption: str = ""
    notes: Sequence[str] = ()
    """Small print under the table, one line each."""
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
    """A PNG with a description for those who cannot see it."""

    image: Path | bytes
    """The file or its content. A file is read when the page is written."""
    alt: str
    """A sentence that says what the picture shows."""
    caption: str = ""

    def __post_init__(self) -> None:
        if not self.alt.strip():
            raise ValueError(
                "a picture needs an alt text, got an empty one; say in a sentence what the picture shows."
            )

    def content(self) -> bytes:
        """The bytes of the PNG.

        Raises:
            ValueError: if they are not a PNG.
        """
        source, content = "bytes", self.image
        if isinstance(content, Path):
            source, content = str(content), content.read_bytes()
        if not content.startswith(PNG):
            raise ValueError(f"expected a PNG picture, got {source} that start otherwise; save it as .png.")
        return content


@dataclass(frozen=True)
class Download:
    """A small file that a reader can save from the page."""

    name: str
    """Its name, ending in one of `MEDIA_TYPES`."""
    content: bytes
    label: str = ""
    """Text of the link; by default the name."""

    def __post_init__(self) -> None:
        if PurePath(self.name).suffix not in MEDIA_TYPES:
            raise ValueError(f"expected a download ending in {', '.join(MEDIA_TYPES)}, got {self.name!r}.")

    @property
    def media_type(self) -> str:
        """The type of the file, from its name."""
        return MEDIA_TYPES[PurePath(self.name).suffix]


@dataclass(frozen=True)
class Section:
    """A heading and its content, in the order of the fields."""

    heading: str
    paragraphs: Sequence[str] = ()
    """Plain text, never interpreted as HTML."""
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
    """The page as self-contained HTML.

    Args:
        page: The page.
        template: A file in ``templates``. One that extends ``page.html.j2`` fills its blocks ``style``,
            ``top`` (before all sections) and ``script``.
        parts: Further variables of that template.

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
    environment.filters.update(
        cell=format_cell, base64=lambda content: b64encode(content).decode(), size=_size
    )
    return environment.get_template(template).render(page=page, **parts)


def write_page(page: Page, path: Path, template: str = "page.html.j2", **parts: Any) -> None:
    """Write what `render_page` gives; an existing file stays until the new one is complete."""
    write_atomically(path, render_page(page, template, **parts).encode())


def format_cell(cell: Cell) -> str:
    """A cell as text: floats with four significant digits, commas at thousands, a dash for None or NaN."""
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
    if isinstance(cell, str):
        return re.match(r"[-+−<>≤≥~(]*\s*\d", cell) is not None
    return isinstance(cell, Real)


def _size(png: bytes) -> tuple[int, int]:
    """Width and height of a PNG on the page, in which its letters are as large as on paper.

    Its first chunk starts with both in pixels. The pictures of this package have `DPI` pixels to the inch,
    CSS has 96.
    """
    return int.from_bytes(png[16:20]) * 96 // DPI, int.from_bytes(png[20:24]) * 96 // DPI
