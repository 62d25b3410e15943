"""Contenders of ./run perf models, in a process.

Speaks the protocol of ../peers/runner.h: lines `CASE N` in, lines of JSON out. `input_MODEL_WAY`: N steps fed in that way, all
ways of a process by turns with one model; `compiled_MODEL_WAY`: the same with --variant `feeds:engine`, where the step is
compiled by compile_step; `step_MODEL`: N steps on batches that lie in memory, run in the way of --variant; `warm_CASE`: N of
that case's steps which do not count, and whether all is decided that steps decide; `losses_MODEL_WAY`: the losses of the first
N steps of a new model; `serve_MODEL_CLIENTS`: N requests of each client. A process goes on where it was stopped. Whatever one
contender does before its steps count, all others do.
"""

import argparse
import ctypes
import itertools
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import sys
import time
import warnings
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "examples"), str(HERE)]

import torch  # noqa: E402

import engine.torch  # noqa: E402
from engine.torch.memory import keep_freed_memory  # noqa: E402
from engine.torch.step import CompiledStep  # noqa: E402
from cases import CASES, SCALE  # noqa: E402
from recommenders import generate, schema  # noqa: E402
from recommenders.inputs import Feed, File  # noqa: E402
from recommenders.models import MODELS  # noqa: E402
from recommenders.reader import Sampling  # noqa: E402
from recommenders.steps import step_of  # noqa: E402
from recommenders.training import Trainer  # noqa: E402

SMART = ("smart_stage", "on_cpu")  # ways that have a guard
HELD = 8  # batches in memory


def uncounted(n: int) -> int:
    """Steps of a turn before the n that count: a process that was stopped finds its caches cold."""
    return max(2, n // 4)


def chosen(step: Any) -> bool:
    """Whether engine.torch has chosen how a compiled step runs; True for any other step."""
    if not isinstance(step, CompiledStep) or step.why_eager:
        return True
    return step.last is not None and step.last.choice.decided is not None


def path_of(model: str, folder: pathlib.Path, rows: int) -> pathlib.Path:
    """The file of a model's data set, written if it is not there."""
    name = MODELS[model].data
    path = folder / f"{name}-v2-{rows}.csv"  # as DeepRec reads them by default
    if not path.exists():
        generate.write(schema.DATASETS[name](SCALE), path, rows)
    return path


class Endless(File):
    """The file again and again."""

    def __iter__(self):
        return itertools.chain.from_iterable(super(Endless, self).__iter__() for _ in itertools.count())

    def raw(self, *share):
        if share:
            return super().raw(*share)
        return itertools.chain.from_iterable(super(Endless, self).raw() for _ in itertools.count())


def reads(args: argparse.Namespace, model: str, asked: Any) -> None:
    """The reading side of a step in a process of its own: a batch whenever it is asked for one. Answers how long it took."""
    program = Program(argparse.Namespace(**{**vars(args), "threads": 1}))
    trainer, batches = program.trainer(model, True), iter(program.file(model))
    while asked.recv():
        begin = program.now()
        trainer.prepare(next(batches))
        asked.send(program.now() - begin)


class Program:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.trainers, self.feeds, self.steps, self.servers, self.readers = args, {}, {}, {}, {}, {}
        # Of a guard, by model and way: its comparisons while the mode of its step was open.
        self.before: dict[tuple[str, str], int] = {}
        torch.set_num_threads(args.threads)
        torch.set_num_interop_threads(1)
        keep_freed_memory()

    def trainer(self, model: str, sparse: bool) -> Trainer:
        kind = MODELS[model]
        data = schema.DATASETS[kind.data](SCALE)
        torch.manual_seed(1)
        return Trainer(kind.make(data, sparse), data, kind.rate, self.args.device, sgd=not sparse)

    def now(self) -> float:
        """The time at which the device has done what it was given."""
        if self.args.device.startswith("cuda"):
            torch.cuda.synchronize(self.args.device)
        return time.perf_counter()

    def file(self, model: str, kind: type[File] = Endless) -> File:
        data = schema.DATASETS[MODELS[model].data](SCALE)
        case = CASES[model]
        path = path_of(model, self.args.data, self.args.rows)
        return kind(path, data, case.batch, sampling=Sampling(case.keep))

    def fed_trainer(self, model: str) -> Trainer:
        """A trainer for feeds, its step compiled if that is the variant."""
        trainer = self.trainer(model, True)
        if self.args.variant.endswith(":engine"):
            trainer.train = engine.torch.compile_step(trainer.train, options={"workers": self.args.threads})
        return trainer

    def feed(self, way: str, trainer: Trainer, file: File) -> Feed:
        workers = int(way.removeprefix("loader")) if way.startswith("loader") else 0
        way, train, step = "dataloader" if way.startswith("loader") else way, trainer.train, None
        if isinstance(train, CompiledStep):
            step = lambda batch: train(*engine.torch.plain(trainer.prepare(batch)))  # noqa: E731
        return Feed(way, trainer, file, workers=workers, step=step)

    def fed(self, model: str, way: str) -> tuple[Feed, Any, Any]:
        """The ways of a process train one model in turns: what is not the way to feed it is the same for all."""
        if (model, way) not in self.feeds:
            if model not in self.trainers:
                self.trainers[model] = self.fed_trainer(model)
            feed = self.feed(way, self.trainers[model], self.file(model))
            self.feeds[model, way] = (feed, iter(feed), iter(feed.file))
        return self.feeds[model, way]

    def warm(self, kind: str, model: str, way: str, n: int) -> dict:
        """Steps that do not count. A guard has decided when it has compared steps whose mode was chosen."""
        if kind == "step":
            run, turn, step, _ = self.stepping(model)
            for _ in range(n):
                run(next(turn))
            return {"settled": chosen(step)}
        feed, losses, _ = self.fed(model, way)
        decided = True
        for _ in range(n):
            next(losses)
            if feed.way in SMART:
                report = feed.stage.report
                if not report["decided"] or not chosen(feed.trainer.train):
                    self.before[model, way] = report["comparisons"]
                compared = report["comparisons"] > self.before.get((model, way), 0)
                decided = report["decided"] and (compared and report["sure"] or not report["levels"])
        return {"settled": decided and chosen(feed.trainer.train)}

    def input(self, model: str, way: str, n: int) -> dict:
        """Steps from the file, and how long their thread had no core, in how many sleeps. For plain input, how long its two sides take."""
        feed, losses, batches = self.fed(model, way)
        for _ in range(uncounted(n)):
            next(losses)
        begin, before = self.now(), resource.getrusage(resource.RUSAGE_THREAD)
        for _ in range(n):
            next(losses)
        after, seconds = resource.getrusage(resource.RUSAGE_THREAD), self.now() - begin
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        told: dict = {"us_per_step": seconds / n * 1e6, "waited_us": (seconds - used) / n * 1e6,
                      "waits": (after.ru_nvcsw - before.ru_nvcsw) / n}  # fmt: skip
        if feed.way == "plain":  # behind what counts; each side by itself, so that the bound is of the same minutes
            trainer, sides = feed.trainer, [0.0, 0.0, 0.0]
            for _ in range(n):
                begin = self.now()
                prepared = trainer.prepare(next(batches))
                middle, used = self.now(), time.process_time()
                trainer.train(*prepared)
                sides[0] += middle - begin
                sides[1] += self.now() - middle
                sides[2] += time.process_time() - used
            told |= {name: side / n * 1e6 for name, side in zip(("stage_us", "main_us", "main_cpu_us"), sides)}
            told |= self.together(model, trainer, batches, n)
        if feed.way in SMART:
            told["staged"] = float(feed.stage.report["on"])
        if why := getattr(feed.trainer.train, "why_eager", ""):
            told["eagerly"] = why
        return told

    def together(self, model: str, trainer: Trainer, batches: Any, n: int) -> dict:
        """How long the two sides take while both run, in processes that share nothing but the machine: steps on batches that lie
        in memory, for each of which the other process makes one."""
        if model not in self.readers:
            spawned = multiprocessing.get_context("spawn")
            asked, other = spawned.Pipe()
            spawned.Process(target=reads, args=(self.args, model, other), daemon=True).start()
            self.readers[model] = asked
        asked, prepared = self.readers[model], [trainer.prepare(batch) for batch in itertools.islice(batches, 1 + n)]
        trainer.train(*prepared.pop())
        asked.send(True)
        asked.recv()  # it has started, and its caches are warm
        begin = self.now()
        for batch in prepared:
            asked.send(True)
            trainer.train(*batch)
        main = (self.now() - begin) / n
        return {"main_together_us": main * 1e6, "stage_together_us": sum(asked.recv() for _ in range(n)) / n * 1e6}

    def stepping(self, model: str) -> tuple[Any, Any, Any, list[str]]:
        """Steps without input, by SGD with gradients of whole tables, which all contenders can do: how to run one, batches
        in turn, what may be compiled, and why it runs eagerly."""
        if model not in self.steps:
            trainer = self.trainer(model, False)
            batches = [trainer.prepare(batch) for batch in itertools.islice(self.file(model), HELD)]
            way, _, policy = self.args.variant.partition(":")
            trainer.prepare = lambda batch: batch  # they are prepared
            run = step_of(way, trainer, **({"policy": policy} if policy else {}))
            turn, reference = itertools.cycle(batches), self.trainer(model, False)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                for batch in batches:  # the same losses as an eager model's, but for the order of sums
                    got, expected = float(run(batch)), float(reference.train(*batch))
                    if abs(got - expected) > 1e-3 * abs(expected):
                        raise RuntimeError(f"a loss is {got}, and eagerly {expected}")
            eager = [str(w.message) for w in told if "runs eagerly" in str(w.message)]
            self.steps[model] = (run, turn, getattr(run, "runs", run), eager)
        return self.steps[model]

    def step(self, model: str, n: int) -> dict:
        run, turn, _, eager = self.stepping(model)
        for _ in range(uncounted(n)):
            run(next(turn))
        begin = self.now()
        for _ in range(n):
            run(next(turn))
        told = {"us_per_step": (self.now() - begin) / n * 1e6}
        return told | ({"eagerly": eager[0]} if eager else {})

    def losses(self, model: str, way: str, n: int) -> dict:
        feed = self.feed(way, self.fed_trainer(model), self.file(model, File))
        return {"losses": [float(loss) for loss in itertools.islice(feed, n)]}

    def serve(self, model: str, clients: int, n: int) -> dict:
        import serving

        if model not in self.servers:
            trainer = self.trainer(model, False)
            self.servers[model] = serving.Server(
                self.args.variant, trainer, next(iter(self.file(model))), self.args.data
            )
        return self.servers[model].asked(clients, n)

    def answer(self, case: str, n: int) -> dict:
        if case.startswith("warm_"):
            kind, model, way = (case.removeprefix("warm_") + "_").split("_", 2)
            return self.warm(kind, model, way.removesuffix("_"), n)
        kind, model, more = (case + "_").split("_", 2)
        more = more.removesuffix("_")
        if kind == "step":
            return self.step(model, n)
        if kind == "serve":
            return self.serve(model, int(more), n)
        return {"input": self.input, "compiled": self.input, "losses": self.losses}[kind](model, more, n)


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # so that it does not stay stopped for ever if the driver dies
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("--device", default="cpu")
    program = Program(parser.parse_args())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        case, n = line.split()
        try:
            told = program.answer(case, int(n))
        except ImportError as error:
            told = {"skip": str(error)}
        except Exception as error:
            told = {"skip": f"{type(error).__name__}: {error}".splitlines()[0][:300], "failed": True}
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
