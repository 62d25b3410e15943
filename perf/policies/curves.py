#!/usr/bin/env python3
"""Simulates the scheduler of cost_model with more cores than this machine has: a table, a picture, and JSON.

    curves.py --build BUILD [--quick] [--out FOLDER]"""

import argparse
import json
import subprocess
from pathlib import Path


def table(points: list[dict]) -> str:
    lines = [
        "simulated / curves: makespan / bound by the scheduler of cost_model; 200 ns a task, half of it in the queue",
        f"  {'nodes':>9} {'workers':>8} {'free':>7} {'each alone':>11} {'batched':>8} {'tasks':>9}   ns a node: ranks, batches, queue",
    ]
    for p in points:
        lines.append(
            f"  {p['nodes']:>9,} {p['workers']:>8} {p['free']:>7.3f} {p['unbatched']:>11.3f} {p['batched']:>8.3f} "
            f"{p['tasks']:>9,}   {p['rank_ns']:.0f}, {p['batch_ns']:.0f}, {p['queue_ns']:.1f}"
        )
    return "\n".join(lines)


def picture(points: list[dict], path: Path) -> bool:
    try:
        import matplotlib.figure
    except ImportError:
        return False
    figure = matplotlib.figure.Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = sorted({p["nodes"] for p in points})
    for size in sizes:
        of = [p for p in points if p["nodes"] == size]
        (line,) = left.plot([p["workers"] for p in of], [p["batched"] for p in of], "o-", label=f"{size:,} nodes")
        left.plot([p["workers"] for p in of], [p["unbatched"] for p in of], "--", color=line.get_color())
    left.set(xscale="log", xlabel="workers", ylabel="makespan / bound", title="dashed: each node by itself")
    left.legend()
    for key, name in (("rank_ns", "ranks"), ("batch_ns", "batches"), ("queue_ns", "queue")):
        right.plot(sizes, [max(p[key] for p in points if p["nodes"] == s) for s in sizes], "o-", label=name)
    right.set(xscale="log", yscale="log", xlabel="nodes", ylabel="ns a node", title="what the scheduler costs")
    right.legend()
    figure.savefig(path, dpi=120)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="default: the runners' folder")
    parser.add_argument("--only", nargs="+", default=["curves"], metavar="CASE", help="nothing, if curves is not among them")
    args, _ = parser.parse_known_args()
    if "curves" not in args.only:
        return 0
    out = args.out or args.build / "perf"
    command = [str(args.build / "perf" / "policies_simulate"), *(["--quick"] if args.quick else [])]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    points = [json.loads(line) for line in said.splitlines()]
    print(table(points))
    (out / "policies_simulated.json").write_text(json.dumps(points, indent=1) + "\n")
    drawn = picture(points, out / "policies_simulated.png")
    print(f"  in {out}: policies_simulated.json" + (", .png" if drawn else "; no picture without matplotlib"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
