"""A call that fails inside a program names the model's line, and says what has been changed."""

import gc
import threading
import weakref

import pytest
import torch
from support import MODES, compiled, same
from torch import nn

import engine.torch
from engine import _core
from engine.torch import adapter


@torch.library.custom_op("engine_test::refuse", mutates_args=())
def refuse(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 100:
        raise KeyError("too much")
    return x.clone()


refuse.register_fake(torch.empty_like)


@pytest.mark.parametrize("mode", MODES)
def test_an_index_out_of_range_names_the_line_and_leaves_the_weights(forced, mode):
    forced(mode)
    table, linear = nn.Embedding(5, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*table.parameters(), *linear.parameters()], lr=0.1)

    @engine.torch.compile_step
    def step(ids):
        optimizer.zero_grad()
        found = table(ids)  # this line fails
        loss = linear(found).sum()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        step(torch.tensor([1, 2]))
    before = table.weight.clone()
    with pytest.raises(IndexError, match=r"index out of range[\s\S]*aten.embedding.default.*this line fails.*before the call"):
        step(torch.tensor([1, 7]))
    same(table.weight.detach(), before.detach())
    step(torch.tensor([1, 2]))  # the step can be repeated
    assert not torch.equal(table.weight, before)


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_class_out_of_range_is_refused_as_eagerly(forced, wrong):
    forced("in turn")
    linear = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)

    @engine.torch.compile_step
    def step(classes):
        optimizer.zero_grad()
        loss = linear(nn.functional.one_hot(classes, 4).float()).sum()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        step(torch.tensor([1, 2]))
    before = linear.weight.clone()
    with pytest.raises(RuntimeError, match="Class values must be"):
        step(torch.tensor([1, wrong]))
    assert step.captures == 1 and torch.equal(linear.weight, before)


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_of_a_python_kernel_keeps_its_type(forced, mode):
    forced(mode)

    def net(x):
        parts = [x * i for i in range(1, 5)]
        return sum(refuse(p) for p in parts)

    ours = compiled(net)
    same(ours(torch.ones(3)), net(torch.ones(3)))
    for _ in range(3):
        with pytest.raises(KeyError, match="too much"):
            ours(torch.full((3,), 90.0))
        same(ours(torch.ones(3)), net(torch.ones(3)))


class Together(Exception):
    pass


def test_of_two_exceptions_at_once_none_outlives_the_call():
    """A program of two Python callables, which a capture makes of numbers alone."""
    both, raised = threading.Barrier(2), []

    def fail():
        both.wait(1)
        error = Together()
        raised.append(weakref.ref(error))
        raise error

    native = adapter.load()
    call = (fail, [], [], False, True, False, False, None, None)
    program = native.program(([], [], [], [], [call, call], [([0], [], "first"), ([1], [], "second")], []))
    graph = _core.Graph()
    frame = graph.input("frame")
    for number in range(2):
        _core.add_native(graph, native.node_function(), number, frame, "fail", __file__, 1)
    with engine.Engine(workers=2) as own:
        plan = graph.compile(own, name="two")
        for _ in range(10):  # either may come first; a thread that runs both in turn waits in vain
            with pytest.raises((Together, threading.BrokenBarrierError)):
                native.run(program, [], (_core.plan_address(plan), "threaded", 1, 0, None))
            both.reset()
        del plan
    gc.collect()
    assert len(raised) > 2 and not [ref for ref in raised if ref()]


def test_changes_that_had_been_made_are_counted(forced):
    forced("in turn")

    def net(x, y, z):
        x.add_(1)
        y.copy_(refuse(z))
        return x + y

    with pytest.raises(KeyError):
        compiled(net)(torch.ones(2), torch.ones(2), torch.full((2,), 90.0))


@pytest.mark.parametrize("mode", MODES)
def test_random_numbers_behind_an_error_are_those_of_eager(forced, mode):
    forced(mode)

    def trained(compile):
        torch.manual_seed(0)
        chain, table, drop = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)]), nn.Embedding(5, 256), nn.Dropout(0.5)
        optimizer = torch.optim.SGD([*chain.parameters(), *table.parameters()], lr=0.1)

        def step(x, ids):
            optimizer.zero_grad()
            made = chain(x)
            made = made + table(ids + (made[:, 0] * 0).long())  # comes late
            loss = (made + drop(x)).square().mean()  # and this waits for nothing
            loss.backward()
            optimizer.step()
            return loss

        step, seen = compile(step), []
        for i in range(6):
            try:
                seen.append(step(torch.randn(64, 256), torch.full((64,), 9 if i == 3 else 1)).detach())
            except IndexError:
                seen.append("IndexError")
            seen.append(torch.get_rng_state())
        return seen

    same(trained(lambda step: engine.torch.compile_step(step, options={"workers": 2})), trained(lambda step: step))
