#!/usr/bin/env python3
"""Runs random programs: run.py [--programs N | --seconds S | --seed SEED] [--threads N]. See README.md."""

from __future__ import annotations

import argparse
import gc
import pathlib
import random
import sys
import threading
import time
import weakref

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import engine  # noqa: E402
from oracle import engaged, programs  # noqa: E402


class Count:
    """What the threads share."""

    def __init__(self, first: int, most: int | None, until: float | None) -> None:
        self.lock, self.next, self.first, self.most, self.until = threading.Lock(), first, first, most, until
        self.wrong: list[tuple[int, str]] = []

    def seed(self) -> int | None:
        with self.lock:
            if self.wrong or self.most is not None and self.next - self.first >= self.most:
                return None
            if self.until is not None and time.monotonic() > self.until:
                return None
            self.next += 1
            return self.next - 1


def work(count: Count, on: engine.Engine) -> None:
    while (seed := count.seed()) is not None:
        try:
            wrong = engaged.differs(programs.make(seed), on)
        except BaseException as error:  # noqa: B902
            wrong = f"it raised {error!r}"
        if wrong:
            count.wrong.append((seed, wrong))


def run(count: Count, threads: int, workers: int) -> None:
    with engine.Engine(workers=workers, on_unobserved=lambda error: None) as on:
        clients = [threading.Thread(target=work, args=(count, on)) for _ in range(threads)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        try:
            on.wait_all()
        except Exception:
            pass


def leaks() -> int:
    """How many Values are alive after some programs that failed and some that did not."""
    alive: list[weakref.ref[engine.Value]] = []
    with engine.Engine(workers=2, on_unobserved=lambda error: None) as on:
        for seed in range(200):
            alive += [weakref.ref(value) for value in engaged.run(programs.make(seed), on)]
        while True:
            try:
                on.wait_all()
                break
            except Exception:
                continue
        for _ in range(20):
            on.push(lambda: None)
            on.wait_all()
            gc.collect()
        return sum(ref() is not None for ref in alive)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.seed is not None:
        program = programs.make(args.seed)
        print(*program, sep="\n")
        with engine.Engine(workers=2, on_unobserved=lambda error: None) as on:
            wrong = engaged.differs(program, on)
        print(wrong or "the same")
        return wrong is not None
    first = random.SystemRandom().getrandbits(40)
    count = Count(first, args.programs, time.monotonic() + args.seconds if args.seconds else None)
    begin = time.monotonic()
    workers = (1, 2, 4)
    share = None if args.seconds is None else args.seconds / len(workers)
    for number, each in enumerate(workers):
        count.most = None if args.programs is None else args.programs * (number + 1) // len(workers)
        count.until = None if share is None else begin + share * (number + 1)
        run(count, args.threads, each)
    for seed, wrong in count.wrong:
        print(f"program {seed}: {wrong}; repeat it with --seed {seed}")
    kept = leaks()
    if kept:
        print(f"{kept} values stayed alive")
    print(f"{count.next - first} programs in {time.monotonic() - begin:.0f} s, from seed {first}")
    return bool(count.wrong or kept)


if __name__ == "__main__":
    sys.exit(main())
