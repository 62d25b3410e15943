"""engine.torch.smart_stage runs ahead what pays: short calls are left to the step, long ones are not."""

import threading

import pytest

from small_files import one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import torch

import engine.torch
from engine.torch import ahead, item, staged
from engine.torch.worth import ITEMS, PAYS, Worth

GUARDED = {"profile_steps": 2, "guard_steps": 4, "capacity": 3}


def items(count, rows):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, rows, generator=generator) for _ in range(count)]


def run(given, prepare, **options):
    """The results of steps that train beside what ``prepare`` makes of an item, the stage, and which steps got Staged tensors."""
    torch.manual_seed(5)
    linear, seen = torch.nn.Linear(4, 1), []

    def step(x):
        made = prepare(x)
        seen.append(isinstance(made, staged.Staged) or isinstance(x, staged.Staged))
        loss = linear(made[:4, :4]).square().mean()
        loss.backward()
        return loss.item()

    with engine.torch.smart_stage(step, given, **options) as steps:
        return list(steps), steps, seen


class Ticks(threading.local):
    """A clock that goes on by a microsecond each time somebody looks at it: then each call is as short as what finds its result."""

    now = 0.0

    def __call__(self):
        self.now += 1e-6
        return self.now


def test_short_calls_are_left_to_the_step_and_the_loader_runs_ahead(monkeypatch):
    given = items(120, 4)
    expected = run(given, lambda x: (x * 2).tanh(), do_smart_stage=False)[0]
    judging = ahead.Program(judges=True)
    ticks = Ticks()
    for module in (ahead, item):
        monkeypatch.setattr(module, "clock", ticks)
    monkeypatch.setattr(ahead, "Program", lambda judges: judging)  # without a guard, which would close the stage on a busy machine
    losses, steps, seen = run(given, lambda x: (x * 2).tanh(), profile_steps=2, guard_steps=0, capacity=3)
    assert losses == expected
    assert any(seen[:40]) and not any(seen[60:])
    told = steps.explain()
    assert "ahead of the step: no call of it, because its calls take" in told and "(mul, tanh, __getitem__); the loader runs ahead" in told
    assert "in the step linear: takes a tensor with a gradient" in told
    assert steps.report["levels"] == 1  # it is a stage all the same


def test_long_calls_run_ahead():
    given = items(60, 300)

    def prepare(x):
        for _ in range(6):
            x = (x @ x.T).tanh()
        return x

    expected = run(given, prepare, do_smart_stage=False)[0]
    losses, steps, seen = run(given, prepare, **GUARDED)
    assert losses == expected
    assert not steps.program.worth.measures and not steps.program.worth.lost
    assert "tanh" in steps.explain().partition("ahead of the step: ")[2]


def test_where_nothing_can_run_ahead_its_reasons_are_told():
    steps = run(items(120, 4), lambda x: torch.dropout(x, 0.5, True), **GUARDED)[1]
    told = steps.explain()
    assert "ahead of the step: no call of it\n" in told and "in the step dropout: draws random numbers" in told


def test_without_a_guard_nothing_is_measured():
    losses, steps, seen = run(items(60, 4), lambda x: (x * 2).tanh(), profile_steps=0, guard_steps=0)
    assert not steps.program.worth.measures and not steps.program.worth.lost
    assert "ahead of the step: mul, tanh" in steps.explain()


@pytest.mark.parametrize("saved, cost, moves, lost", [
    (PAYS * 1.01, 1.0, False, False), (PAYS * 0.99, 1.0, False, True), (0.0, 1.0, True, False), (1.0, 0.0, False, False)])  # fmt: skip
def test_what_is_measured_decides_once(saved, cost, moves, lost):
    worth = Worth(True)
    for i in range(ITEMS):
        assert worth.measures and not worth.lost
        worth.add(*(100.0, 1.0) if i == 0 else (0.0, 9.0) if i == 1 else (saved, cost), moves)  # two that are disturbed
    assert not worth.measures and bool(worth.lost) == lost
    before = worth.lost
    for _ in range(2 * ITEMS):
        worth.add(0.0, 1.0, False)
    assert worth.lost == before


def test_nothing_is_measured_where_nobody_asked():
    worth = Worth(False)
    for _ in range(2 * ITEMS):
        worth.add(0.0, 1.0, False)
    assert not worth.measures and not worth.lost
