"""Every Python block of the README and the documentation runs; the hooks of the site do their work."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import knotflow as kf
from knotflow.energies import OpenMMEnergy, TorchForceField

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {
    f"{page.name}-{number}": block
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
}
PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))


@pytest.mark.parametrize("name", BLOCKS)
def test_code_runs(name: str) -> None:
    block = BLOCKS[name]
    if "import pyro\n" in block:
        pytest.importorskip("pyro").clear_param_store()
    exec(compile(block, name, "exec"), {"__name__": "docs"})


def test_the_force_field_of_butane_describes_it(tmp_path: Path) -> None:
    """All of it in torch, as the tutorial says."""
    text = (ROOT / "docs" / "tutorials" / "correct.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```xml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "butane.xml").write_text(block)
    butane = kf.load_molecule("CCCC", force_field=str(tmp_path / "butane.xml"), solvent="vacuum")
    x = torch.tensor(butane.positions).expand(3, -1, -1) + 0.003 * torch.randn(3, 14, 3, dtype=torch.float64)
    with OpenMMEnergy(butane, 1) as oracle:
        torch.testing.assert_close(TorchForceField(butane, compiled=False).energy(x), oracle.energy(x))


def test_finds_the_code() -> None:
    assert {name.split("-")[0] for name in BLOCKS} >= {"README.md", "index.md", "choose.md", "adapters.md"}


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 120


def hook(name: str) -> ModuleType:
    """A hook of the site."""
    pytest.importorskip("math_core")
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "hooks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_formulas_become_mathml() -> None:
    html = (
        r'<p>of <span class="arithmatex">\(\log p &lt; 1\)</span>:</p><div class="arithmatex">\[x^2\]</div>'
    )
    found = hook("mathml").on_page_content(html, PAGE)
    assert found.count("<math") == 2 and 'display="block"' in found and "arithmatex" not in found


@pytest.mark.parametrize("latex", [r"\nosuchcommand x", r"\left( x"])
def test_a_formula_that_cannot_be_converted_stops_the_build(latex: str) -> None:
    with pytest.raises(Exception, match=r"page\.md: .*formula"):
        hook("mathml").on_page_content(rf'<span class="arithmatex">\({latex}\)</span>', PAGE)


def test_every_file_of_a_package_is_listed() -> None:
    listed = hook("file_lists").table(ROOT / "src" / "knotflow" / "transforms")
    for file in (ROOT / "src" / "knotflow" / "transforms").glob("[a-z]*.py"):
        assert f"| `{file.name}` | " in listed


def test_a_package_without_a_list_stops_the_build() -> None:
    with pytest.raises(Exception, match=r"page\.md: no list of files for .*flows"):
        hook("file_lists").on_page_markdown("<!-- files: transforms -->\n", PAGE)


def test_a_page_that_loads_from_elsewhere_stops_the_build() -> None:
    check = hook("offline").on_post_page
    fine = '<a href="https://a.org">a</a><script src="assets/a.js"></script><link rel="next" href="https://a.org">'
    assert check(fine, PAGE) == fine
    for tag in ('<script src="https://a.org/a.js">', '<link rel="stylesheet" href="//a.org/a.css">'):
        with pytest.raises(Exception, match=r"page\.md loads something from elsewhere"):
            check(tag, PAGE)
