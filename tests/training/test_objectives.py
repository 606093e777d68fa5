"""Terms of the loss, and their mixtures, eager and as one graph."""

import functools
import logging
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import knotflow as kf
from knotflow import ranks
from knotflow.compiled import Compiled
from knotflow.training import (
    NLL,
    Batch,
    EnergyMatching,
    ForceMatching,
    LossConfig,
    Mix,
    ReverseKL,
    Term,
    make_loss,
)
from knotflow.training.data import select
from knotflow.training.objectives import View
from tests.flows.registry import context, make, points


def _batch(flow: kf.Flow, n: int = 32) -> Batch:
    x = points(flow, n)
    return Batch(x, force=torch.sin(x))


def test_terms_are_what_they_say() -> None:
    flow = make("mixed-5d")
    batch = _batch(flow)
    total, values = Mix(nll=(0.9, NLL()), fm=(0.1, ForceMatching()))(flow, batch)
    nll = -flow.log_prob(batch.x).mean()
    fm = (flow.score(batch.x) - batch.force).square().mean()
    torch.testing.assert_close(values["nll"], nll.detach())
    torch.testing.assert_close(values["fm"], fm.detach())
    torch.testing.assert_close(total, 0.9 * nll + 0.1 * fm)


def _weighted(flow: kf.Flow, n: int = 32) -> Batch:
    """Some points have no weight; densities are off by up to several units."""
    random = torch.Generator().manual_seed(4)
    weight = 2 * torch.rand(n, generator=random, dtype=torch.float64)
    weight[torch.randperm(n, generator=random)[: n // 4]] = 0
    log_target = 3 * torch.randn(n, generator=random, dtype=torch.float64)
    return _batch(flow, n)._replace(weight=weight, log_target=log_target)


def _huber(error: float, limit: float) -> float:
    return error**2 if abs(error) <= limit else limit * (2 * abs(error) - limit)


def test_weighted_terms_are_what_they_say() -> None:
    """Against loops over single points."""
    flow = make("mixed-5d")
    batch = _weighted(flow)
    log_prob, score = flow.log_prob(batch.x).tolist(), flow.score(batch.x)
    errors = [row.tolist() for row in _tilted(batch.x, score - batch.force)]
    used = [i for i, w in enumerate(batch.weight.tolist()) if w > 0]
    assert len(used) == 24
    nll = -sum(float(batch.weight[i]) * log_prob[i] for i in used) / 24
    fm = sum(e**2 for i in used for e in errors[i]) / (24 * 6)
    limit = sorted(abs(e) for i in used for e in errors[i])[72]  # half of them are above it
    huber = sum(_huber(e, limit) for i in used for e in errors[i]) / (24 * 6)
    _, values = Mix(
        nll=(1.0, NLL()), fm=(1.0, ForceMatching(_tilted)), limited=(1.0, ForceMatching(_tilted, limit))
    )(flow, batch)
    assert {name: float(value) for name, value in values.items()} == pytest.approx(
        {"nll": nll, "fm": fm, "limited": huber}
    )
    assert huber < 0.9 * fm


def test_weights_of_one_change_nothing() -> None:
    flow = make("mixed-5d")
    batch = _batch(flow)._replace(log_target=torch.linspace(-9.0, 9.0, 32).double())
    mix = Mix(nll=(1.0, NLL()), fm=(1.0, ForceMatching(_tilted, 0.5)), em=(1.0, EnergyMatching(2.0)))
    ones = batch._replace(weight=torch.ones(32).double())
    torch.testing.assert_close(mix(flow, ones), mix(flow, batch))


def test_points_without_weight_matter_for_their_densities_only() -> None:
    flow = make("mixed-5d")
    batch = _weighted(flow)
    none = batch.weight == 0
    other = batch._replace(
        x=torch.where(none[:, None], points(flow, 32, seed=9), batch.x),
        force=torch.where(none[:, None], 1e6, batch.force),
    )
    mix = Mix(nll=(1.0, NLL()), fm=(1.0, ForceMatching(_tilted, 0.5)), em=(1.0, EnergyMatching()))
    before, after = mix(flow, batch)[1], mix(flow, other)[1]
    for name in ("nll", "fm"):
        torch.testing.assert_close(after[name], before[name])
    assert abs(after["em"] - before["em"]) > 1e-3


@pytest.mark.parametrize("limit", [0.5, 3.0, 1e6])
def test_energy_matching_against_a_loop(limit: float) -> None:
    flow = make("mixed-5d")
    for batch in (_weighted(flow), _weighted(flow)._replace(weight=None)):
        errors = (flow.log_prob(batch.x) - batch.log_target).tolist()
        weight = [1.0] * 32 if batch.weight is None else batch.weight.tolist()
        centre = sorted(e for e, w in zip(errors, weight, strict=True) if w > 0)
        middle = centre[(len(centre) - 1) // 2]  # of two in the middle the lower one
        expected = sum(_huber(e - middle, limit) for e in errors) / 32
        found = Mix(em=(1.0, EnergyMatching(limit)))(flow, batch)[0]
        assert float(found) == pytest.approx(expected)
        # A constant is no error.
        shifted = batch._replace(log_target=batch.log_target + 1234.5)
        assert float(Mix(em=(1.0, EnergyMatching(limit)))(flow, shifted)[0]) == pytest.approx(expected)


def test_shares_of_a_batch_make_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The means over processes, of losses and gradients, though shares differ in size and in weights."""
    flow, batch = make("mixed-5d"), _weighted(make("mixed-5d"))
    terms = {"nll": (1.0, NLL()), "fm": (0.1, ForceMatching()), "em": (0.5, EnergyMatching())}
    mix, parts = Mix(**terms), [select(batch, torch.arange(32)[rank::3]) for rank in range(3)]
    whole, values = mix(flow, batch)
    gradient = torch.autograd.grad(whole, list(flow.parameters()))
    errors = (flow.log_prob(batch.x) - batch.log_target).detach()
    errors = torch.where(batch.weight > 0, errors, math.nan)
    counts = [torch.stack([term.count(part) for _, term in terms.values()]) for part in parts]
    assert len({tuple(count.tolist()) for count in counts}) > 1
    monkeypatch.setattr(ranks, "size", lambda: 3)
    monkeypatch.setattr(ranks, "total", lambda values: sum(counts))
    monkeypatch.setattr(ranks, "gathered", lambda values: errors)
    shares = [mix(flow, part, mix.shares(part)) for part in parts]
    torch.testing.assert_close(sum(total for total, _ in shares) / 3, whole)
    for name, value in values.items():
        torch.testing.assert_close(sum(found[name] for _, found in shares) / 3, value)
    found = torch.autograd.grad(sum(total for total, _ in shares) / 3, list(flow.parameters()))
    for mean, expected in zip(found, gradient, strict=True):
        torch.testing.assert_close(mean, expected)


def test_the_exact_density_has_no_energy_error() -> None:
    flow = make("mixed-5d")
    batch = _weighted(flow)
    batch = batch._replace(log_target=flow.log_prob(batch.x).detach() - 77.0)
    total, _ = Mix(em=(1.0, EnergyMatching()))(flow, batch)
    assert float(total) < 1e-20
    total.backward()
    assert all(p.grad is None or p.grad.abs().max() < 1e-9 for p in flow.parameters())


def test_the_gradient_of_energy_matching_is_its_slope_at_a_fixed_constant() -> None:
    """The constant is chosen anew in every step, and does not carry gradients."""
    flow, step = make("mixed-5d"), 1e-6
    batch = _weighted(flow)
    centre = float((flow.log_prob(batch.x) - batch.log_target)[batch.weight > 0].median())
    Mix(em=(1.0, EnergyMatching(2.0)))(flow, batch)[0].backward()
    weights = [p for p in flow.parameters() if p.grad is not None]
    random = torch.Generator().manual_seed(3)
    along = [torch.randn(p.shape, generator=random, dtype=p.dtype) for p in weights]
    ends = []
    with torch.no_grad():
        for move in (step, -2 * step):
            for p, v in zip(weights, along, strict=True):
                p += move * v
            errors = (flow.log_prob(batch.x) - batch.log_target - centre).tolist()
            ends.append(sum(_huber(e, 2.0) for e in errors) / 32)
    slope = sum(float((p.grad * v).sum()) for p, v in zip(weights, along, strict=True))
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-5)


def test_the_loss_of_a_configuration() -> None:
    config = LossConfig.parse({"force_matching": 0.5, "force_limit": 0.25, "energy_matching": 2.0})
    mix = make_loss(config, metric=_tilted)
    flow = make("mixed-5d")
    expected = Mix(
        nll=(1.0, NLL()),
        force_matching=(0.5, ForceMatching(_tilted, 0.25)),
        energy_matching=(2.0, EnergyMatching()),
    )
    torch.testing.assert_close(mix(flow, _weighted(flow)), expected(flow, _weighted(flow)))
    assert mix.needs_target and not make_loss(LossConfig()).needs_target
    with pytest.raises(ValueError, match=r"energy matching needs densities: give Batch\(x, log_target=...\)"):
        mix(flow, _batch(flow))


def test_reverse_kl_against_quadrature() -> None:
    """On a circle: E_p[log p + u] by the midpoint rule."""
    flow = make("circle-1d")

    def energy(x: Tensor) -> Tensor:
        return -2.0 * torch.cos(x[..., 0] - 0.5)

    n = 4000
    x = (-math.pi + 2 * math.pi * (torch.arange(n, dtype=torch.float64) + 0.5) / n).unsqueeze(-1)
    log_p = flow.log_prob(x)
    exact = ((log_p + energy(x)) * log_p.exp()).sum() * 2 * math.pi / n
    torch.manual_seed(0)
    draws = torch.stack([Mix(kl=(1.0, ReverseKL(energy, 2000)))(flow, Batch(x[:1]))[0] for _ in range(20)])
    assert abs(draws.mean() - exact) < 5 * draws.std() / math.sqrt(20)


def test_reverse_kl_pulls_a_flow_to_the_energy() -> None:
    flow = make("line-1d")

    def energy(x: Tensor) -> Tensor:
        return 0.5 * ((x[..., 0] - 0.7) / 0.3).square()

    loss = Mix(kl=(1.0, ReverseKL(energy, 256)))
    optimizer = torch.optim.Adam(flow.parameters(), lr=2e-2)
    torch.manual_seed(0)
    batch = Batch(torch.empty(1, 1, dtype=torch.float64))
    for _ in range(200):
        optimizer.zero_grad()
        total, _ = loss(flow, batch)
        total.backward()
        optimizer.step()
    # The least value of the loss is minus the log-normaliser.
    assert abs(loss(flow, batch)[0] + math.log(0.3 * math.sqrt(2 * math.pi))) < 0.02
    assert abs(flow.sample(4000).mean() - 0.7) < 0.03


class _Untouchable(Term):
    needs_score = True

    def __call__(self, view: View) -> Tensor:
        raise AssertionError("a term of weight 0 was evaluated")


def test_a_term_of_weight_zero_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = make("circle-2d")
    mix = Mix(nll=(1.0, NLL()), other=(0.0, _Untouchable()))
    assert not mix.needs_score
    monkeypatch.setattr(kf.Flow, "log_prob_and_score", None)  # calling it would fail
    total, values = mix(flow, Batch(points(flow, 8)))
    assert set(values) == {"nll"} and total.isfinite()


def test_the_pass_through_the_flow_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    flow, calls = make("circle-2d"), []
    original = kf.Flow.forward

    def counting(self: kf.Flow, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return original(self, *arguments)

    monkeypatch.setattr(kf.Flow, "forward", counting)
    Mix(nll=(1.0, NLL()), fm=(1.0, ForceMatching()))(flow, _batch(flow))
    assert len(calls) == 1


def test_wrong_mixtures_are_refused() -> None:
    with pytest.raises(ValueError, match="weight of nll must be finite and not negative, got -1"):
        Mix(nll=(-1.0, NLL()))
    with pytest.raises(ValueError, match="needs a term of positive weight"):
        Mix(nll=(0.0, NLL()))
    flow = make("circle-2d")
    with pytest.raises(ValueError, match="force matching needs forces"):
        Mix(fm=(1.0, ForceMatching()))(flow, Batch(points(flow, 4)))


# --- the same loss, transform by transform ----------------------------------------------------------------


def _energy(x: Tensor) -> Tensor:
    return x.square().sum(-1) + x[..., 0].cos()


def _tilted(x: Tensor, error: Tensor) -> Tensor:
    """A metric: linear in the error, more numbers than coordinates, another one at every point."""
    return torch.cat([error * (2 + torch.sin(x)), error.sum(-1, keepdim=True)], -1)


class _Both(Term):
    """A term that mixes log-densities and scores."""

    needs_log_prob = True
    needs_score = True

    def __call__(self, view: View) -> Tensor:
        assert view.log_prob is not None and view.score is not None
        return (view.score.square().sum(-1) * torch.sigmoid(view.log_prob)).mean()


MIXES = {
    "likelihood": lambda: Mix(nll=(0.7, NLL())),
    "forces": lambda: Mix(fm=(0.3, ForceMatching())),
    "forces, metric": lambda: Mix(fm=(0.3, ForceMatching(_tilted))),
    "likelihood and forces": lambda: Mix(nll=(0.9, NLL()), fm=(0.1, ForceMatching(_tilted))),
    "energies": lambda: Mix(kl=(0.5, ReverseKL(_energy, 20))),
    "all": lambda: Mix(nll=(0.9, NLL()), fm=(0.1, ForceMatching()), kl=(0.5, ReverseKL(_energy, 20))),
    "both in a term": lambda: Mix(nll=(0.9, NLL()), mine=(0.4, _Both()), fm=(0.1, ForceMatching())),
    "forces, limited": lambda: Mix(fm=(0.3, ForceMatching(_tilted, 1.5))),
    "two of the score": lambda: Mix(fm=(0.1, ForceMatching()), tilted=(0.2, ForceMatching(_tilted))),
}


def _evaluate(
    loss: Compiled[..., Any] | Mix, flow: kf.Flow, batch: Batch
) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
    """The loss, its terms and its gradient, with the same random numbers at every call."""
    flow.zero_grad()
    torch.manual_seed(7)
    total, values = loss(flow, batch)
    total.backward()
    return total.detach(), values, [p.grad.clone() for p in flow.parameters() if p.grad is not None]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["mixed-5d", "context-2d", "whitened-4d"])
@pytest.mark.parametrize("mix", MIXES)
def test_the_gradient_is_the_slope_of_the_loss(name: str, mix: str, weighted: bool) -> None:
    """Second derivatives of force matching included, by central differences along a random direction."""
    flow = make(name)
    batch = (_weighted if weighted else _batch)(flow, 16)._replace(context=context(flow, 16))
    loss, random, step = MIXES[mix](), torch.Generator().manual_seed(3), 1e-6
    total, values, gradient = _evaluate(loss, flow, batch)
    assert list(values) == list(loss.terms) and not any(value.requires_grad for value in values.values())
    weights = [p for p in flow.parameters() if p.grad is not None]
    along = [torch.randn(p.shape, generator=random, dtype=p.dtype) for p in weights]
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, v in zip(weights, along, strict=True):
                p += sign * step * v
        ends.append(_evaluate(loss, flow, batch)[0])
        with torch.no_grad():
            for p, v in zip(weights, along, strict=True):
                p -= sign * step * v
    slope = sum(float((g * v).sum()) for g, v in zip(gradient, along, strict=True))
    assert float(ends[0] - ends[1]) / (2 * step) == pytest.approx(
        slope, rel=1e-5, abs=1e-6 * float(total.abs())
    )


@pytest.mark.parametrize("mix", MIXES)
def test_values_are_those_of_terms_of_the_data(mix: str) -> None:
    flow = make("mixed-5d")
    made, batch = MIXES[mix](), _batch(flow, 16)
    found, (_, expected) = made.values(flow, batch), made(flow, batch)
    assert set(found) == set(made.terms) - {"kl"}, "samples are no matter of validation data"
    assert not any(value.requires_grad for value in found.values())
    torch.testing.assert_close(found, {name: expected[name] for name in found}, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_compiled_and_eager_losses_and_gradients_agree(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    flow = kf.Flow.on([kf.Interval(-1.0, 2.0)], rounds=1, transform={"bins": 2, "order": 3}).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    batch, mix = _batch(flow, 16), MIXES["likelihood and forces"]()
    compiled = Compiled(mix, task="training")
    with caplog.at_level(logging.WARNING, logger="knotflow"):
        found = _evaluate(compiled, flow, batch)
    assert compiled.compiled and "torch.compile failed" not in caplog.text
    torch.testing.assert_close(found, _evaluate(mix, flow, batch), atol=1e-9, rtol=1e-7)


def test_what_cannot_be_compiled_runs_eagerly_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where there is no C++ compiler: the loss is right, and one warning is enough."""

    def no_compiler(graph: object, inputs: object, **_: object) -> None:
        raise OSError("no C++ compiler was found")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=no_compiler))
    flow = kf.Flow.on([kf.Interval()], rounds=1, transform={"bins": 2, "order": 3}).double()
    batch = _batch(flow, 8)
    mix = Mix(nll=(1.0, NLL()), fm=(1.0, ForceMatching()))
    loss = Compiled(mix, task="training")
    assert loss.compiled
    with caplog.at_level(logging.WARNING, logger="knotflow"):
        found = [_evaluate(loss, flow, batch) for _ in range(2)]
    assert not loss.compiled
    said = [record.getMessage() for record in caplog.records if record.name == "knotflow"]
    assert len(said) == 1 and "no C++ compiler" in said[0] and "training continues without it" in said[0]
    expected = _evaluate(mix, flow, batch)
    for one in found:
        torch.testing.assert_close(one, expected, rtol=1e-9, atol=1e-10)


def test_a_mistake_is_not_hidden_by_the_fallback() -> None:
    flow = make("circle-2d")
    loss = Compiled(Mix(fm=(1.0, ForceMatching())), task="training")
    with pytest.raises(ValueError, match="force matching needs forces"):
        loss(flow, Batch(points(flow, 4)))


def test_own_loops_need_no_lightning() -> None:
    """What "Without Lightning" in the docs imports; `fit` says what to install."""
    code = """
import sys
sys.modules["lightning"] = None
import torch
import knotflow as kf
from knotflow.training import NLL, Batch, ForceMatching, LossConfig, Mix, ReverseKL, Term, make_loss
from knotflow.training.data import Batches
from knotflow.training.marginals import fit_marginals

flow = kf.Flow.on([kf.Line(-2.0, 2.0)], transform={"bins": 8})
(batch,) = Batches(Batch(torch.zeros(4, 1)), 4, 0, 0, 1)
print(float(make_loss(LossConfig())(flow, batch)[0]))
try:
    from knotflow.training import fit
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loss, message = done.stdout.splitlines()
    assert math.isfinite(float(loss))
    assert message == "training runs need lightning, not installed here; run: pip install 'knotflow[train]'"
