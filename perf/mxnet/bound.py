"""What two cores allow a program at most, by the order of its ops and by what the cores give together. Pure: without MXNet.

An op is (name, seconds, the places in the list of those that it comes behind); ops stand in the order in which they were pushed."""

import heapq
import statistics
from collections import defaultdict
from collections.abc import Iterable

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


def two_cores(gain: float, ordered: float, share: float) -> float:
    """How many times as fast as one thread, in which a step's ops and the pushing take turns, two cores can be at most.

    gain: what both cores do at once, by what one does alone. ordered: how much faster two workers may run the ops by their order alone,
    if two cores did twice as much as one. share: the ops' part of the one thread's time; the pushing lies beside them at best.

    While both cores work each is slower than alone, also with the op that all others wait for; so both bounds together are less than the
    smaller one. With u of the time both busy, and v one: gain * u + v = 1 is the work, and gain / 2 * u + v the longest path."""
    both = 2 * (1 - 1 / min(max(ordered, 1.0), 2.0))  # the part of the work that two cores can share
    ops = 1 - both + both / max(gain, 1.0)
    return 1 / max(1 / gain, share * ops)


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
