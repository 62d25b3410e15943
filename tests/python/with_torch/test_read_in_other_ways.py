"""compile_step: what a step reads by descriptors, imports, weak references and matches is looked at; long lists are put back."""

import sys
import threading
import types
import weakref

import pytest
import torch
from kinds import with_changes
from torch import nn
from torch.optim import SGD

import engine.torch

settings = types.ModuleType("settings_of_a_test")
settings.__file__ = __file__
settings.alpha = 1.0
sys.modules[settings.__name__] = settings


class Scaled:
    """A descriptor that reads another attribute of the object."""

    def __get__(self, instance, owner=None):
        return 2.0 if instance is None else instance._hidden


class Point:
    __match_args__ = ("first",)

    def __init__(self):
        self.first, self.second = 1.0, 1.0


class Of:
    scaled = Scaled()

    def __init__(self):
        self._hidden, self.point, self.inner = 1.0, Point(), types.SimpleNamespace(alpha=1.0)
        self.ref = weakref.ref(Held())
        self.held = Held()
        self.ref, self.proxy = weakref.ref(self.held), weakref.proxy(self.held)
        self.weak = weakref.WeakKeyDictionary({self.held: 1.0})
        self.named = weakref.WeakValueDictionary({"held": self.held})
        self.event = threading.Event()
        self.set = weakref.WeakSet()


class Held:
    def __init__(self):
        self.beta = 1.0

    def read(self):
        return self.beta


def by_import(of):
    import settings_of_a_test

    return settings_of_a_test.alpha


def by_import_of_a_name(of):
    from settings_of_a_test import alpha

    return alpha


def by_a_match(of):
    match of.point:
        case Point(second=1.0):
            return 1.0
    return 4.0


def by_a_match_in_order(of):
    match of.point:
        case Point(1.0):
            return 1.0
    return 4.0


READ = {
    "a descriptor": (lambda of: of.scaled, lambda of, i: setattr(of, "_hidden", i)),
    "an import": (by_import, lambda of, i: setattr(settings, "alpha", i)),
    "an import of a name": (by_import_of_a_name, lambda of, i: setattr(settings, "alpha", i)),
    "a match": (by_a_match, lambda of, i: setattr(of.point, "second", i)),
    "a match in order": (by_a_match_in_order, lambda of, i: setattr(of.point, "first", i)),
    "a weak reference": (lambda of: of.ref().read(), lambda of, i: setattr(of.held, "beta", i)),
    "a proxy": (lambda of: of.proxy.read(), lambda of, i: setattr(of.held, "beta", i)),
    "a weak dict": (lambda of: of.weak[of.held], lambda of, i: of.weak.__setitem__(of.held, i)),
    "a dict of weak values": (lambda of: of.named["held"].beta, lambda of, i: setattr(of.held, "beta", i)),
    "an event": (lambda of: 4.0 if of.event.is_set() else 1.0, lambda of, i: of.event.set() if i > 1 else of.event.clear()),
    "a weak set": (lambda of: 4.0 if of.held in of.set else 1.0, lambda of, i: of.set.add(of.held) if i > 1 else of.set.clear()),
}


def training(loss, between=lambda i, of: None, prepare=Of):
    def make():
        model, of = nn.Linear(8, 4), prepare()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            made = model(x).square().mean() * loss(of)
            made.backward()
            optimizer.step()
            return made

        return model, step, lambda i: between(i, of)

    return make


@pytest.mark.parametrize("name", READ)
def test_what_a_step_reads_in_another_way_may_change(forced, name):
    forced("in turn")
    read, write = READ[name]
    step = with_changes(training(read, lambda i, of: write(of, 4.0 if i >= 4 else 1.0)), steps=8)
    if name == "a proxy":
        assert step.why_eager  # nothing tells a proxy from what it stands for
    else:
        assert step.captures == 2 and not step.why_eager


KEPT = {
    "a list": (lambda: [0.0] * 2000, lambda held: held.append(1.0)),
    "a dict": (lambda: dict.fromkeys(range(2000)), lambda held: held.setdefault(len(held))),
    "a set": (lambda: set(range(2000)), lambda held: held.add(len(held))),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_long_container_that_the_step_changes_makes_it_run_eagerly(name):
    made, change = KEPT[name]
    kept = []

    def prepare():
        kept.append(made())
        return kept[-1]

    def loss(held):
        change(held)
        return 1.0

    assert "it changes" in with_changes(training(loss, prepare=prepare)).why_eager
    assert kept[0] == kept[1] and len(kept[0]) == 2006


def test_a_long_list_of_losses_keeps_no_stand_in():
    history, model = [0.0] * 2000, nn.Linear(8, 4)
    optimizer = SGD(model.parameters(), lr=0.1)

    @engine.torch.compile_step
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
        return loss

    with pytest.warns(UserWarning, match="runs eagerly: it changes"):
        for _ in range(5):
            step(torch.randn(6, 8))
    assert len(history) == 2005 and all(type(loss) is torch.Tensor for loss in history[2000:])


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        return made * 2 if func is nn.functional.linear else made


def test_a_mode_of_functions_around_a_call_is_noticed(forced):
    forced("in turn")
    found = []
    for compile in (engine.torch.compile_step, lambda step: step):
        torch.manual_seed(0)
        model, mode = nn.Linear(8, 4), Doubling()
        optimizer = SGD(model.parameters(), lr=0.1)

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step, losses = compile(step), []
        for i in range(8):
            if i in (4, 5, 7):
                with mode:
                    losses.append(step(torch.ones(6, 8)).item())
            else:
                losses.append(step(torch.ones(6, 8)).item())
        found.append(losses)
    assert found[0] == found[1]
