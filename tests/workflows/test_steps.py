"""Steps: what is done is not done again, and many stages are one progress."""

from typing import Any

import pytest

from knotflow.progress import Progress
from knotflow.workflows.steps import Step, run_steps


class Made:
    """Results that steps made: their inputs."""

    def __init__(self) -> None:
        self.results: dict[str, dict[str, Any]] = {}
        self.order: list[str] = []

    def step(self, name: str, *, reports: list[tuple[float, float]] = (), **options: Any) -> Step:
        inputs = options.pop("inputs", {"seed": 0})

        def run(progress: Progress) -> None:
            self.order.append(name)
            for done, total in reports:
                progress("working", done, total, "a note")
            self.results[name] = inputs

        return Step(name, lambda: inputs, lambda: self.results.get(name), run, **options)


def test_only_what_is_missing_or_of_other_inputs_is_made() -> None:
    made = Made()
    assert run_steps([made.step("a"), made.step("b")]) == 2 and made.order == ["a", "b"]
    assert run_steps([made.step("a"), made.step("b")]) == 0
    assert run_steps([made.step("a"), made.step("b", inputs={"seed": 1}), made.step("c")]) == 2
    assert made.order == ["a", "b", "b", "c"]


def test_inputs_are_asked_only_where_there_is_a_result() -> None:
    def refuse() -> dict[str, Any]:
        raise FileNotFoundError("the data are made by this step")

    step = Step("a", refuse, lambda: None, lambda progress: None)
    assert not step.is_done and run_steps([step]) == 1


def test_progress_is_that_of_all_steps() -> None:
    made, told = Made(), []
    made.results["b"] = {"seed": 0}
    steps = [
        made.step(
            "a", seconds=10, stages=(1, 1), reports=[(0, 4), (2, 4), (4, 4), (0, 0), (5, 10), (10, 10)]
        ),
        made.step("b", seconds=5),
        made.step("c", seconds=20, quiet=0.5, reports=[(0, 2), (1, 2)]),
    ]
    run_steps(steps, lambda *report: told.append(report))
    assert {total for _, _, total, *_ in told} == {35}
    seconds = {"step 1 of 3: a": [0, 0, 2.5, 5, 5, 7.5, 10, 10], "step 3 of 3: c": [15, 25, 30, 35]}
    for title, expected in seconds.items():
        assert [done for doing, done, *_ in told if doing == title] == pytest.approx(expected)
    assert told[1][3] == "a note"
