"""The kit: finds the machine, runs the parts in order of value within the time, and writes what each gave as it ends.

Exit status: 0 if all that was run passed, 1 if something failed, 2 for wrong use, 3 if nothing can be measured here, 4 if the
results could not be written."""

import argparse
import datetime
import fcntl
import json
import os
import sys
import time
from pathlib import Path

KIT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(KIT / "kit"), str(KIT / "perf" / "gpu")]

import machine  # noqa: E402
import page  # noqa: E402
import report  # noqa: E402
import runner  # noqa: E402
import store  # noqa: E402
from parts import Part, parts  # noqa: E402

DONE = ("passed", "failed")  # what is not run again unless it is asked for


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="go", description="Measures and checks the engine on this machine's GPU: docs/gpu.md.")
    parser.add_argument("--seconds", type=float, default=540, help="time for all parts (default: 540)")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="run these parts, also those that have a result")
    parser.add_argument("--list", action="store_true", help="name the parts, and what became of them")
    parser.add_argument("--rounds", type=int, help="turns of ours and by hand (default: 15; 3 when quick)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work: a look, not a verdict")
    parser.add_argument("--results", type=Path, default=KIT / "results", help="where results go (default: results/ of the kit)")
    return parser.parse_args(argv)


def locked(folder: Path) -> int:
    """A lock on the results, which processes of parts keep: one of a kit that was killed may live a moment longer."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    for _ in range(100):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            time.sleep(0.1)
    raise BlockingIOError(f"go: another run of the kit is at work on {folder}")


def header(made: dict, found: dict, quick: bool) -> dict:
    description = found["probe"]["description"]
    return {
        "suite": "gpu",
        "device": "cuda",
        "gpu": description,
        "judged": not description.startswith("model of CUDA"),
        "commit": made["version"],
        "kit": made,
        "cpu": found["cpu"],
        "cores": found["cores"],
        "quick": quick,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": found,
    }


def chosen(all_parts: list[Part], only: list[str], results: store.Store) -> list[Part]:
    if only:
        return [p for p in all_parts if p.name in only]
    new = [p for p in all_parts if results.status(p.name) not in (*DONE, "cut")]
    return new + [p for p in all_parts if results.status(p.name) == "cut"]


def one(part: Part, found: dict, seconds: float, judged: bool, lock: int) -> tuple[dict, dict]:
    if part.needs and not found[part.needs]:
        why = {"nccl": "no libnccl.so.2 was found", "sanitizer": "no compute-sanitizer was found",
               "python": "the kit has no Python package, or there is no Python of its version",
               "torch": "the Python of the kit's version has no PyTorch with CUDA, or no NumPy or pyarrow"}[part.needs]  # fmt: skip
        return {"name": part.name, "status": "absent", "seconds": 0, "why": why, "text": []}, {}
    return runner.run(part, KIT, found, min(part.seconds, seconds), judged, lock)


def measure(args: argparse.Namespace, made: dict, found: dict, all_parts: list[Part], end: float) -> int:
    try:
        lock = locked(args.results)
        results = store.Store(args.results, header(made, found, args.quick))
    except BlockingIOError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"go: nothing can be written to {args.results} (--results names another folder): {error}", file=sys.stderr)
        return 4
    command = f"{KIT.name}/go"
    print(f"kit {made['version']}", *machine.lines(found), *results.said, sep="\n", flush=True)
    results.said.clear()
    judged = results.result["header"]["judged"]
    for part in chosen(all_parts, args.only, results):
        left = end - time.monotonic()
        if left < 2:
            print("the time is over", flush=True)
            break
        print(f"-- {part.name}: {part.about}", flush=True)
        ended, items = one(part, found, left, judged, lock)
        results.put(ended, items)
        for row in items.get("rows", []):
            print(report.line(row))
        why = f" ({ended['why']})" if ended["why"] else ""
        print(f"   {ended['status']}{why}, {ended['seconds']} s", flush=True)
        if not results.save(page.page(results.result, all_parts, command)):
            print(f"   NOT WRITTEN, and kept until the end: {results.unwritten}", flush=True)
    text = page.page(results.result, all_parts, command)
    saved = results.save(text)
    print(*results.said, sep="\n", end="\n" if results.said else "")
    statuses = [p["status"] for p in results.result["parts"]]
    counts = ", ".join(f"{statuses.count(s)} {s}" for s in ("passed", "failed", "cut", "absent") if s in statuses)
    if not saved:
        print(store.as_text(results.result), end="")  # the only place that is left
        print(f"kit: {counts}; NOT WRITTEN, all of it stands above: {results.unwritten}")
        return 4
    print(f"kit: {counts}, {len(all_parts) - len(statuses)} not begun; {results.page} and {results.path}")
    return 1 if "failed" in statuses else 0


def main(argv: list[str]) -> int:
    begin = time.monotonic()
    args = parse(argv)
    made = json.loads((KIT / "kit.json").read_text())
    all_parts = parts(args.rounds or (3 if args.quick else 15), args.quick)
    unknown = set(args.only) - {p.name for p in all_parts}
    if unknown:
        print(f"go: no part {', '.join(sorted(unknown))}; there are: {', '.join(p.name for p in all_parts)}", file=sys.stderr)
        return 2
    if args.list:
        path = args.results / "results.json"
        known = {p["name"]: p["status"] for p in json.loads(path.read_text())["parts"]} if path.exists() else {}
        for part in all_parts:
            print(f"{part.name:17} {known.get(part.name, ''):7} {part.seconds:4} s at most  {part.about}")
        return 0
    found = machine.find(KIT, made)
    if found["why"]:
        print(f"go: {found['why']}", file=sys.stderr)
        return 3
    return measure(args, made, found, all_parts, begin + args.seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
