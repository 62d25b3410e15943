"""MXNet's programs, on its own engine or on ours: the same file, and one import more.

Speaks the protocol of ../peers/runner.h: lines `CASE N` in, lines of JSON out. --variant: ours, theirs. `allowed:CASE N` is answered by
ours: what a step of the case that ran last allows (allowed())."""

import argparse
import ctypes
import json
import os
import resource
import signal
import statistics
import struct
import sys
import tempfile
import time
import zlib

import bound

parser = argparse.ArgumentParser()
parser.add_argument("--variant", choices=("ours", "theirs"), default="ours")
parser.add_argument("--workers", default="1")
args = parser.parse_args()
os.environ["MXNET_CPU_WORKER_NTHREADS"] = args.workers
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MXNET_STORAGE_FALLBACK_LOG_VERBOSE"] = "0"
if args.variant == "ours":
    import engine
    import engine.mxnet  # noqa: F401

import mxnet as mx  # noqa: E402 - behind ours
import numpy as np  # noqa: E402
from mxnet import autograd, gluon  # noqa: E402
from mxnet.gluon import nn  # noqa: E402

CASES = {}


def case(make):
    """`make()` returns a function of n that does n steps; it is made once, and warmed."""
    CASES[make.__name__] = make
    return make


# --- imperative


@case
def nd_chain():
    """A chain of small ops, read at its end."""
    x, one = mx.nd.zeros((16,)), mx.nd.ones((16,))

    def steps(n):
        y = x
        for _ in range(n):
            y = y + one
        y.wait_to_read()

    return steps


@case
def nd_in_place():
    """The same, into one array."""
    x, one = mx.nd.zeros((16,)), mx.nd.ones((16,))

    def steps(n):
        for _ in range(n):
            x[:] = one
        x.wait_to_read()

    return steps


@case
def nd_fan():
    """Independent small ops, all waited for."""
    xs = [mx.nd.zeros((16,)) for _ in range(64)]

    def steps(n):
        for i in range(n):
            xs[i % 64] += 1
        mx.nd.waitall()

    return steps


@case
def nd_each_read():
    """Each op is waited for: a round trip."""
    x = mx.nd.zeros((16,))

    def steps(n):
        for _ in range(n):
            (x + 1).wait_to_read()

    return steps


# --- training


def training(net, data, labels, loss=None, hybrid=False, **flags):
    net.initialize(mx.init.Xavier())
    loss = loss or gluon.loss.SoftmaxCrossEntropyLoss()
    if hybrid:
        net.hybridize(**flags)
        loss.hybridize(**flags)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})

    def steps(n):
        for _ in range(n):
            with autograd.record():
                value = loss(net(data), labels)
            value.backward()
            trainer.step(data.shape[0])
        mx.nd.waitall()

    return steps


def classes(n, most=10):
    return mx.nd.array(np.random.randint(0, most, n))


def mlp(**options):
    net = nn.HybridSequential()
    for _ in range(3):
        net.add(nn.Dense(128, activation="relu"))
    net.add(nn.Dense(10))
    return training(net, mx.nd.random.uniform(shape=(64, 64)), classes(64), **options)


def lenet(**options):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(6, 5, activation="tanh"), nn.AvgPool2D(2, 2), nn.Conv2D(16, 5, activation="tanh"),
            nn.AvgPool2D(2, 2), nn.Flatten(), nn.Dense(120, activation="tanh"), nn.Dense(84, activation="tanh"),
            nn.Dense(10))  # fmt: skip
    return training(net, mx.nd.random.uniform(shape=(16, 1, 28, 28)), classes(16), **options)


class Wide(gluon.HybridBlock):
    """Parallel branches, each of which is a few products of matrices."""

    def __init__(self, branches=16, width=128, depth=3):
        super().__init__()
        self.branches = []
        for i in range(branches):
            branch = nn.HybridSequential()
            for _ in range(depth):
                branch.add(nn.Dense(width, activation="relu"))
            self.branches.append(branch)
            setattr(self, f"branch{i}", branch)
        self.out = nn.Dense(10)

    def hybrid_forward(self, F, x):
        return self.out(F.concat(*[branch(x) for branch in self.branches], dim=1))


def wide(**options):
    return training(Wide(), mx.nd.random.uniform(shape=(128, 128)), classes(128), **options)


def lstm(**options):
    net = nn.HybridSequential()
    net.add(gluon.rnn.LSTM(64, layout="NTC"), nn.Dense(10))
    return training(net, mx.nd.random.uniform(shape=(16, 20, 32)), classes(16), **options)


def lstm_cell(**options):
    class Net(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.cell, self.out = gluon.rnn.LSTMCell(64), nn.Dense(10)

        def hybrid_forward(self, F, x):
            outputs, _ = self.cell.unroll(10, x, layout="NTC", merge_outputs=False)
            return self.out(outputs[-1])

    return training(Net(), mx.nd.random.uniform(shape=(16, 10, 32)), classes(16), **options)


for program in (mlp, lenet, wide, lstm, lstm_cell):
    CASES[f"{program.__name__}_eager"] = program
    CASES[f"{program.__name__}_hybrid"] = lambda program=program: program(hybrid=True)
    CASES[f"{program.__name__}_static"] = lambda program=program: program(
        hybrid=True, static_alloc=True, static_shape=True
    )


@case
def wide_forward():
    """The branches alone, hybridized, without gradients: what the engine makes of their independence."""
    net = Wide()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    data = mx.nd.random.uniform(shape=(128, 128))

    def steps(n):
        for _ in range(n):
            net(data)
        mx.nd.waitall()

    return steps


# --- feeding


@case
def feed_loader():
    """A DataLoader with two forked workers; its figure is an item's."""
    data = gluon.data.ArrayDataset(np.random.rand(4096, 64).astype("float32"), np.arange(4096))
    loader = gluon.data.DataLoader(data, batch_size=64, num_workers=2)

    def steps(n):
        seen = 0
        while seen < n:
            for batch, _ in loader:
                batch.wait_to_read()
                seen += 1
                if seen == n:
                    return

    return steps


@case
def feed_iterator():
    """An NDArrayIter behind MXNet's prefetching thread."""
    array = mx.nd.random.uniform(shape=(4096, 64))
    iterator = mx.io.PrefetchingIter(mx.io.NDArrayIter(array, classes(4096), batch_size=64))

    def steps(n):
        seen = 0
        while seen < n:
            for batch in iterator:
                batch.data[0].wait_to_read()
                seen += 1
                if seen == n:
                    return
            iterator.reset()

    return steps


def png(pixels):
    """An image file of these pixels, (height, width, 3): the venv needs no library for images."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@case
def feed_images():
    """MXNet's ImageRecordIter: 512 images of 64 by 64 from a RecordIO file, decoded and cut by its own threads."""
    if not mx.runtime.Features().is_enabled("OPENCV"):
        raise RuntimeError("this MXNet was built without OpenCV")
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "images.rec")
    record = mx.recordio.MXRecordIO(path, "w")
    for i in range(512):
        image = np.random.randint(0, 256, (64, 64, 3), dtype=np.uint8)
        record.write(mx.recordio.pack(mx.recordio.IRHeader(0, float(i % 10), i, 0), png(image)))
    record.close()
    iterator = mx.io.ImageRecordIter(path_imgrec=path, data_shape=(3, 56, 56), batch_size=32, rand_crop=True, rand_mirror=True,
                                     preprocess_threads=1, verbose=False)  # fmt: skip

    def steps(n, folder=folder):
        seen = 0
        while seen < n:
            for batch in iterator:
                batch.data[0].wait_to_read()
                seen += 1
                if seen == n:
                    return
            iterator.reset()

    return steps


# --- what the kernels alone allow


def allowed(steps, n):
    """The time of a step of `n` by a list schedule (bound.py) of its ops, as long as these take here and now, in the order that a trace shows, with
    the pushes of this thread beside them. An op takes what it takes on average while others run beside it and this thread has pushed all
    and waits, because before that it may have to share its core; an op that never runs then, what it takes on average at all. Deletions are
    left out: workers push them, too. And where the time of the workers went while it was traced: their ops as in the schedule, what ops took
    longer than that, time without an op while one was `ready`, and while there was `nothing` to run."""
    mx.nd.waitall()
    with engine.trace() as trace:
        steps(n)
    traced = [event for event in trace.events if event.pushed is not None]  # without deletions that were pushed before
    ends = {event.op: event.end for event in trace.events}
    spent = bound.time_of_workers([(max(event.pushed, *(ends.get(op, 0.0) for op in event.after), 0.0), event.begin, event.end)
                                   for event in traced], int(args.workers))  # fmt: skip
    events = sorted((event for event in traced if event.name != "DeleteVariable"), key=lambda event: event.pushed)
    if len(events) % n:
        raise RuntimeError(f"{len(events)} ops in {n} steps: the steps differ")
    place = {event.op: i for i, event in enumerate(events)}
    all_pushed = max(event.pushed for event in events)
    took = bound.by_place(statistics.fmean, [event.end - event.begin for event in events], n,
                          [event.begin > all_pushed for event in events])  # fmt: skip
    ops = [(event.name, seconds, [place[op] for op in event.after if place.get(op, i) < i])
           for i, (event, seconds) in enumerate(zip(events, took))]  # fmt: skip
    pushes = bound.by_place(statistics.median, [b.pushed - a.pushed for a, b in zip([events[0], *events], events)], n)
    workers = int(args.workers)
    return {"us_per_step": bound.scheduled(ops, pushes, workers, len(os.sched_getaffinity(0))) / n * 1e6,
            "at_least": bound.at_least(ops, workers) / n * 1e6,
            "work": sum(took) / n * 1e6,
            "longer": (spent["running"] - sum(took)) / n * 1e6,
            "ready": spent["ready"] / n * 1e6,
            "nothing": spent["nothing"] / n * 1e6,
            "pushes": sum(pushes) / n * 1e6}  # fmt: skip


def main():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # not left behind stopped, if the driver dies
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    made = {}
    for line in sys.stdin:
        name, n = line.split()
        try:
            if name.startswith("allowed:"):
                print(json.dumps(allowed(made[name.partition(":")[2]], int(n))), file=answers, flush=True)
                continue
            if name not in CASES:
                raise KeyError("no such case")
            if name not in made:
                made = {name: CASES[name]()}
                mx.random.seed(1)
                np.random.seed(1)
                made[name](max(3, int(n) // 10))
            before = resource.getrusage(resource.RUSAGE_SELF)
            begin = time.perf_counter()
            made[name](int(n))
            seconds = time.perf_counter() - begin
            after = resource.getrusage(resource.RUSAGE_SELF)
            result = {
                "us_per_step": seconds / int(n) * 1e6,
                "cpu_us": (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / int(n) * 1e6,
                "wakeups_per_op": (after.ru_nvcsw - before.ru_nvcsw) / int(n),
            }
        except Exception as error:
            result = {"skip": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
