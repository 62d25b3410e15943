"""perf/models/suite.py: what contenders do before anything counts, and how SmartStage is judged. No model runs."""

import argparse
import contextlib
import importlib.util
import itertools
import sys
from collections import Counter
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[2] / "perf" / "models"


@pytest.fixture
def suite(monkeypatch):
    for folder in (MODELS, MODELS.parent):
        monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("models_suite", MODELS / "suite.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return module


class Contender:
    """Answers as a process of the suite. ``settles``: after how many steps it has decided what its steps decide."""

    def __init__(self, us: float, settles: int = 0, on: bool = True) -> None:
        self.us, self.settles, self.on, self.warm, self.before = us, settles, on, 0, None

    def ask(self, case: str, n: int, timeout: float) -> dict:
        if case.startswith("warm_"):
            self.warm += n
            return {"settled": self.warm >= self.settles}
        if case.startswith("losses_"):
            return {"losses": [0.5] * n}
        if self.before is None:
            self.before = self.warm
        sides = {"stage_us": 300.0, "main_us": 700.0, "main_cpu_us": 700.0, "stage_together_us": 320.0, "main_together_us": 810.0,
                 "waited_us": 40.0, "waits": 3.0}  # fmt: skip
        return {"us_per_step": self.us, "staged": float(self.on)} | sides


def run(suite, monkeypatch, contenders, quick=True):
    made = suite.Suite(argparse.Namespace(quick=quick, only=[]))
    made.seconds = 0.001

    @contextlib.contextmanager
    def started(names):
        yield {name: contenders[name] for name in names}

    monkeypatch.setattr(made, "started", started)
    made.input("dlrm", contenders=tuple(contenders))
    return made, {row["ours_name"]: row for row in made.rows if "ratio" in row}


def test_all_contenders_make_the_same_steps_until_the_last_one_has_decided(suite, monkeypatch):
    contenders = {"plain": Contender(1000), "smart_stage": Contender(800, settles=110), "loader1": Contender(900)}
    run(suite, monkeypatch, contenders)
    counts = {c.before for c in contenders.values()}
    assert counts == {5 * suite.WARM} and 5 * suite.WARM >= 110


def test_a_contender_that_never_decides_is_named(suite, monkeypatch, capsys):
    contenders = {"plain": Contender(1000), "smart_stage": Contender(800, settles=10**9)}
    run(suite, monkeypatch, contenders)
    assert {c.before for c in contenders.values()} == {suite.MOST_WARM}
    assert f"after {suite.MOST_WARM} steps still undecided: smart_stage" in capsys.readouterr().out


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("way", ["smart_stage", "on_cpu"])
def test_a_stage_is_judged_beside_the_same_threads_without_it(suite, monkeypatch, capsys, way, quick):
    # Two threads are faster without a stage; one thread with a stage is compared with one without.
    contenders = {"plain": Contender(1000), "plain 2": Contender(600), way: Contender(900)}
    made, rows = run(suite, monkeypatch, contenders, quick)
    assert rows[way]["peer_name"] == "plain 2" and rows[way]["ratio"] == pytest.approx(600 / 900)
    assert rows[way]["without"] == pytest.approx(1000 / 900) and rows[way]["staged_share"] == 1
    assert rows[way]["of_best"] == pytest.approx(700 / 900) and rows[way]["of_together"] == pytest.approx(810 / 900)
    assert rows[way]["waited_us"] == 40 and rows[way]["waits"] == 3
    assert made.wrong == 0 and "of the same without; kept" in capsys.readouterr().out
    contenders[way] = Contender(1100, on=False)
    made, rows = run(suite, monkeypatch, contenders, quick)
    out = capsys.readouterr().out
    assert made.wrong == 1 and rows[way]["staged_share"] == 0
    assert "of the same without; dropped by its guard" in out and "SLOWER than without a stage" in out


def test_every_way_to_feed_has_a_partner_without_a_stage(suite):
    for names in (suite.INPUTS, suite.COMPILED):
        for name in names:
            if not name.startswith(("plain", "loader0")):
                assert suite.WITHOUT[name].startswith("plain") and suite.WITHOUT[name] in names


@pytest.mark.parametrize("how", ["", ":engine"])
def test_a_stage_stands_beside_the_faster_loader_with_workers(suite, monkeypatch, how):
    times = {"plain": 1000, "smart_stage": 800, "loader0": 700, "loader1": 880, "loader2": 960}
    _, rows = run(suite, monkeypatch, {f"{way}{how}": Contender(us) for way, us in times.items()})
    assert rows[f"smart_stage{how}"]["loader"] == pytest.approx(880 / 800)
    assert rows[f"smart_stage{how}"]["loader_name"] == f"loader1{how}"
    assert rows[f"loader1{how}"]["without"] == pytest.approx(1000 / 880)
    assert rows[f"loader1{how}"]["without_name"] == f"plain{how}" and "loader" not in rows[f"loader1{how}"]
    assert "without" not in rows[f"loader0{how}"]


class Process:
    def __init__(self, variant: str, threads: str) -> None:
        self.named, self.cases, self.closed = (variant, threads), [], False

    def ask(self, case: str, n: int, timeout: float) -> dict:
        self.cases.append(case)
        return {}

    def close(self) -> None:
        self.closed = True


def test_ways_to_feed_with_as_many_threads_share_a_process(suite, monkeypatch):
    made = suite.Suite(argparse.Namespace(quick=True, only=[]))
    monkeypatch.setattr(made, "process", Process)
    with made.started(suite.INPUTS + suite.COMPILED) as runners:
        for runner in runners.values():
            runner.ask("input_dlrm", 1, 1.0)
        by_process: dict[Process, set[str]] = {}
        for name, runner in runners.items():
            by_process.setdefault(runner.process, set()).add(name)
    ways = {frozenset(names): process for process, names in by_process.items()}
    together = [
        {"plain", "staged", "smart_stage", "on_cpu", "loader0", "loader1", "loader2"},
        {"plain 2", "smart_stage 2"},
        {f"{way}:engine" for way in ("plain", "smart_stage", "loader0", "loader1", "loader2")},
        {"plain:engine 2", "smart_stage:engine 2"},
    ]
    assert set(ways) == set(map(frozenset, together))
    assert all(process.closed for process in ways.values())
    shared = ways[frozenset(together[0])]
    assert shared.named == ("feeds", "") and set(shared.cases) == {f"input_dlrm_{way}" for way in together[0]}
    assert ways[frozenset(together[3])].named == ("feeds:engine", "2")
    with made.started(suite.STEPS) as runners:
        assert len(set(runners.values())) == len(suite.STEPS) and runners["eager 2"].named == ("eager", "2")


@pytest.mark.parametrize("count", [1, 2, 3, 9, 10])
def test_no_contender_always_follows_the_same_other(suite, count):
    names = [f"way {i}" for i in range(count)]
    rounds = [suite.turns(names, number) for number in range(count * (1 + count % 2))]
    assert all(sorted(order) == sorted(names) for order in rounds)
    places = Counter((place, name) for order in rounds for place, name in enumerate(order))
    behind = Counter(pair for order in rounds for pair in itertools.pairwise(order))
    assert len(places) == count**2 and len(set(places.values())) == 1
    assert len(behind) == count * (count - 1) and len(set(behind.values())) <= 1
