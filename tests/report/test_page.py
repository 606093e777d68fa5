"""Pages: all in one file, nothing taken for markup, nothing lost."""

import base64
import re
import sys
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from knotflow.report.page import (
    Download,
    Page,
    Picture,
    Section,
    Table,
    format_cell,
    render_page,
    write_page,
)
from knotflow.report.verdicts import Level, Verdict

# 150 by 300 pixels; only the head matters here.
PNG = (
    b"\x89PNG\r\n\x1a\n"
    + b"\x00\x00\x00\rIHDR"
    + (150).to_bytes(4, "big")
    + (300).to_bytes(4, "big")
    + b"rest"
)


class Reader(HTMLParser):
    """Collects the elements of a page with their attributes, and checks that they are closed in order."""

    VOID = ("meta", "img", "br", "hr", "link")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data) -> None:
        if data.strip():
            self.text.append(data.strip())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def full_page(image: Path | bytes = PNG) -> Page:
    table = Table(
        ["model", "NLL", "spread", "steps"],
        [["RQ", -1.25, "0.10 ± 0.02", 120000], ["ours", None, "0.05 ± 0.01", 7]],
        caption="Results <test>",
        notes=["in nats & bits"],
        highlight=[1],
    )
    return Page(
        "Forces <of> flows & more",
        "See https://example.org for 'more'.",
        [
            Section("Numbers", ["a < b", "<script>alert(1)</script>"], table),
            Section("Pictures", pictures=[Picture(image, 'a "quoted" ring', "Fig. <1>")]),
            Section(
                "Data", downloads=[Download("t.csv", b"a,b\n1,2\n", "the table"), Download("t.json", b"{}")]
            ),
        ],
    )


def test_text_is_escaped_and_complete() -> None:
    html = render_page(full_page())
    reader = Reader(html)
    assert "<script" not in html and "Forces <of>" not in html
    for text in (
        "Forces <of> flows & more",
        "<script>alert(1)</script>",
        "a < b",
        "Results <test>",
        "Fig. <1>",
    ):
        assert text in reader.text
    assert "in nats & bits" in reader.text
    assert reader.all("html") == [{"lang": "en"}]
    assert [name for name, _ in reader.elements].count("h1") == 1


def test_nothing_outside_is_referred_to() -> None:
    html = render_page(full_page())
    reader = Reader(html)
    references = [
        value
        for _, attributes in reader.elements
        for key, value in attributes.items()
        if key in ("src", "href")
    ]
    assert references
    assert all(value is not None and value.startswith(("data:", "#")) for value in references)
    assert not reader.all("link") and not reader.all("script")
    assert not re.search(r"url\(|@import", html)
    anchors = {attributes["href"] for attributes in reader.all("a") if attributes["href"].startswith("#")}
    assert anchors == {f"#{attributes['id']}" for attributes in reader.all("section")}


def test_pictures_are_embedded(tmp_path: Path) -> None:
    file = tmp_path / "ring.png"
    file.write_bytes(PNG + b"file")
    for image, content in ((PNG, PNG), (file, PNG + b"file")):
        (picture,) = Reader(render_page(full_page(image))).all("img")
        head, data = picture["src"].split(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(data, validate=True) == content
        assert picture["alt"] == 'a "quoted" ring'
        assert (picture["width"], picture["height"]) == ("96", "192")


def test_downloads_are_embedded() -> None:
    reader = Reader(render_page(full_page()))
    files = [attributes for attributes in reader.all("a") if "download" in attributes]
    assert [file["download"] for file in files] == ["t.csv", "t.json"]
    assert files[0]["href"] == "data:text/csv;base64," + base64.b64encode(b"a,b\n1,2\n").decode()
    assert files[1]["href"].startswith("data:application/json;base64,")
    assert "the table" in reader.text and "t.json" in reader.text


def test_tables_align_numbers_and_highlight_rows() -> None:
    reader = Reader(render_page(full_page()))
    heads = reader.all("th")
    assert [head.get("class") for head in heads if head["scope"] == "col"] == [
        None,
        "number",
        "number",
        "number",
    ]
    assert [head.get("class") for head in heads if head["scope"] == "row"] == [None, None]
    assert all(cell == {"class": "number"} for cell in reader.all("td"))
    assert [row.get("class") for row in reader.all("tr")] == [None, None, "ours"]
    for text in ("-1.250", "120,000", "–", "0.10 ± 0.02"):
        assert text in reader.text


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("k = 4", "k = 4"),
        (None, "–"),
        (float("nan"), "–"),
        (float("-inf"), "-∞"),
        (0, "0"),
        (1234567, "1,234,567"),
        (np.int64(4096), "4,096"),
        (-1.31234, "-1.312"),
        (np.float32(0.5), "0.5000"),
        (999.949, "999.9"),
        (999.96, "1,000"),
        (45678.9, "45,679"),
        (1.23456e-5, "1.235e-05"),
        (2.5e8, "2.500e+08"),
    ],
)
def test_cells_are_formatted(cell, text: str) -> None:
    assert format_cell(cell) == text


def test_an_empty_table_and_a_page_without_sections_are_fine() -> None:
    assert Table(["a", "b"], []).numeric == [False, False]
    html = render_page(Page("t", "l", [Section("s", table=Table(["a"], []))]))
    assert Reader(html).all("nav") == []
    assert Reader(render_page(Page("t", "l"))).all("section") == []


def test_the_old_page_stays_when_rendering_fails(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(FileNotFoundError):
        write_page(full_page(tmp_path / "missing.png"), path)
    with pytest.raises(ValueError, match=r"expected a PNG picture, got bytes .* save it as \.png"):
        write_page(full_page(b"GIF89a"), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_page(full_page(), path)
    assert path.read_text(encoding="utf-8") == render_page(full_page())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Table(["a", "b"], [[1, 2], [3]], "c"), "table 'c' needs 2 cells, .* row 1 has 1; use None"),
        (lambda: Table(["a"], [[1]], highlight=[1]), r"has 1 rows, .* cannot highlight \[1\]"),
        (lambda: Picture(PNG, " "), "needs an alt text"),
        (lambda: Download("model.pkl", b""), r"ending in \.csv, \.json, got 'model\.pkl'"),
    ],
)
def test_wrong_parts_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_generator_has_verdicts_of_all_levels_ahead_of_its_sections() -> None:
    verdicts = [Verdict(f"S{level.name}", level, "a < b", "x & y") for level in Level]
    html = render_page(full_page(), "generator.html.j2", verdicts=verdicts, view=None)
    reader = Reader(html)
    assert len(Level) == len(reader.all("svg")) == 4
    assert len(set(re.findall(r"<svg[^>]*>(.+)</svg>", html))) == 4  # told apart by their shapes
    assert html.count("A &lt; b.") == html.count("Rule: x &amp; y.") == 4
    assert html.index("</header>") < html.index('<div class="top">') < html.index('id="section-1"')
    style = (resources.files("knotflow.report") / "templates" / "generator.css").read_text()
    assert f"<style>\n{style}</style>" in html and style not in render_page(full_page())
    assert not reader.all("script") and not reader.all("canvas")  # there is nothing to turn


def test_without_jinja2_the_remedy_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ModuleNotFoundError, match=r"pages need jinja2.*knotflow\[plot\]"):
        render_page(full_page())
