"""Ranks: processes started by ``torchrun`` share the work of one command; rank 0 leads, the others help.

Rank 0 runs the command as if it were alone: it alone decides, prints and writes files. The other ranks wait
for work. There are two kinds of it:

- A `Team` does tasks that depend on nothing but themselves, such as a block of a simulation with its seed.
  Every rank takes its share of them, and rank 0 gets the results in order.
- `together` runs the same function on all ranks at once, which inside it may talk to each other (`spread`,
  `agreed`, `total`, `gathered`), as the training does.

Since a task does not know who does it, results do not depend on the number of ranks. Without ``torchrun``
there is one rank, nothing is sent, and torch.distributed is not even imported.

Messages are pickles between processes of one job, as in `knotflow.workers` and in torch.distributed itself.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, Self, TypeVar

import numpy as np

from knotflow.workers import packed, unpacked

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store  # type: ignore[attr-defined]

T = TypeVar("T")
R = TypeVar("R")
Report = Callable[[int, Any], None]
"""Called with the number of a task and what its worker reports in the middle of it."""

PATIENCE: Final = timedelta(days=30)
"""How long a rank waits for another. Ranks that die are noticed at once: torchrun ends or restarts all."""
PORT: Final = "knotflow/port"
"""Key under which rank 0 names the port of its store."""
PAUSE: Final = 0.2
"""Seconds between two looks at that key."""
GRACE: Final = 10.0
"""Seconds that a helper waits before it tells of an error in `together`: usually rank 0 has it, too."""


class Pool(Protocol):
    """Does tasks: a `knotflow.workers.WorkerPool`, or `OneByOne`."""

    def imap_unordered(self, tasks: Iterable[Any], on_report: Report, /) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each task as soon as it is done."""

    def close(self) -> None:
        """Free what the pool holds."""


@dataclass(frozen=True)
class OneByOne:
    """A function that does one task after the other in this process, as a pool."""

    function: Callable[[Any], Any]

    def imap_unordered(self, tasks: Iterable[Any], on_report: Report, /) -> Iterator[tuple[int, Any]]:
        return enumerate(map(self.function, tasks))

    def close(self) -> None:
        """Nothing: the pool holds nothing."""


@dataclass
class _Group:
    """This process among the ranks of a job."""

    rank: int
    size: int
    together: bool = False
    """Whether all ranks now run the same function."""
    in_step: bool = True
    """Whether the helpers wait for the next message."""
    teams: dict[int, Pool | Exception] = field(default_factory=dict)
    """On helpers: the pools of open teams, by number, or why there is none."""
    opened: int = 0
    """On rank 0: the number of teams so far."""

    def tell(self, *message: Any) -> None:
        """Send a message to all helpers, which wait for it."""
        import torch.distributed as dist

        if not self.in_step:
            raise RuntimeError("the ranks are out of step after an earlier error; start the command again.")
        dist.broadcast_object_list([message], src=0)

    def told(self) -> tuple[Any, ...]:
        """The next message of rank 0."""
        import torch.distributed as dist

        box: list[Any] = [None]
        dist.broadcast_object_list(box, src=0)
        message: tuple[Any, ...] = box[0]
        return message


_group: _Group | None = None
"""None unless this process is one of several ranks."""


def size() -> int:
    """Number of ranks that run this function together; 1 unless inside `together`."""
    return _group.size if _group is not None and _group.together else 1


def rank() -> int:
    """Number of this process among those `size`."""
    return _group.rank if _group is not None and _group.together else 0


def team_size() -> int:
    """Number of ranks of a `Team` that is made here."""
    return 1 if _group is None or _group.together else _group.size


def leads() -> bool:
    """Whether this process is rank 0, which writes files and prints."""
    return rank() == 0


def local_size() -> int:
    """Number of ranks on this host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if size() > 1 else 1


def mine() -> slice:
    """Where the share of this process is among rows that all ranks have."""
    return slice(rank(), None, size())


def share(items: Sequence[T], number: int, of: int) -> Sequence[T]:
    """The items of one rank: every ``of``-th, so that neighbours, which often cost the same, are spread."""
    return items[number::of]


def dealt(shares: Sequence[Sequence[T]]) -> list[T]:
    """All items in order, from the shares of all ranks."""
    longest = max(map(len, shares), default=0)
    return [part[place] for place in range(longest) for part in shares if place < len(part)]


def piece_seed(seed: int, number: int) -> int:
    """Seed of a piece of work, so that it does not matter who does it; piece 0 has the seed itself."""
    if number == 0:
        return seed
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))


# --- a command and its helpers ----------------------------------------------------------------------------


def run(command: Callable[[], None]) -> None:
    """Run a command: alone, or on rank 0 with the help of all other ranks.

    The process of a rank ends with it, and does not return.
    """
    global _group
    number = int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if number == 1:
        command()
        return
    import torch.distributed as dist

    # Without a backend: torch chooses gloo on CPUs and nccl on GPUs.
    place = int(os.environ["RANK"])
    dist.init_process_group(store=_meet(place), rank=place, world_size=number, timeout=PATIENCE)
    _group = _Group(place, number)
    if _group.rank:
        _help(_group)
    status = 1
    try:
        command()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        if _group.in_step:
            _group.tell("end", status)
            dist.destroy_process_group()
        _group = None
    _end(status)


def _end(status: int) -> NoReturn:
    """End this process without taking it apart: threads of torch.distributed may abort one that does."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _meet(place: int) -> Store:
    """A store of this start alone, at rank 0, in which the ranks find each other.

    That of torchrun outlives a restart, and names ranks that have died: who looked for them would fail, or
    wait without end. So it only names the port of the new store. While it still names the old one, nobody
    answers there, for all ranks have ended before any is started again.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host = os.environ["MASTER_ADDR"]
    shared = TCPStore(host, int(os.environ["MASTER_PORT"]), timeout=PATIENCE)
    if place == 0:
        own = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)
        shared.set(PORT, str(own.port))
        return own
    while not _answers(host, port := int(shared.get(PORT))):
        time.sleep(PAUSE)
    return TCPStore(host, port, wait_for_workers=False, timeout=PATIENCE)


def _answers(host: str, port: int) -> bool:
    """Whether a process listens at a port."""
    try:
        socket.create_connection((host, port), timeout=GRACE).close()
    except OSError:
        return False
    return True


def _help(group: _Group) -> NoReturn:
    """Do what rank 0 asks for until it ends, and end with its status; print nothing."""
    import torch.distributed as dist

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        while (message := group.told())[0] != "end":
            _obey(group, *message)
    except (RuntimeError, KeyboardInterrupt):
        # Rank 0 or the network is gone: torchrun says which process failed first.
        sys.exit(1)
    except Exception:
        time.sleep(GRACE)
        raise
    with contextlib.suppress(RuntimeError):  # rank 0, which holds the store, may have ended already
        dist.destroy_process_group()
    _end(message[1])


def _obey(group: _Group, kind: str, *content: Any) -> None:
    """Do what one message asks for."""
    if kind == "open":
        number, target, setup = content
        try:
            group.teams[number] = _function(target)(setup)
        except Exception as error:
            group.teams[number] = error  # told when there are tasks
    elif kind == "close":
        team = group.teams.pop(content[0])
        if not isinstance(team, Exception):
            team.close()
    elif kind == "tasks":
        _exchange(packed(lambda: _done(group.teams[content[0]], _dealt_tasks(None))))
    else:
        target, arguments, options = content
        with _together(group):
            _function(target)(*arguments, **options)


def _function(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _done(team: Pool | Exception, tasks: Sequence[Any]) -> list[Any]:
    """The results of tasks, in order."""
    if isinstance(team, Exception):
        raise team
    results = dict(team.imap_unordered(tasks, lambda number, value: None))
    return [results[number] for number in range(len(tasks))]


def _dealt_tasks(shares: list[Sequence[Any]] | None) -> Sequence[Any]:
    """This rank's share of tasks, which rank 0 deals out."""
    import torch.distributed as dist

    box: list[Any] = [None]
    dist.scatter_object_list(box, shares, src=0)
    tasks: Sequence[Any] = box[0]
    return tasks


def _exchange(reply: bytes) -> list[bytes] | None:
    """The replies of all ranks, on rank 0."""
    import torch.distributed as dist

    leader = dist.get_rank() == 0
    replies: list[Any] | None = [None] * dist.get_world_size() if leader else None
    dist.gather_object(reply, replies, dst=0)
    return replies


class Team:
    """All ranks, doing tasks; each calls ``pool = function(setup)`` once, and then does shares of many tasks.

    Only rank 0 has a team, or a process that is alone; then ``pool`` does all tasks, here. A team inside
    `together` is the process alone, too.

    Args:
        target: ``"package.module:function"``, the function that returns a `Pool`.
        setup: The argument of the function. With several ranks it, tasks and results must be picklable.
    """

    def __init__(self, target: str, setup: object) -> None:
        self.size = team_size()
        """Number of ranks."""
        self._group = _group if self.size > 1 else None
        if self._group is not None:
            self._group.opened += 1
            self._number = self._group.opened
            self._group.tell("open", self._number, target, setup)
        self._pool: Pool = _function(target)(setup)

    def imap_unordered(
        self, tasks: Sequence[Any], on_report: Report = lambda number, value: None
    ) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each task: those of this rank as soon as they are done.

        Only tasks of this rank report, with their numbers. An error of any rank is raised here.
        """
        group = self._group
        if group is None:
            yield from self._pool.imap_unordered(tasks, on_report)
            return
        group.tell("tasks", self._number)
        group.in_step = False  # until all results are here
        size = group.size
        own = _dealt_tasks([share(tasks, number, size) for number in range(size)])
        for number, result in self._pool.imap_unordered(own, lambda n, value: on_report(n * size, value)):
            yield number * size, result
        replies = _exchange(packed(lambda: [])) or []
        group.in_step = True
        for other, reply in enumerate(replies):
            yield from ((number * size + other, result) for number, result in enumerate(unpacked(reply)))

    def map(self, tasks: Sequence[Any]) -> list[Any]:
        """The results of all tasks, in order."""
        results = dict(self.imap_unordered(tasks))
        return [results[number] for number in range(len(tasks))]

    def stream(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """The results of any number of tasks, in order; as many are in memory as there are ranks."""
        waiting = iter(tasks)
        while some := list(islice(waiting, self.size)):
            yield from self.map(some)

    def close(self) -> None:
        """Free what the pools of all ranks hold."""
        self._pool.close()
        if self._group is not None and self._group.in_step:
            self._group.tell("close", self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- the same function on all ranks -----------------------------------------------------------------------


@contextmanager
def together(target: str, *arguments: Any, **options: Any) -> Iterator[None]:
    """While this block runs, all other ranks run ``target`` (``"package.module:function"``).

    The block and the function must do the same, in the same order. Blocks may be nested: inside, this does
    nothing, so that ``target`` may be the function with the block.
    """
    if _group is None or _group.together:
        yield
        return
    _group.tell("together", target, arguments, options)
    with _together(_group):
        yield


@contextmanager
def _together(group: _Group) -> Iterator[None]:
    group.together, group.in_step = True, False
    yield
    # Not after an error: the other ranks may wait for this one inside the function.
    group.together, group.in_step = False, True


def spread(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results of a function for all items, in order, on all ranks; each computes its share."""
    if size() == 1:
        return [function(item) for item in items]
    import torch.distributed as dist

    shares: list[Any] = [None] * size()
    dist.all_gather_object(shares, [function(item) for item in items[mine()]])
    return dealt(shares)


def agreed(value: T) -> T:
    """The value of rank 0, on all ranks, which wait for it."""
    if size() == 1:
        return value
    import torch.distributed as dist

    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    found: T = box[0]
    return found


def total(values: Tensor) -> Tensor:
    """The sum of a tensor over all ranks; it has no gradient."""
    values = values.detach().clone()
    if size() > 1:
        import torch.distributed as dist

        dist.all_reduce(values)
    return values


def gathered(values: Tensor) -> Tensor:
    """The values (n,) of all ranks, one after the other; n may differ. They have no gradient."""
    values = values.detach()
    if size() == 1:
        return values
    import torch
    import torch.distributed as dist

    counts = values.new_zeros(size(), dtype=torch.long)
    counts[rank()] = len(values)
    counts = total(counts)
    longest = int(counts.max())
    own = torch.nn.functional.pad(values, (0, longest - len(values)))
    parts = [torch.empty_like(own) for _ in range(size())]
    dist.all_gather(parts, own)
    return torch.cat([part[: int(n)] for part, n in zip(parts, counts, strict=True)])
