"""Batches, checkpoints, logs and rates: the parts that make a resume exact."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from knotflow.errors import ConfigError
from knotflow.log_file import read_log
from knotflow.training import Batch, TrainingConfig, data, run
from knotflow.training.checkpoint import read_checkpoint, write_checkpoint
from knotflow.training.data import Batches, check_data, thinned
from knotflow.training.data_module import FlowData
from knotflow.training.logs import CsvLog
from knotflow.training.module import learning_rate


def _numbers(n: int) -> Batch:
    x = torch.arange(n, dtype=torch.float64).unsqueeze(-1)
    return Batch(x, force=-x)


def test_every_point_is_seen_once_in_a_pass() -> None:
    seen = torch.cat([batch.x for batch in Batches(_numbers(12), 4, 7, 0, 3)])
    assert sorted(seen.flatten().tolist()) == list(range(12))
    again = torch.cat([batch.x for batch in Batches(_numbers(12), 4, 7, 3, 6)])
    assert sorted(again.flatten().tolist()) == list(range(12))
    assert not torch.equal(seen, again)


def test_the_batch_of_a_step_does_not_depend_on_where_one_begins() -> None:
    everything = list(Batches(_numbers(10), 3, 7, 0, 11))
    for first in range(11):
        late = next(iter(Batches(_numbers(10), 3, 7, first, 11)))
        assert torch.equal(late.x, everything[first].x)
        assert torch.equal(late.force, -late.x)


def test_processes_share_a_batch() -> None:
    whole = next(iter(Batches(_numbers(10), 5, 7, 0, 1))).x
    shares = [next(iter(Batches(_numbers(10), 5, 7, 0, 1, rank=r, world=2))).x for r in range(2)]
    assert sorted(torch.cat(shares).flatten().tolist()) == sorted(whole.flatten().tolist())


def test_batches_with_own_samples() -> None:
    """Six of the data and four of the model's own in each; of both, every one once in a pass."""
    data, pool, calls = _numbers(20), Batch(-1 - _numbers(8).x, force=torch.ones(8, 1)), []

    def own() -> Batch:
        calls.append(1)
        return pool

    batches = Batches(data, 10, 7, 3, 15, own=own, own_size=4)
    assert len(batches) == 12 and not calls, "nothing is drawn before the first batch is asked for"
    everything = list(batches)
    assert len(everything) == 12 and calls == [1]
    for batch in everything:
        own_rows = batch.x.flatten() < 0
        assert batch.x.shape == batch.force.shape == (10, 1) and int(own_rows.sum()) == 4
        assert torch.equal(batch.force[~own_rows], -batch.x[~own_rows]) and (batch.force[own_rows] == 1).all()
    # Steps 4 and 5, of two that make a pass through the pool; 3 to 5, of three through the data.
    seen = torch.cat([batch.x[6:] for batch in everything[1:3]]).flatten().tolist()
    assert sorted(seen) == list(range(-8, 0))
    seen = torch.cat([batch.x[:6] for batch in everything[:3]]).flatten().tolist()
    assert len(set(seen)) == 18 and set(seen) <= set(range(20))
    late = next(iter(Batches(data, 10, 7, 9, 15, own=own, own_size=4)))
    assert torch.equal(late.x, everything[6].x)
    shares = [next(iter(Batches(data, 10, 7, 3, 15, own=own, own_size=4, rank=r, world=2))).x for r in (0, 1)]
    assert [int((x < 0).sum()) for x in shares] == [2, 2]
    assert sorted(torch.cat(shares).flatten()) == sorted(everything[0].x.flatten())


def test_batches_where_there_are_no_own_samples() -> None:
    plain = list(Batches(_numbers(20), 10, 7, 0, 6))
    for own, size in ((lambda: None, 4), (lambda: _numbers(20), 0)):
        other = list(Batches(_numbers(20), 10, 7, 0, 6, own=own, own_size=size))
        assert all(torch.equal(a.x, b.x) for a, b in zip(plain, other, strict=True))
    without_force = next(
        iter(Batches(_numbers(20), 10, 7, 0, 6, own=lambda: Batch(_numbers(20).x), own_size=4))
    )
    assert without_force.force is None and len(without_force.x) == 10
    with pytest.raises(ValueError, match="the model's own data must hold at least one batch of 4 points"):
        list(Batches(_numbers(20), 10, 7, 0, 6, own=lambda: _numbers(3), own_size=4))


def config(**changes: Any) -> TrainingConfig:
    return TrainingConfig(**{"batch_size": 4, "steps": 23, "checkpoint_every": 10} | changes)


def test_own_samples_are_those_of_the_block() -> None:
    asked = []

    def own(first: int) -> None:
        asked.append(first)

    for done in (0, 2):
        data = FlowData(_numbers(20), None, config(own_share=0.5), done=done, own=own)
        list(data.train_dataloader())
    assert asked == [0, 20]


def test_blocks_cover_all_steps() -> None:
    data = FlowData(_numbers(20), None, config(), done=2)
    assert data.blocks_left == 1 and len(data.train_dataloader()) == 3
    assert data.val_dataloader() == []


@pytest.mark.parametrize(("batch_size", "sizes"), [(4, [1000, 1000, 300]), (1200, [1200, 1100])])
def test_validation_data_come_in_order_in_large_pieces(batch_size: int, sizes: list[int]) -> None:
    data = FlowData(_numbers(1200), _numbers(2300), config(batch_size=batch_size))
    pieces = data.val_dataloader()
    assert [len(piece.x) for piece in pieces] == sizes and len(pieces) == len(sizes)
    assert torch.equal(torch.cat([piece.x for piece in pieces]), _numbers(2300).x)


def test_unusable_data_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(points, coordinates\), got \(4,\)"):
        check_data("training", Batch(torch.zeros(4)), 2)
    with pytest.raises(ValueError, match="at least one batch of 20 points, got 10"):
        check_data("training", _numbers(10), 20)
    with pytest.raises(ValueError, match="10 points, but 3 rows of force"):
        check_data("training", Batch(torch.zeros(10, 2), force=torch.zeros(3, 2)), 2)
    x = torch.zeros(10, 2)
    x[4, 1] = torch.nan
    with pytest.raises(ValueError, match="x of the training data is not finite in 1 rows, first in row 4"):
        check_data("training", Batch(x), 2)


def test_bad_rows_are_counted_in_all_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "PIECE", 3)
    x, weight = torch.zeros(10, 2), torch.ones(10)
    check_data("training", Batch(x, weight=weight), 2)
    weight[[4, 5, 9]] = torch.inf
    with pytest.raises(
        ValueError, match="weight of the training data is not finite in 3 rows, first in row 4"
    ):
        check_data("training", Batch(x, weight=weight), 2)


def test_few_rows_are_not_thinned() -> None:
    numbers = _numbers(1000)
    assert thinned(numbers) is numbers and thinned(numbers, 1000) is numbers
    assert thinned(numbers, among=torch.tensor([7, 900])).x.flatten().tolist() == [7, 900]


def test_of_many_rows_one_of_each_stretch_is_chosen() -> None:
    numbers = _numbers(1003)
    found = thinned(numbers, 50)
    chosen = found.x.flatten()
    assert len(chosen) == 50 and torch.equal(found.force, -found.x)
    assert (chosen.diff() > 0).all()
    assert torch.equal((chosen * (50 / 1003)).floor(), torch.arange(50.0).double())
    assert len((chosen % 20).unique()) > 10, "no pattern with the length of a stretch"
    assert torch.equal(thinned(numbers, 50).x.flatten(), chosen)
    odd = thinned(numbers, 50, among=torch.arange(1, 1003, 2)).x.flatten()
    assert len(odd) == 50 and (odd % 2 == 1).all() and (odd.diff() > 0).all() and odd[-1] > 970
    assert len(thinned(Batch(torch.zeros(1000, 8)), 50).x) == 6


def test_thinned_data_have_the_moments_of_all() -> None:
    x = torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0))
    found = thinned(Batch(x), 40_000).x
    assert len(found) == 20_000
    assert (found.mean(0).abs() < 0.03).all() and ((found.std(0) - 1).abs() < 0.03).all()


def test_the_fingerprint_is_that_of_all_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is taken, so that a run that another version began goes on."""
    batch = Batch(torch.randn(100, 3), force=torch.randn(100, 3), weight=torch.rand(100))
    whole = [part.numpy().tobytes() for part in (batch.x, batch.force)]
    expected = hashlib.sha256(b"".join([*whole, b"-", batch.weight.numpy().tobytes()])).hexdigest()[:16]
    for size in (1, 7, 100, 8192):
        monkeypatch.setattr(run, "PIECE", size)
        assert run.fingerprint(batch) == expected
    transposed = batch._replace(x=batch.x.T.contiguous().T)
    assert run.fingerprint(transposed) == expected
    assert run.fingerprint(batch._replace(x=batch.x.flip(0))) != expected


def test_checkpoints_keep_everything(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    state = {
        "numbers": {0: {"step": torch.tensor(3.0), "x": torch.randn(3, 2).double()}, 1: None},
        "groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "fused": None, "name": "a", "flag": True}],
        "count": 7,
        "shared": [torch.ones(2)] * 2,
    }
    write_checkpoint(path, state)
    back = read_checkpoint(path)
    assert back["groups"] == state["groups"] and back["count"] == 7
    assert list(back["numbers"]) == [0, 1] and back["numbers"][1] is None
    assert torch.equal(back["numbers"][0]["x"], state["numbers"][0]["x"])
    assert torch.equal(back["shared"][1], torch.ones(2))


def test_checkpoints_are_never_pickles(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    path.write_bytes(pickle.dumps({"state": 1}))
    with pytest.raises(ValueError, match=r"not a \.safetensors file, or is damaged"):
        read_checkpoint(path)
    torch.save({"state": 1}, path)
    with pytest.raises(ValueError, match=r"not a \.safetensors file, or is damaged"):
        read_checkpoint(path)
    with pytest.raises(TypeError, match="cannot hold a set"):
        write_checkpoint(tmp_path / "other.ckpt", {"a": {1, 2}})
    assert not (tmp_path / "other.ckpt").exists()


def test_a_resumed_log_has_no_row_twice(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = CsvLog(path)
    for step in (10, 20, 30):
        log.log_metrics({"nll": 1.0 / step}, step)
    with path.open("a") as file:
        file.write("40,nl")  # killed in the middle of a line
    assert read_log(path) == [(10, "nll", 0.1), (20, "nll", 0.05), (30, "nll", 1.0 / 30)]
    CsvLog(path, resume_at=20).log_metrics({"nll": 5.0}, 30)
    assert read_log(path) == [(10, "nll", 0.1), (20, "nll", 0.05), (30, "nll", 5.0)]
    CsvLog(path)
    assert read_log(path) == []


def test_rates() -> None:
    base = {"steps": 1000, "learning_rate": 0.01, "warm_up": 10}
    cosine = TrainingConfig.parse({**base, "schedule": "cosine"})
    assert learning_rate(cosine, 4) == pytest.approx(0.005, rel=1e-3)
    assert learning_rate(cosine, 500) == pytest.approx(0.005)
    assert learning_rate(cosine, 999) < 1e-6
    steps = TrainingConfig.parse({**base, "schedule": "exponential", "decay": 0.5, "decay_every": 100})
    assert learning_rate(steps, 99) == pytest.approx(0.01)
    assert learning_rate(steps, 250) == pytest.approx(0.0025)
    constant = TrainingConfig.parse({**base, "schedule": "constant", "warm_up": 0})
    assert {learning_rate(constant, step) for step in (0, 500, 999)} == {0.01}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stepz": 3}, "unknown key 'stepz'; allowed here: .*steps"),
        ({"steps": "3"}, "steps: .*valid integer, got '3'"),
        ({"steps": True}, "steps: .*valid integer, got True"),
        ({"learning_rate": 0.0}, "learning_rate: .*greater than 0"),
        ({"learning_rate": float("nan")}, "learning_rate: "),
        ({"schedule": "linear"}, "schedule: .*'constant', 'cosine' or 'exponential', got 'linear'"),
        ({"loss": {"nlll": 1.0}}, "unknown key 'loss.nlll'; allowed here: .*force_matching, nll"),
        ({"loss": {"nll": 0.0}}, "loss: one of nll, force_matching, energy_matching and reverse_kl"),
        ({"ema": 1.0}, "ema: .*less than 1"),
        ({"own_share": 1.0}, "own_share: .*less than 1"),
        ({"loss": {"force_limit": 0.0}}, "loss.force_limit: .*greater than 0"),
        ({"loss": {"energy_matching": -1.0}}, "loss.energy_matching: .*greater than or equal to 0"),
        ({"loss": 3}, "loss: expected a table of keys and values, got 3"),
    ],
)
def test_wrong_training_configurations(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig.parse(wrong)
