#!/usr/bin/env python3
"""Runs random programs: run.py [--programs N | --seconds S | --seed SEED] [--threads N]. See README.md."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import itertools
import os
import pathlib
import random
import signal
import sys
import threading
import time
import weakref

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import engine  # noqa: E402
from oracle import engaged, plain, programs  # noqa: E402


# Memory that a program may leave behind, in bytes, and by how much that of the process moves by itself. A Value that stays alive
# has some 400.
A_PROGRAM, NOISE = 200, 1 << 20


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


def work(count: Count, at: engaged.Ground) -> None:
    while (seed := count.seed()) is not None:
        try:
            wrong = engaged.differs(programs.make(seed), at)
        except BaseException as error:  # noqa: B902
            wrong = f"it raised {error!r}"
        if wrong:
            count.wrong.append((seed, wrong))


def watch(seconds: float) -> None:
    """What has not ended by then hangs: the process shows where, and ends."""
    faulthandler.dump_traceback_later(seconds, exit=True)


def run(count: Count, threads: int, workers: int) -> None:
    with engaged.ground(workers) as at:
        clients = [threading.Thread(target=work, args=(count, at)) for _ in range(threads)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        try:
            at.on.wait_all()
        except Exception:
            pass


def settle(on: engine.Engine) -> None:
    while True:
        try:
            on.wait_all()
            return
        except Exception:
            continue


def leaks() -> int:
    """How many Values are alive after some programs that failed and some that did not."""
    alive: list[weakref.ref[engine.Value]] = []
    with engaged.ground(2) as at:
        on = at.on
        for seed in range(200):
            alive += [weakref.ref(value) for value in engaged.run(programs.make(seed), at)]
        settle(on)
        for _ in range(20):
            on.push(lambda: None)
            on.wait_all()
            gc.collect()
        return sum(ref() is not None for ref in alive)


def resident() -> int:
    """How many bytes of memory the process has, without what malloc keeps for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grows(count: int, first: int, runs: int = 3) -> int:
    """By how many bytes a program memory grows at least in each of some runs of so many programs; 0: in one it does not."""
    seeds, least = iter(range(first, first + (runs + 1) * count)), 0
    with engaged.ground(2) as at:

        def some() -> int:
            for seed in itertools.islice(seeds, count):
                engaged.run(programs.make(seed), at)
            settle(at.on)
            return resident()

        before = some()  # the first run makes what later ones use again
        for _ in range(runs):
            now = some()
            grown, before = now - before, now
            if grown < count * A_PROGRAM + NOISE:
                return 0
            least = min(least or grown, grown)
    return least // count


def interrupts(count: int, first: int) -> list[str]:
    """Programs that Ctrl-C ends at random moments, each with one behind it that must mean the same as ever."""
    rng, wrong, armed = random.Random(first), [], [False]

    def interrupt(*_: object) -> None:
        if not armed[0]:  # Python may call a handler long after the signal came, and the timer was set to zero
            return
        if at.turn.locked():  # one rank without the other would leave the communicators out of step for ever
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
            return
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with engaged.ground(2) as at:
            on = at.on
            for seed in range(first, first + count):
                kept: list[engine.Value] = []
                armed[0] = True
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 2e-3))
                    kept = engaged.run(programs.make(seed), at)
                    armed[0] = False
                except KeyboardInterrupt:
                    armed[0] = False
                signal.setitimer(signal.ITIMER_REAL, 0)
                state = (engine._core.is_recording(), on.set_bulk_size(0), on.policy[0])
                if state != (False, 0, "threaded"):
                    wrong.append(f"after program {seed} was interrupted: recording, bulk size, policy are {state}")
                if said := engaged.differs(programs.make(seed + 1), at):
                    wrong.append(f"program {seed + 1} after {seed} was interrupted: {said}")
                del kept
    finally:
        signal.signal(signal.SIGALRM, before)
    return wrong


def forks(count: int, first: int) -> list[str]:
    """Programs beside which the process forks: the child runs another one, and the parent goes on."""
    wrong = []
    with engaged.ground(2, devices=False) as at:
        for seed in range(first, first + count):
            program = programs.make(seed)
            wanted, values = plain.run(program), engaged.run(program, at)
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                os._exit(engaged.differs(programs.make(seed + 1), at) is not None)
            if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                wrong.append(f"program {seed + 1} in a child beside program {seed}: exit code {code}")
            if said := engaged.compared(wanted, values):
                wrong.append(f"program {seed} beside a fork: {said}")
    return wrong


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
        with engaged.ground(2) as at:
            wrong = engaged.differs(program, at)
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
        watch(600 + (share or 0.1 * (args.programs or 0)))  # a busy machine may need 0.1 s for a program
        run(count, args.threads, each)
    for seed, wrong in count.wrong:
        print(f"program {seed}: {wrong}; repeat it with --seed {seed}")
    watch(600 + 0.01 * (args.programs or 0))  # for all that follows
    kept = leaks()
    if kept:
        print(f"{kept} values stayed alive")
    grown = grows(max(1, args.programs // 20), first) if args.programs is not None and os.path.exists("/proc/self/statm") else 0
    if grown:
        print(f"memory grows by {grown} bytes a program")
    others = []
    if args.programs is not None and hasattr(os, "fork"):  # as the programs, so that the check takes as long as ever
        others = interrupts(max(1, args.programs // 500), first) + forks(max(1, args.programs // 1000), first)
        print("\n".join(others) or "interrupted programs and forks beside programs: right")
    print(f"{count.next - first} programs in {time.monotonic() - begin:.0f} s, from seed {first}")
    return bool(count.wrong or kept or grown or others)


if __name__ == "__main__":
    sys.exit(main())
