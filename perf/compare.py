#!/usr/bin/env python3
"""Measures this engine against its peers, side by side, in interleaved rounds. See README.md.

    compare.py core --build BUILD [--quick] [--json FILE] [--only CASE ...] [--peers NAME ...]

BUILD is a build tree configured with ENGINE_BUILD_PERF=ON. Standard library only."""

import argparse
import json
import sys
from pathlib import Path

from harness import machine, plan, report
from harness.measure import NOT_BUILT, Settings, measure

HERE = Path(__file__).resolve().parent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", nargs="?", default="core", choices=sorted(plan.SUITES))
    parser.add_argument("--build", type=Path, default=HERE.parent / "build", help="build tree (default: build)")
    parser.add_argument("--workers", type=int, default=2, help="workers of every pool (default: 2)")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default: 7; 3 when quick)")
    parser.add_argument("--quick", action="store_true", help="fewer operations, fewer rounds: a look, not a verdict")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="only these cases or groups")
    parser.add_argument("--peers", nargs="+", default=[], metavar="NAME", help="only these peers")
    parser.add_argument("--before", type=Path, metavar="BUILD", help="beside the same runners of that build tree, instead of peers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write header and rows there")
    return parser.parse_args()


def run(args: argparse.Namespace, settings: Settings) -> tuple[list[dict], list[str]]:
    """The rows, and the cases in which this engine itself failed."""
    rows, failed = [], []
    groups = plan.SUITES[args.suite]
    for group in plan.beside_before(groups) if args.before else groups:
        cases = [c for c in group.cases if not settings.only or {c.name, group.name} & set(settings.only)]
        runners: dict = {}  # shared by the cases of a group, then closed: a group has its contenders to itself
        try:
            for case in cases:
                results = measure(group, case, settings, runners)
                print(report.table(group, case, results), end="\n\n", flush=True)
                rows += report.rows(args.suite, group, case, results)
                if (why := results[group.ours].skip) and why != NOT_BUILT:
                    failed.append(f"{group.name} / {case.name}: {why}")
        finally:
            for runner in filter(None, runners.values()):
                runner.close()
    return rows, failed


def main() -> int:
    args = parse()
    settings = Settings(
        runners=args.build / "perf",
        logs=args.build / "perf",
        workers=args.workers,
        rounds=args.rounds or (3 if args.quick else 7),
        quick=args.quick,
        budget=0.4 if args.quick else 2.5,
        only=args.only,
        peers=args.peers,
        before=args.before and args.before / "perf",
        # Two processes of one program differ by up to 20 % where threads meet: by their addresses, and by who comes first.
        # Two builds of this engine often differ by less, so here each round has new processes.
        renews=bool(args.before) or args.suite == "mechanisms",
    )
    unknown = set(args.peers) - set(plan.CONTENDERS)
    if unknown:
        print(f"no such peer: {', '.join(sorted(unknown))}; there are: {'; '.join(plan.CONTENDERS)}", file=sys.stderr)
        return 2
    if not any((settings.runners / c.binary).exists() for c in plan.CONTENDERS.values()):
        print(f"no runner in {settings.runners}: configure with -DENGINE_BUILD_PERF=ON and build", file=sys.stderr)
        return 2
    if args.before and not (args.before / "perf/ours").exists():
        print(f"no runner in {args.before}/perf: --before takes a build tree configured with ENGINE_BUILD_PERF=ON, and built", file=sys.stderr)
        return 2
    header = machine.header(args.build, HERE, args.workers, settings.rounds)
    header["new_processes_each_round"] = settings.renews
    header["second_pusher"] = plan.second_pusher(args.suite)
    if args.before:
        header["before"] = machine.commit(machine.source_of(args.before))
    print(*(f"{key}: {value}" for key, value in header.items()), sep="\n", end="\n\n")
    rows, failed = run(args, settings)
    if args.json:
        args.json.write_text(json.dumps({"header": header, "rows": rows}, indent=1) + "\n")
    for what in failed:
        print(f"this engine has no figure in {what}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
