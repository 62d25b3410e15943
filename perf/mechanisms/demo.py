"""The demo's training through the engine, an epoch at a time. Speaks the protocol of ../peers/runner.h: lines `demo N` in, where
N is a number of epochs; lines of JSON out."""

import ctypes
import json
import os
import pathlib
import signal
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples/flights"))


def epochs():
    """Trains for ever; gives the seconds that each epoch took."""
    import data
    import engine
    import through_engine

    engine.init(workers=2)
    source = data.prepare(ROOT / ".cache")
    trainer = through_engine.ThroughEngine(source, data.test_set(source))
    for epoch in range(1 << 30):
        begin = time.perf_counter()
        trainer.train(epoch)
        yield time.perf_counter() - begin


def main():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # so that it does not stay stopped for ever if the driver dies
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    trained = epochs()
    for line in sys.stdin:
        _, n = line.split()
        try:
            told = {"epoch_ms": sum(next(trained) for _ in range(int(n))) / int(n) * 1e3}
        except Exception as error:  # no data, no NumPy
            told = {"skip": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
