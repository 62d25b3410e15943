"""An analysis as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import html
import json
import pathlib
from typing import Any, Iterable

from .analysis import IDLE, Analysis
from .text import ADVICE, plural, text
from .text import duration as plain_duration

SCRIPTS = ("model.js", "rows.js", "draw.js", "profile.js", "details.js", "keys.js", "page.js")


def page(a: Analysis) -> str:
    """The page, as text in UTF-8."""
    parts = {
        "title": html.escape(a.data.name),
        "style": _asset("page.css"),
        "figures": _figures(a),
        "idle": _idle(a),
        "path": _path(a),
        "kinds": _kinds(a),
        "text": html.escape(text(a)),
        "data": _inside_script(json.dumps(_data(a), separators=(",", ":"), ensure_ascii=False)),
        "script": "\n".join(_asset(name) for name in SCRIPTS),
    }
    # One pass, so that what a part brings is never taken for a mark.
    pieces = _asset("page.html").split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def embedded(a: Analysis, height: int = 560) -> str:
    """The page in a frame, for notebooks."""
    source = base64.b64encode(page(a).encode()).decode()
    return (f'<iframe title="Timeline of {html.escape(a.data.name)}" width="100%" height="{height}" '
            f'style="border:0" sandbox="allow-scripts" src="data:text/html;base64,{source}"></iframe>')  # fmt: skip


def _asset(name: str) -> str:
    return (pathlib.Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def _inside_script(code: str) -> str:
    """JSON that cannot end the script element it stands in, whatever the names of ops."""
    return code.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


class _Numbers:
    """Gives each text a number, in the order in which they come."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def of(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))


def duration(seconds: float) -> str:
    return plain_duration(seconds).replace(" us", " µs")


def _nanos(seconds: float) -> int:
    return round(seconds * 1e9)


def _data(a: Analysis) -> dict[str, Any]:
    """Columns instead of objects: 10^5 ops are about 8 MB. Times are nanoseconds since the first op began."""
    names, threads, plans, sites, variables = _Numbers(), _Numbers(), _Numbers(), _Numbers(), _Numbers()
    for thread in a.workers:
        threads.of(thread)

    def at(seconds: float) -> int:
        return _nanos(seconds - a.begin)

    events = a.data.events
    return {
        "length": _nanos(a.makespan),
        "workers": len(a.workers),
        "parallelism": a.work / a.span if a.span else 1.0,
        "begin": [at(e.begin) for e in events],
        "took": [_nanos(e.end - e.begin) for e in events],
        "settled": [-1 if e.settled is None else at(e.settled) for e in events],
        "pushed": [None if e.pushed is None else at(e.pushed) for e in events],
        "ready": [at(e.ready) for e in events],
        "name": [names.of(e.name or "op") for e in events],
        "thread": [threads.of(e.thread) for e in events],
        "pusher": [threads.of(e.pusher) if e.pusher else -1 for e in events],
        "plan": [-1 if e.plan is None else plans.of(e.plan) for e in events],
        "run": [e.run for e in events],
        "site": [sites.of(e.site) if e.site else -1 for e in events],
        "skipped": [e.op for e in events if e.skipped],
        "after": [list(e.after) for e in events],
        "uses": [[[mode, variables.of(name or f"Var {var}")] for mode, var, name in e.uses] for e in events],
        "waits": [[w.cause, threads.of(w.thread), at(w.begin), _nanos(w.end - w.begin), w.name] for w in a.data.waits],
        "idle": [[threads.of(i.thread), at(i.begin), at(i.end), i.cause] for i in a.idle],
        "path": a.path,
        "names": list(names.texts), "threads": list(threads.texts), "plans": list(plans.texts), "sites": list(sites.texts),
        "variables": list(variables.texts), "causes": IDLE,
    }  # fmt: skip


def _figures(a: Analysis) -> str:
    at_once = a.work / a.makespan if a.makespan else 1.0
    tiles = [
        ("took", duration(a.makespan), "from the first op's begin to the last one's end"),
        ("ops", f"{len(a.data.events):,}", f"of {plural(len(a.kinds), 'kind')}"),
        ("work", duration(a.work), "all ops, one after the other"),
        ("critical path", duration(a.span), f"{plural(len(a.path), 'op')} that had to come one after the other"),
        ("at once", f"{at_once:.2f}", f"on average, of {plural(len(a.workers), 'worker')}; the ops allow "
                                      f"{a.work / a.span if a.span else 1:.3g}"),
        ("of the best", f"{a.bound / a.makespan if a.makespan else 1:.0%}", f"no schedule takes less than {duration(a.bound)}"),
    ]  # fmt: skip
    return "\n".join(
        f"<div><dt>{name}</dt><dd>{value}<small>{html.escape(what)}</small></dd></div>" for name, value, what in tiles
    )


def _row(cells: Iterable[str], first: str = "th scope=row") -> str:
    head, *rest = cells
    return f"<tr><{first}>{head}</{first.split()[0]}>" + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"


def _idle(a: Analysis) -> str:
    total = sum(a.idle_by_cause.values())
    causes = sorted(a.idle_by_cause.items(), key=lambda item: -item[1])
    full = f"<p>Producers of stages waited {duration(a.stage_full)} for room.</p>" if a.stage_full else ""
    if not total:
        return f"<p>No worker was ever idle.</p>{full}"
    bar = "".join(f'<span class="cause" data-cause="{c}" style="flex-grow:{s / total:.4f}" title="{c} {s / total:.0%}"></span>'
                  for c, s in causes)  # fmt: skip
    rows = "\n".join(
        _row((f'<i class="cause" data-cause="{cause}"></i>{cause}', duration(seconds), f"{seconds / total:.0%}", html.escape(IDLE[cause])))
        for cause, seconds in causes)  # fmt: skip
    return (f'<p>{duration(total)} of {duration(a.makespan * len(a.workers))}. Most of it is <b>{causes[0][0]}</b>: '
            f'{html.escape(ADVICE[causes[0][0]])}.</p><div class="bar" aria-hidden="true">{bar}</div>'
            f"<table><tbody>{rows}</tbody></table>{full}")  # fmt: skip


def _path(a: Analysis) -> str:
    shown = [a.data.events[n] for n in a.path[:400]]
    rows = "\n".join(f'<tr data-op="{e.op}"><th scope="row"><button>{html.escape(e.name or "op")}</button></th>'
                     f"<td>{duration(e.seconds)}</td><td>{e.seconds / a.span if a.span else 0:.0%}</td>"
                     f"<td>{html.escape(e.thread)}</td><td>{duration(e.begin - a.begin)}</td></tr>" for e in shown)  # fmt: skip
    more = f"<p>and {len(a.path) - 400:,} more</p>" if len(a.path) > 400 else ""
    return ('<table><thead><tr><th scope="col">op</th><td>took</td><td>of it</td><td>thread</td><td>began</td></tr></thead>'
            f"<tbody>{rows}</tbody></table>{more}")  # fmt: skip


def _kinds(a: Analysis) -> str:
    rows = "\n".join(_row((
        f'<button data-find="{html.escape(k.name)}"><i class="kind" data-name="{html.escape(k.name or "op")}"></i>'
        f'{html.escape(k.name or "op")}</button>',
        f"{k.calls:,}", duration(k.total), duration(k.total / k.calls), duration(k.longest), duration(k.on_path) if k.on_path else "",
        duration(k.queued))) for k in a.kinds[:200])  # fmt: skip
    more = f"<p>and {len(a.kinds) - 200:,} more kinds</p>" if len(a.kinds) > 200 else ""
    heads = "".join(f"<td>{head}</td>" for head in ("count", "total", "mean", "longest", "on the path", "queued"))
    return f'<table><thead><tr><th scope="col">op</th>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}'
