#!/usr/bin/env python3
"""Writes the figures of docs/mxnet.md from a results file of ./run perf mxnet, so that a page never says other figures than its file.

    page.py perf/results/mxnet-DATE.json
"""

import json
import os
import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent.parent / "docs/mxnet.md"


def beside(row: dict) -> str:
    """What a row is judged by, where its goal is not all."""
    if "net" in row:
        low, high = row["net"]
        return f"[{low:.1f}, {high:.1f}] without libmxnet's own {row['floor']:.0f} ns"
    if "of_bound" in row:
        low, high = row["of_bound"]
        if "allowed" in row:  # files until 2026-11-23, with a bound by one thread's time for the whole step
            return f"[{low:.2f}, {high:.2f}] of what two cores allow, which is {row['allowed']:.2f} times one thread"
        return f"[{low:.2f}, {high:.2f}] of what its ops allow, which is {row['allowed_us']:.0f} us a step"
    return ""


def line(row: dict) -> str:
    cells = [row["group"], f"`{row['case']}`"]
    if "ratio" in row:
        low, high = row["ratio_ci"]
        cells += [f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}]", f"{row['goal']:g}", row["verdict"], beside(row)]
    else:
        cells += ["", f"{row['goal']:g}", "left out", row.get("skip", "")]
    return f"| {' | '.join(cells)} |"


def time_of_workers(rows: list[dict]) -> list[str]:
    """Where the time of the wide net's two workers went, in parts of it."""
    parts = ("work", "longer", "ready", "nothing")
    lines = []
    for row in rows:
        if "nothing_us" in row:
            all_of_it = sum(row[f"{part}_us"] for part in parts)
            lines.append(f"| `{row['case']}` | " + " | ".join(f"{row[f'{part}_us'] / all_of_it:.0%}" for part in parts) + " |")
    if not lines:
        return []
    return [
        "", "Where the time of two workers goes in the same processes, traced: ops, each as long as it takes on average while the program's thread waits; what they take longer, because the "
        "program's thread wants a core, too; no op, though one is ready; and nothing that is ready.",
        "",
        "| case | ops | longer | one is ready | nothing is ready |",
        "|---|---|---|---|---|",
        *lines,
    ]  # fmt: skip


def text(results: dict, name: str) -> str:
    header, rows = results["header"], results["rows"]
    verdicts = [row.get("verdict", "left out") for row in rows]
    reached, almost = verdicts.count("reached"), len(verdicts) - sum(map(verdicts.count, ("reached", "left out", "undecided", "BELOW")))
    but = f", and {almost} what stands in the last column" if almost else ""
    changed = " with changes" if header["commit"].endswith("changes") else ""
    return "\n".join([
        f"MXNet's time by ours, with 95 % intervals; more is better for this engine. {reached} of {len(rows)} cases reach their goal{but}, "
        f"at commit {header['commit'][:7]}{changed}, on {header['cpu']} with {header['cores']} cores, {header['date'][:10]}, "
        f"{header['busy_before']:.0%} busy with other things before it began ([rows](../perf/results/{name})).",
        "",
        "| group | case | MXNet by ours | goal | | |",
        "|---|---|---|---|---|---|",
        *map(line, rows),
        *time_of_workers(rows),
    ]) + "\n"  # fmt: skip


def with_figures(page: str, results: dict, name: str) -> str:
    block = f"<!-- mxnet:speed:begin -->\n{text(results, name)}<!-- mxnet:speed:end -->"
    page, found = re.subn(r"<!-- mxnet:speed:begin -->.*<!-- mxnet:speed:end -->", lambda _: block, page, flags=re.S)
    if found != 1:
        raise SystemExit("the page has no place for the figures")
    return page


def main() -> None:
    path = Path(sys.argv[1])
    PAGE.write_text(with_figures(PAGE.read_text(), json.loads(path.read_text()), os.path.basename(path)))


if __name__ == "__main__":
    main()
