"""Explaining plans: what runs after what, what it costs, and how close a run came to the best possible time."""

from __future__ import annotations

import os
from typing import Any

from . import _core
from .errors import UsageError
from .graphs import Hybrid


class Explanation:
    """What ``engine.explain`` returns: print it; ``dot`` is for Graphviz, ``picture(path)`` draws the timed run.

    After ``step.profile(...)``, or once the policy cost_model has measured, it has ``work`` (T1, the sum of the nodes'
    costs) and ``critical`` (T-infinity, the longest path) in seconds, ``path`` (the nodes on that path), ``costs``,
    ``ranks``, ``makespan``, ``workers``, and ``bound`` = max(T1 without the nodes on a GPU / workers, T-infinity).
    ``model`` has all of these, and what cost_model does with the plan (Plan.explain).
    """

    def __init__(self, plan: _core.Plan, run: _core.Run | None = None) -> None:
        self.plan, self.nodes, self.model = plan, plan.nodes, plan.explain(run)
        self.times = run.times if run else []
        self.path: list[int] = self.model["path"]
        self.costs: list[float] = self.model["costs"] if self.model["work"] else []
        self.ranks: list[float] = self.model["ranks"] if self.model["work"] else []
        self.workers: int = self.model["workers"]
        self.work, self.critical, self.bound = self.model["work"], self.model["critical"], self.model["bound"]
        self.makespan: float = self.model["makespan"]
        self.dot: str = self.model["dot"]

    def __str__(self) -> str:
        if self.costs:
            return f"plan '{self.plan.name}': {self.model['text']}"
        return self.plan.describe() + "  no costs: nothing was profiled; call .profile(...) once\n"

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draws the timed run as a Gantt chart: a row for each worker, the critical path in red. Needs matplotlib."""
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
            axes.barh(rows.index(worker), (end - begin) * 1e3, left=(begin - start) * 1e3, height=0.8, linewidth=0.5,
                      edgecolor="white", color="tab:red" if n in on_path else "tab:blue")  # fmt: skip
        axes.set_yticks(range(len(rows)), [f"worker {row}" if row >= 0 else "caller" for row in rows])
        axes.set_xlabel("ms; red: the critical path")
        axes.set_title(f"{self.plan.name}: {self.makespan * 1e3:.3f} ms, {self.makespan / self.bound:.2f} of the bound")
        figure.savefig(path, dpi=120)


def explain(plan: Any) -> Explanation:
    """Explains a hybridized function or a plan. After ``step.profile(...)``, or under the policy cost_model, also says
    what each node costs and what follows: ranks, slack, batches, the critical path, and how close a step comes to the
    bound."""
    if isinstance(plan, Hybrid):
        if plan.plan is None:
            raise UsageError(f"explain: {plan!r} was not recorded yet; call it, or .record(...) it")
        return Explanation(plan.plan, plan._profile)
    if isinstance(plan, _core.Plan):
        return Explanation(plan)
    raise TypeError(f"explain: a {type(plan).__name__} is neither a hybridized function nor a plan")
