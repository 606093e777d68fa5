"""``knotflow reweight`` as a user runs it: a force field to another, tables, warnings, refusals."""

import json
from pathlib import Path

import pytest

from knotflow.cli.reweight import warnings
from knotflow.dynamics.chain_run import ExactPlan
from knotflow.workflows import reweighting
from knotflow.workflows.reweighting import Reweighting, reweight, with_energy

VACUUM = ("--force-field", "amber99sbildn.xml", "--solvent", "vacuum")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> str:
    plan = ExactPlan.parse({"chains": 8, "rows": 2, "burn_in": 1, "every": 1, "md_steps": 2})
    monkeypatch.setattr(reweighting, "CHAIN_PLAN", plan)
    return "ala2"


def test_another_force_field(run_here, run_apart, model: str) -> None:
    arguments = ("reweight", model, *VACUUM, "--samples", "200", "--out", "vacuum")
    status, said = run_here(*arguments)
    assert status == 0 and "new force field" in said and "first force field" in said
    assert "by weights" in said and "acceptance ratio" in said and "psi ALA2" in said
    # Without water, other structures are stable: the weights are worth nothing, and the command says so.
    assert "cannot be trusted" in said and "Try --refine." in said
    status, out, _ = run_apart(*arguments, "--json")
    assert status == 0
    assert json.loads(out)["energies"] == ["first force field", "new force field"]
    assert {path.name for path in Path("vacuum").iterdir()} == {
        "exact.h5", "exact.h5.state", "inputs.json", "model.safetensors", "reweight.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "the new energy is missing"),
        (("--energy", "xtb", *VACUUM), "two energies; give only one of them"),
        (("--energy", "dft"), "an energy must be"),
        (("--force-field", "nowhere.xml"), "nowhere.xml"),
        ((*VACUUM, "--state", "nonsense"), "nonsense"),
        ((*VACUUM, "--data", "nowhere.h5"), "nowhere.h5"),
    ],
)
def test_bad_input_ends_in_one_sentence(run_here, model: str, options, sentence: str) -> None:
    status, said = run_here("reweight", model, *options, "--out", "o")
    assert status == 2 and sentence in said and said.count("Error:") == 1
    assert not Path("o").exists()


def test_estimates_that_contradict_each_other_are_said_to(model: str, tmp_path: Path) -> None:
    from dataclasses import replace

    from knotflow.molecules import ala2
    from knotflow.statistics.estimates import Estimate

    target = with_energy(ala2(), force_field=["amber99sbildn.xml"], solvent="vacuum")
    found = reweight(model, target, tmp_path / "o", samples=100, exact=False)
    apart = replace(found.found, importance=Estimate(0.0, 0.1), bar=Estimate(1.0, 0.1))
    result = Reweighting(apart, None, 0, [], {})
    assert any("more than 3 errors apart" in sentence for sentence in warnings(result, refined=False))
    near = replace(apart, bar=Estimate(0.2, 0.1))
    assert not any("apart" in s for s in warnings(replace(result, found=near), refined=False))
