"""What follows from a trace: work, span, the critical path, how many ops ran at once, and why workers were idle.

Pure: lists in, lists out. Works in any order of a trace's size: 10^5 ops take about a second.
"""

from __future__ import annotations

import bisect
from typing import Iterable, NamedTuple

from .model import TraceData, TraceEvent

Interval = tuple[float, float]

# Why a worker did nothing, in the order in which a moment is asked: the first that holds is its cause.
IDLE = {
    "dispatch": "an op was ready, and no idle worker had begun it yet",
    "dependency": "ops were pushed, and each waited for another op",
    "stage empty": "nothing was pushed: the program waited for an item of a stage",
    "stage full": "a stage's producer waited, because its items were not taken",
    "gil": "the worker had an op and waited for Python's interpreter lock",
    "nothing ready": "nothing was pushed",
}


class Idle(NamedTuple):
    thread: str
    begin: float
    end: float
    cause: str


class Kind(NamedTuple):
    """All ops of one name."""

    name: str
    calls: int
    total: float
    longest: float
    on_path: float  # seconds on the critical path
    queued: float  # mean time from ready to begin


class Analysis(NamedTuple):
    data: TraceData
    begin: float  # of the first op
    end: float  # of the last
    workers: list[str]  # threads that count as processors: the workers of pools that ran something
    work: float
    span: float
    path: list[int]
    running: list[tuple[float, int]]  # from this time on, so many ops run
    at_once: list[float]  # by number of ops: how long so many ran at once
    idle: list[Idle]
    idle_by_cause: dict[str, float]  # of workers
    busy: dict[str, float]  # by worker: the share of the time that it ran ops
    kinds: list[Kind]
    on_workers: float  # how long workers ran ops; stages and callers run ops too, and are no workers
    stage_full: float  # how long producers of stages, which are no workers, waited for room

    @property
    def makespan(self) -> float:
        return self.end - self.begin

    @property
    def bound(self) -> float:
        """No schedule of these ops on these workers takes less."""
        return max(self.span, self.on_workers / max(1, len(self.workers)))


def analyse(data: TraceData) -> Analysis:
    events = data.events
    begin = min(e.begin for e in events)
    end = max(e.begin + e.seconds for e in events)
    span, path = critical_path(events)
    running = at_once(events)
    threads = worker_threads(data)
    idle = idle_times(data, threads, begin, end)
    workers = set(threads)
    by_cause = {c: sum(i.end - i.begin for i in idle if i.cause == c and i.thread in workers) for c in IDLE}
    return Analysis(
        data, begin, end, threads, sum(e.seconds for e in events), span, path, running, shares(running, begin, end), idle,
        {cause: seconds for cause, seconds in by_cause.items() if seconds > 0}, busy_shares(idle, threads, begin, end),
        kinds(events, path), busy_time(events, threads), sum(i.end - i.begin for i in idle if i.thread not in workers))  # fmt: skip


def critical_path(events: list[TraceEvent]) -> tuple[float, list[int]]:
    """The length of the longest chain of ops that had to come one after the other, and the chain."""
    finish = [0.0] * len(events)
    before = [-1] * len(events)
    for e in events:
        for p in e.after:
            if finish[p] > finish[e.op]:
                finish[e.op], before[e.op] = finish[p], p
        finish[e.op] += e.seconds
    if not events:
        return 0.0, []
    at = max(range(len(events)), key=finish.__getitem__)
    longest, path = finish[at], []
    while at >= 0:
        path.append(at)
        at = before[at]
    return longest, path[::-1]


def at_once(events: list[TraceEvent]) -> list[tuple[float, int]]:
    """From each time on: how many ops run."""
    changes = sorted([(e.begin, 1) for e in events] + [(e.begin + e.seconds, -1) for e in events])
    steps: list[tuple[float, int]] = []
    running = 0
    for time, change in changes:
        running += change
        if steps and steps[-1][0] == time:
            steps[-1] = (time, running)
        else:
            steps.append((time, running))
    return steps


def shares(steps: list[tuple[float, int]], begin: float, end: float) -> list[float]:
    out = [0.0] * (1 + max((n for _, n in steps), default=0))
    for (time, n), (until, _) in zip(steps, [*steps[1:], (end, 0)]):
        out[n] += max(0.0, until - max(time, begin))
    return out


def pool_of(thread: str) -> str:
    """ "cpu" of "cpu/0"."""
    return thread.rpartition("/")[0] or thread


def worker_threads(data: TraceData) -> list[str]:
    """The workers of each pool that ran something; the callers if there was no such pool."""
    used = {e.thread for e in data.events}
    pools = {pool_of(thread) for thread in data.threads if thread in used}
    found = [thread for thread in data.threads if pool_of(thread) in pools]
    return sorted(found or used, key=natural)


def natural(thread: str) -> tuple[str, int]:
    """ "cpu/10" comes behind "cpu/9"."""
    pool, _, number = thread.rpartition("/")
    return (pool, int(number)) if number.isdigit() else (thread, -1)


def idle_times(data: TraceData, threads: list[str], begin: float, end: float) -> list[Idle]:
    by_thread: dict[str, list[TraceEvent]] = {thread: [] for thread in threads}
    for e in data.events:
        if e.thread in by_thread:
            by_thread[e.thread].append(e)
    # What any idle worker of the pool could have begun: an op that is ready, and whose own worker is busy.
    queued: dict[str, list[Interval]] = {}
    pending: dict[str, list[Interval]] = {}
    for thread, events in by_thread.items():
        free = begin
        for op in events:
            if op.ready < free:
                queued.setdefault(pool_of(thread), []).append((op.ready, min(free, op.begin)))
            pending.setdefault(pool_of(thread), []).append((op.pushed or 0.0, op.ready))
            free = max(free, op.end)
    ready = {pool: union(times) for pool, times in queued.items()}
    blocked = {pool: union(times) for pool, times in pending.items()}
    empty = union((w.begin, w.end) for w in data.waits if w.cause == "stage empty")
    out: list[Idle] = []
    for thread, events in by_thread.items():
        pool = pool_of(thread)
        causes = [("dispatch", ready.get(pool, [])), ("dependency", blocked.get(pool, [])), ("stage empty", empty)]
        out += idle_of_thread(thread, events, begin, end, causes)
    workers = set(threads)
    for w in data.waits:
        if w.cause == "gil" and w.thread in workers:
            out.append(Idle(w.thread, w.begin, w.end, "gil"))
        elif w.cause == "stage full" and w.thread not in workers:
            out.append(Idle(w.thread, max(w.begin, begin), min(w.end, end), "stage full"))
    return sorted(merged(i for i in out if i.end > i.begin), key=lambda i: i.begin)


def idle_of_thread(thread: str, events: list[TraceEvent], begin: float, end: float,
                   causes: list[tuple[str, list[Interval]]]) -> list[Idle]:  # fmt: skip
    """The times between a worker's ops. The first cause holds whose times a moment lies in."""
    out: list[Idle] = []

    def gap(start: float, stop: float) -> None:
        pieces = [(start, stop)]
        for cause, times in causes:
            inside, pieces = split(pieces, times)
            out.extend(Idle(thread, a, b, cause) for a, b in inside)
        out.extend(Idle(thread, a, b, "nothing ready") for a, b in pieces)

    free = begin
    for op in events:
        if op.begin > free:
            own = min(max(op.ready, free), op.begin)  # from here on its next op was ready
            gap(free, own)
            out.append(Idle(thread, own, op.begin, "dispatch"))
        free = max(free, op.end)
    gap(free, end)
    return out


def merged(idle: Iterable[Idle]) -> list[Idle]:
    """Pieces of one cause that touch become one."""
    out: list[Idle] = []
    for i in sorted(idle):
        if out and out[-1].thread == i.thread and out[-1].cause == i.cause and i.begin - out[-1].end < 1e-9:
            out[-1] = out[-1]._replace(end=max(out[-1].end, i.end))
        else:
            out.append(i)
    return out


def busy_shares(idle: list[Idle], threads: list[str], begin: float, end: float) -> dict[str, float]:
    lost = dict.fromkeys(threads, 0.0)
    for i in idle:
        if i.thread in lost:
            lost[i.thread] += i.end - i.begin
    length = end - begin
    return {thread: 1 - seconds / length if length > 0 else 1.0 for thread, seconds in lost.items()}


def busy_time(events: list[TraceEvent], threads: list[str]) -> float:
    """How long the workers ran ops. An op that waits inside has lent its worker, which then runs another op in the same
    moment."""
    by_thread: dict[str, list[Interval]] = {thread: [] for thread in threads}
    for e in events:
        if e.thread in by_thread:
            by_thread[e.thread].append((e.begin, e.end))
    return sum(end - begin for times in by_thread.values() for begin, end in union(times))


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as intervals that do not touch, in order."""
    out: list[Interval] = []
    for begin, end in sorted(i for i in intervals if i[1] > i[0]):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out


def split(pieces: list[Interval], times: list[Interval]) -> tuple[list[Interval], list[Interval]]:
    """The parts of the pieces that lie inside ``times``, and the others. ``times`` is a union."""
    inside: list[Interval] = []
    outside: list[Interval] = []
    for begin, end in pieces:
        at = max(0, bisect.bisect_right(times, (begin, float("inf"))) - 1)
        while begin < end and at < len(times) and times[at][0] < end:
            a, b = max(begin, times[at][0]), min(end, times[at][1])
            if a < b:
                if begin < a:
                    outside.append((begin, a))
                inside.append((a, b))
                begin = b
            at += 1
        if begin < end:
            outside.append((begin, end))
    return inside, outside


def kinds(events: list[TraceEvent], path: list[int]) -> list[Kind]:
    on_path = set(path)
    groups: dict[str, list[TraceEvent]] = {}
    for e in events:
        groups.setdefault(e.name, []).append(e)
    found = [
        Kind(name, len(group), sum(e.seconds for e in group), max(e.seconds for e in group),
             sum(e.seconds for e in group if e.op in on_path), sum(e.begin - e.ready for e in group) / len(group))
        for name, group in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda kind: -kind.total)
