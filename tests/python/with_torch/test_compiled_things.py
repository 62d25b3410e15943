"""compile_step: what may be a compiled step (partials, callables, classmethods, copies), and what one may be given and return."""

import copy
import dataclasses
import functools
import warnings

import pytest
import torch
from support import training
from torch import nn

import engine.torch


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def plain():
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    return training(model, torch.optim.SGD(model.parameters(), 0.1))


def losses(step, calls=8):
    return [float(step(torch.full((3, 8), float(i)))) for i in range(calls)]


class Scaled:
    def __init__(self):
        self.model = nn.Linear(8, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3)

    def __call__(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x * 2).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


def test_partials_and_callables_are_copied_with_what_they_hold():
    torch.manual_seed(0)
    step = engine.torch.compile_step(Scaled())
    other = copy.deepcopy(step)
    expected = losses(copy.deepcopy(step.step))
    assert losses(step) == expected and losses(other) == expected and other.step is not step.step
    torch.manual_seed(0)
    partial = engine.torch.compile_step(functools.partial(lambda scaled, x: scaled(x), Scaled()))
    assert losses(copy.deepcopy(partial)) == losses(partial) == expected


def test_a_classmethod_may_be_a_compiled_step():
    class Task:
        train = staticmethod(plain())

        @classmethod
        @engine.torch.compile_step
        def step(cls, x):
            return cls.train(x)

    assert losses(Task.step) == losses(plain())


def test_a_method_may_call_the_one_that_it_overrides():
    class First(Scaled):
        @engine.torch.compile_step
        def step(self, x):
            return self(x)

    class Second(First):
        @engine.torch.compile_step
        def step(self, x):
            return super().step(x) * 2

    torch.manual_seed(0)
    made = Second()
    other = copy.deepcopy(made)
    assert losses(made.step) == [2 * loss for loss in losses(lambda x: other(x))]
    assert made.step is made.step and made.step.captures == 1 and not made.step.why_eager


@dataclasses.dataclass
class Meter:
    total: float = 0.0
    count: int = 0


def test_what_an_eager_step_returns_is_its_own_object():
    train, log, meter = plain(), {"losses": []}, Meter()

    @engine.torch.compile_step
    def step(x):
        loss = train(x)
        log["losses"].append(loss.detach())
        meter.count += 1
        return log, meter

    written = []
    for _ in range(9):
        kept, counted = step(torch.ones(3, 8))
        assert kept is log and counted is meter
        if len(kept["losses"]) == 3:
            written.append(counted.count)
            kept["losses"].clear()
    assert written == [3, 6, 9] and step.why_eager


@dataclasses.dataclass
class Out(dict):
    loss: object = None

    def __post_init__(self):
        self["loss"] = self.loss


@dataclasses.dataclass
class Node:
    x: object = None
    me: object = None


def test_a_dataclass_that_is_a_dict_is_returned_eagerly():
    train = plain()
    step = engine.torch.compile_step(lambda x: Out(train(x)))
    assert [float(step(torch.ones(3, 8))["loss"]) for _ in range(4)] == losses(lambda x, train=plain(): train(torch.ones(3, 8)), 4)
    assert "it returns a Out" in step.why_eager


def test_data_that_contains_itself_is_given_and_returned_eagerly():
    train = plain()
    node = Node(torch.ones(3, 8))
    node.me = node
    step = engine.torch.compile_step(lambda node: (train(node.x), node)[1])
    for _ in range(4):
        assert step(node) is node
    assert "data that contains itself" in step.why_eager
