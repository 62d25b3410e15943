"""explain: what a compiled model or step is made up of, what it costs, and why it is not faster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import nn

import engine

from . import regions
from .lines import line_of
from .modes import EAGER
from .program import Program
from .reach import reached
from .step import CompiledStep


@dataclass
class NodeExplained:
    """A node of a plan: an operator with its views. Times in seconds; ``worker``: where it last ran under measurement, -1
    the caller's thread; None: not measured. ``critical``: it is on the longest path. ``by``: "oneDNN's brgemm" or "oneDNN's
    matmul", if a product of matrices is made by these; ''."""

    name: str
    line: str
    calls: int
    cost: float
    worker: int | None
    critical: bool
    by: str = ""


@dataclass
class PlanExplained:
    """One graph as a plan: "step", "forward", "backward" or "inference"."""

    kind: str
    nodes: list[NodeExplained] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    work: float = 0.0  # the sum of the costs
    critical: float = 0.0  # the longest path
    bound: float = 0.0  # no schedule on so many workers is shorter
    workers: int = 1
    said: str = ""  # what cost_model has decided
    why_not: str = ""  # why it is no plan

    def __str__(self) -> str:
        if self.why_not:
            return f"{self.kind}: no plan, but calls from Python, because of {self.why_not}"
        ms = 1e3
        lines = [f"{self.kind}: {len(self.nodes)} nodes; work {self.work * ms:.3f} ms, critical path "
                 f"{self.critical * ms:.3f} ms, at best {self.bound * ms:.3f} ms on {self.workers} workers"]  # fmt: skip
        if self.said:
            lines.append(f"  cost_model: {self.said}")
        for by, count in Counter(n.by for n in self.nodes if n.by).items():
            lines.append(f"  {count} product{'s' * (count > 1)} of matrices by {by}")
        for i in sorted(range(len(self.nodes)), key=lambda i: -self.nodes[i].cost)[:8]:
            n = self.nodes[i]
            where = "" if n.worker is None else ", caller" if n.worker < 0 else f", worker {n.worker}"
            lines.append(f"  {n.cost * 1e6:9.1f} us  {n.name}{f' by {n.by}' if n.by else ''}{' *' if n.critical else ''}{where}  {n.line}")
        return "\n".join(lines)


@dataclass
class TorchExplanation:
    """``print`` it. ``mode``: how calls run now; None: still measured. ``times``: median seconds by mode, as measured."""

    name: str
    mode: str | None
    why: str
    times: dict[str, float]
    plans: list[PlanExplained]

    def why_not_faster(self) -> str:
        """The reason that weighs most, in a sentence."""
        plans = [p for p in self.plans if p.nodes]
        if not plans:
            return self.why
        if self.mode == EAGER:
            best = min((m for m in self.times if m != EAGER), key=self.times.__getitem__, default=None)
            there = f" ({self.times[EAGER] * 1e3:.3f} ms, {best} {self.times[best] * 1e3:.3f})" if best and EAGER in self.times else ""
            return f"it runs eagerly, which was faster{there}: the call of a compiled graph costs more than the plan saves"
        work, critical, bound = (sum(getattr(p, n) for p in plans) for n in ("work", "critical", "bound"))
        if not work:
            return "no node has been measured yet"
        took = min(self.times.values(), default=0.0)
        if critical > 0.8 * bound and critical > work / plans[0].workers:
            return f"the critical path alone takes {critical * 1e3:.3f} ms, so more workers would not help"
        if took and took > 1.5 * bound:
            return f"{(took - bound) * 1e3:.3f} of {took * 1e3:.3f} ms are neither work nor path: the call itself and hand-overs"
        return f"all {plans[0].workers} workers are busy for most of the time: {work * 1e3:.3f} ms of work"

    def __str__(self) -> str:
        now = f"runs {self.mode}" if self.mode else "is still measured"
        return "\n".join([f"{self.name} {now}: {self.why}", *map(str, self.plans), f"why not faster: {self.why_not_faster()}"])


def _plan(kind: str, program: Program) -> PlanExplained:
    lowered = program.lowered
    if lowered is None:
        return PlanExplained(kind, why_not=program.why_not)
    told = program.plan.explain()
    times = program.times
    costs = told["costs"] if any(told["costs"]) else [(t.end - t.begin) / 1e9 for t in times] if times else [0.0] * program.steps
    path = told["path"] if any(told["costs"]) else _longest(lowered.edges(), costs)
    parts, on_path = [], set(path)
    for i, step in enumerate(lowered.steps):
        file, line, _ = line_of(lowered.main(i).node)
        parts.append(NodeExplained(lowered.name(i), f"{file}:{line}" if file else "", len(step.calls), costs[i],
                                   times[i].worker if times else None, i in on_path, lowered.by(i)))  # fmt: skip
    work, critical = sum(costs), sum(costs[i] for i in path)
    workers = program.options.team
    return PlanExplained(kind, parts, list(path), work, critical, max(work / workers, critical), workers, told["said"])


def _longest(edges: list[tuple[int, int]], costs: list[float]) -> list[int]:
    length, before = list(costs), [-1] * len(costs)
    for a, b in sorted(edges, key=lambda e: e[1]):
        if length[a] + costs[b] > length[b]:
            length[b], before[b] = length[a] + costs[b], a
    path = [max(range(len(costs)), key=length.__getitem__)] if costs else []
    while path and before[path[-1]] >= 0:
        path.append(before[path[-1]])
    return path[::-1]


def explain(compiled: Any) -> list[TorchExplanation]:
    """What a compiled step, or each graph of a model or function under torch.compile, is made up of; nodes, costs, the
    critical path, where nodes ran, how it runs and why it is not faster. ``print(*engine.torch.explain(model))``.

    engine.UsageError if nothing of it has been compiled by this backend yet.
    """
    if isinstance(compiled, CompiledStep):
        return [_step(compiled)]
    function = getattr(compiled, "_torchdynamo_orig_callable", compiled)
    modules = [compiled] if isinstance(compiled, nn.Module) else reached(function, nn.Module)
    own = [p for m in modules for p in m.parameters()]
    if isinstance(compiled, nn.Module):
        function = type(getattr(compiled, "_orig_mod", compiled)).forward
    # Graphs without parameters are found by the function's code; those of functions that it calls are not.
    found = {r for r in regions.compiled if any(r.parameters.get(id(p)) is p for p in own)} | regions.regions_of(getattr(function, "__func__", function))
    if not found:
        raise engine.errors.UsageError(f"engine.torch.explain: nothing of {type(compiled).__name__} has been compiled and called")
    out = []
    for region in sorted(found, key=lambda r: r.number):
        choice = region.choice
        plans = [_plan(kind, program) for kind, program in region.programs.items()]
        why = choice.why + (f"; AOTAutograd's wrapper calls it, because of {region.needs_wrapper}" if region.needs_wrapper else "")
        out.append(TorchExplanation(f"graph {region.number}", choice.decided, why, choice.medians(), plans))
    return out


def _step(step: CompiledStep) -> TorchExplanation:
    if step.why_eager or step.last is None:
        why = step.why_eager or "it has been called less than twice"
        return TorchExplanation(step.name, EAGER, why, {}, [])
    choice = step.last.choice
    why = choice.why + (f"; captured {step.captures} times, last because of {step.recaptured}" if step.recaptured else "")
    if step.told_full:
        why += f"; calls with arguments of other kinds than the {len(step.ready)} captured ones run eagerly"
    return TorchExplanation(step.name, choice.decided, why, choice.medians(), [_plan("step", step.last.program)])
