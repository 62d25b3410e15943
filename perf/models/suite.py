#!/usr/bin/env python3
"""Five recommendation models: how their steps run, how they are fed, how they are served: ./run perf models.

    suite.py --build BUILD --python PYTHON [--quick] [--only MODEL|GROUP ...] [--device cuda] [--json FILE [--resume]]

Contenders take turns, and a process that has no turn is stopped, with the processes that it made. Each contender is a process of
its own, but for the ways to feed a step with as many threads: those share one, and in it one model, because processes that do
the same differ by more than these ways do. Ratios are medians over rounds, with 95 % intervals; above 1, the contender is faster
than its group's first. Standard library only.

The file is written after each group of a model. --resume leaves out what the file has, so a run that was cut short goes on.
All contenders keep the memory that they free, as SmartStage and compiled steps do for their process.

`input`: steps from a CSV file. The first contender reads, converts and trains in turn, on the better of one and two
intra-op threads. "smart_stage 2" and "plain 2" use two in the step; `without` is the ratio to steps in turn with as many
threads, by which SmartStage is judged; `loader` that to the faster DataLoader with workers. Before anything counts all contenders
make the same number of steps, until the last one's guard and choice of a mode have decided; in each turn, some more. `compiled`: the same, where the step is compiled by engine.torch.compile_step, so that the input is a larger share.
`best`: what the two sides of a step allow with as many threads (`bound` says why), max(stage, main, (stage + processor time
of main) / cores); `allowed`: (stage + main) / best; `of best`: how close a step came to it. Two sides that run at once slow each
other down, be they processes that share nothing, because the cores share memory and more; `together`: max(stage, main) measured so,
and `of together`: how close a step came to that. `waited`: how much of a step its thread spent without a core, and in how many sleeps
(`waits`); where the input is ahead, it sleeps for the interpreter, which the stage has. `step`: the step alone, on batches in memory. `serve`: latency with several clients.
The exit status is 1 if losses of two ways to feed a model differ, or if SmartStage is slower than none beyond doubt.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from harness import machine  # noqa: E402
from harness.measure import turns  # noqa: E402
from harness.process import Runner  # noqa: E402
from harness.stats import paired_ratio, spread  # noqa: E402
from cases import CASES, SCALE  # noqa: E402

TIMEOUT = 300.0
INPUTS = ("plain", "plain 2", "staged", "smart_stage", "smart_stage 2", "on_cpu", "loader0", "loader1", "loader2")
COMPILED = tuple(
    f"{way}:engine{threads}"
    for way, threads in (
        ("plain", ""),
        ("plain", " 2"),
        ("smart_stage", ""),
        ("smart_stage", " 2"),
        ("loader0", ""),
        ("loader1", ""),
        ("loader2", ""),
    )
)
# With as many threads in the step, and nothing ahead of it.
WITHOUT = {f"{way}{how}": f"plain{how}" for way in ("staged", "smart_stage", "on_cpu", "loader1", "loader2")
           for how in ("", " 2", ":engine", ":engine 2")}  # fmt: skip
SMART = ("smart_stage", "on_cpu")  # ways that have a guard
WAYS = ("plain", "staged", *SMART, "loader0", "loader1", "loader2")  # to feed a step
WARM, MOST_WARM = 25, 400  # steps that do not count: at once, and at most
STEPS = (
    "eager",
    "eager 2",
    "inductor 2",
    "engine:threaded 2",
    "engine:cost_model 2",
    "engine:inline 2",
    "engine:naive 2",
)
SERVERS = ("eager", "inductor", "engine", "engine:fixed", "engine:serve", "onnx")
CORES = 2  # that the contenders may use
EQUAL = 12  # steps whose losses are compared


class Group(Runner):
    """A runner whose child processes are stopped and ended with it."""

    def _each(self, sign: int) -> None:
        for pid in [self._process.pid, *_children(self._process.pid)]:
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                pass

    def ask(self, case: str, n: int, timeout: float) -> dict:
        if self._process is not None:
            self._each(signal.SIGCONT)
        told = super().ask(case, n, timeout)
        if self._process is not None:
            self._each(signal.SIGSTOP)
        return told

    def close(self) -> None:
        if self._process is not None:
            self._each(signal.SIGKILL)
        super().close()


def _children(pid: int) -> list[int]:
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        pass
    return found


class Fed:
    """A way to feed a step, in a process that it may share with others."""

    def __init__(self, way: str, process: Group) -> None:
        self.way, self.process = way, process

    def ask(self, case: str, n: int, timeout: float) -> dict:
        return self.process.ask(f"{case}_{self.way}", n, timeout)

    def close(self) -> None:
        self.process.close()


class Suite:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.rows, self.wrong = args, [], 0
        self.rounds, self.seconds = (5, 0.25) if args.quick else (15, 0.6)
        # Ways to feed are few percent apart, and a machine drifts by more within seconds: shorter turns, and more of them.
        self.turns = (self.rounds, self.seconds) if args.quick else (45, 0.25)

    def process(self, variant: str, threads: str) -> Group:
        environment = [
            f"PYTHONPATH={self.args.build}/python",
            "TORCHINDUCTOR_COMPILE_THREADS=1",
        ]
        return Group(Path("/usr/bin/env"), [
            *environment, str(self.args.python), str(HERE / "program.py"), "--variant", variant, "--threads", threads or "1",
            "--data", str(self.args.build / "perf-models"), "--rows", str(self.args.data_rows), "--device", self.args.device],
            self.args.build / "perf-models/models.log")  # fmt: skip

    def wanted(self, *names: str) -> bool:
        chosen = set(self.args.only)
        groups, models = chosen & {"input", "compiled", "step", "serve"}, chosen & set(CASES)
        return (not groups or names[0] in groups) and (not models or names[1] in models)

    @contextlib.contextmanager
    def started(self, contenders: tuple[str, ...]) -> Iterator[dict[str, Group | Fed]]:
        """The contenders, for as many cases of one model as there are: what they compile, they compile once."""
        processes: dict[tuple[str, str], Group] = {}
        runners: dict[str, Group | Fed] = {}
        for name in contenders:
            variant, _, threads = name.partition(" ")
            way, _, compiled = variant.partition(":")
            fed = way in WAYS
            if fed:
                variant = "feeds:engine" if compiled else "feeds"
            process = processes.setdefault((variant, threads), self.process(variant, threads))
            runners[name] = Fed(way, process) if fed else process
        try:
            yield runners
        finally:
            for process in processes.values():
                process.close()

    def rounds_of(self, case: str, runners: dict[str, Group | Fed], fixed: int = 0,
                  losses: dict[str, list[float]] | None = None) -> dict[str, list[dict]]:  # fmt: skip
        """The answers of all contenders, round by round; those that cannot are named and left out. ``losses``: they are ways
        to feed a step, and it gets the losses of each one's first steps."""
        rounds, seconds = (self.rounds, self.seconds) if losses is None else self.turns
        told: dict[str, list[dict]] = {}
        slowest = 0.0
        if not fixed:
            self.warmed(case, runners)
        for name, runner in list(runners.items()):  # starts, warms
            if losses is not None:
                losses[name] = runner.ask(f"losses_{case.partition('_')[2]}", EQUAL, TIMEOUT).get("losses", [])
            first = runner.ask(case, fixed or 2, TIMEOUT)
            if "skip" in first:
                self.rows.append({"suite": "models", "case": case, "peer_name": name, "skip": first["skip"]})
                print(f"  {name:20} left out: {first['skip']}", flush=True)
                runners.pop(name)
                continue
            told[name] = []
            slowest = max(slowest, first.get("us_per_step", 0) / 1e6)
        count = fixed or max(3, int(seconds / max(1e-4, slowest)))
        for turn in range(rounds if told else 0):
            for name in turns(list(told), turn):
                told[name].append(runners[name].ask(case, count, TIMEOUT))
        self.n = count
        return {name: answers for name, answers in told.items() if not any("skip" in answer for answer in answers)}

    def warmed(self, case: str, runners: dict[str, Group | Fed]) -> None:
        """The same steps for all, until the last one has decided what its steps decide."""
        for _ in range(0, MOST_WARM, WARM):
            answers = {name: runner.ask(f"warm_{case}", WARM, TIMEOUT) for name, runner in runners.items()}
            undecided = [name for name, answer in answers.items() if not answer.get("settled", True)]
            if not undecided:
                return
        print(f"  after {MOST_WARM} steps still undecided: {', '.join(undecided)}", flush=True)

    def compared(
        self, group: str, model: str, told: dict[str, list[dict]], metric: str, base: str
    ) -> dict[str, dict]:
        """A row and a line for each contender: its figure, and how much faster than ``base`` it is."""
        rows, before = {}, [answer[metric] for answer in told[base]]
        for name, answers in told.items():
            values = [answer[metric] for answer in answers]
            ratio = paired_ratio(values, before)
            rows[name] = {"suite": "models", "group": group, "case": model, "metric": metric, "ours_name": name, "peer_name": base,
                          "ours": statistics.median(values), "ours_spread": list(spread(values)), "ratio": ratio["ratio"],
                          "ratio_ci": ratio["ci"], "n": self.n, "rounds": len(values)}  # fmt: skip
            if "eagerly" in answers[-1]:
                rows[name]["eagerly"] = answers[-1]["eagerly"]
            self.rows.append(rows[name])
            low, high = spread(values)
            print(f"  {name:20} {statistics.median(values):10.0f} [{low:.0f}, {high:.0f}]  x{ratio['ratio']:.2f} "
                  f"[{ratio['ci'][0]:.2f}, {ratio['ci'][1]:.2f}]  {rows[name].get('eagerly', '')}", flush=True)  # fmt: skip
        return rows

    # --- the groups

    def input(self, model: str, group: str = "input", contenders: tuple[str, ...] = INPUTS) -> None:
        print(f"{group} / {model}, batches of {CASES[model].batch}: us a step", flush=True)
        losses: dict[str, list[float]] = {}
        with self.started(contenders) as runners:
            told = self.rounds_of(f"{group}_{model}", runners, losses=losses)
        plain = contenders[0]
        if plain not in told:
            return
        self.equal(model, losses, plain)
        base = min(
            (name for name in (plain, f"{plain} 2") if name in told),
            key=lambda name: _median(told, name, "us_per_step"),
        )
        rows = self.compared(group, model, told, "us_per_step", base)
        stage, main = _median(told, plain, "stage_us"), _median(told, plain, "main_us")
        for name, row in rows.items():
            same = f"{plain} 2" if name.endswith(" 2") and f"{plain} 2" in told else plain
            row |= bound(*(_median(told, same, side) for side in ("stage_us", "main_us", "main_cpu_us")))
            row["together_us"] = statistics.median(max(answer["stage_together_us"], answer["main_together_us"]) for answer in told[same])
            row["of_together"] = row["together_us"] / row["ours"]
            row |= {metric: _median(told, name, metric) for metric in ("waited_us", "waits")}
            row |= {"of_best": row["best_us"] / row["ours"], "allowed_ratio": _median(told, base, "us_per_step") / row["best_us"]}
        allowed = rows[plain]["allowed"]
        case = CASES[model]
        published = f"{case.cpu:.2f} on a CPU, " if case.cpu else ""
        print(f"  stage {stage:.0f} us, main {main:.0f} us: allowed x{allowed:.2f}; DeepRec: {published}{case.gpu:.2f} on a GPU, "
              f"{case.on_cpu:.2f} with the stage on the CPU", flush=True)  # fmt: skip
        for name, without in WITHOUT.items():
            if name in rows and without in told:
                self.beside(rows[name], told, without)

    def compiled(self, model: str) -> None:
        self.input(model, "compiled", COMPILED)

    def beside(self, row: dict, told: dict[str, list[dict]], without: str) -> None:
        """A way to feed beside the same threads in turn, whose name that is, by which SmartStage is judged; and that beside the
        faster DataLoader with workers."""
        name = row["ours_name"]
        ratio = _paired(told, name, without)
        row |= {"without": ratio["ratio"], "without_ci": ratio["ci"], "without_name": without}
        if not name.startswith(SMART):
            return
        how = name.removeprefix("smart_stage").removeprefix("on_cpu")
        loaders = [loader for loader in (f"loader1{how}", f"loader2{how}") if loader in told]
        if loaders:
            loader = min(loaders, key=lambda loader: _median(told, loader, "us_per_step"))
            over = _paired(told, name, loader)
            row |= {"loader": over["ratio"], "loader_ci": over["ci"], "loader_name": loader}
            print(f"  {name}: x{over['ratio']:.2f} [{over['ci'][0]:.2f}, {over['ci'][1]:.2f}] of {loader}")
        row["staged_share"] = on = statistics.mean(answer["staged"] for answer in told[name])
        print(f"  {name}: {row['of_best']:.0%} of the best that its two sides allow on {CORES} cores, "
              f"{row['of_together']:.0%} of what they reach together, waits for {row['waited_us']:.0f} us in {row['waits']:.0f} sleeps, "
              f"x{ratio['ratio']:.2f} [{ratio['ci'][0]:.2f}, {ratio['ci'][1]:.2f}] of the same without; "
              f"{'kept' if on > 0.5 else 'dropped by its guard'}")  # fmt: skip
        if ratio["ci"][1] < 1:
            self.wrong += 1
            print("  SLOWER than without a stage")

    def equal(self, model: str, seen: dict[str, list[float]], plain: str) -> None:
        """Whether the losses of the first steps are equal, fed in all ways. With two threads sums come in another order."""
        differ = [way for way, found in seen.items() if found != seen[plain] and not way.endswith(" 2")]
        self.wrong += len(differ)
        self.rows.append(
            {
                "suite": "models",
                "group": "losses" if plain == INPUTS[0] else "losses_compiled",
                "case": model,
                "equal": sorted(set(seen) - set(differ)),
                "differ": differ,
            }
        )
        print(
            f"  losses of {EQUAL} steps: {'equal' if not differ else 'DIFFERENT: ' + ', '.join(differ)}", flush=True
        )

    def step(self, model: str) -> None:
        print(f"step / {model}, batches of {CASES[model].batch}, SGD: us a step", flush=True)
        with self.started(STEPS) as runners:
            told = self.rounds_of(f"step_{model}", runners)
        eager = [name for name in ("eager", "eager 2") if name in told]
        if eager:
            self.compared(
                "step", model, told, "us_per_step", min(eager, key=lambda name: _median(told, name, "us_per_step"))
            )

    def serve(self, model: str) -> None:
        with self.started(SERVERS) as runners:
            for clients in (1, 8, 32) if self.args.quick else (1, 2, 4, 8, 16, 32):
                print(f"serve / {model}, {clients} clients: us a request, p50, then p99", flush=True)
                told = self.rounds_of(f"serve_{model}_{clients}", runners, max(10, 200 // clients))
                if "eager" in told:
                    for metric in ("p50_us", "p99_us"):
                        self.compared(f"serve_{clients}", model, told, metric, "eager")

    def run(self, save: Callable[[], None]) -> None:
        """All groups of all models that are wanted. ``save`` is called after each, so that a run that is cut short leaves
        what it has."""
        (self.args.build / "perf-models").mkdir(exist_ok=True, parents=True)
        for model in CASES:
            for name, group in (("input", self.input), ("compiled", self.compiled), ("step", self.step), ("serve", self.serve)):
                if self.wanted(name, model) and not has(self.rows, name, model):
                    group(model)
                    save()


def has(rows: list[dict], group: str, model: str) -> bool:
    """Whether the rows hold a group of a model, be it that all its contenders were left out."""
    wanted = {"input": ("input", "losses"), "compiled": ("compiled", "losses_compiled")}.get(group, (group,))
    return any(
        (row["case"] == model and row.get("group", "").replace("serve_", "serve ").partition(" ")[0] in wanted)
        or f"{row['case']}_".startswith(f"{group}_{model}_")
        for row in rows
    )


def bound(stage: float, main: float, main_cpu: float) -> dict[str, float]:
    """What the sides of a step allow: no step beside a stage is shorter than ``best_us``. The stage is one thread, so it takes
    as long as alone; so does the step, however many threads it has; and no schedule has more than all cores, so the processor
    time of both, over the cores, is a third bound. It counts where the step itself uses several cores."""
    best = max(stage, main, (stage + main_cpu) / CORES)
    return {"stage_us": stage, "main_us": main, "main_cpu_us": main_cpu, "best_us": best, "allowed": (stage + main) / best}


def _paired(told: dict[str, list[dict]], name: str, base: str) -> dict:
    return paired_ratio(*([answer["us_per_step"] for answer in told[way]] for way in (name, base)))


def _median(told: dict[str, list[dict]], name: str, metric: str) -> float:
    return statistics.median(answer[metric] for answer in told[name])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="few short rounds: a look, not a verdict")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="models; or groups: input, compiled, step, serve")
    parser.add_argument("--data-rows", type=int, default=120_000, help="rows of each file")
    parser.add_argument("--device", default="cpu", help="where the models are: cpu, cuda, cuda:1")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--resume", action="store_true", help="keep the rows of --json's file, and measure what it lacks")
    args = parser.parse_args()
    args.build, args.python = args.build.absolute(), args.python.absolute()
    suite = Suite(args)
    header = machine.header(args.build, HERE, 2, suite.rounds) | {"scale": SCALE, "device": args.device}
    print(*(f"{key}: {value}" for key, value in header.items()), sep="\n", end="\n\n")
    if args.resume and args.json and args.json.exists():
        before = json.loads(args.json.read_text())
        if (before["header"]["commit"], before["header"]["rounds"]) != (header["commit"], header["rounds"]):
            print(f"{args.json} is of {before['header']['commit']} with {before['header']['rounds']} rounds; it is not gone on with")
            return 2
        header, suite.rows = before["header"], before["rows"]
    begin = time.monotonic()

    def save() -> None:
        if args.json:
            args.json.write_text(json.dumps({"header": header, "rows": suite.rows}, indent=1) + "\n")

    suite.run(save)
    print(f"models: {len(suite.rows)} rows in {time.monotonic() - begin:.0f} s, {suite.wrong} wrong")
    return 1 if suite.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
