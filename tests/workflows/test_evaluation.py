"""Evaluations of model files, known by their inputs."""

import json
from pathlib import Path

from knotflow.analysis.evaluation import evaluation_inputs, noted_evaluation
from knotflow.energies import TorchForceField
from knotflow.inputs import made_of
from knotflow.workflows.evaluation import evaluate
from tests.analysis.generators import chain, chain_data, chain_generator


def test_an_evaluation_is_known_by_its_inputs(tmp_path: Path) -> None:
    data, model, out = tmp_path / "chain.h5", tmp_path / "model.safetensors", tmp_path / "metrics.json"
    chain_data(data, 60)
    split = {"file": data.name, "frames": 60, "kind": "time", "validation": [[40, 60]]}
    chain_generator().float().save(model, split=split)
    assert noted_evaluation(out) is None
    energy = TorchForceField(chain(), compiled=False)
    found = evaluate(model, data, out, samples=40, seed=1, energy=energy, more={"besides": 1})
    assert found.about["data"]["frames"] == 20 and json.loads(out.read_text())["besides"] == 1
    options = {"samples": 40, "seed": 1, "energy": energy}
    assert made_of(noted_evaluation(out), evaluation_inputs(model, data, **options))
    for other in ({"seed": 2}, {"samples": 41}, {"all_frames": True}, {"float64": True}):
        wanted = evaluation_inputs(model, data, **{**options, **other})
        assert not made_of(noted_evaluation(out), wanted)
    everything = evaluate(
        model, data, out, samples=40, seed=1, all_frames=True, float64=True, energy=energy
    ).about
    assert (everything["data"]["frames"], everything["dtype"]) == (60, "float64")
    wanted = evaluation_inputs(model, data, **options, all_frames=True, float64=True)
    assert made_of(noted_evaluation(out), wanted)
    out.write_text("{}")
    assert noted_evaluation(out) is None
