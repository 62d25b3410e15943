#!/usr/bin/env python3
"""Runs the oracle for hours, several processes at once, and keeps what came of each in runs.jsonl.

    hours.py --hours N [--at-once K] TREE=ORACLE... [-- OPTION...]

TREE: a name, such as plain; ORACLE: the program built in that tree. K processes (1) run side by side, each for ten minutes from a
random seed; the trees take turns. OPTION goes to each of them. What a process says of a bad program is printed when the process has
ended. The last line: how many programs ran, and how many were bad; the exit status is 1 if one was, or if a process left no sum.
Called by `./run oracle`.
"""

import argparse
import concurrent.futures
import itertools
import json
import pathlib
import random
import re
import subprocess
import sys
import threading
import time

RUNS = pathlib.Path(__file__).resolve().parent / "runs.jsonl"
PART = 600  # seconds of a process
SUM = re.compile(r"oracle: (\d+) seeds from (\d+): (\d+) ops.* (\d+) forks; (\d+) bad in ([\d.]+) s$")
# What programs print that misbehave on purpose, and what TBB prints of them.
EXPECTED = re.compile(r"^engine: on_(start|end) threw|^TBB Warning|^$")


def commit() -> str:
    git = ["git", "-C", str(RUNS.parent)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src", "include", "tests/oracle/*.cc", "tests/oracle/*.h"])
    return name + "+" * bool(changed.returncode)


class Hours:
    def __init__(self, arguments: argparse.Namespace):
        self.end = time.monotonic() + arguments.hours * 3600
        self.options = arguments.options
        self.turns = itertools.cycle(tree.split("=", 1) for tree in arguments.trees)
        self.commit = commit()
        self.lock = threading.Lock()
        self.programs = self.bad = self.without_sum = 0

    def run(self) -> None:
        while (left := self.end - time.monotonic()) >= 1:
            with self.lock:
                tree, oracle = next(self.turns)
            seed = random.randrange(1, 2**33)
            command = [oracle, "--seconds", str(round(min(left, PART))), "--seed", str(seed), *self.options]
            process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
            with self.lock:
                self.add(tree, seed, process.stdout.splitlines())

    def add(self, tree: str, seed: int, lines: list[str]) -> None:
        found = SUM.match(lines[-1]) if lines else None
        if not found or found[5] != "0":
            print("\n".join(line for line in lines if not EXPECTED.match(line)), flush=True)
        if not found:
            print(f"{tree} from seed {seed}: left no sum", flush=True)
            self.without_sum += 1
            return
        seeds, first, ops, forks, bad = (int(found[n]) for n in range(1, 6))
        print(f"-- {tree}: {lines[-1]}", flush=True)
        row = {"commit": self.commit, "tree": tree, "from": first, "seeds": seeds, "ops": ops, "forks": forks, "bad": bad}
        with RUNS.open("a") as runs:
            runs.write(json.dumps({**row, "seconds": float(found[6])}) + "\n")
        self.programs += seeds
        self.bad += bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("trees", nargs="+", metavar="TREE=ORACLE")
    mine = sys.argv[1:]
    at = mine.index("--") if "--" in mine else len(mine)
    arguments = parser.parse_args(mine[:at])
    arguments.options = mine[at + 1 :]
    hours = Hours(arguments)
    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        for part in [pool.submit(hours.run) for _ in range(arguments.at_once)]:
            part.result()
    print(f"oracle: {hours.programs} programs, {hours.bad} bad")
    return 1 if hours.bad or hours.without_sum else 0


if __name__ == "__main__":
    sys.exit(main())
