"""Round trips with large raw parameters: what breaks, and how far back the inverse leads.

Raw parameters are normal with standard deviation s, drawn anew for every element; points are uniform in the
domain, some are its ends and, for B-splines, some are exact knots. With ``y = f(x)`` and ``x' = f^-1(y)``,
all in float32, this counts

* values that are not finite, among y, log f', x', its log derivative and f(x');
* chunks with an exception; they are run again in blocks of `BLOCK` elements, and only the blocks that raise
  again are missing from the other figures, which are shares of the elements that got through;
* the backward error ``|f(x') - y|`` in ulps of the domain's length (knotflow only);
* the round-trip error ``|x' - x|`` as a fraction of the length, and how many are not within 1e-3 (a NaN
  is not).

On a circle errors are taken modulo the length. knotflow's B-splines promise, with their default floors and
whatever the raw parameters: nothing that is not finite, no exception, a backward error of at most
`MAX_BACKWARD_ULPS` and a round-trip error of at most `MAX_ROUND_TRIP`. The run fails if they break it. Each
chunk has its own seed, which follows from candidate, scale and number; the JSON file names the worst ones.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import knotflow as kf
from benchmarks.peers import Candidate, bsplines, bumps, peers, rational_quadratics
from benchmarks.report import Table, first_line, progress
from benchmarks.timing import compile_alone

MAX_BACKWARD_ULPS = 8.0
MAX_ROUND_TRIP = 1e-4
OFF = 1e-3
"""A round trip that misses by more than this fraction of the domain is counted."""
BLOCK = 1_000
"""Elements of a block, in which a chunk is run again after an exception; divides the size of a chunk."""
N_ENDS = 100
"""Points of a chunk put on either end of the domain."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run; chunks are those of one candidate and one scale."""

    bins: int = 32
    scales: tuple[float, ...] = (1.0, 3.0, 5.0, 10.0, 30.0)
    other_orders: tuple[int, ...] = (3, 5, 6, 7)
    chunk: int = 100_000
    cubic_chunks: int = 4
    other_chunks: int = 1
    peer_chunks: int = 10
    bump_chunks: int = 1
    compiled: bool = False

    @classmethod
    def quick(cls) -> Settings:
        return cls(chunk=10_000, cubic_chunks=1, peer_chunks=1)


@dataclass
class Tally:
    """What happened to one candidate at one scale."""

    candidate: str
    scale: float
    promised: bool
    chunk: int
    tried: int = 0
    finished: int = 0
    non_finite: int = 0
    exceptions: int = 0
    blocks_lost: int = 0
    first_error: str = ""
    off: int = 0
    backward: float = 0.0
    backward_chunk: int = 0
    round_trip: float = 0.0
    round_trip_chunk: int = 0

    def add_round_trip(self, worst: float, number: int) -> None:
        if worst > self.round_trip:
            self.round_trip, self.round_trip_chunk = worst, number

    def add_backward(self, worst: float, number: int) -> None:
        if worst > self.backward:
            self.backward, self.backward_chunk = worst, number

    def broken(self) -> list[str]:
        """The promises of a B-spline that do not hold."""
        checks = {
            f"{self.non_finite} elements not finite": self.non_finite == 0,
            f"{self.exceptions} exceptions ({self.first_error})": self.exceptions == 0,
            f"backward error {self.backward:.1f} ulps": self.backward <= MAX_BACKWARD_ULPS,
            f"round trip {self.round_trip:.1e}": self.round_trip <= MAX_ROUND_TRIP,
        }
        return [text for text, kept in checks.items() if not kept] if self.promised else []


@dataclass(frozen=True)
class Case:
    """A candidate and how many chunks of it to run at each scale."""

    candidate: Candidate
    chunks: int
    promised: bool = False
    compiled: bool = False


def run(settings: Settings, console: Console) -> tuple[list[Table], list[dict[str, Any]], bool]:
    """The tables, a record for each candidate and scale, and whether all promises were kept."""
    todo = cases(settings)
    total = sum(case.chunks for case in todo) * len(settings.scales)
    tallies = []
    with progress(console) as bar, torch.no_grad():
        task = bar.add_task("adversarial", total=total)
        for case in todo:
            bar.update(task, description=case.candidate.name)
            for tally in tallies_of(case, settings, lambda: bar.advance(task)):
                tallies.append(tally)
    tables = [promise_table(tallies), scale_table(tallies)]
    return tables, [asdict(tally) for tally in tallies], not any(tally.broken() for tally in tallies)


def cases(settings: Settings) -> list[Case]:
    """knotflow's B-splines, cubic and of other orders, and for comparison everything else."""
    bins = settings.bins
    promised = [Case(spline, settings.cubic_chunks, promised=True) for spline in bsplines(bins)]
    for order in settings.other_orders:
        promised += [Case(spline, settings.other_chunks, promised=True) for spline in bsplines(bins, order)]
    if settings.compiled:
        promised += [_compiled(case) for case in promised]
    others = [Case(other, settings.peer_chunks) for other in [*rational_quadratics(bins), *peers(bins)]]
    return [*promised, *others, *(Case(bump, settings.bump_chunks) for bump in bumps())]


def _compiled(case: Case) -> Case:
    candidate = replace(case.candidate, name=f"{case.candidate.name} compiled")
    return replace(case, candidate=candidate, compiled=True)


def tallies_of(case: Case, settings: Settings, advance: Callable[[], None]) -> Iterable[Tally]:
    """Run all scales of a case."""
    candidate = case.candidate
    if case.compiled:
        torch._dynamo.reset()
        candidate = replace(
            candidate, forward=compile_alone(candidate.forward), inverse=compile_alone(candidate.inverse)
        )
    for scale in settings.scales:
        tally = Tally(candidate.name, scale, case.promised, settings.chunk)
        for number in range(case.chunks):
            x, raw = chunk(candidate, scale, settings.chunk, number)
            tally.tried += settings.chunk
            if not tried_round_trip(candidate, x, raw, tally, number):
                tally.exceptions += 1
                for block in zip(x.split(BLOCK), raw.split(BLOCK), strict=True):
                    tally.blocks_lost += not tried_round_trip(candidate, *block, tally, number)
            advance()
        yield tally


def chunk(candidate: Candidate, scale: float, size: int, number: int) -> tuple[Tensor, Tensor]:
    """Points and raw parameters of one chunk; the same ones whenever it is asked for."""
    name = candidate.name.removesuffix(" compiled")
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {scale:g} {number}".encode()))
    raw = candidate.sample_raw(size, generator, scale)
    x = candidate.sample_points(size, generator)
    x[:N_ENDS], x[N_ENDS : 2 * N_ENDS] = candidate.low, candidate.high
    if isinstance(candidate.transform, kf.BSpline):
        some = slice(2 * N_ENDS, size // 4)
        x[some] = _random_knots(candidate.transform, raw[some], generator)
    return x, raw


def _random_knots(spline: kf.BSpline, raw: Tensor, generator: torch.Generator) -> Tensor:
    """A knot of each map; those outside the domain are moved to its ends."""
    knots, _ = spline.knots(raw)
    index = torch.randint(0, knots.shape[-1], (len(raw), 1), generator=generator)
    return knots.gather(-1, index).squeeze(-1).clamp(spline.domain.low, spline.domain.high)


def tried_round_trip(candidate: Candidate, x: Tensor, raw: Tensor, tally: Tally, number: int) -> bool:
    """Map there and back and add what is seen to the tally; False after an exception."""
    try:
        y, ladj = candidate.forward(x, raw)
        back, back_ladj = candidate.inverse(y, raw)
        again = candidate.forward(back, raw)[0] if candidate.ours else y
    except Exception as error:
        tally.first_error = tally.first_error or first_line(error)
        return False
    finite = torch.stack([y, ladj, back, back_ladj, again]).isfinite().all(0)
    trip = _distance(candidate, back, x) / candidate.length
    tally.finished += len(x)
    tally.non_finite += int((~finite).sum())
    tally.off += int((~(trip <= OFF)).sum())
    tally.add_round_trip(_largest(trip), number)
    tally.add_backward(_largest(_distance(candidate, again, y)) / ulp(candidate.length), number)
    return True


def _distance(candidate: Candidate, a: Tensor, b: Tensor) -> Tensor:
    distance = (a - b).abs()
    return torch.minimum(distance, (candidate.length - distance).abs()) if candidate.circular else distance


def _largest(errors: Tensor) -> float:
    """The largest finite error; what is not finite is counted elsewhere."""
    return float(errors[errors.isfinite()].amax()) if bool(errors.isfinite().any()) else 0.0


def ulp(value: float) -> float:
    """Spacing of float32 at a positive value."""
    return 2.0 ** (math.frexp(value)[1] - 24)


def promise_table(tallies: list[Tally]) -> Table:
    """One row for each B-spline, the worst of all scales."""
    rows = [_promise_row(group) for group in _by_candidate(tallies) if group[0].promised]
    promised = [tally for tally in tallies if tally.promised]
    notes = [
        f"{sum(tally.tried for tally in promised)} elements",
        f"promise: none non-finite, no exception, backward error <= {MAX_BACKWARD_ULPS:g} ulps of the length,"
        f" round trip <= {MAX_ROUND_TRIP:g} of the length",
        *(f"BROKEN: {t.candidate}, s = {t.scale:g}: {text}" for t in promised for text in t.broken()),
    ]
    columns = ["candidate", "elements", "non-finite", "exceptions", "backward / ulps", "round trip"]
    columns += ["off > 1e-3", "kept"]
    return Table("knotflow's B-splines, all scales", columns, rows, notes)


def _by_candidate(tallies: list[Tally]) -> list[list[Tally]]:
    names = dict.fromkeys(tally.candidate for tally in tallies)
    return [[tally for tally in tallies if tally.candidate == name] for name in names]


def _promise_row(group: list[Tally]) -> list[str]:
    backward, trip = max(group, key=lambda t: t.backward), max(group, key=lambda t: t.round_trip)
    return [
        group[0].candidate,
        str(sum(tally.tried for tally in group)),
        str(sum(tally.non_finite for tally in group)),
        str(sum(tally.exceptions for tally in group)),
        f"{backward.backward:.1f} (s={backward.scale:g})",
        f"{trip.round_trip:.1e} (s={trip.scale:g})",
        str(sum(tally.off for tally in group)),
        "NO" if any(tally.broken() for tally in group) else "yes",
    ]


def scale_table(tallies: list[Tally]) -> Table:
    """One row for each candidate and scale: all that is not a B-spline, and the cubic B-splines."""
    shown = [tally for tally in tallies if not tally.promised or "k=4" in tally.candidate]
    rows = [
        [
            tally.candidate,
            f"{tally.scale:g}",
            str(tally.tried),
            f"{tally.exceptions} of {tally.tried // tally.chunk}",
            _share(tally.blocks_lost * BLOCK, tally.tried),
            _share(tally.non_finite, tally.finished),
            _share(tally.off, tally.finished),
            f"{tally.round_trip:.1e}" if tally.finished else "–",
        ]
        for tally in shown
    ]
    errors = {f"{tally.candidate}: {tally.first_error}": None for tally in shown if tally.first_error}
    columns = ["candidate", "s", "elements", "chunks that raise", "blocks that raise", "non-finite"]
    columns += ["off > 1e-3", "worst finite trip"]
    return Table("Round trips by scale of the raw parameters", columns, rows, list(errors))


def _share(count: int, total: int) -> str:
    if total == 0:
        return "–"
    return "0" if count == 0 else f"{count / total:.1e}"
