"""Turns results into rows for the JSON and lines for people."""

import statistics

from .measure import Result
from .plan import Case, Group
from .stats import paired_ratio, spread


NOT_A_COST = {"held", "kept", "least_capacity"}  # they describe a figure: less is not better, so they have no ratio


def _summary(result: Result | None, metric: str) -> tuple[float, tuple[float, float], float] | None:
    """Median, spread and best of the rounds that have the metric."""
    values = [v for v in result.values(metric) if v is not None] if result else []
    return (statistics.median(values), spread(values), min(values)) if values else None


def _metrics(case: Case, results: dict[str, Result]) -> list[str]:
    """The metrics of the case for which a contender has figures."""
    return [m for m in (case.metric, *case.beside) if any(_summary(r, m) for r in results.values())]


def rows(suite: str, group: Group, case: Case, results: dict[str, Result]) -> list[dict]:
    """One row for each peer and metric; one row without a peer if only ours has figures."""
    out = []
    ours = results.get(group.ours)
    base = {"suite": suite, "group": group.name, "case": case.name, "ours_name": group.ours}
    for name, result in results.items():
        if name == group.ours:
            continue
        if result.skip:
            out.append(base | {"peer_name": name, "skip": result.skip})
            continue
        out += [base | _row(m, ours, name, result) for m in _metrics(case, results) if _summary(result, m)]
    lone = [m for m in _metrics(case, results) if not any(r.get("metric") == m for r in out)]
    if ours and ours.rounds:
        out += [base | _row(metric, ours, None, None) for metric in lone]
    elif ours and ours.skip:
        out.append(base | {"peer_name": None, "skip": ours.skip})
    return out


def _row(metric: str, ours: Result | None, name: str | None, peer: Result | None) -> dict:
    mine, theirs = _summary(ours, metric), _summary(peer, metric)
    comparable = mine and theirs and metric not in NOT_A_COST
    ratio = paired_ratio(ours.values(metric), peer.values(metric)) if comparable else None
    return {
        "metric": metric,
        "ours": mine and mine[0],
        "peer": theirs and theirs[0],
        "peer_name": name,
        "ratio": ratio and ratio["ratio"],
        "ratio_ci": ratio and ratio["ci"],
        "ours_spread": mine and list(mine[1]),
        "peer_spread": theirs and list(theirs[1]),
        "ours_best": mine and mine[2],
        "peer_best": theirs and theirs[2],
        "n": peer.n if peer else ours.n,
        "ours_n": ours.n if ours else 0,
        "rounds": len((peer or ours).rounds),
        "others_busy": (peer or ours).busy,
    }


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(group: Group, case: Case, results: dict[str, Result]) -> str:
    """One line for each contender, the best first. Ratios are contender / ours: above 1, ours is better."""
    lines = [f"{group.name} / {case.name}: {case.title}; {case.metric}"]
    busy = max((r.busy for r in results.values()), default=0)
    if busy > 0.1:
        lines.append(f"  (the machine was {busy:.0%} busy with other work: judge nothing by this)")
    if all(r.skip for r in results.values()):
        return f"{lines[0]}: nothing to run ({results[group.ours].skip})"
    ours = results.get(group.ours)
    done = [(name, r, s) for name, r in results.items() if (s := _summary(r, case.metric))]
    for name, result, (median, (low, high), _) in sorted(done, key=lambda item: item[2][0]):
        text = f"  {name:18} {_number(median):>8}  [{_number(low)}, {_number(high)}]"
        ratio = paired_ratio(ours.values(case.metric), result.values(case.metric)) if ours and ours.rounds else None
        if name != group.ours and ratio:
            text = f"{text:46} x{ratio['ratio']:.2f} [{ratio['ci'][0]:.2f}, {ratio['ci'][1]:.2f}]"
        extra = [f"{metric} {_number(s[0])}" for metric in case.beside if (s := _summary(result, metric))]
        extra.append(f"n {result.n:,}")
        lines.append(f"{text:76} {', '.join(extra)}")
    lines += [f"  {name:18}        -  {r.skip}" for name, r in results.items() if r.skip]
    return "\n".join(lines)
