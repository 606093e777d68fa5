"""Samples of a seed: one sequence, however it is asked for; without mirror images unless wanted."""

import math

import pytest
import torch

from knotflow.flows import sampling
from knotflow.flows.sampling import Sampler
from tests.flows.generators import make


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "BLOCK", 50)


@pytest.mark.parametrize("keep_mirrored", [False, True])
def test_the_sequence_does_not_depend_on_how_it_is_taken(keep_mirrored: bool) -> None:
    model = make("ala2, circles", torch.float32)
    whole, log_prob = Sampler(model, 3, keep_mirrored=keep_mirrored).take(130)
    assert whole.shape == (130, 22, 3) and log_prob.shape == (130,)
    sampler = Sampler(model, 3, keep_mirrored=keep_mirrored)
    parts = [sampler.take(n) for n in (0, 1, 60, 7, 62)]
    assert torch.equal(torch.cat([x for x, _ in parts]), whole)
    assert torch.equal(torch.cat([density for _, density in parts]), log_prob)
    assert torch.equal(Sampler(model, 3, keep_mirrored=keep_mirrored).take(20)[0], whole[:20])
    assert not torch.equal(Sampler(model, 4, keep_mirrored=keep_mirrored).take(20)[0], whole[:20])


def test_mirror_images_are_left_out_and_counted() -> None:
    # Torsions all the way round, random weights: about half of the samples are D-alanine.
    model = make("ala2, circles")
    sampler, everything = Sampler(model, 1), Sampler(model, 1, keep_mirrored=True)
    x, log_prob = sampler.take(300)
    assert model.chirality.matches(x).all()
    assert 0.1 < sampler.mirrored / sampler.drawn < 0.9
    all_of_them, _ = everything.take(sampler.drawn)
    right = model.chirality.matches(all_of_them)
    assert torch.equal(all_of_them[right][:300], x)
    assert everything.drawn == sampler.drawn and everything.mirrored == sampler.mirrored == int(
        (~right).sum()
    )
    # The log-density is that of the model, not of the half that is kept.
    torch.testing.assert_close(log_prob, model.log_prob(x), atol=1e-7, rtol=0)


def test_samples_that_are_not_finite_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("no stereocentre")
    honest = model.sample_and_log_prob

    def broken(n: int, **options):
        x, log_prob = honest(n, **options)
        x[3], log_prob[5], log_prob[6] = math.nan, math.inf, math.nan
        return x, log_prob

    monkeypatch.setattr(model, "sample_and_log_prob", broken)
    sampler = Sampler(model, keep_mirrored=True)
    x, log_prob = sampler.take(100)
    assert x.isfinite().all() and log_prob.isfinite().all()
    assert sampler.not_finite == 9 and sampler.drawn == 150 and sampler.mirrored == 0


def test_a_hopeless_model_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("ala2, lines")
    monkeypatch.setattr(sampling, "PATIENCE", 3)
    monkeypatch.setattr(model.chirality, "matches", lambda x: torch.zeros(len(x), dtype=torch.bool))
    with pytest.raises(
        ValueError,
        match=r"of 150 samples drawn, 150 have a wrong handedness .*; most samples are of the other hand "
        r"than the structure, so the data of the training probably were, too: .* again; .*keep-mirrored",
    ):
        Sampler(model).take(1)
    assert len(Sampler(model, keep_mirrored=True).take(1)[0]) == 1

    def broken(n: int, **_):
        return torch.full((n, 22, 3), math.nan), torch.full((n,), math.nan)

    monkeypatch.setattr(model, "sample_and_log_prob", broken)
    with pytest.raises(
        ValueError, match=r"150 are not finite, .*; the model is damaged or hardly trained: tr"
    ):
        Sampler(model).take(1)
    with pytest.raises(ValueError, match="seed must be a whole number"):
        Sampler(model, -1)
