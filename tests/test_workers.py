"""Worker processes: tasks, deaths, errors, and that nobody is left behind."""

import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from knotflow.workers import WorkerError, WorkerPool, report

TARGET = "tests.test_workers:obey"
PATIENCE = 20.0  # seconds, for what takes a moment on an idle machine


def obey(setup: dict[str, str]) -> Callable[[tuple[str, Any]], Any]:
    """What the workers run: a task is an order and its argument."""
    print("a library that prints while it is set up")
    if "refuse" in setup:
        raise ValueError(setup["refuse"])
    return lambda task: ORDERS[task[0]](task[1])


def late(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def noisy(text: str) -> str:
    print(text, flush=True)
    os.system("echo from a child; cat")  # children find neither the pipe of the results nor that of the tasks
    return text


def die_once(marker: str) -> str:
    """Die by SIGKILL unless the file exists, which is made first."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def fail(kind: str) -> None:
    class LocalError(ValueError):
        """Has no name by which it could be pickled."""

    errors = {
        "value": ValueError("expected 3, got 4"),
        "file": FileNotFoundError(errno.ENOENT, "No such file", "x.pdb"),
        "key": KeyError("colour"),
        "local": LocalError("no pickle of me"),
    }
    raise errors[kind]


def count(n: int) -> int:
    for i in range(n):
        report({"done": i})
    return n


ORDERS: dict[str, Callable[[Any], Any]] = {
    "square": lambda x: x * x,
    "length": len,
    "zeros": bytes,
    "pid": lambda _: os.getpid(),
    "environment": os.environ.get,
    "late": late,
    "count": count,
    "print": noisy,
    "interrupt": lambda _: os.kill(os.getpid(), signal.SIGINT),
    "die once": die_once,
    "exit": os._exit,
    "fail": fail,
    "lambda": lambda _: lambda: None,
}


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(TARGET, {}, 2) as pool:
        yield pool


def alive(pid: int) -> bool:
    """Whether a process is there, dead ones that nobody collected included."""
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def wait_until_gone(*processes: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while left := [pid for pid in processes if alive(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.02)


def test_results_come_in_order(pool: WorkerPool) -> None:
    assert pool.map(("square", i) for i in range(50)) == [i * i for i in range(50)]
    assert pool.map([]) == []
    # More than a pipe holds, both ways.
    assert pool.map([("length", bytes(3_000_000)), ("zeros", 3_000_000)]) == [3_000_000, bytes(3_000_000)]


def test_tasks_go_to_idle_workers_and_come_back_when_done(pool: WorkerPool) -> None:
    pool.map([("late", 0.1)] * 2)
    slow, *quick = [("late", 1.0), *[("pid", None)] * 5]
    found = list(pool.imap_unordered([slow, *quick]))
    assert [index for index, _ in found] == [1, 2, 3, 4, 5, 0]
    assert len({pid for _, pid in found[:-1]}) == 1
    assert os.getpid() not in dict(found).values()


def test_reports_come_before_the_result(pool: WorkerPool) -> None:
    heard: list[tuple[int, Any]] = []
    tasks = [("count", 3), ("square", 3), ("count", 2)]
    found = dict(pool.imap_unordered(tasks, lambda index, value: heard.append((index, value["done"]))))
    assert found == {0: 3, 1: 9, 2: 2}
    assert sorted(heard) == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    assert pool.map(tasks) == [3, 9, 2]  # nobody listens
    report("no parent")  # this process is no worker


def test_workers_keep_their_pipes_and_one_thread(pool: WorkerPool) -> None:
    variables = ["OMP_NUM_THREADS", "OPENMM_CPU_THREADS"]
    assert pool.map([("environment", name) for name in variables]) == ["1", "1"]
    assert pool.map([("print", "\x00 in the way")] * 3) == ["\x00 in the way"] * 3
    before = pool.map([("pid", None)])
    pool.map([("interrupt", None)])
    assert pool.map([("pid", None)]) == before


def test_a_killed_worker_is_replaced_and_its_task_repeated(pool: WorkerPool, tmp_path: Path) -> None:
    tasks = [("die once", str(tmp_path / "marker")), *[("square", i) for i in range(10)]]
    assert pool.map(tasks) == ["survived", *[i * i for i in range(10)]]
    # From outside, in the middle of a task; then while idle.
    results, tasks = {}, [("pid", None), *[("late", 0.5)] * 3, ("pid", None)]
    for index, result in pool.imap_unordered(tasks):
        results[index] = result
        if index == 0:
            os.kill(result, signal.SIGKILL)
    assert results[1] == results[2] == results[3] == 0.5 and results[4] != results[0]
    os.kill(results[4], signal.SIGKILL)
    time.sleep(0.2)
    assert pool.map([("square", i) for i in range(10)]) == [i * i for i in range(10)]


def test_a_task_that_always_kills_its_worker_is_given_up() -> None:
    with WorkerPool(TARGET, {}, 1) as pool:
        message = "task 1 was given up because its worker died 3 times, the last time with exit status 7;"
        with pytest.raises(WorkerError, match=message):
            pool.map([("square", 2), ("exit", 7)])


@pytest.mark.parametrize(
    ("task", "kind", "message"),
    [
        (("fail", "value"), ValueError, "^expected 3, got 4"),
        (("fail", "file"), FileNotFoundError, "No such file: 'x.pdb'"),
        (("fail", "key"), WorkerError, "^a task failed in a worker: KeyError: 'colour'$"),
        (("fail", "local"), WorkerError, "LocalError: no pickle of me"),
        (("lambda", None), WorkerError, "pickle"),
    ],
)
def test_exceptions_travel(pool: WorkerPool, task: tuple[str, Any], kind: type, message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        pool.map([task])
    assert type(caught.value) is kind
    if kind is ValueError:
        assert "in fail" in caught.value.__notes__[0]  # where in the worker
    assert pool.map([("square", 3)]) == [9]


def test_failed_preparation_is_told_and_a_pool_that_is_forgotten_leaves() -> None:
    pool = WorkerPool(TARGET, {"refuse": "no such molecule"}, 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such molecule"):
            pool.map([("square", 2)])
    (worker,) = pool._staff
    pid = worker._process.pid
    assert alive(pid)
    del pool, worker
    gc.collect()  # the exceptions know the frames that knew the pool
    wait_until_gone(pid)


def test_an_iteration_that_ends_early_frees_the_pool(pool: WorkerPool) -> None:
    began = time.monotonic()
    tasks = pool.imap_unordered([("pid", None), ("late", 60.0), ("late", 60.0)])
    assert next(tasks)[0] == 0
    with pytest.raises(ValueError, match="already doing tasks"):
        pool.map([("square", 2)])
    tasks.close()
    assert pool.map([("square", i) for i in range(5)]) == [0, 1, 4, 9, 16]
    assert time.monotonic() - began < 30


def test_closing_stops_all_workers_and_may_be_repeated() -> None:
    pool = WorkerPool(TARGET, {}, 2)
    pool.close()
    assert not pool._staff  # nothing started yet
    pool = WorkerPool(TARGET, {}, 2)
    busy = pool.imap_unordered([("pid", None), ("late", 60.0), ("late", 60.0)])
    next(busy)
    staff = [worker._process.pid for worker in pool._staff]
    assert len(staff) == 2
    pool.close()
    assert not any(map(alive, staff))  # no zombies either
    with pytest.raises(ValueError, match="closed"):
        next(busy)
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.map([("square", 2)])


@pytest.mark.parametrize(
    ("target", "workers", "message"),
    [
        ("math", 1, "\"package.module:function\", got 'math'"),
        (":sqrt", 1, '"package.module:function"'),
        (TARGET, 0, "at least 1, got 0"),
        (TARGET, True, "got True"),
        (TARGET, 1.5, "got 1.5"),
    ],
)
def test_mistakes_are_explained(target: str, workers: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WorkerPool(target, {}, workers)


SCRIPT = """
    import sys
    from knotflow.workers import WorkerPool

    pool = WorkerPool("beside:prepare", 2, workers=int(sys.argv[1]))
    for index, result in pool.imap_unordered(range(20)):
        print(*result, flush=True)
    if "stay" in sys.argv:
        pool.map([600])
"""
BESIDE = """
    import os, time

    def prepare(factor):
        def work(task):
            time.sleep(task if task > 100 else 0.05)
            return os.getpid(), factor * task
        return work
"""


def start_script(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A user's script, without a main guard, whose workers need a module beside it."""
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
    (folder / "beside.py").write_text(textwrap.dedent(BESIDE))
    command = [sys.executable, str(folder / "script.py"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")


def test_a_script_without_main_guard(tmp_path: Path) -> None:
    output, errors = start_script(tmp_path, "2").communicate(timeout=60)
    rows = [tuple(map(int, line.split())) for line in output.splitlines()]
    assert sorted(result for _, result in rows) == [2 * i for i in range(20)]
    assert errors == ""
    workers = {pid for pid, _ in rows}
    wait_until_gone(*workers)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_leave_with_their_parent_in_the_middle_of_tasks(tmp_path: Path, how: signal.Signals) -> None:
    with start_script(tmp_path, "1", "stay") as script:
        workers = {int(script.stdout.readline().split()[0]) for _ in range(20)}  # type: ignore[union-attr]
        time.sleep(0.3)
        assert all(map(alive, workers))
        began = time.monotonic()
        script.send_signal(how)
        _, errors = script.communicate(timeout=PATIENCE)
        wait_until_gone(*workers)
    assert time.monotonic() - began < PATIENCE
    assert script.returncode == -how
    assert errors.strip().endswith("KeyboardInterrupt") if how == signal.SIGINT else errors == ""
