"""What is compiled inside of what is compiled: the same losses and weights, and no part of it runs twice."""

import copy

import pytest
import torch
from support import compiled, layers, same, training

import engine.torch

INSIDE = {"engine": compiled, "torch": lambda model: torch.compile(model, backend="eager")}


def batches(count=6):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(4, 8, generator=generator) for _ in range(count)]


def after(make):
    """The losses of some steps, and the weights behind them. ``make``: the step of a model and an optimizer."""
    torch.manual_seed(1)
    model = layers()
    step = make(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return [float(step(x)) for x in batches()], dict(model.state_dict()), step


@pytest.mark.parametrize("inside", INSIDE.values(), ids=INSIDE.keys())
def test_a_compiled_model_inside_of_a_compiled_step(forced, inside):
    forced("workers")
    losses, weights, _ = after(training)
    found, ours, step = after(lambda model, optimizer: engine.torch.compile_step(
        training(inside(model), optimizer), modules=[model], optimizers=[optimizer]))  # fmt: skip
    assert found == losses
    same(ours, weights)
    assert "dynamo-optimized function" in step.why_eager and step.last is None  # torch refuses to trace it, and the step says so


def test_a_compiled_step_inside_of_another_is_a_part_of_it(forced):
    forced("workers")

    def twice(of):
        def step(x):
            of(x)
            return of(x * 2)

        return step

    losses, weights, _ = after(lambda model, optimizer: twice(training(model, optimizer)))
    made = []

    def nested(model, optimizer):
        made.append(engine.torch.compile_step(training(model, optimizer), modules=[model], optimizers=[optimizer]))
        return engine.torch.compile_step(twice(made[0]), modules=[model], optimizers=[optimizer])

    found, ours, step = after(nested)
    assert found == losses
    same(ours, weights)
    assert not step.why_eager and step.last is not None


def test_a_compiled_function_that_calls_another(forced):
    forced("workers")
    model = layers()
    inner = compiled(model)
    outer = compiled(lambda x: inner(x * 2) + 1)
    for x in batches(3):
        same(outer(x).detach(), (model(x * 2) + 1).detach())


def test_a_copy_of_a_model_that_holds_a_compiled_one_is_a_copy(forced):
    forced("in turn")
    model = torch.nn.Sequential(compiled(layers()))
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert float(other(batches(1)[0]).abs().sum()) == 0 < float(model(batches(1)[0]).abs().sum())
