"""Terms of the loss, their mixtures, and the compiled graph."""

import logging
import math

import pytest
import torch
from torch import Tensor

import knotflow as kf
from knotflow.training import NLL, Batch, CompiledLoss, ForceMatching, Mix, ReverseKL, Term
from knotflow.training.objectives import View
from tests.flows.registry import make, points


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


@pytest.mark.slow
def test_compiled_and_eager_losses_and_gradients_agree() -> None:
    torch.manual_seed(0)
    domains = [kf.Circle(-math.pi, math.pi), kf.Interval(0.05, 0.3), kf.Line(-2.0, 2.0)]
    flow = kf.Flow.on(domains, rounds=1, transform={"bins": 5}, conditioner={"hidden": [8]}).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    batch = _batch(flow, 16)
    mix = Mix(nll=(0.9, NLL()), fm=(0.1, ForceMatching()))

    def evaluate(loss: CompiledLoss | Mix) -> tuple[Tensor, dict[str, Tensor], list[Tensor]]:
        flow.zero_grad()
        total, values = loss(flow, batch)
        total.backward()
        return total.detach(), values, [p.grad.clone() for p in flow.parameters() if p.grad is not None]

    compiled = CompiledLoss(mix)
    found, expected = evaluate(compiled), evaluate(mix)
    assert compiled.compiled, "the loss did not compile as one graph"
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-7)


def test_what_cannot_be_compiled_runs_eagerly_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    flow = make("interval-1d")

    @torch.compiler.disable
    def energy(x: Tensor) -> Tensor:
        return x[..., 0].square()

    loss = CompiledLoss(Mix(kl=(1.0, ReverseKL(energy, 4))))
    with caplog.at_level(logging.WARNING, logger="knotflow"):
        total, _ = loss(flow, Batch(points(flow, 4)))
        loss(flow, Batch(points(flow, 4)))
    assert total.isfinite() and not loss.compiled
    assert len(caplog.records) == 1 and "goes on eagerly" in caplog.text


def test_a_mistake_is_not_hidden_by_the_fallback() -> None:
    flow = make("circle-2d")
    loss = CompiledLoss(Mix(fm=(1.0, ForceMatching())))
    with pytest.raises(ValueError, match="force matching needs forces"):
        loss(flow, Batch(points(flow, 4)))
