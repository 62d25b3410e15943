"""From the figures of the rounds to rows with verdicts, and from two result files to what changed."""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness.stats import paired_ratio, spread  # noqa: E402


def bounds(values: list[float]) -> tuple[float, float, float]:
    """Median and quartiles."""
    return statistics.median(values), *spread(values)


def _verdict(value: float, low: float, high: float, limit: float, at_least: bool = False) -> str:
    """Kept or missed only where the whole interval says so."""
    if at_least:
        value, low, high, limit = -value, -high, -low, -limit
    if high <= limit:
        return "kept"
    return "missed" if low > limit else "ambiguous"


def row(line: dict, judged: bool) -> dict:
    """One row of the result file. `ratio`, `lo`, `hi` are ours / peer and its 95 % interval: below 1, ours is faster."""
    ours, peer, limit = line["ours"], line["peer"], line["limit"]
    median, low, high = bounds(ours)
    out = {
        "suite": "gpu",
        "row": line["row"],
        "case": line["case"],
        "metric": line["metric"],
        "unit": line["unit"],
        "ours": median,
        "ours_spread": [low, high],
        "peer": statistics.median(peer) if peer else None,
        "peer_spread": list(spread(peer)) if peer else None,
        "peer_name": line["peer_name"],
        "ratio": None,
        "lo": None,
        "hi": None,
        "limit": limit,
        "rounds": len(ours),
    }
    if peer:
        ratio = paired_ratio(peer, ours)  # of the second to the first
        if ratio:
            out |= {"ratio": ratio["ratio"], "lo": ratio["ci"][0], "hi": ratio["ci"][1]}
    kind = limit["kind"]
    if kind == "none":
        verdict = "told"
    elif not judged:
        verdict = "not judged"
    elif kind == "ratio":
        verdict = _verdict(out["ratio"], out["lo"], out["hi"], limit["value"]) if out["ratio"] is not None else "ambiguous"
    elif kind == "at least":  # a share of what it is by hand
        verdict = _verdict(out["ratio"], out["lo"], out["hi"], limit["value"], True) if out["ratio"] is not None else "ambiguous"
    elif kind == "difference":
        verdict = _verdict(*bounds([o - p for o, p in zip(ours, peer)]), limit["value"])
    else:
        verdict = _verdict(median, low, high, limit["value"])
    return out | {"verdict": verdict}


def counter(line: dict) -> dict:
    out = {k: line[k] for k in ("row", "case", "about", "counter", "got", "want")}
    return out | {"verdict": "exact" if out["got"] == out["want"] else "WRONG"}


def failures(result: dict) -> list[str]:
    """What makes a run fail: counters that are not exact, targets that were missed for sure."""
    out = [f"counter: {c['case']}, {c['counter']}: {c['got']}, must be {c['want']}"
           for c in result["counters"] if c["verdict"] == "WRONG"]  # fmt: skip
    return out + [f"row {r['row']}: {r['case']}, {r['metric']}: missed {target(r)}"
                  for r in result["rows"] if r["verdict"] == "missed"]  # fmt: skip


def target(row: dict) -> str:
    kind, value = row["limit"]["kind"], row["limit"]["value"]
    unit = f" {row['unit']}" if row["unit"] else ""
    return {
        "none": "",
        "ratio": f"at most {value:.3g} x",
        "difference": f"at most {value:g}{unit} more",
        "value": f"at most {value:g}{unit}",
        "at least": f"at least {value:.3g} x",
    }[kind]


def _key(row: dict) -> tuple:
    return row["case"], row["metric"], row["peer_name"]


def _slower(old: dict, new: dict) -> tuple[str, float, float] | None:
    """What got worse beyond both spreads: the ratio to the work by hand, or where there is none the figure itself."""
    if old["ratio"] is not None and new["ratio"] is not None:
        what, before, after, low, high = "ratio", old["ratio"], new["ratio"], [old["lo"], old["hi"]], [new["lo"], new["hi"]]
    else:
        what, before, after, low, high = "ours", old["ours"], new["ours"], old["ours_spread"], new["ours_spread"]
    if new["limit"]["kind"] == "at least":  # more is better
        return (what, before, after) if high[1] < low[0] else None
    return (what, before, after) if high[0] > low[1] else None


def compare(old: dict, new: dict) -> tuple[list[str], list[str]]:
    """Regressions, which fail, and notes, which do not."""
    bad, notes = [], []
    for key in ("device", "gpu", "cpu"):
        if old["header"].get(key) != new["header"].get(key):
            notes.append(f"not the same {key}: {old['header'].get(key)} and {new['header'].get(key)}")
    judged = old["header"]["judged"] and new["header"]["judged"]
    if not judged:
        notes.append("times of the software device are not compared, counters are")
    counters = {(c["case"], c["counter"]): c["got"] for c in old["counters"]}
    for c in new["counters"]:
        before = counters.pop((c["case"], c["counter"]), None)
        if before is None:
            notes.append(f"new counter: {c['case']}, {c['counter']}: {c['got']}")
        elif before != c["got"]:
            bad.append(f"counter changed: {c['case']}, {c['counter']}: {before} -> {c['got']}")
    bad += [f"counter gone: {case}, {name}" for case, name in counters]
    rows = {_key(r): r for r in old["rows"]}
    for r in new["rows"]:
        before = rows.pop(_key(r), None)
        if before is None:
            notes.append(f"new row: {r['case']}, {r['metric']}")
            continue
        slower = _slower(before, r) if judged else None
        if slower:
            what, was, now = slower
            bad.append(f"slower: row {r['row']}, {r['case']}, {r['metric']}: {what} {was:.4g} -> {now:.4g}")
    notes += [f"row gone: {case}, {metric}" for case, metric, _ in rows]
    return bad, notes
