"""Functions compiled as one graph: when they are tried, tried again, and given up."""

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from knotflow import compiled
from knotflow.compiled import Compiled, use_private_cache


def double(x: Tensor) -> Tensor:
    return 2 * x


class FakeCompiler:
    """Stands for ``torch.compile``: notes every call, and fails where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Callable[[int, bool], bool]) -> None:
        self.calls: list[bool] = []
        self.options: dict[str, Any] = {}
        self.fails = fails
        self.error: BaseException = RuntimeError("no C++ compiler\nand more")
        monkeypatch.setattr(torch, "compile", self)

    def __call__(self, function: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
        self.options = options

        def graph(*arguments: Tensor) -> Tensor:
            constants = bool(torch._dynamo.config.specialize_float)
            self.calls.append(constants)
            if self.fails(len(self.calls), constants):
                raise self.error
            return function(*arguments)

        return graph


def test_it_is_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCompiler(monkeypatch, lambda number, constants: False)
    f = Compiled(double, task="training", dynamic=True)
    assert f.compiled and float(f(torch.ones(()))) == 2
    assert fake.options == {"fullgraph": True, "dynamic": True, "options": None}


def test_without_compilation_the_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCompiler(monkeypatch, lambda number, constants: True)
    f = Compiled(double, task="training", enabled=False)
    assert not f.compiled and float(f(torch.ones(()))) == 2 and fake.calls == [] and fake.options == {}


def test_numbers_are_constants_in_the_first_call_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is for compiling; afterwards it would only cost time."""
    fake = FakeCompiler(monkeypatch, lambda number, constants: False)
    before = torch._dynamo.config.specialize_float
    f = Compiled(double, task="training")
    for _ in range(3):
        f(torch.ones(()))
    assert fake.calls == [True, before, before]
    assert torch._dynamo.config.specialize_float == before


def test_a_later_failure_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As with another shape, for which the numbers must be constants once more."""
    fake = FakeCompiler(monkeypatch, lambda number, constants: number == 2)
    f = Compiled(double, task="training")
    with caplog.at_level(logging.WARNING, logger="knotflow"):
        assert [float(f(torch.ones(()))) for _ in range(3)] == [2, 2, 2]
    assert fake.calls == [True, False, True, False]
    assert f.compiled and not caplog.records


@pytest.mark.parametrize("first", [1, 2])
def test_what_cannot_be_compiled_runs_eagerly_and_says_so_once(
    first: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeCompiler(monkeypatch, lambda number, constants: number >= first)
    f = Compiled(double, task="sampling")
    with caplog.at_level(logging.WARNING, logger="knotflow"):
        assert [float(f(torch.ones(()))) for _ in range(4)] == [2] * 4
    assert not f.compiled and len(fake.calls) == (1 if first == 1 else 3)
    assert [record.getMessage() for record in caplog.records] == [
        "torch.compile failed (no C++ compiler); sampling continues without it, more slowly."
    ]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AssertionError(), "AssertionError"),
        (RuntimeError("backend='inductor' raised:\nNo working C++ compiler\n\nSet X=1"), None),
        (RuntimeError("Hard failure\nbecause"), "Hard failure"),
    ],
)
def test_the_reason_is_told_in_a_few_words(
    error: Exception, reason: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeCompiler(monkeypatch, lambda number, constants: True)
    fake.error = error
    with caplog.at_level(logging.WARNING, logger="knotflow"):
        Compiled(double, task="training")(torch.ones(()))
    expected = reason or "backend='inductor' raised: No working C++ compiler"
    assert f"torch.compile failed ({expected}); training" in caplog.text


def test_a_mistake_of_the_caller_is_told_and_forgiven(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def positive(x: Tensor) -> Tensor:
        if x.ndim:
            raise ValueError("expected a number.")
        return 2 * x

    FakeCompiler(monkeypatch, lambda number, constants: False)
    f = Compiled(positive, task="training")
    with caplog.at_level(logging.WARNING, logger="knotflow"):
        with pytest.raises(ValueError, match=r"^expected a number\.$"):
            f(torch.ones(2))
        f(torch.ones(()))
        with pytest.raises(ValueError, match=r"^expected a number\.$"):
            f(torch.ones(2))
        assert float(f(torch.ones(()))) == 2
    assert f.compiled and not caplog.records


def test_ctrl_c_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCompiler(monkeypatch, lambda number, constants: number == 2)
    fake.error = KeyboardInterrupt()
    f = Compiled(double, task="training")
    f(torch.ones(()))
    with pytest.raises(KeyboardInterrupt):
        f(torch.ones(()))
    assert f.compiled and len(fake.calls) == 2


def along(x: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
    return torch.func.jvp(lambda x: torch.sin(2 * x) + 1, (x,), (tangent,))


def test_directional_derivatives_of_many_shapes_stay_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PyTorch makes a variant for every shape of these, and gives up after eight unless told otherwise."""
    # All of PyTorch's compilation but the last, slow step, which needs a C++ compiler.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    f = Compiled(along, task="training", dynamic=True)
    with caplog.at_level(logging.WARNING, logger="knotflow"):
        for n in range(2, 13):
            x, tangent = torch.rand(n), torch.rand(n)
            torch.testing.assert_close(f(x, tangent), along(x, tangent))
    assert f.compiled and "torch.compile failed" not in caplog.text


def test_too_many_variants_end_the_compilation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(compiled, "VARIANTS", 2)
    f = Compiled(lambda *both: along(*both), task="training", dynamic=True)
    # Not by monkeypatch: PyTorch's configuration loses an attribute that is set back from outside.
    limit = torch._dynamo.config.patch(recompile_limit=2)
    with limit, caplog.at_level(logging.WARNING, logger="knotflow"):
        for n in range(20, 26):
            x, tangent = torch.rand(n), torch.rand(n)
            torch.testing.assert_close(f(x, tangent), along(x, tangent))
    assert not f.compiled and caplog.text.count("training continues without it") == 1


def test_the_cache_of_compiled_code_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # to have it restored
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    use_private_cache()
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder == tmp_path / "knotflow" / "torch" and folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    use_private_cache()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"
