"""Writes what tests/oracle/runs.jsonl says into docs/trust.md: a line a commit and tree. Called by `./run oracle`."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = ROOT / "tests/oracle/runs.jsonl"
PAGE = ROOT / "docs/trust.md"


def table(runs):
    lines = ["| commit | tree | hours | seeds from | seeds | ops | forks | bad |", "|---|---|---|---|---|---|---|---|"]
    groups = {}
    for run in runs:
        groups.setdefault((run["commit"], run["tree"]), []).append(run)
    for (commit, tree), parts in groups.items():
        total = {key: sum(part[key] for part in parts) for key in ("seconds", "seeds", "ops", "forks", "bad")}
        seeds = ", ".join(str(part["from"]) for part in parts)
        lines.append(
            f"| {commit} | {tree} | {total['seconds'] / 3600:.2f} | {seeds} | {total['seeds']:,} | {total['ops']:,} "
            f"| {total['forks']:,} | {total['bad']} |"
        )
    hours, seeds, ops = (sum(run[key] for run in runs) for key in ("seconds", "seeds", "ops"))
    return "\n".join(lines) + f"\n\nTogether {seeds:,} programs with {ops:,} ops, in {hours / 3600:.1f} hours of processes, up to twelve of which shared 2 cores.\n"


def main():
    runs = [json.loads(line) for line in RUNS.read_text().splitlines()]
    block = f"<!-- trust:runs:begin -->\n{table(runs)}<!-- trust:runs:end -->"
    page, found = re.subn(r"<!-- trust:runs:begin -->.*<!-- trust:runs:end -->", lambda _: block, PAGE.read_text(), flags=re.S)
    if found != 1:
        raise SystemExit(f"{PAGE} has no place for the runs")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
