"""The demo: will a flight be more than 15 minutes late? A small DLRM, trained serially and through the engine.

    python examples/flights [--quick] [--epochs N] [--workers N] [--out DIR] [--cache DIR]

Both trainers are given the same seeds and take turns, epoch by epoch. Ends with one line of verdict; exit code 1
if a single bit of the weights, losses or test scores differs.
"""

import argparse
import os
import pathlib
import sys
import time

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = (
        "1"  # before NumPy: each kernel on one thread in both runs, so that only the engine differs
    )

import contextlib  # noqa: E402

import numpy as np  # noqa: E402

try:
    import tqdm
except ImportError:
    tqdm = None

import data  # noqa: E402
import engine  # noqa: E402
import policies  # noqa: E402
import serial  # noqa: E402
import staged  # noqa: E402
import through_engine  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps instead of an epoch, two epochs")
    parser.add_argument("--epochs", type=int, help="default 5, quick 2")
    parser.add_argument("--workers", type=int, default=-1, help="default: one a core")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo_out"))
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(".cache"), help="where the data is kept")
    args = parser.parse_args()
    args.epochs = args.epochs or (2 if args.quick else 5)
    args.limit = 16 if args.quick else None
    return args


class Clock:
    """Records the serial run's kernels as the engine's trace records its own."""

    def __init__(self):
        self.spans = []

    @contextlib.contextmanager
    def span(self, name):
        begin = time.perf_counter()
        yield
        self.spans.append((name, "serial", begin, time.perf_counter()))


def timed(trainer, epoch, bar, who):
    if bar:
        bar.set_postfix_str(who)
    counters = getattr(trainer, "counters", None)

    def progress():
        if bar:
            if counters:
                bar.set_postfix_str(f"{who}: {counters()}", refresh=False)
            bar.update()

    begin = time.perf_counter()
    loss, auc = trainer.epoch(epoch, progress)
    return time.perf_counter() - begin, loss, auc


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    engine.init(workers=args.workers)
    source = data.prepare(args.cache)
    test = data.test_set(source)
    trainers = {"serial": serial.Serial(source, test, args.limit),
                "engine": through_engine.ThroughEngine(source, test, args.limit)}  # fmt: skip
    clock = Clock()
    print(f"demo: {source.chunks} chunks of {data.ROWS} flights, {len(test.late)} flights to test on, "
          f"{engine.default().workers} workers")  # fmt: skip

    epochs, same = [], True
    steps = len(serial.epoch_order(source, 0, args.limit))
    for epoch in range(args.epochs):
        last = epoch == args.epochs - 1
        order = list(trainers) if epoch % 2 == 0 else list(reversed(trainers))  # neither always comes second
        results = {}
        bar = tqdm.tqdm(total=2 * steps, desc=f"epoch {epoch + 1}/{args.epochs}", unit="step") if tqdm else None
        for who in order:
            if last and who == "serial":
                trainers[who].span = clock.span
            if last and who == "engine":
                with engine.trace(args.out / "trace.json") as trace:
                    results[who] = timed(trainers[who], epoch, bar, who)
            else:
                results[who] = timed(trainers[who], epoch, bar, who)
        (plain, loss, auc), (ours, *numbers) = results["serial"], results["engine"]
        same = same and [loss, auc] == numbers
        epochs.append((plain, ours, loss, auc))
        if bar:
            bar.set_postfix_str(f"loss {loss:.4f}  test AUC {auc:.4f}  serial {plain:.2f} s  engine {ours:.2f} s")
            bar.close()
        else:
            print(f"epoch {epoch + 1}: loss {loss:.4f} test AUC {auc:.4f} serial {plain:.2f} s engine {ours:.2f} s")
    pairs = zip(trainers["serial"].model.arrays(), trainers["engine"].model.arrays())
    same = same and all(np.array_equal(a.view(np.uint32), b.view(np.uint32)) for a, b in pairs)

    staged.told(trainers["engine"].staged)
    same = policies.table(source, test, args.limit, epochs[0][2]) and same

    ratios = sorted(plain / ours for plain, ours, _, _ in epochs)
    speed = sum(e[0] for e in epochs) / sum(e[1] for e in epochs)
    verdict = (
        f"loss {epochs[-1][2]:.4f}  AUC {epochs[-1][3]:.4f}  {'bit-equal to' if same else 'DIFFERS FROM'} serial, "
        f"{speed:.2f}x its speed (epochs {ratios[0]:.2f} to {ratios[-1]:.2f}) on {engine.default().workers} workers"
    )
    picture_path = args.out / "schedule.png"
    try:
        import picture
    except ImportError:
        print("demo: no picture, matplotlib is not installed")
    else:
        spans = [(e.name, e.thread, e.begin, e.end) for e in trace.events]
        picture.draw(picture_path, clock.spans, spans, epochs, f"336,776 flights, small DLRM: {verdict}")
        print(f"demo: {picture_path} shows the schedule; {args.out / 'trace.json'} opens in ui.perfetto.dev")
    told = engine.explain(trace)
    page = told.write(args.out / "timeline.html")
    causes = sorted(told.analysis.idle_by_cause.items(), key=lambda item: -item[1])[:2]
    print(f"demo: the last epoch was idle by {' and '.join(cause for cause, _ in causes) or 'nothing'}; look at its timeline "
          f"in a browser: {page.resolve().as_uri()}")  # fmt: skip
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    if load > cores + 0.5:
        print(
            f"demo: other programs keep this machine busy (load {load:.1f} on {cores} cores), so the speed says little"
        )
    print(f"demo: {'ok' if same else 'FAILED'}  {verdict}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
