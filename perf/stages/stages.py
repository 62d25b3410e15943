"""Stages in Python: ours, queue.Queue with a thread, and PyTorch's DataLoader, on the same endless sources.

Speaks the protocol of ../peers/runner.h: lines `CASE N` in, lines of JSON out. Variants: ours, queue, serial, loader0,
loader1, loader2 (DataLoader with as many worker processes)."""

import argparse
import csv
import ctypes
import gc
import io
import json
import os
import queue
import signal
import statistics
import sys
import threading
import time

import numpy as np

ROWS = ["%d,%f,%d,text-%d" % (i, i / 7, i * i, i) for i in range(600)]
SQUARE = np.ones((220, 220), np.float32)


def wait():
    """Input that is waited for: 2 ms."""
    time.sleep(0.002)
    return np.zeros(16, np.float32)


def parse():
    """Input that is parsed by Python code, which holds the GIL."""
    return [(int(a), float(b), int(c), d) for a, b, c, d in csv.reader(io.StringIO("\n".join(ROWS)))]


def spell():
    """Input that Python code makes bytecode by bytecode, 9 ms: nothing but the switch interval takes the GIL from it."""
    made = []
    for _ in range(6):
        for row in ROWS:
            made.append([ord(c) + 1 for c in row])
    return made


SOURCE = np.zeros(1 << 20, np.float32)


def copy():
    """Input that is moved: 4 MiB, twice."""
    return SOURCE.copy() + 1


def mixed():
    time.sleep(0.0007)
    return parse(), SOURCE[: 1 << 18].copy()


def nothing():
    return None


def compute(micros):
    """A step of NumPy calls that release the GIL, for about that long; how long it was, in seconds."""
    begin = now = time.perf_counter()
    while now < begin + micros / 1e6:
        SQUARE @ SQUARE
        now = time.perf_counter()
    return now - begin


CASES = {  # source, microseconds of compute
    "py_wait": (wait, 2000),
    "py_parse": (parse, 1500),
    "py_spell": (spell, 3000),
    "py_copy": (copy, 2000),
    "py_mixed": (mixed, 2500),
    "py_stream": (nothing, 0),
}


def items(source):
    while True:
        yield source()


AHEAD = 2  # items that may be ready or in the making while the consumer computes; the usual default


def opened(variant, source):
    """The contender's iterator over the source, and how to end it."""
    if variant == "serial":
        return items(source), lambda: None
    if variant == "ours":
        import engine

        stage = engine.data.staged(items(source), capacity=AHEAD - 1)  # and the producer has one more
        return stage, stage.cancel
    if variant == "queue":
        buffer, over = queue.Queue(AHEAD - 1), threading.Event()  # likewise

        def produce():
            for item in items(source):
                buffer.put(item)
                if over.is_set():
                    return

        threading.Thread(target=produce, daemon=True).start()

        def end():
            over.set()
            try:
                while True:
                    buffer.get_nowait()
            except queue.Empty:
                pass

        return items(buffer.get), end
    from torch.utils.data import DataLoader, IterableDataset

    class Endless(IterableDataset):
        def __iter__(self):
            return items(source)

    workers = int(variant.removeprefix("loader"))
    options = {"prefetch_factor": max(1, AHEAD // workers)} if workers else {}
    iterator = iter(DataLoader(Endless(), batch_size=None, num_workers=workers, **options))
    return iterator, getattr(iterator, "_shutdown_workers", lambda: None)


def memory():
    """The memory of this process and its children, in MB; what they share counts once."""
    total = 0
    for pid in [str(os.getpid()), *open(f"/proc/self/task/{os.getpid()}/children").read().split()]:
        rollup = open(f"/proc/{pid}/smaps_rollup").read()
        total += int(rollup.split("Pss:")[1].split()[0])
    return total * 1024 / 1e6


def pipeline(variant, name, n):
    """Runs a case in a process of its own, because one case leaves memory in the allocators."""
    come, gone = os.pipe()
    if child := os.fork():
        os.close(gone)
        with os.fdopen(come) as said:
            told = said.read()
        os.waitpid(child, 0)
        return json.loads(told or '{"skip": "its process died"}')
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        told = measured(variant, name, n)
    except BaseException as error:
        told = {"skip": f"{type(error).__name__}: {error}"}
    os.write(gone, json.dumps(told).encode())
    os._exit(0)


def measured(variant, name, n):
    source, micros = CASES[name]
    if variant == "ours":
        import engine  # noqa: F401
    source()  # so that all contenders have what it imports, and allocates once
    compute(0)
    gc.collect()  # copies the pages that the fork shares here, so that no contender pays for it
    before = memory()
    begin = time.perf_counter()
    iterator, end = opened(variant, source)
    next(iterator)
    first = time.perf_counter() - begin
    for _ in range(n // 10):
        next(iterator)
        compute(micros)
    computed = 0.0
    begin = time.perf_counter()
    for _ in range(n):
        next(iterator)
        computed += compute(micros)
    step = (time.perf_counter() - begin) / n
    grown = []
    for _ in range(15):  # several looks, because the number of items, and what the allocator keeps, vary
        next(iterator)
        compute(micros)
        grown.append(memory() - before)
    figures = {
        "step_us": step * 1e6,
        "compute_us": computed / n * 1e6,
        "first_ms": first * 1e3,
        "grown_mb": statistics.median(grown),
    }
    end()
    return figures


def answer(variant, name, n):
    if variant.startswith("loader"):
        try:
            import torch  # noqa: F401
        except ImportError:
            return {"skip": "PyTorch is not installed"}
    return pipeline(variant, name, n) if name in CASES else {"skip": "no such case"}


def main():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # so that it does not stay stopped for ever if the driver dies
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", default="ours")
    args, _ = parser.parse_known_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        name, n = line.split()
        try:
            result = answer(args.variant, name, int(n))
        except Exception as error:
            result = {"skip": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
