"""Every Python block of the README and the documentation runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {
    f"{page.name}-{number}": block
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
}


@pytest.mark.parametrize("name", BLOCKS)
def test_code_runs(name: str) -> None:
    block = BLOCKS[name]
    if "import pyro\n" in block:
        pytest.importorskip("pyro").clear_param_store()
    exec(compile(block, name, "exec"), {"__name__": "docs"})


def test_finds_the_code() -> None:
    assert {name.split("-")[0] for name in BLOCKS} >= {"README.md", "index.md", "choose.md", "adapters.md"}
