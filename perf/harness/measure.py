"""Runs the cases of a group: warms every contender, then interleaves rounds, and keeps every figure."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from . import machine
from .plan import CONTENDERS, Case, Group
from .process import Runner

NOT_BUILT = "not built"

@dataclass
class Settings:
    runners: Path
    logs: Path
    workers: int
    rounds: int
    quick: bool
    budget: float  # seconds that one measurement may take
    only: list[str] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    before: Path | None = None  # the runners of another build tree
    renews: bool = False  # each round is made by new processes

    @property
    def timeout(self) -> float:
        return 30 + 20 * self.budget


@dataclass
class Result:
    """What a contender did in one case: its figures by metric and round, or why it has none."""

    n: int = 0
    rounds: list[dict] = field(default_factory=list)
    skip: str = ""
    busy: float = 0.0  # how busy the machine was with other work, at the worst look around the rounds

    def values(self, metric: str) -> list[float | None]:
        return [figures.get(metric) for figures in self.rounds]


def _runner(name: str, case: Case, settings: Settings) -> Runner | None:
    contender = CONTENDERS[name]
    binary = (settings.before if contender.before else settings.runners) / contender.binary
    if not binary.exists():
        return None
    workers = contender.workers or settings.workers
    args = ["--workers", str(workers), *contender.in_case.get(case.name, contender.args)]
    library = settings.runners / "without" / contender.without
    if contender.without and not library.exists():
        return None
    return Runner(binary, args, settings.logs / f"{contender.binary}.log", library if contender.without else None)


def _size(runner: Runner, case: Case, settings: Settings) -> tuple[int, str]:
    """How many operations fit the budget, judged by a first run of a tenth; or why there will be none."""
    n = case.quick_n if settings.quick else case.n
    if case.fresh:
        return n, ""  # a trial would need a process of its own
    trial = max(5, n // 10) if case.scaled else n
    answer = runner.ask(case.name, trial, settings.timeout)
    if "skip" in answer:
        return 0, answer["skip"]
    if case.scaled and (ns := answer.get("ns_per_op")):
        n = min(n, max(trial, int(settings.budget * 1e9 / ns)))
    return n, ""


def turns(names: list[str], number: int) -> list[str]:
    """The order of a round, so that none always stands at the same place or follows the same other: by Williams' design, over
    len(names) rounds, or twice as many if that is odd, each has each place and follows each other as often."""
    count = len(names)
    row = [((i + 1) // 2 if i % 2 else count - i // 2) + number for i in range(count)]
    if count % 2 and number // count % 2:
        row.reverse()
    return [names[i % count] for i in row]


def measure(group: Group, case: Case, settings: Settings, open_runners: dict) -> dict[str, Result]:
    """Measures every contender of the group in one case."""
    results: dict[str, Result] = {}
    runners: dict[str, Runner] = {}
    for name in (group.ours, *group.peers):
        if settings.peers and name != group.ours and name not in settings.peers:
            continue
        key = (name, case.fresh)
        if key not in open_runners:
            open_runners[key] = _runner(name, case, settings)
        runner = open_runners[key]
        result = results[name] = Result()
        if runner is None:
            result.skip = NOT_BUILT
            continue
        result.n, result.skip = _size(runner, case, settings)
        if not result.skip:
            runners[name] = runner
    for name, runner in runners.items():
        if not (case.fresh or settings.renews):  # touches memory of the full size before anything counts
            runner.ask(case.name, results[name].n, settings.timeout)
    names = list(runners)
    busy = machine.busy()
    for i in range(settings.rounds):
        for name in turns(names, i):
            result = results[name]
            if result.skip:
                continue
            if settings.renews and not case.fresh:
                runners[name].close()
                runners[name].ask(case.name, result.n, settings.timeout)
            answer = runners[name].ask(case.name, result.n, settings.timeout)
            if case.fresh:
                runners[name].close()
            if "skip" in answer:
                result.skip = answer["skip"] + (f", in round {i + 1}" if i else "")
            else:
                result.rounds.append(answer)
        _progress(f"{group.name} {case.name}: round {i + 1} of {settings.rounds}")
    busy = max(busy, machine.busy())
    for result in results.values():
        result.busy = busy
    _progress("")
    return results


def _progress(text: str) -> None:
    """A line of progress that overwrites itself."""
    if sys.stderr.isatty():
        print(f"\r{text:60}\r{text}", end="", file=sys.stderr, flush=True)
