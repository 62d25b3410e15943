"""compile_step: what shares memory is ordered: constants and parameters, arguments and state, arguments with each other."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

import engine.torch
from engine.torch.overlaps import Memory, meet


def made(compiled, look, prepare=lambda model: None):
    """A step that looks at something behind the optimizer's update."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    held = prepare(model)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return look(held, x)

    return (engine.torch.compile_step(step, options={"workers": 2}) if compiled else step), model


def by_numpy(model):
    memory = np.zeros(64 * 64, np.float32)
    model.weight.data = torch.from_numpy(memory).view(64, 64)
    return torch.from_numpy(memory[64:])  # another storage


@pytest.mark.parametrize(("prepare", "look"), [
    (lambda model: model.weight.detach(), lambda w, x: w.sum()),
    (lambda model: model.weight.detach()[3:], lambda w, x: w.view(-1)[::2].sin().sum()),
    (by_numpy, lambda w, x: w.view(63, 64).sum()),
], ids=["detached", "a view", "another storage"])  # fmt: skip
def test_a_constant_that_shares_memory_with_a_parameter_is_ordered(forced, prepare, look):
    forced("workers")
    (ours, _), (theirs, _) = made(True, look, prepare), made(False, look, prepare)
    for _ in range(50):
        assert torch.equal(ours(torch.ones(2, 64)), theirs(torch.ones(2, 64)))
    assert not ours.why_eager
    lowered = ours.last.program.lowered
    update = next(i for i in range(len(lowered.steps)) if lowered.state and set(lowered.steps[i].calls) & set(lowered.state)
                  and any(lowered.calls[c].target is torch.ops.aten.add_.Tensor for c in lowered.steps[i].calls))  # fmt: skip
    assert any(before == update and lowered.name(after) in ("aten.sum.default", "aten.sin.default") for before, after in lowered.edges())


def test_an_argument_that_is_a_view_of_a_parameter_later(forced):
    forced("workers")

    def look(held, x):
        return x.sum()

    (ours, mine), (theirs, other) = made(True, look), made(False, look)
    for i in range(30):
        for step, model, out in ((ours, mine, []), (theirs, other, [])):
            out.append(step(torch.ones(2, 64) if i < 3 else model.weight.detach()[:2]))
            last = out if step is ours else (last, out)
        assert torch.equal(last[0][0], last[1][0])
    assert ours.captures == 1 and not ours.why_eager


def test_a_parameter_as_an_argument_is_told_from_another_tensor(forced):
    forced("workers")

    def look(held, x):
        return x.sum()

    (ours, mine), (theirs, other) = made(True, look), made(False, look)
    fresh = nn.Parameter(torch.ones(64, 64))
    for i in range(8):
        a, b = (step(model.weight if i % 3 else fresh) for step, model in ((ours, mine), (theirs, other)))
        assert torch.equal(a, b.detach())


def adding(x, y):
    for _ in range(20):
        x.add_(1)
    return y.sum()


@pytest.mark.parametrize("view", [lambda x: x.view(100, 100).view(-1), lambda x: x, lambda x: torch.from_numpy(x.numpy())])
def test_arguments_that_share_memory_later(forced, view):
    forced("workers")
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.0)

    @engine.torch.compile_step
    def step(x, y):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        return adding(x, y)

    for i in range(50):
        x = torch.zeros(10000)
        assert step(x, torch.zeros(10000) if i < 3 else view(x)).item() == (0 if i < 3 else 200000)


def test_an_argument_that_the_step_also_holds_is_no_constant(forced):
    forced("in turn")
    held = torch.ones(2, 64)
    (step, _), (other, _) = (made(compiled, lambda h, x: x.sum() + 10 * held.sum()) for compiled in (True, False))
    for given in (held, held, held, torch.zeros(2, 64), held):
        assert torch.equal(step(given), other(given))


def test_another_tensor_as_the_data_of_a_parameter(forced):
    forced("in turn")
    step, model = made(True, lambda held, x: x.sum())
    for _ in range(3):
        step(torch.ones(2, 64))
    model.weight.data = model.weight.data.clone()  # the same in every way
    step(torch.ones(2, 64))
    assert step.captures == 1
    model.weight.data = model.weight.data.t().contiguous().t()
    step(torch.ones(2, 64))
    assert step.captures == 2 and "the type or the shape" in step.recaptured


def test_ranges_of_memory():
    x = torch.zeros(10, 10)
    assert meet([x[:5], x[4:]]) and not meet([x[:5], x[5:]]) and meet([x, torch.zeros(3), x[3, 3]]) and not meet([x[:0], x])
    memory = Memory([x[:5], torch.zeros(4)])
    assert memory.holds(x[2]) and memory.holds(x[9]) and not memory.holds(torch.zeros(4))
    assert Memory([x[:5], torch.zeros(4), x[5:]]).groups == [[0, 2]]
