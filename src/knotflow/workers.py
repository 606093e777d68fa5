"""A pool of worker processes, which prepare once and then do many tasks.

Workers are fresh interpreters that run this module (``python -m knotflow.workers``). They exchange pickles
with the parent through their standard input and output. They do not run the user's script again, so scripts
need no ``if __name__ == "__main__":``. Pickles are safe here because both ends are our own processes on one
machine.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, BinaryIO, Final, Self, cast

ATTEMPTS: Final = 3
"""A task is given up when its worker has died this many times."""


def usable_cores() -> int:
    """Number of processor cores this process may use: its share, if ``torchrun`` started several here."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class WorkerError(RuntimeError):
    """A task killed its worker three times, or raised an error other than `ValueError` and `OSError`."""


class WorkerPool:
    """Worker processes that each call ``work = function(setup)`` once and then ``work(task)`` for many tasks.

    The processes start when there are tasks for them and run until the pool is closed: by `close`, at the end
    of a ``with`` block, when the pool is garbage-collected or when the interpreter exits. They also exit when
    the parent is killed. They use one thread each, find modules where the parent does (its ``sys.path``), and
    print to standard error.

    A worker that dies is replaced and its task repeated, so tasks should not depend on earlier ones. Any
    thread may use the pool, but only one at a time.

    Args:
        target: ``"package.module:function"``, the function that returns ``work``.
        setup: The argument of the function. It, tasks and results must be picklable.
        workers: Number of processes, at least 1.
    """

    def __init__(self, target: str, setup: object, workers: int) -> None:
        module, _, function = target.partition(":")
        if not (module and function):
            raise ValueError(f'target must be "package.module:function", got {target!r}.')
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers must be a whole number of at least 1, got {workers!r}.")
        self.workers = workers
        self._greeting = pickle.dumps((module, function, setup))
        self._staff: list[_Worker] = []
        self._inbox: Inbox = SimpleQueue()
        self._in_use = threading.Lock()
        self._dismiss = weakref.finalize(self, _stop_all, self._staff)

    def map(self, tasks: Iterable[Any]) -> list[Any]:
        """The results of all tasks, in order; see `imap_unordered`."""
        results = dict(self.imap_unordered(tasks))
        return [results[index] for index in range(len(results))]

    def imap_unordered(
        self, tasks: Iterable[Any], on_report: Callable[[int, Any], None] = lambda index, value: None
    ) -> Iterator[tuple[int, Any]]:
        """Give each task to the next idle worker; yield its number and its result as soon as it is done.

        If the iteration ends early (by an error, an interrupt or the caller), workers that still have a task
        are killed. The pool remains usable and starts new ones.

        Args:
            tasks: The tasks, in any iterable.
            on_report: Called with the number of a task and the value that its worker passes to `report`.

        Raises:
            ValueError: raised by ``function`` or ``work``; `OSError` likewise.
            WorkerError: for any other exception in a worker, or for a task whose worker died three times.
        """
        if not self._in_use.acquire(blocking=False):
            raise ValueError(
                "this pool of workers is already doing tasks; finish that iteration first, or use two pools."
            )
        fresh = (_Job(index, pickle.dumps(task)) for index, task in enumerate(tasks))
        again: list[_Job] = []
        busy: dict[_Worker, _Job] = {}
        try:
            while True:
                self._check_open()
                while len(busy) < self.workers and (job := again.pop() if again else next(fresh, None)):
                    self._hand_out(job, busy)
                if not busy:
                    return
                worker, reply, is_last = self._inbox.get()
                if not is_last:
                    if reply is not None and worker in busy:
                        on_report(busy[worker].index, pickle.loads(reply))
                    continue
                if reply is None:
                    self._forget([worker])
                job = busy.pop(worker, None)
                if job is None:  # a late reply from a worker that was killed in an earlier iteration
                    continue
                if reply is None:
                    job.check_attempts(worker.stop(patience=1.0))
                    again.append(job)
                else:
                    yield job.index, unpacked(reply)
        finally:
            self._forget(busy)
            self._in_use.release()
            _stop_all(list(busy))

    def close(self) -> None:
        """Stop all workers, even in the middle of a task, for good; closing again does nothing."""
        self._dismiss()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._dismiss.alive:
            raise ValueError("this pool of workers is closed; make a new one.")

    def _hand_out(self, job: _Job, busy: dict[_Worker, _Job]) -> None:
        worker = next((worker for worker in self._staff if worker not in busy), None)
        if worker is None:
            worker = _Worker(self._greeting, self._inbox)
            self._staff.append(worker)
        job.attempts += 1
        # Note it before sending it, so that after an interrupt all workers that may have a task are known.
        busy[worker] = job
        worker.send(job.message)

    def _forget(self, workers: Container[_Worker]) -> None:
        self._staff[:] = [worker for worker in self._staff if worker not in workers]


@dataclass
class _Job:
    """A task: its number, its pickle, and how often it was given to a worker."""

    index: int
    message: bytes
    attempts: int = 0

    def check_attempts(self, death: str) -> None:
        if self.attempts >= ATTEMPTS:
            raise WorkerError(
                f"task {self.index} was given up because its worker died {self.attempts} times, the last "
                f"time {death}; see what it printed, or use fewer workers if memory ran out."
            )


class _Worker:
    """A worker process, seen from its parent: each message brings reports and a last reply to the inbox.

    The last reply is None if the process died.
    """

    def __init__(self, greeting: bytes, inbox: Inbox) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "knotflow.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            # Ctrl-C in a terminal goes to its foreground process group: keep workers out of it.
            process_group=0,
        )
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        # In a thread, because a pipe holds only a few kB while the worker is still importing modules.
        threading.Thread(target=self._talk, args=(greeting, inbox), daemon=True).start()

    def send(self, message: bytes) -> None:
        self._outbox.put(message)

    def stop(self, patience: float = 0.0) -> str:
        """Kill the process unless it ends by itself within ``patience`` seconds; say how it ended."""
        self._outbox.put(None)
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return f"with exit status {code}" if code >= 0 else f"by signal {-code} ({signal.strsignal(-code)})"

    def _talk(self, greeting: bytes, inbox: Inbox) -> None:
        tasks, replies = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        try:
            with replies, tasks:
                _send(tasks, greeting)
                while (message := self._outbox.get()) is not None:
                    _send(tasks, message)
                    is_last = False
                    while not is_last:
                        reply, is_last = pickle.load(replies)
                        inbox.put((self, reply, is_last))
        except (OSError, EOFError, pickle.UnpicklingError):
            inbox.put((self, None, True))


Inbox = SimpleQueue[tuple[_Worker, bytes | None, bool]]


def _stop_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().stop()


def _environment() -> dict[str, str]:
    """The parent's environment and module path, with one thread for libraries that would use all cores."""
    path = os.pathsep.join(str(entry) or os.getcwd() for entry in sys.path)
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENMM_CPU_THREADS": "1"}


def packed(call: Callable[[], Any]) -> bytes:
    """The pickle of (result, None) or, if the call fails, (None, error): an exception or a message."""
    try:
        return pickle.dumps((call(), None))
    except Exception as error:
        text = f"a task failed in a worker: {type(error).__name__}: {error}"
        if isinstance(error, ValueError | OSError):
            error.add_note(f"In the worker:\n{traceback.format_exc()}")
            # Some exceptions cannot be pickled; others can, but not unpickled.
            with suppress(Exception):
                reply = pickle.dumps((None, error))
                pickle.loads(reply)
                return reply
        return pickle.dumps((None, text))


def unpacked(reply: bytes) -> Any:
    """The result in a reply of `packed`, or its error, raised."""
    result, error = pickle.loads(reply)
    if error is not None:
        raise error if isinstance(error, Exception) else WorkerError(error)
    return result


def _send(stream: BinaryIO, message: bytes, *, is_last: bool = True) -> None:
    """Send a message, and whether it ends a task."""
    pickle.dump((message, is_last), stream)
    stream.flush()


# The rest runs in the workers.

_parent: BinaryIO | None = None
"""The pipe to the parent."""


def report(value: Any) -> None:
    """Send a value to the parent in the middle of a task; outside of workers, do nothing."""
    if _parent is not None:
        _send(_parent, pickle.dumps(value), is_last=False)


def _main() -> None:
    global _parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tasks, replies = _take_pipes()
    _parent = replies
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(tasks, inbox), daemon=True).start()
    work = _prepare(inbox.get())
    # If the parent no longer waits for the reply, that is no error.
    with suppress(OSError):
        while True:
            _send(replies, packed(partial(_do, work, inbox.get())))


def _do(work: Callable[[Any], Any], message: bytes) -> Any:
    return work(pickle.loads(message))


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the pipes for messages: libraries print to standard error instead, and read nothing."""
    tasks, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return tasks, replies


def _listen(tasks: BinaryIO, inbox: SimpleQueue[bytes]) -> None:
    """Pass messages on; exit at once when the parent is gone, even in the middle of a long task."""
    try:
        while True:
            inbox.put(pickle.load(tasks)[0])
    finally:
        os._exit(0)


def _prepare(greeting: bytes) -> Callable[[Any], Any]:
    """Make ``work``; if that fails, every task fails with the same exception."""
    try:
        module, function, setup = pickle.loads(greeting)
        work: Callable[[Any], Any] = getattr(importlib.import_module(module), function)(setup)
        return work
    except Exception as error:
        failure = error

    def fail(task: Any) -> Any:
        raise failure

    return fail


if __name__ == "__main__":
    # Not this ``__main__`` but the module of that name, whose `report` the tasks import.
    from knotflow import workers

    workers._main()
