"""Model files and configurations."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import knotflow as kf
from knotflow.errors import ConfigError
from knotflow.flows import FlowConfig, default_config
from knotflow.flows.io import notes
from tests.flows.registry import NAMES, context, make, points


@pytest.mark.parametrize("name", [n for n in NAMES if n != "by-hand-4d"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_flow_comes_back_bit_for_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    flow = make(name).to(dtype)
    path = tmp_path / "model.safetensors"
    kf.save(flow, path, temperature=300.0)
    back = kf.load(path)
    x, c = points(flow, 20).to(dtype), context(flow, 20)
    assert torch.equal(back.log_prob(x, c), flow.log_prob(x, c))
    assert back.config == flow.config and back.domains == flow.domains
    assert notes(path) == {"temperature": 300.0}


def test_a_flow_without_configuration_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="put together by hand"):
        kf.save(make("by-hand-4d"), tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(FileNotFoundError, match="no model file"):
        kf.load(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match=r"not a \.safetensors file"):
        kf.load(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="not a knotflow model"):
        kf.load(path)
    flow = make("interval-1d")
    kf.save(flow, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged"):
        kf.load(path)
    metadata = {"format": "knotflow-flow-1", "config": json.dumps(flow.config.plain()), "notes": "{}"}
    save_file({"couplings.0.conditioner.layers.0.weight": torch.zeros(2)}, path, metadata)
    with pytest.raises(ValueError, match="do not fit the configuration"):
        kf.load(path)
    save_file({"a": torch.zeros(2)}, path, {"format": "knotflow-flow-1", "config": '{"domain": []}'})
    with pytest.raises(ValueError, match="no usable configuration"):
        kf.load(path)


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    kf.save(make("interval-1d"), path)
    before = path.read_bytes()

    def full_disk(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        kf.save(make("circle-1d"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_version_0_1_keep_their_meaning(tmp_path: Path) -> None:
    """They have phases and affine parts noted where there are none, and bumps under another name."""
    domains, flows = [kf.Interval(), kf.Circle()], {}
    for number, transform in enumerate(({"bins": 4}, {"family": "bump", "components": 2})):
        flows[number] = flow = kf.Flow.on(domains, transform=transform)
        old = flow.config.plain()
        for coupling in old["couplings"]:
            if number == 0:
                coupling["transform"] |= {"phase": True, "affine": True}
            else:
                coupling["transform"]["family"] = "smooth"
                del coupling["transform"]["affine"]
        path = tmp_path / f"{number}.safetensors"
        metadata = {"format": "knotflow-flow-1", "config": json.dumps(old), "notes": "{}"}
        save_file(flow.state_dict(), path, metadata)
        back = kf.load(path)
        assert back.config == flow.config
        x = points(flow, 20).float()
        assert torch.equal(back.log_prob(x), flow.log_prob(x))


@pytest.mark.parametrize("name", ["affine-3d", "context-2d", "mixed-5d", "residual-3d"])
def test_networks_of_files_of_version_0_2_see_lines_as_before(name: str, tmp_path: Path) -> None:
    """Those files do not say how; with one frequency, weights of lines five times as large undo it."""
    flow, path = make(name), tmp_path / "model.safetensors"
    old = flow.config.plain()
    for coupling in old["couplings"]:
        del coupling["conditioner"]["unit_spread"]
    one_frequency = flow.config.couplings[0].conditioner.frequencies == 1
    if not one_frequency:  # then networks of that time also saw waves of lines
        flow = kf.FlowConfig.read(old).build().double()
    metadata = {"format": "knotflow-flow-1", "config": json.dumps(old), "notes": "{}"}
    save_file(flow.state_dict(), path, metadata)
    back = kf.load(path)
    lines = {i for i, domain in enumerate(flow.domains) if isinstance(domain, kf.Line)}
    for coupling, own, network in zip(back.couplings, flow.couplings, back.config.couplings, strict=True):
        assert network.conditioner.unit_spread == (not lines & set(coupling.read))
        flat = [i for i in coupling.read if not isinstance(flow.domains[i], kf.Circle)]
        with torch.no_grad():
            for column, i in enumerate(flat):
                own.conditioner.layers[0].weight[:, column] *= 0.2 if i in lines else 1.0
    x, c = points(flow, 20), context(flow, 20)
    if one_frequency:
        torch.testing.assert_close(back.log_prob(x, c), flow.log_prob(x, c), rtol=1e-12, atol=1e-12)
    kf.save(back, path)
    again = kf.load(path)
    assert again.config == back.config
    assert torch.equal(again.log_prob(x, c), back.log_prob(x, c))


@pytest.mark.parametrize("name", [n for n in NAMES if n != "by-hand-4d"])
def test_a_configuration_survives_json(name: str) -> None:
    config = make(name).config
    assert config is not None
    assert FlowConfig.parse(json.loads(json.dumps(config.plain()))) == config


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"transform": {"bins": 0}}, "transform: bins must be a whole number of at least 1, got 0"),
    ({"transform": {"bins": "many"}}, r"transform\.bins: .*valid integer, got 'many'"),
    ({"transform": {"bins": 8.5}}, r"transform\.bins: .*integer, got 8\.5"),
    ({"transform": {"bin": 8}}, r"unknown key 'transform\.bin'; allowed here: affine, bins, family, order,"),
    (
        {"transform": {"family": "rq", "order": 4}},
        r"unknown key 'transform\.order'; allowed here: affine, bins,",
    ),
    ({"transform": {"family": "spline"}}, r"transform: .*'bspline', 'rq', 'bump'"),
    ({"transform": {"order": 2}}, "transform: order must be a whole number of at least 3, got 2"),
    (
        {"transform": {"parametrisation": {"kind": "slopes", "slope": 1.0}}},
        r"unknown key 'transform\.parametrisation\.slope'; allowed here: kind, max_slope, min_slope",
    ),
    ({"transform": {"parametrisation": {"kind": "slopes", "min_slope": 2.0}}}, "0 < min_slope < 1"),
    ({"transform": {"family": "rq", "min_width": 0.5}}, "min_width must be positive and leave room for 32"),
    ({"transform": {"family": "bump"}}, "Bump acts on an Interval or a Circle"),
    ({"conditioner": {"hidden": 64}}, r"conditioner\.hidden: .*tuple, got 64"),
    ({"conditioner": {"hidden": [64, 0]}}, r"conditioner\.hidden\.1: .*got 0"),
    ({"conditioner": {"hidden": [64, 32], "residual": True}}, "one width"),
    ({"conditioner": {"activation": "relu"}}, r"conditioner\.activation: .*'gelu', 'silu', 'sin'"),
    ({"transform": 3}, r"transform: expected a table of keys and values, got 3"),
    ({"transform": "cubic"}, r"transform: .*'bspline', 'rq', 'bump'"),
    ({"context": -1}, r"context: .*greater than or equal to 0"),
    (
        {"depth": 3},
        "unknown key 'depth'; allowed here: components, conditioner, context, masks, rounds",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_wrong_options_name_the_key_and_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as found:
        default_config([kf.Line(), kf.Circle()], **options)
    assert "\n" not in str(found.value)


def test_wrong_couplings_are_found_before_building() -> None:
    good = default_config([kf.Circle()] * 2).plain()
    for change, message in (
        ({"transformed": [0], "read": [5]}, "coupling 0 uses coordinate 5, but there are 2"),
        (
            {"transformed": [0], "read": [0]},
            "couplings.0: the coordinates a coupling transforms and reads must be different",
        ),
        ({"transformed": [], "read": [0]}, "couplings.0.transformed: .*at least 1 item"),
        ({"read": [0]}, r"couplings\.0\.transformed is missing"),
    ):
        with pytest.raises(ConfigError, match=message):
            FlowConfig.parse({**good, "couplings": [change]})
    with pytest.raises(ConfigError, match="needs low < high"):
        FlowConfig.parse({**good, "domains": [{"kind": "circle", "low": 1.0, "high": 0.0}]})
    with pytest.raises(ConfigError, match="FlowConfig: expected a table of keys and values, got 3"):
        FlowConfig.parse(3)
    with pytest.raises(ValueError, match="expected a list of domains, one for each coordinate, got Circle"):
        kf.Flow.on(kf.Circle())
    with pytest.raises(ValueError, match=r"the number of coordinates must be .* at least 1, got 0"):
        kf.Flow.on([])
    with pytest.raises(ValueError, match="an Interval, a Circle or a Line, got RealLine"):
        kf.Flow.on([kf.Affine().domain])
