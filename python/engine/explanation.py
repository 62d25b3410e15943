"""Explaining plans: what runs after what, what it costs, and how close a run came to the best there could be."""

from __future__ import annotations

import os
from typing import Any

from . import _core
from .errors import UsageError
from .graphs import Hybrid


class Explanation:
    """What ``engine.explain`` returns: print it; ``dot`` is for Graphviz, ``picture(path)`` draws the timed run.

    After ``step.profile(...)``, or once the policy cost_model has measured: ``work`` (T1, the sum of the nodes' costs) and
    ``critical`` (T-infinity, the longest path) in seconds, ``path`` (nodes on it), ``ranks``, ``makespan``, ``workers``,
    ``bound`` = max(T1 / workers, T-infinity), T1 without the nodes on a GPU. ``model`` is what cost_model knows and does (Plan.cost_model), batches too.
    """

    def __init__(self, plan: _core.Plan, times: list[tuple[int, int, int]], workers: int) -> None:
        self.plan, self.times, self.workers = plan, times, max(1, workers)
        self.nodes, self.dot = plan.nodes, plan.dot()
        self.model = plan.cost_model()
        self.path: list[int] = []
        if times:
            self.costs = [(end - begin) / 1e9 for begin, end, _ in times]
        else:
            self.costs = self.model["costs"] if self.model["measured"] else []
        if self.model["measured"]:
            self.dot = self.model["dot"]
        if self.costs:
            self._find_path()

    def _find_path(self) -> None:
        follow: list[list[int]] = [[] for _ in self.nodes]
        for before, after in self.plan.edges:
            follow[before].append(after)
        self.ranks = [0.0] * len(self.nodes)  # own cost and the longest way to the end
        order = [node for task in self.plan.tasks for node in task]
        for n in reversed(order):
            self.ranks[n] = self.costs[n] + max((self.ranks[s] for s in follow[n]), default=0.0)
        self.work, self.critical = sum(self.costs), max(self.ranks, default=0.0)
        ran = [t for t in self.times if t[1]]
        self.makespan = (max(t[1] for t in ran) - min(t[0] for t in ran)) / 1e9 if ran else self._step_time()
        here = sum(cost for cost, there in zip(self.costs, self.model["devices"]) if not there)
        self.bound = max(here / self.workers, self.critical)
        at = max(range(len(self.nodes)), key=lambda n: self.ranks[n], default=None)
        while at is not None:
            self.path.append(at)
            at = max(follow[at], key=lambda n: self.ranks[n], default=None)

    def _step_time(self) -> float:
        """As cost_model measured it: of the way of running that it chose."""
        went_back = self.model["state"] == "went back"
        return self.model["before"] if went_back or not self.model["after"] else self.model["after"]

    def __str__(self) -> str:
        if not self.costs:
            return self.plan.describe() + "  no costs: nothing was profiled; call .profile(...) once\n"
        batches = self.model["batches"]
        lines = [
            self.plan.describe().splitlines()[0],
            *([] if self.model["state"] == "not used" else [
                f"  cost_model: {self.model['said']}",
                "  pushed ops have no graph to rank, and run as under threaded",
            ]),
            f"  work T1 {_ms(self.work)}, critical path {_ms(self.critical)}, bound on {self.workers} workers "
            f"{_ms(self.bound)}; the run took {_ms(self.makespan)}, {self.makespan / self.bound:.2f} of the bound"
            if self.bound
            else "  nothing ran",
            f"  {'node':24} {'cost':>10} {'rank':>10} {'slack':>10} {'batch':>6}",
        ]
        on_path = set(self.path)
        heads = self._earliest()
        for n, (name, _, _) in enumerate(self.nodes):
            slack = self.critical - heads[n] - self.ranks[n]
            mark = (" on a GPU" if self.model["devices"][n] else "") + (" *" if n in on_path else "")
            lines.append(f"  {name:24} {_ms(self.costs[n]):>10} {_ms(self.ranks[n]):>10} {_ms(slack):>10} {batches[n]:>6}{mark}")
        return "\n".join(lines) + "\n"

    def _earliest(self) -> list[float]:
        """When each node could start if there were workers enough."""
        earliest = [0.0] * len(self.nodes)
        follow: list[list[int]] = [[] for _ in self.nodes]
        for before, after in self.plan.edges:
            follow[before].append(after)
        for n in (node for task in self.plan.tasks for node in task):
            for s in follow[n]:
                earliest[s] = max(earliest[s], earliest[n] + self.costs[n])
        return earliest

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draws the timed run as a Gantt chart, one row a worker, the critical path in red. Needs matplotlib."""
        if not self.times:
            raise UsageError("explain: there is no run to draw; call .profile(...) once")
        import matplotlib.figure

        rows = sorted({worker for begin, end, worker in self.times if end})
        start = min(begin for begin, end, _ in self.times if end)
        figure = matplotlib.figure.Figure(figsize=(12, 1.5 + 0.6 * len(rows)), layout="constrained")
        axes = figure.subplots()
        on_path = set(self.path)
        for n, (begin, end, worker) in enumerate(self.times):
            if not end:
                continue
            axes.barh(rows.index(worker), (end - begin) / 1e6, left=(begin - start) / 1e6, height=0.8, linewidth=0.5,
                      edgecolor="white", color="tab:red" if n in on_path else "tab:blue")  # fmt: skip
        axes.set_yticks(range(len(rows)), [f"worker {row}" if row >= 0 else "caller" for row in rows])
        axes.set_xlabel("ms; red: the critical path")
        axes.set_title(f"{self.plan.name}: {_ms(self.makespan)}, {self.makespan / self.bound:.2f} of the bound")
        figure.savefig(path, dpi=120)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def explain(plan: Any) -> Explanation:
    """What a hybridized function or a plan does; after ``step.profile(...)``, or under the policy cost_model, what each node
    costs and what that means: ranks, slack, batches, the critical path, and how close a step comes to the bound."""
    if isinstance(plan, Hybrid):
        if plan.plan is None:
            raise UsageError(f"explain: {plan!r} was not recorded yet; call it, or .record(...) it")
        run = plan._profile
        return Explanation(plan.plan, run.times if run else [], _core.default().workers)
    if isinstance(plan, _core.Plan):
        return Explanation(plan, [], _core.default().workers)
    raise TypeError(f"explain: a {type(plan).__name__} is neither a hybridized function nor a plan")
