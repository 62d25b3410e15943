"""An analysis as text."""

from __future__ import annotations

from .analysis import IDLE, Analysis

# What may help against each cause of idle time.
ADVICE = {
    "dispatch": "ops take less than handing them over (record them with engine.hybridize), or other programs have the processors",
    "dependency": "the ops on the critical path are too long in a row: split them, or shorten what they wait for",
    "stage empty": "the stages make items too slowly: give them num_threads or capacity",
    "stage full": "the program takes items more slowly than the stages make them, which is how it should be",
    "gil": "bodies hold Python's interpreter lock: call what releases it (NumPy, PyTorch, I/O), or use processes",
    "nothing ready": "the program pushed nothing: push ahead, and wait later",
}


def duration(seconds: float) -> str:
    """ "1.23 ms": three digits, and the unit that suits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if abs(seconds) * scale >= 1:
            return f"{seconds * scale:.3g} {unit}" if abs(seconds) * scale < 1000 else f"{seconds * scale:.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def text(a: Analysis) -> str:
    ops, workers = len(a.data.events), len(a.workers)
    lines = [
        f"trace '{a.data.name}': {plural(ops, 'op')} of {plural(len(a.kinds), 'kind')} in {duration(a.makespan)} on "
        f"{plural(workers, 'worker')}"
    ]
    lines.append(
        f"  work {duration(a.work)}, critical path {duration(a.span)}: at most {a.work / a.span if a.span else 1:.3g} at once "
        f"on average; {a.work / a.makespan if a.makespan else 1:.3g} were"
    )
    lines.append(
        f"  no schedule on {plural(workers, 'worker')} takes less than {duration(a.bound)}; this one took "
        f"{a.makespan / a.bound if a.bound else 1:.2f} of that"
    )
    total = sum(a.at_once) or 1.0
    lines.append("  ran at once   " + "  ".join(f"{n}: {share / total:.0%}" for n, share in enumerate(a.at_once)
                                                if share / total >= 0.005))  # fmt: skip
    lines.append("  busy          " + "  ".join(f"{thread} {share:.0%}" for thread, share in a.busy.items()))
    lines += _idle(a)
    lines += _path(a)
    lines.append(f"  {'op':<24} {'count':>8} {'total':>9} {'mean':>9} {'longest':>9} {'on path':>9} {'queued':>9}")
    for kind in a.kinds[:12]:
        figures = (kind.total, kind.total / kind.calls, kind.longest, kind.on_path, kind.queued)
        lines.append(
            f"  {_short(kind.name, 24):<24} {kind.calls:>8,} " + " ".join(f"{duration(x):>9}" for x in figures)
        )
    if len(a.kinds) > 12:
        lines.append(f"  and {len(a.kinds) - 12} more kinds")
    return "\n".join([*lines, *_notes(a)]) + "\n"


def _idle(a: Analysis) -> list[str]:
    idle = sum(a.idle_by_cause.values())
    full = [f"  producers of stages waited {duration(a.stage_full)} for room"] if a.stage_full else []
    if not idle:
        return ["  idle          never", *full]
    causes = sorted(a.idle_by_cause.items(), key=lambda item: -item[1])
    lines = [f"  idle          {duration(idle)} of {duration(a.makespan * len(a.workers))}"]
    lines += [
        f"    {cause:<14}{duration(seconds):>9} {seconds / idle:>5.0%}  {IDLE[cause]}" for cause, seconds in causes
    ]
    if idle > 0.1 * a.makespan * len(a.workers):
        lines.append(f"    most of it: {ADVICE[causes[0][0]]}")
    return lines + full


def _path(a: Analysis) -> list[str]:
    shown = [f"{_short(a.data.events[n].name, 24)} {duration(a.data.events[n].seconds)}" for n in a.path]
    if len(shown) > 10:
        shown = [*shown[:5], f"... {len(shown) - 9} more ...", *shown[-4:]]
    return [f"  critical path {plural(len(a.path), 'op')}: " + " > ".join(shown)]


def _notes(a: Analysis) -> list[str]:
    notes = []
    skipped = sum(e.skipped for e in a.data.events)
    if skipped:
        notes.append(f"  {plural(skipped, 'op')} did not run, because of an error or a cancel")
    if a.data.pending:
        notes.append(
            f"  {plural(a.data.pending, 'op')} had not run when the trace ended; wait_all() inside the block shows all"
        )
    if a.data.left_out:
        notes.append(f"  {plural(a.data.left_out, 'record')} found no room (docs/limits.md): trace less at once")
    return notes


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
