#!/usr/bin/env python3
"""What a call costs in Python, beside ThreadPoolExecutor, joblib and dask, in interleaved rounds. See perf/README.md.

    suite.py [--build BUILD] [--rounds N] [--quick] [--json FILE]

Nanoseconds an op, of an empty function; the median of the rounds. Of the whole programs the ratio of each round counts: its
median with its 95 % interval, and the verdict is "level" where the interval contains 1."""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import engine

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from harness import machine  # noqa: E402
from harness.stats import paired_ratio  # noqa: E402

WORKERS = 2


def nothing(*_: object) -> None:
    return None


def one(x: Any) -> Any:
    return x


noop = engine.op(nothing)
passes = engine.op(one)


@engine.op(updates="x")
def changes(x: Any) -> None:
    return None


def timed(fn: Callable[[int], object], count: int) -> float:
    begin = time.perf_counter_ns()
    fn(count)
    return (time.perf_counter_ns() - begin) / count


def push_independent(count: int) -> None:
    for _ in range(count):
        engine.push(nothing)
    engine.wait_all()


def push_chain(count: int) -> None:
    v = engine.Var()
    for _ in range(count):
        engine.push(nothing, updates=v)
    engine.wait_all()


def push_lists(count: int) -> None:
    a, b, c = engine.Var(), engine.Var(), engine.Var()
    for _ in range(count):
        engine.push(nothing, [a], [b], [c])
    engine.wait_all()


def op_independent(count: int) -> None:
    for _ in range(count):
        noop()
    engine.wait_all()


def op_argument(count: int) -> None:
    for _ in range(count):
        passes(1)
    engine.wait_all()


def op_chain(count: int) -> None:
    x = engine.value(1)
    for _ in range(count):
        x = passes(x)
    x.get()


def op_updates(count: int) -> None:
    x = engine.value([1])
    for _ in range(count):
        changes(x)
    x.get()


def hybrid(count: int, policy: str = "threaded") -> None:
    with engine.policy(policy):
        last = None
        for _ in range(count // 100):
            last = HYBRID(1)
        last.get()  # type: ignore[union-attr]


def hundred(x: Any) -> Any:
    for _ in range(100):
        x = passes(x)
    return x


HYBRID = engine.hybridize(hundred)
POOL = concurrent.futures.ThreadPoolExecutor(WORKERS)


def submit_independent(count: int) -> None:
    concurrent.futures.wait([POOL.submit(nothing) for _ in range(count)])


def submit_chain(count: int) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as chain:
        for _ in range(count):
            last = chain.submit(nothing)
        last.result()


def call(count: int) -> None:
    for _ in range(count):
        one(1)


def round_trip_push(count: int) -> None:
    v = engine.Var()
    for _ in range(count):
        engine.push(nothing, writes=v)
        v.wait()


def round_trip_op(count: int) -> None:
    for _ in range(count):
        noop().get()


def round_trip_hybrid(count: int) -> None:
    for _ in range(count):
        SHORT(1).get()


SHORT = engine.hybridize(lambda x: passes(x))


def round_trip_submit(count: int) -> None:
    for _ in range(count):
        POOL.submit(nothing).result()


@engine.op(place=engine.io())
def arrives(x: Any) -> Any:
    time.sleep(0.001)
    return x


@engine.op
def works(x: Any) -> Any:
    time.sleep(0.0002)
    return x


pair = engine.op(lambda x, y: (x, y))


def with_a_late_argument(x: Any, y: Any) -> Any:
    for _ in range(4):
        x = works(x)
    return pair(x, y)


LATE = engine.hybridize(with_a_late_argument)


def late_eager(count: int) -> None:
    for i in range(count):
        with_a_late_argument(i, arrives(i)).get()


def late_hybrid(count: int) -> None:
    for i in range(count):
        LATE(i, arrives(i)).get()


def await_op(count: int) -> None:
    async def main() -> None:
        for _ in range(count):
            await noop()

    asyncio.run(main())


def await_executor(count: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            await loop.run_in_executor(POOL, nothing)

    asyncio.run(main())


def with_joblib() -> dict[str, tuple[Callable[[int], object], int]]:
    try:
        import joblib
    except ImportError:
        return {}

    def run(count: int) -> None:
        joblib.Parallel(n_jobs=WORKERS, backend="threading", batch_size=1)(joblib.delayed(nothing)() for _ in range(count))

    return {"joblib, threads": (run, 2_000)}


def with_dask() -> dict[str, tuple[Callable[[int], object], int]]:
    try:
        import dask
    except ImportError:
        return {}

    def run(count: int) -> None:
        dask.compute(*[dask.delayed(nothing)() for _ in range(count)], scheduler="threads", num_workers=WORKERS)

    return {"dask.delayed, threads": (run, 1_000)}


CASES: dict[str, tuple[Callable[[int], object], int]] = {
    "a call of Python": (call, 100_000),
    "push": (push_independent, 10_000),
    "push, chain": (push_chain, 10_000),
    "push, three lists": (push_lists, 10_000),
    "op": (op_independent, 10_000),
    "op, an argument": (op_argument, 10_000),
    "op, chain": (op_chain, 10_000),
    "op, updates": (op_updates, 10_000),
    "hybridized node": (lambda count: hybrid(count), 20_000),
    "hybridized node, inline": (lambda count: hybrid(count, "inline"), 20_000),
    "submit": (submit_independent, 10_000),
    "submit, chain": (submit_chain, 10_000),
    **with_joblib(),
    **with_dask(),
    "round trip: push + wait": (round_trip_push, 2_000),
    "round trip: op + get": (round_trip_op, 2_000),
    "round trip: hybrid + get": (round_trip_hybrid, 2_000),
    "round trip: submit + result": (round_trip_submit, 2_000),
    "late argument: ops": (late_eager, 200),
    "late argument: hybridized": (late_hybrid, 200),
    "await op": (await_op, 1_000),
    "await run_in_executor": (await_executor, 1_000),
}

# The whole programs of examples/programs: (ours, the best alternative).
PROGRAMS = {"images": ("ops", "thread pool"), "embeddings": ("recorded", "plain"), "service": ("recorded", "thread pool")}


PROGRAM_ROUNDS = 15


def verdict(low: float, high: float, least: float = 1) -> str:
    """Of an interval of ratios that should be at least `least`."""
    return "reached" if low >= least else "NOT reached" if high < least else f"level, the interval contains {least:g}"


def programs(quick: bool) -> dict[str, dict[str, list[float]]]:
    """Seconds of each way in each round of each program, in a process of its own; one that lacks its packages is left out."""
    folder = Path(__file__).resolve().parents[2] / "examples" / "programs"
    found = {}
    for name in PROGRAMS:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [sys.executable, str(folder / f"{name}.py"), "--json", file.name]
            ended = subprocess.run([*command, *(["--quick", "--rounds", "3"] if quick else ["--rounds", str(PROGRAM_ROUNDS)])])
            if ended.returncode:
                print(f"{name}: left out, it ended with {ended.returncode}")
                continue
            found[name] = json.loads(Path(file.name).read_text())
    return found


# (what is wanted, better, worse, how many times at least)
WANTED = [
    ("push beside submit", "push", "submit", 10.0),
    ("op beside submit", "op", "submit", 4.0),
    ("hybridized node beside submit", "hybridized node", "submit", 7.0),
    ("op beside joblib", "op", "joblib, threads", 5.0),
    ("op beside dask.delayed", "op", "dask.delayed, threads", 50.0),
    ("round trip of a push beside the executor's", "round trip: push + wait", "round trip: submit + result", 1.0),
    ("round trip of an op beside the executor's", "round trip: op + get", "round trip: submit + result", 1.0),
    ("a late argument, hybridized beside ops", "late argument: hybridized", "late argument: ops", 1.0),
    ("await beside run_in_executor", "await op", "await run_in_executor", 1.0),
]


def judged(what: str, ours: list[float], theirs: list[float], least: float) -> dict[str, Any]:
    """The row of a comparison, printed: the ratio of the rounds' times, and whether it is what is wanted."""
    paired = paired_ratio(ours, theirs)
    assert paired
    low, high = paired["ci"]
    print(f"{what:44} {paired['ratio']:8.2f} x  [{low:.2f} ... {high:.2f}]  ({verdict(low, high, least)}: {least:g})")
    return {"what": what, "wanted": least, "verdict": verdict(low, high, least), **paired}


# (what is wanted, nanoseconds in a round of all cases, at most)
BOUNDS: list[tuple[str, Callable[[dict[str, float]], float], float]] = [
    ("a call of an op with an argument", lambda took: took["op, an argument"], 1_500),
    ("a hybridized node above its call", lambda took: took["hybridized node"] - took["a call of Python"], 800),
]


def bounded(what: str, ours: list[float], most: float) -> dict[str, Any]:
    """As ``judged``, of a bound in nanoseconds: the ratio is how many times our time is within it."""
    print(f"{what:44} {statistics.median(ours):8,.0f} ns, at most {most:,.0f} are wanted")
    return judged(f"... beside these {most:,.0f} ns", ours, [most] * len(ours), 1) | {"what": what, "wanted_ns": most, "times": ours}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, default=HERE.parent.parent / "build", help="build tree (default: build)")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="three rounds of fewer ops")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rounds = args.rounds or (3 if args.quick else 7)
    header = machine.header(args.build, HERE, WORKERS, rounds) | {"python": platform.python_version()}
    print(*(f"{key}: {value}" for key, value in header.items()), sep="\n", end="\n\n", flush=True)
    engine.init(workers=WORKERS)
    HYBRID.record(1)
    SHORT.record(1)
    LATE.record(1, 1)
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for number in range(rounds + 1):
        for name, (fn, count) in CASES.items():
            took = timed(fn, count // 10 if args.quick or number == 0 else count)
            if number:  # the first round warms up
                times[name].append(took)
    medians = {name: statistics.median(all_) for name, all_ in times.items()}
    print("ns an op (least ... most)")
    for name, median in medians.items():
        print(f"{name:32} {median:12,.0f}  ({min(times[name]):,.0f} ... {max(times[name]):,.0f})")
    print()
    by_round = [dict(zip(times, row)) for row in zip(*times.values())]
    reached = [bounded(what, [of(row) for row in by_round], most) for what, of, most in BOUNDS]
    for what, better, worse, least in WANTED:
        if better in medians and worse in medians:
            reached.append(judged(what, times[better], times[worse], least))
    print()
    whole = programs(args.quick)
    for name, ways in whole.items():
        ours, best = PROGRAMS[name]
        reached.append(judged(f"{name}: {ours} beside {best}", ways[ours], ways[best], 1))
    if args.json:
        told = {"header": header, "times": times, "medians": medians, "programs": whole, "reached": reached}
        args.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
