"""Seeds trained side by side are the flows that training each on its own gives."""

from pathlib import Path

import pytest
import torch

from knotflow.flows import Flow
from knotflow.training import Batch, LossConfig, TrainingConfig, fit
from knotflow.training.run import make_loss
from knotflow.training.side_by_side import fit_side_by_side
from knotflow.transforms import Circle, Interval


def _data() -> Batch:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(64, 3, generator=generator)
    return Batch(x, torch.randn(64, 3, generator=generator))


def _config(**options: object) -> TrainingConfig:
    loss = LossConfig(nll=1.0, force_matching=0.01)
    return TrainingConfig(
        steps=6, batch_size=16, warm_up=2, clip=0.5, ema=0.5, loss=loss, compile=False, **options
    )


@pytest.mark.parametrize("seeds", [[0], [4, 7]])
def test_each_seed_is_as_if_alone(seeds: list[int], tmp_path: Path) -> None:
    config = Flow.on(
        [Interval(), Circle(), Interval()],
        rounds=1,
        transform={"bins": 4},
        conditioner={"hidden": [8, 8], "activation": "sin"},
    ).config
    assert config is not None
    data, training = _data(), _config()
    told: list[int] = []
    together = fit_side_by_side(
        config, seeds, data, make_loss(training.loss), training, lambda step, _: told.append(step)
    )
    assert told == [1, 2, 3, 4, 5, 6]
    for seed, flow in zip(seeds, together, strict=True):
        torch.manual_seed(seed)
        alone = fit(config.build(), data, _config(seed=seed), tmp_path / str(seed), progress=False)
        first = config.build().state_dict()
        for name, expected in alone.state_dict().items():
            torch.testing.assert_close(flow.state_dict()[name], expected, rtol=1e-4, atol=1e-5)
        assert any(not torch.equal(flow.state_dict()[name], first[name]) for name in first)


def test_conditioners_that_read_nothing_or_are_residual_are_refused() -> None:
    config = Flow.on([Interval()], rounds=1, transform={"bins": 4}).config
    assert config is not None
    training = _config()
    data = Batch(torch.rand(32, 1), torch.randn(32, 1))
    with pytest.raises(ValueError, match="reads nothing"):
        fit_side_by_side(config, [0], data, make_loss(training.loss), training)
    config = Flow.on([Interval()] * 2, rounds=1, conditioner={"residual": True}).config
    assert config is not None
    with pytest.raises(ValueError, match="residual"):
        fit_side_by_side(config, [0], _data(), make_loss(training.loss), training)
