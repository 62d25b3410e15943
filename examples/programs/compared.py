"""Runs a program in several ways, by turns, and prints the median times. The results must be the same. A round begins with
the way after the one with which the last round began."""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from typing import Any, Callable


def compare(name: str, ways: dict[str, Callable[[], Any]], rounds: int, same: Callable[[Any, Any], bool],
            unit: str = "s") -> dict[str, list[float]]:  # fmt: skip
    """Seconds of each way in each round; AssertionError if the results differ."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        results = []
        turns = list(ways.items())
        for way, run in turns[number % len(turns) :] + turns[: number % len(turns)]:
            begin = time.perf_counter()
            results.append(run())
            if number or rounds == 1:  # the first round warms up
                times[way].append(time.perf_counter() - begin)
        assert all(same(results[0], result) for result in results[1:]), f"{name}: the ways have different results"
    medians = {way: statistics.median(taken) for way, taken in times.items()}
    print(f"{name}: " + ", ".join(f"{way} {seconds:.3f} {unit}" for way, seconds in medians.items()))
    return times


def run(main: Callable[[bool, int | None], dict[str, list[float]]], about: str | None) -> None:
    """The command line of a program: ``--quick``, ``--rounds N``, and ``--json FILE`` for the seconds of each way."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    times = main(args.quick, args.rounds)
    if args.json:
        args.json.write_text(json.dumps(times))
