"""perf/torch/bound.py: what torch's kernels alone take, whichever way a step calls them."""

import importlib.util
import itertools
import random
import sys
import types
from pathlib import Path

import pytest
import torch
from support import layers, training

import engine.torch

TORCH = Path(__file__).resolve().parents[3] / "perf" / "torch"
sys.path.insert(0, str(TORCH))
import bound  # noqa: E402

FORK = [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_a_list_schedule_runs_what_is_ready_side_by_side():
    assert bound.list_schedule([1, 4, 2, 1], FORK, 1) == 8
    assert bound.list_schedule([1, 4, 2, 1], FORK, 2) == 6
    assert bound.list_schedule([1, 4, 2, 1], FORK, 9) == 6
    assert bound.list_schedule([3, 3, 3], [], 2) == 6
    assert bound.list_schedule([], [], 2) == 0


def test_a_list_schedule_takes_the_node_with_the_longest_path_behind_it_first():
    # In the order of their numbers the short nodes would go first, and the chain of 3 and 4 would end at 7.
    assert bound.list_schedule([1, 1, 1, 1, 3], [(3, 4)], 2) == 4


def test_no_schedule_goes_below_the_longest_path_or_the_work_of_a_worker():
    assert bound.lower_bound([1, 4, 2, 1], [1, 4, 2, 1], FORK, 2) == 6  # the path
    assert bound.lower_bound([3, 3, 3], [3, 3, 3], [], 2) == 4.5  # the work
    assert bound.lower_bound([], [], [], 2) == 0


def test_a_node_that_gains_by_all_threads_counts_with_its_better_time():
    assert bound.lower_bound([8], [4], [], 2) == 4
    assert bound.lower_bound([8], [3], [], 2) == 3  # all threads may be better than their number
    assert bound.lower_bound([8, 8], [5, 5], [], 2) == 8  # side by side is better than one after the other
    assert bound.lower_bound([8, 1], [4, 3], [(0, 1)], 2) == 5  # each node takes the way that is better for it


def test_the_bound_is_below_every_schedule_of_random_graphs():
    for seed in range(50):
        draw = random.Random(seed)
        n, workers = draw.randint(1, 30), draw.randint(1, 4)
        costs = [draw.uniform(0.1, 5) for _ in range(n)]
        edges = [(a, b) for a, b in itertools.combinations(range(n), 2) if draw.random() < 0.15]
        wide = [c * draw.uniform(1 / workers, 1.5) for c in costs]
        schedule = bound.list_schedule(costs, edges, workers)
        assert bound.lower_bound(costs, wide, edges, workers) <= schedule * 1.000001, seed
        assert bound.lower_bound(costs, costs, edges, workers) <= schedule * 1.000001, seed
        assert schedule <= sum(costs) * 1.000001 and (workers > 1 or schedule == pytest.approx(sum(costs))), seed


def test_a_nodes_cost_is_the_median_of_its_runs_without_the_first_ones():
    times, runs = [types.SimpleNamespace(begin=0, end=0)], 0

    def run(into):
        nonlocal runs
        runs += 1
        slow = runs <= bound.UNCOUNTED or runs % 5 == 0
        into[0].begin, into[0].end = 1_000_000, 1_000_000 + (90_000_000 if slow else 2_000_000)

    assert bound.costs_of(run, times) == [2.0] and runs == bound.ROUNDS + bound.UNCOUNTED


def test_a_compiled_step_has_a_bound_and_does_its_steps_meanwhile(forced):
    forced("in turn")
    model = layers()
    step = engine.torch.compile_step(training(model, torch.optim.SGD(model.parameters(), lr=0.01)), options={"workers": 2})
    x = torch.ones(4, 8)
    assert bound.bound_of(step, (x,), 2) is None  # nothing is captured yet
    for _ in range(2):
        step(x)
    before = [p.clone() for p in model.parameters()]
    found = bound.bound_of(step, (x,), 2)
    assert 0 < found.bound <= found.schedule * 1.000001 and found.schedule <= found.work * 1.000001
    assert found.wide > 0 and any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
    alone = bound.bound_of(step, (x,), 1)
    assert alone.work == alone.wide == pytest.approx(alone.schedule) and alone.bound == pytest.approx(alone.work)


def test_a_step_that_runs_eagerly_has_no_bound():
    model = layers()
    step = engine.torch.compile_step(training(model, torch.optim.SGD(model.parameters(), lr=0.01)), options={"capture_step": False})
    for _ in range(3):
        step(torch.ones(4, 8))
    assert bound.bound_of(step, (torch.ones(4, 8),), 2) is None


def test_a_step_beside_a_stage_is_bound_by_its_sides_and_by_the_cores(monkeypatch):
    models = TORCH.parent / "models"
    for folder in (models, TORCH.parent):
        monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("models_suite", models / "suite.py")
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    assert suite.CORES == 2
    assert suite.bound(1, 10, 10)["best_us"] == 10 and suite.bound(12, 10, 10)["best_us"] == 12  # one thread a side
    both = suite.bound(2, 6, 12)  # a step that uses both cores leaves no room for the stage
    assert both["best_us"] == 7 and both["allowed"] == 8 / 7
