#!/usr/bin/env python3
"""Runs the GPU suite, judges it, and writes a result file and a report; or compares two result files. See perf/README.md.

    suite.py [--quick] [--device software|cuda] [--json FILE] [--rows 1 2 ...] [--rounds N] [--build BUILD | --program FILE]
    suite.py --compare OLD NEW

Exit status: 0 if every counter is exact and no target was missed (or nothing got slower), 1 otherwise. Standard library only."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness import machine  # noqa: E402

import judge  # noqa: E402
import report  # noqa: E402

NVIDIA_FIELDS = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "temperature.gpu", "power.draw", "pstate")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", nargs="?", default="gpu", choices=["gpu"])
    parser.add_argument("--build", type=Path, default=HERE.parent.parent / "build", help="build tree (default: build)")
    parser.add_argument("--program", type=Path, help="the suite's program (default: perf/gpu_suite of the build tree)")
    parser.add_argument("--device", choices=["software", "cuda"], help="default: cuda where there is one, else software")
    parser.add_argument("--rounds", type=int, help="turns of ours and by hand (default: 15; 5 when quick)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work, fewer rounds: a look, not a verdict")
    parser.add_argument("--rows", type=int, nargs="+", default=[], metavar="ROW", help="only these rows of the table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there (default: perf/results/gpu-DEVICE-DATE.json)")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="compare two result files")
    return parser.parse_args()


def nvidia() -> dict:
    """What nvidia-smi says of the first GPU; empty without one."""
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={','.join(NVIDIA_FIELDS)}", "--format=csv,noheader", "--id=0"],
                              capture_output=True, text=True, check=True)  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(zip(NVIDIA_FIELDS, (v.strip() for v in done.stdout.strip().split(","))))


def run(args: argparse.Namespace, device: str, rounds: int) -> dict:
    command = [str(args.program), "--device", device, "--rounds", str(rounds)]
    command += ["--quick"] * args.quick + (["--rows", ",".join(map(str, args.rows))] if args.rows else [])
    before = nvidia() if device == "cuda" else {}
    header = machine.header(args.build, HERE, 1, rounds) | {"suite": "gpu", "device": device, "quick": args.quick}
    result = {"header": header, "calibration": [], "counters": [], "rows": [], "absent": [], "timelines": []}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for text in process.stdout:
            line = json.loads(text)
            kind = line.pop("type")
            if kind == "device":
                header |= {"gpu": line["description"], "judged": line["judged"]}
            elif kind == "calibration":
                median, low, high = judge.bounds(line["values"])
                result["calibration"].append({"name": line["name"], "unit": line["unit"], "ours": median, "spread": [low, high]})
            elif kind == "counter":
                result["counters"].append(judge.counter(line))
            elif kind == "row":
                result["rows"].append(judge.row(line, header["judged"]))
                print(report.line(result["rows"][-1]), flush=True)
            elif kind == "absent":
                result["absent"].append(line)
            else:
                result["timelines"].append(line)
    header |= {"nvidia_before": before, "nvidia_after": nvidia() if device == "cuda" else {}}
    if process.returncode:
        raise RuntimeError(f"gpu_suite ended with status {process.returncode}")
    return result


def write(result: dict, path: Path) -> None:
    """Readable: a row, a counter, a timeline a line."""
    lines = ["{", ' "header": ' + json.dumps(result["header"], indent=2).replace("\n", "\n ")]
    for key in ("calibration", "counters", "rows", "absent", "timelines"):
        lines[-1] += ","
        items = [f"  {json.dumps(item)}" for item in result[key]]
        lines += [f' "{key}": [', ",\n".join(items), " ]"] if items else [f' "{key}": []']
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, "}", ""]))
    path.with_suffix(".html").write_text(report.html(result))


def compare(old: Path, new: Path) -> int:
    bad, notes = judge.compare(json.loads(old.read_text()), json.loads(new.read_text()))
    print(*(f"note: {n}" for n in notes), *bad, sep="\n")
    print(f"compare: {len(bad)} regressions" if bad else "compare: nothing got slower, no counter changed")
    return 1 if bad else 0


def main() -> int:
    args = parse()
    if args.compare:
        return compare(*args.compare)
    args.program = args.program or args.build / "perf" / "gpu_suite"
    if not args.program.exists():
        print(f"no {args.program}: configure with -DENGINE_BUILD_PERF=ON and build", file=sys.stderr)
        return 2
    device = args.device or ("cuda" if nvidia() else "software")
    try:
        result = run(args, device, args.rounds or (5 if args.quick else 15))
    except RuntimeError as error:
        print(f"perf gpu: {error}", file=sys.stderr)
        return 1
    path = args.json or HERE.parent / "results" / f"gpu-{device}-{result['header']['date'][:10]}.json"
    write(result, path)
    print(report.summary(result), f"written: {path} and {path.with_suffix('.html').name}", sep="\n")
    bad = judge.failures(result)
    print(*bad, sep="\n", end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
