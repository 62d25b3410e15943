"""What two cores allow a program, by the order of its ops and by what these and their pushes take. Pure: without MXNet.

An op is (name, seconds, the places in the list of those that it comes behind); ops stand in the order in which they were pushed."""

import heapq
import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable

Op = tuple[str, float, list[int]]


def oldest_first(ops: list[Op], workers: int) -> float:
    """The time in which workers run the ops that take the oldest that is ready. Another choice may be faster."""
    missing = [len(after) for _, _, after in ops]
    behind = defaultdict(list)
    for i, (_, _, after) in enumerate(ops):
        for before in after:
            behind[before].append(i)
    ready = [i for i, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    now, running = 0.0, []
    while ready or running:
        while ready and len(running) < workers:
            op = heapq.heappop(ready)
            heapq.heappush(running, (now + ops[op][1], op))
        now, ended = heapq.heappop(running)
        for op in behind[ended]:
            missing[op] -= 1
            if missing[op] == 0:
                heapq.heappush(ready, op)
    return now


def at_least(ops: list[Op], workers: int) -> float:
    """No choice of ops is faster: what lies behind each other, and what all workers together have to do."""
    ends: list[float] = []
    for _, seconds, after in ops:
        ends.append(seconds + max((ends[i] for i in after), default=0.0))
    return max(max(ends, default=0.0), sum(seconds for _, seconds, _ in ops) / workers)


def scheduled(ops: list[Op], pushes: list[float], workers: int, cores: int) -> float:
    """The time of a list schedule on so many cores: whoever pushes has one of them until all is pushed (each push takes its place in
    `pushes`), and on the others workers run ops that are pushed and ready, those with the longest path behind them first. No worker waits
    while an op is ready and a core is free, nothing is interrupted, and nothing costs time but the ops and the pushes."""
    missing = [len(after) + 1 for _, _, after in ops]  # one more: its push
    behind = defaultdict(list)
    rest = [seconds for _, seconds, _ in ops]  # with the longest path behind it
    for i in reversed(range(len(ops))):
        rest[i] += max((rest[j] for j in behind[i]), default=0.0)
        for before in ops[i][2]:
            behind[before].append(i)
    ready: list[tuple[float, int]] = []
    running: list[tuple[float, int]] = [(pushes[0], -1)] if ops else []  # -1: a push
    pushed, now = 0, 0.0

    def granted(op: int) -> None:
        missing[op] -= 1
        if missing[op] == 0:
            heapq.heappush(ready, (-rest[op], op))

    while running:
        now, ended = heapq.heappop(running)
        if ended < 0:
            granted(pushed)
            pushed += 1
            if pushed < len(ops):
                heapq.heappush(running, (now + pushes[pushed], -1))
        else:
            for op in behind[ended]:
                granted(op)
        free = min(workers, cores - (pushed < len(ops))) - sum(op >= 0 for _, op in running)
        while ready and free > 0:
            op = heapq.heappop(ready)[1]
            heapq.heappush(running, (now + ops[op][1], op))
            free -= 1
    return now


def time_of_workers(ops: Iterable[tuple[float, float, float]], workers: int) -> dict[str, float]:
    """What all workers together did from the moment at which the first op was ready to the last end; an op is (ready, begin, end).
    `running`: they ran ops. `ready`: they ran none while one was ready. `nothing`: none was. The three add up to the workers' time."""
    changes = sorted(change for ready, begin, end in ops for change in ((ready, 1, 0), (begin, -1, 1), (end, 0, -1)))
    spent = dict.fromkeys(("running", "ready", "nothing"), 0.0)
    ready = running = 0
    for (at, more_ready, more_running), (then, *_) in itertools.pairwise(changes):
        ready, running = ready + more_ready, running + more_running
        idle = max(workers - running, 0)  # the program's thread may run one, too
        waiting = min(idle, ready)
        spent["running"] += running * (then - at)
        spent["ready"] += waiting * (then - at)
        spent["nothing"] += (idle - waiting) * (then - at)
    return spent


def seconds_of(names: Iterable[str], measured: Iterable[tuple[str, float]], steps: int) -> list[float]:
    """What the ops of these names take, from what those of `steps` steps took: the median of those that have its place among the ops
    of its name in a step; of all of its name, if their number differs between steps."""
    all_of: dict[str, list[float]] = defaultdict(list)
    for name, seconds in measured:
        all_of[name].append(seconds)
    medians = {}
    for name, seconds in all_of.items():
        in_step = len(seconds) // steps if len(seconds) % steps == 0 else 1
        medians[name] = [statistics.median(seconds[i::in_step]) for i in range(in_step)]
    seen: dict[str, int] = defaultdict(int)
    found = []
    for name in names:
        of_name = medians.get(name, [0.0])
        found.append(of_name[seen[name] % len(of_name)])
        seen[name] += 1
    return found


def by_place(typical: Callable[[list[float]], float], values: list[float], steps: int, counted: list[bool] | None = None) -> list[float]:
    """For each value what is typical of those that have its place in a step; all steps have as many. `counted`: of these only, unless none of
    that place is."""
    in_step = len(values) // steps
    found = []
    for place in range(in_step):
        all_of = values[place::in_step]
        found.append(typical([value for value, counts in zip(all_of, counted[place::in_step]) if counts] or all_of if counted else all_of))
    return [found[i % in_step] for i in range(len(values))]
