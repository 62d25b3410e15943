"""What torch's kernels alone take, in the order and on the threads that a step allows: the bound of every way that calls
them unchanged.

Costs are those of a plan's nodes, each the median of many runs of the nodes in turn: with one thread of torch's, and with
as many as there are workers. A node's cost holds its kernels and the boxed calls of them, and nothing of the engine's.
What lies between `bound` and a step's time is the engine's and the call's; what lies between the target and `bound` only
other kernels can bring."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

ROUNDS, UNCOUNTED = 31, 5


class Bound(NamedTuple):
    """Milliseconds. ``work``: the nodes in turn, one thread each. ``wide``: in turn, each with all threads. ``schedule``: a
    list schedule by rank, one thread each. ``bound``: what no schedule can go below, each node taking one thread or all."""

    work: float
    wide: float
    schedule: float
    bound: float


def list_schedule(costs: list[float], edges: list[tuple[int, int]], workers: int) -> float:
    """The makespan when each worker that is free takes the ready node with the longest path behind it."""
    behind, after, waits = list(costs), [[] for _ in costs], [0] * len(costs)
    for a, b in edges:
        after[a].append(b)
        waits[b] += 1
    for a in reversed(range(len(costs))):  # nodes are numbered in an order in which they can run
        behind[a] += max((behind[b] for b in after[a]), default=0.0)
    ready = [(-behind[i], i) for i, count in enumerate(waits) if count == 0]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < workers:
            i = heapq.heappop(ready)[1]
            heapq.heappush(running, (now + costs[i], i))
        now, ended = heapq.heappop(running)
        for b in after[ended]:
            waits[b] -= 1
            if waits[b] == 0:
                heapq.heappush(ready, (-behind[b], b))
    return now


def lower_bound(narrow: list[float], wide: list[float], edges: list[tuple[int, int]], workers: int) -> float:
    """No schedule is shorter in which each node takes one worker for ``narrow`` or all of them for ``wide``."""
    least = [min(pair) for pair in zip(narrow, wide, strict=True)]
    longest = list(least)
    for a, b in sorted(edges, key=lambda edge: edge[1]):
        longest[b] = max(longest[b], longest[a] + least[b])
    area = sum(min(n, workers * w) for n, w in zip(narrow, wide, strict=True))
    return max(max(longest, default=0.0), area / workers)


def costs_of(run: Callable[[Any], None], times: Any) -> list[float]:
    """The median milliseconds of each node. ``run`` runs the nodes in turn and fills ``times``."""
    found: list[list[float]] = []
    for _ in range(UNCOUNTED + ROUNDS):
        run(times)
        found.append([(t.end - t.begin) / 1e6 for t in times])
    return [statistics.median(costs) for costs in zip(*found[UNCOUNTED:], strict=True)]


def bound_of(compiled: Any, inputs: tuple, workers: int) -> Bound | None:
    """The bound of what compile_step has captured; None if that runs eagerly, or as one call."""
    from engine.torch.arguments import flat
    from engine.torch.modes import CALLER, IN_TURN
    from engine.torch.program import NodeTime

    ready = compiled.last
    if ready is None or not ready.program.steps:
        return None
    leaves, times = flat((inputs, {}))[0], (NodeTime * ready.program.steps)()
    narrow = costs_of(lambda into: ready.run(leaves, IN_TURN, into), times)
    wide = costs_of(lambda into: ready.run(leaves, CALLER, into), times) if workers > 1 else narrow
    edges = ready.program.lowered.edges()
    return Bound(sum(narrow), sum(wide), list_schedule(narrow, edges, workers), lower_bound(narrow, wide, edges, workers))
