"""A pool of worker processes that prepare once and then do many tasks.

Workers are fresh interpreters that run this module (``python -m knotflow.workers``) and talk with the parent
through their standard input and output: pickles, each after its length. They do not run the user's
script again, so scripts need no ``if __name__ == "__main__":``. Pickles are safe here because both ends are
our own processes on one machine.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, BinaryIO, Final, Self, cast

ATTEMPTS: Final = 3
"""How often a task is tried when its worker dies."""

PREFIX: Final = struct.Struct("<Q?")
"""Ahead of a message: its length, and whether it ends a task."""


def usable_cores() -> int:
    """Number of processor cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerError(RuntimeError):
    """A task killed its worker three times, or raised an error other than `ValueError` and `OSError`."""


class WorkerPool:
    """Worker processes that each call ``work = function(setup)`` once and then ``work(task)`` for many tasks.

    The processes start when there are tasks for them and stay until the pool is closed: by `close`, at the
    end of a ``with`` block, when the pool is forgotten or when the interpreter exits. They also leave when
    the parent is killed. They use one thread each, find modules where the parent does (its ``sys.path``), and
    print to standard error.

    A worker that dies is replaced and its task done again, so tasks should not depend on earlier ones. One
    user at a time: a pool may be handed from thread to thread, but only one may iterate it.

    Args:
        target: ``"package.module:function"``. In each worker ``function(setup)`` is called once and returns
            ``work``, which takes a task and returns its result.
        setup: What ``function`` gets; like tasks and results, anything that can be pickled.
        workers: How many processes, at least 1.
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
        """Results of all tasks, in their order; see `imap_unordered`."""
        results = dict(self.imap_unordered(tasks))
        return [results[index] for index in range(len(results))]

    def imap_unordered(
        self, tasks: Iterable[Any], on_report: Callable[[int, Any], None] = lambda index, value: None
    ) -> Iterator[tuple[int, Any]]:
        """Give each task to the next idle worker; yield its number and its result as soon as it is done.

        If the iteration ends early, by an error, an interrupt or the caller, workers that still have a task
        are killed; the pool remains usable and starts new ones.

        Args:
            tasks: What to do.
            on_report: Called with the number of a task and what its worker gave to `report` meanwhile.

        Raises:
            ValueError: what ``function`` or ``work`` raised; also `OSError`.
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
                if job is None:  # a late reply of a worker that was killed in an earlier iteration
                    continue
                if reply is None:
                    job.check_attempts(worker.stop(patience=1.0))
                    again.append(job)
                else:
                    yield job.index, _result(reply)
        finally:
            self._forget(busy)
            self._in_use.release()
            _stop_all(list(busy))

    def close(self) -> None:
        """Stop all workers, whatever they do; the pool cannot be used any more. May be called again."""
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
        # Listed before it is sent: after an interrupt here, all workers that may have a task are known.
        busy[worker] = job
        worker.send(job.message)

    def _forget(self, workers: Container[_Worker]) -> None:
        self._staff[:] = [worker for worker in self._staff if worker not in workers]


@dataclass
class _Job:
    """A task on its way: its number, its pickle, and how often it was given to a worker."""

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
    """A worker process as its parent sees it: a message brings reports and a last reply to the inbox.

    The last one is None if the process died.
    """

    def __init__(self, greeting: bytes, inbox: Inbox) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "knotflow.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            # Ctrl-C in a terminal reaches its foreground group: keep workers out of it from the beginning.
            process_group=0,
        )
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        # In a thread, because a pipe holds only some kB while a worker is still importing its modules.
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
                _write(tasks, greeting)
                while (message := self._outbox.get()) is not None:
                    _write(tasks, message)
                    is_last = False
                    while not is_last:
                        reply, is_last = _read(replies)
                        inbox.put((self, reply, is_last))
        except (OSError, EOFError):
            inbox.put((self, None, True))


Inbox = SimpleQueue[tuple[_Worker, bytes | None, bool]]


def _stop_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().stop()


def _environment() -> dict[str, str]:
    """The parent's environment and module path, and one thread for each library that would take all cores."""
    path = os.pathsep.join(str(entry) or os.getcwd() for entry in sys.path)
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENMM_CPU_THREADS": "1"}


def _result(reply: bytes) -> Any:
    result, error = pickle.loads(reply)
    if error is not None:
        raise error if isinstance(error, Exception) else WorkerError(error)
    return result


def _write(stream: BinaryIO, message: bytes, *, is_last: bool = True) -> None:
    stream.write(PREFIX.pack(len(message), is_last))
    stream.write(message)
    stream.flush()


def _read(stream: BinaryIO) -> tuple[bytes, bool]:
    """A message, and whether it ends a task."""
    prefix = stream.read(PREFIX.size)
    length, is_last = PREFIX.unpack(prefix) if len(prefix) == PREFIX.size else (0, True)
    message = stream.read(length)
    if not message:
        raise EOFError("the other end of the pipe is closed")
    return message, is_last


# What follows runs in the workers.

_parent: BinaryIO | None = None
"""The pipe to the parent."""


def report(value: Any) -> None:
    """Tell the parent something in the middle of a task; in any other process, do nothing."""
    if _parent is not None:
        _write(_parent, pickle.dumps(value), is_last=False)


def _main() -> None:
    global _parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tasks, replies = _take_pipes()
    _parent = replies
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(tasks, inbox), daemon=True).start()
    work = _prepare(inbox.get())
    # A reply that nobody waits for any more is no error.
    with suppress(OSError):
        while True:
            _write(replies, _reply(work, inbox.get()))


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the pipes for messages: what libraries print goes to standard error, and they read nothing."""
    tasks, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return tasks, replies


def _listen(tasks: BinaryIO, inbox: SimpleQueue[bytes]) -> None:
    """Pass messages on; leave at once when the parent is gone, even in the middle of a long task."""
    try:
        while True:
            inbox.put(_read(tasks)[0])
    finally:
        os._exit(0)


def _prepare(greeting: bytes) -> Callable[[Any], Any]:
    """Make ``work``; if that fails, every task gets the reason for an answer."""
    try:
        module, function, setup = pickle.loads(greeting)
        work: Callable[[Any], Any] = getattr(importlib.import_module(module), function)(setup)
        return work
    except Exception as error:
        failure = error

    def fail(task: Any) -> Any:
        raise failure

    return fail


def _reply(work: Callable[[Any], Any], message: bytes) -> bytes:
    """The pickle of (result, None) or of (None, error); an error is an exception or a message."""
    try:
        return pickle.dumps((work(pickle.loads(message)), None))
    except Exception as error:
        text = f"a task failed in a worker: {type(error).__name__}: {error}"
        if isinstance(error, ValueError | OSError):
            error.add_note(f"In the worker:\n{traceback.format_exc()}")
            # Some exceptions cannot be pickled, and some that can cannot be put together again.
            with suppress(Exception):
                reply = pickle.dumps((None, error))
                pickle.loads(reply)
                return reply
        return pickle.dumps((None, text))


if __name__ == "__main__":
    # Under its own name the module is another one: the one whose `report` tasks import.
    from knotflow import workers

    workers._main()
