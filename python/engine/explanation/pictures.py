"""What notebooks show: a plan as a drawing, a stage as a small table."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .. import _core
    from ..stages import Stage

MOST_NODES = 120  # beyond that a drawing shows nothing
WIDE, HIGH, ACROSS, DOWN = 132, 26, 40, 12  # a box, and the room between boxes

Edges = list[tuple[int, int]]


def plan_html(plan: _core.Plan) -> str:
    """The plan's nodes from left to right, each behind what it depends on; only edges that do not follow from others."""
    names, edges = [name for name, _, _ in plan.nodes], plan.edges
    title = f"<b>plan {html.escape(plan.name)}</b>: {len(names)} nodes in {len(plan.tasks)} tasks"
    if not names or len(names) > MOST_NODES:
        kinds = {name: names.count(name) for name in dict.fromkeys(names)}
        rows = "".join(f"<tr><td>{html.escape(n)}</td><td>{c}</td></tr>" for n, c in list(kinds.items())[:40])
        return f"<div>{title}<table><tr><th>node</th><th>count</th></tr>{rows}</table></div>"
    return f"<div>{title}<br>{svg(names, reduced(len(names), edges), plan.nodes)}</div>"


def stage_html(stage: Stage) -> str:
    """How far the stage is, and how full."""
    told = stage.stats()
    facts = {
        "delivered": told["delivered"], "filled": f"{told['fill']} of {told['capacity']}", "producers": told["threads"],
        "producers waited for room": f"{told['producer_wait']:.3g} s", "consumers waited for items": f"{told['consumer_wait']:.3g} s",
    }  # fmt: skip
    rows = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in facts.items())
    return f"<div><b>stage {html.escape(stage.name)}</b><table>{rows}</table></div>"


def reduced(count: int, edges: Edges) -> Edges:
    """Without the edges that follow from others."""
    after: list[set[int]] = [set() for _ in range(count)]
    for a, b in edges:
        after[a].add(b)
    reach: list[set[int]] = [set() for _ in range(count)]
    for a in reversed(order(count, edges)):
        for b in after[a]:
            reach[a] |= {b} | reach[b]
    return [(a, b) for a, b in edges if not any(b in reach[c] for c in after[a] if c != b)]


def order(count: int, edges: Edges) -> list[int]:
    """The nodes, each behind all that it depends on."""
    left = [0] * count
    for _, b in edges:
        left[b] += 1
    out = [n for n in range(count) if left[n] == 0]
    for a in out:
        for from_, b in edges:
            if from_ == a:
                left[b] -= 1
                if left[b] == 0:
                    out.append(b)
    return out


def svg(names: list[str], edges: Edges, nodes: list[tuple[str, str, list[tuple[str, str]]]]) -> str:
    column = [0] * len(names)
    place = [0.0] * len(names)
    columns: dict[int, list[int]] = {}
    for n in order(len(names), edges):
        column[n] = 1 + max((column[a] for a, b in edges if b == n), default=-1)
        columns.setdefault(column[n], []).append(n)
    for c in sorted(columns):  # beside the middle of what they depend on

        def middle(n: int) -> float:
            before = [place[a] for a, b in edges if b == n]
            return sum(before) / len(before) if before else 0.0

        for i, n in enumerate(sorted(columns[c], key=middle)):
            place[n] = i - (len(columns[c]) - 1) / 2
    most = max(len(c) for c in columns.values())
    width, height = len(columns) * (WIDE + ACROSS) - ACROSS + 2, most * (HIGH + DOWN) + 2

    def at(n: int) -> tuple[float, float]:
        return 1 + column[n] * (WIDE + ACROSS), height / 2 + place[n] * (HIGH + DOWN) - HIGH / 2

    parts = []
    for a, b in edges:
        (x0, y0), (x1, y1) = at(a), at(b)
        x0, y0, y1 = x0 + WIDE, y0 + HIGH / 2, y1 + HIGH / 2
        parts.append(f'<path d="M{x0} {y0}C{x0 + ACROSS * 0.6} {y0} {x1 - ACROSS * 0.6} {y1} {x1} {y1}" '
                     'fill="none" stroke="currentColor" opacity=".45"/>')  # fmt: skip
    for n, name in enumerate(names):
        x, y = at(n)
        touches = ", ".join(f"{mode} {var}" for var, mode in nodes[n][2])
        shown = name if len(name) <= 17 else name[:16] + "…"
        parts.append(f'<g><title>{html.escape(f"{name}: {touches}" if touches else name)}\n{html.escape(nodes[n][1])}</title>'
                     f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="5" fill="#4a90b8" fill-opacity=".16" '
                     f'stroke="#4a90b8"/><text x="{x + WIDE / 2}" y="{y + HIGH / 2 + 4}" text-anchor="middle" font-size="12" '
                     f'font-family="system-ui, sans-serif" fill="currentColor">{html.escape(shown)}</text></g>')  # fmt: skip
    return (f'<svg role="img" aria-label="graph of {len(names)} nodes" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" style="max-width:100%">{"".join(parts)}</svg>')  # fmt: skip
