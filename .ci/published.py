"""The tables of what DeepRec published for SmartStage beside what was measured here: texts that tables.py writes.

The figures are those of the newest file perf/results/models-DATE.json; the published ones stand in perf/models/cases.py.
A model that the file lacks has no row.
"""

import itertools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "perf/models"))
from cases import CASES, SCALE  # noqa: E402

NAMES = {"dlrm": "DLRM", "deepfm": "DeepFM", "dssm": "DSSM", "din": "DIN", "dien": "DIEN"}
STEPS = {"input": "eager", "compiled": "compiled"}  # groups of the suite
DEEPREC = ["DeepRec, CPU", "DeepRec, A100", "DeepRec, A100, stage on the CPU"]


def rows_of(found: dict, group: str, model: str) -> dict[str, dict]:
    """By contender; without those that were left out."""
    return {r["ours_name"]: r for r in found["rows"] if (r.get("group"), r["case"]) == (group, model) and "ratio" in r}


def fastest(rows: dict[str, dict], way: str, threads: int) -> dict | None:
    """Of a way to feed, with so many threads in the step."""
    mine = [row for name, row in rows.items() if re.fullmatch(rf"{way}(:engine)?{' 2' if threads == 2 else ''}", name)]
    return min(mine, key=lambda row: row["ours"], default=None)


def without(row: dict | None, rows: dict[str, dict]) -> str:
    """How many times as fast as the same threads without a stage; from the medians if the file is older than that figure. In older files a
    DataLoader has a process of its own, and is compared with one without workers."""
    if row is None:
        return "–"
    partner = re.sub(r"^[a-z]+(_[a-z]+)?\d?", "loader0" if "without_name" not in row and row["ours_name"].startswith("loader") else "plain", row["ours_name"])
    if "without" in row and partner.startswith("plain"):
        return ratio(row["without"], row["without_ci"])
    if row["peer_name"] == partner:
        return ratio(row["ratio"], row["ratio_ci"])
    return ratio(rows[partner]["ours"] / row["ours"])


def kept(row: dict) -> str:
    """What the guard had decided."""
    share = row.get("staged_share")
    return "–" if share is None else "kept" if share == 1 else "dropped" if share == 0 else f"kept in {share:.0%} of the rounds"


def ratio(value: float | None, interval: list[float] | None = None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")


def lines(found: dict, whole: bool) -> list[list[str]]:
    """A line for each model, kind of step and number of threads that was measured. `whole`: with all that the page says."""
    made = []
    for model, case in CASES.items():
        for (group, step), threads in itertools.product(STEPS.items(), (1, 2)):
            rows = rows_of(found, group, model)
            smart = fastest(rows, "smart_stage", threads)
            if smart is None:
                continue
            loader = fastest(rows, r"loader[12]", threads)
            line = [NAMES[model], str(case.batch), f"{step}, {threads} thread{'s' if threads > 1 else ''}"]
            if whole:
                line += [f"{smart['stage_us'] / 1e3:.1f}", f"{smart['main_us'] / 1e3:.1f}"]
            line += [without(smart, rows), kept(smart), ratio(smart["allowed"])]
            if whole:
                together = f"{smart['of_together']:.0%}" if "of_together" in smart else "–"
                waits = f"{smart['waited_us'] / 1e3:.1f} ({smart['waits']:.0f})" if "waits" in smart else "–"
                by_hand = f" ({rows['staged']['of_best']:.0%})" if threads == 1 and "staged" in rows else ""
                line += [f"{smart['of_best']:.0%}{by_hand}", together, waits, ratio(smart["ratio"], smart["ratio_ci"]),
                         without(loader, rows)]  # fmt: skip
                line += [ratio(smart.get("loader"), smart.get("loader_ci"))] if has_loaders(found) else []
            made.append(line + [ratio(case.cpu), ratio(case.gpu), ratio(case.on_cpu)])
    return made


def has_loaders(found: dict) -> bool:
    """Whether SmartStage was measured beside DataLoaders; older files lack that."""
    return any("loader" in row for row in found["rows"])


def heads(found: dict, whole: bool) -> list[str]:
    more = ["reading, ms", "the rest, ms"] if whole else []
    beside = ["of the best (`staged`)", "of the sides together", "waits, ms (sleeps)", "over any without", "DataLoader"] if whole else []
    beside += ["SmartStage over DataLoader"] if whole and has_loaders(found) else []
    return ["model", "batch", "step", *more, "SmartStage", "its guard", "allowed", *beside, *DEEPREC]


def said(name: str, found: dict, prefix: str) -> str:
    """Which measurement it is."""
    header = found["header"]
    rounds = max(row["rounds"] for row in found["rows"] if row.get("group") in STEPS and "ratio" in row)
    changed = " and changes" if header["commit"].endswith("and changes") else ""
    return (f"commit {header['commit'][:7]}{changed}, {header['date'][:10]}, {header['cores']} cores of {header['cpu']}, "
            f"{rounds} rounds, tables with {header.get('scale', SCALE):.0%} of the data sets' cardinalities, [rows]({prefix}perf/results/{name})")  # fmt: skip
