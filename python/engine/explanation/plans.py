"""Explaining plans: what runs after what, what it costs, and how close a run came to the best possible time."""

from __future__ import annotations

import os
import pathlib
from typing import Sequence

from .. import _core
from ..errors import UsageError
from . import analysis, page, pictures
from .model import TraceData, TraceEvent


class Explanation:
    """What ``engine.explain`` returns: print it; ``dot`` is for Graphviz, ``picture(path)`` draws the timed run.

    After ``step.profile(...)``, or once the policy cost_model has measured, it has ``work`` (T1, the sum of the nodes'
    costs) and ``critical`` (T-infinity, the longest path) in seconds, ``path`` (the nodes on that path), ``costs``,
    ``ranks``, ``makespan``, ``workers``, and ``bound`` = max(T1 without the nodes on a GPU / workers, T-infinity).
    ``model`` has all of these, and what cost_model does with the plan (Plan.explain). ``unwatched``: names of state of a
    hybridized function that no name leads to, so that a call does not notice if other state is in its place.
    """

    def __init__(self, plan: _core.Plan, run: _core.Run | None = None, unwatched: Sequence[str] = ()) -> None:
        self.unwatched = list(unwatched)
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
        unwatched = f"  unwatched state, which no name leads to: {', '.join(self.unwatched)}\n" if self.unwatched else ""
        if self.costs:
            return f"plan '{self.plan.name}': {self.model['text']}{unwatched}"
        return f"{self.plan.describe()}  no costs: nothing was profiled; call .profile(...) once\n{unwatched}"

    def html(self) -> str:
        """The timed run as one HTML page with a timeline; it loads nothing from anywhere. UsageError before .profile(...)."""
        return page.page(self._analysis())

    def write(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """Writes the page to a file, and returns its path."""
        where = pathlib.Path(path)
        where.write_text(self.html(), encoding="utf-8")
        return where

    def _repr_html_(self) -> str:
        return (
            page.embedded(self._analysis()) if any(end for _, end, _ in self.times) else pictures.plan_html(self.plan)
        )

    def _analysis(self) -> analysis.Analysis:
        """The timed run, as if it had been traced."""
        ran = sorted((begin, end, worker, n) for n, (begin, end, worker) in enumerate(self.times) if end)
        if not ran:
            raise UsageError(
                f"explain: no run of plan '{self.plan.name}' was timed; call .profile(...) once, or trace runs"
            )
        start, place = ran[0][0], {n: i for i, (*_, n) in enumerate(ran)}
        after: dict[int, list[int]] = {}
        for a, b in self.plan.edges:
            if a in place and b in place:
                after.setdefault(b, []).append(place[a])
        events: list[TraceEvent] = []
        for begin, end, worker, n in ran:
            before = sorted(i for i in after.get(n, []) if i < len(events))
            name, site, effects = self.nodes[n]
            events.append(TraceEvent(
                name, f"cpu/{worker}" if worker >= 0 else "caller", begin - start, end - start, len(events), False, 0.0,
                min(max([0.0, *(events[i].end for i in before)]), begin - start), plan=self.plan.name, run=1, site=site,
                after=tuple(before), uses=tuple((mode, 0, var) for var, mode in effects)))  # fmt: skip
        threads = [f"cpu/{i}" for i in range(self.workers)]
        return analysis.analyse(TraceData(self.plan.name, events, [], threads, max(e.end for e in events)))

    def picture(self, path: str | os.PathLike[str]) -> None:
        """Draws the timed run as a Gantt chart: a row for each worker, the critical path in red. Needs matplotlib."""
        if not self.times:
            raise UsageError("explain: there is no run to draw; call .profile(...) once")
        try:
            import matplotlib.figure
        except ImportError:
            raise UsageError("explain: the picture needs the package matplotlib: pip install matplotlib") from None

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
        axes.set_title(
            f"{self.plan.name}: {self.makespan * 1e3:.3f} ms, {self.makespan / self.bound:.2f} of the bound"
        )
        figure.savefig(path, dpi=120)
