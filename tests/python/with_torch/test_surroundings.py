"""compile_step: attributes, globals and lists that a step reads are looked at; one that changes them is not captured."""

import argparse
import contextvars
import copy
import functools
import operator
import os
import signal
import threading
import types
import warnings
from collections import ChainMap, UserDict

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

import engine.torch

X = torch.ones(1, 1)
factor = 1.0
zero_grad = 0


class Trainer:
    scale = 1.0

    def __init__(self):
        self.model = nn.Linear(1, 1, bias=False)
        self.optimizer = SGD(self.model.parameters(), lr=0.0)
        self.alpha, self.seen, self.values = 0.0, 0, [0.0, 0.0]
        self.config = types.SimpleNamespace(alpha=0.0)
        self.shift = torch.zeros(1, 1)
        self.history = []

    def read(self):
        return self.alpha

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).sum() * 0 + self.value() * x.sum()
        loss.backward()
        self.optimizer.step()
        return loss

    def value(self):
        raise NotImplementedError


def trainer(value):
    made = type("Made", (Trainer,), {"value": value, "__module__": __name__})()
    return made, engine.torch.compile_step(made.step)


def set_global(made, i):
    global factor
    factor = i


def variable():
    held = 0.0

    def read():
        return held

    def write(i):
        nonlocal held
        held = i

    return read, write


reader, writer = variable()
TENSORS = {i: torch.full((1, 1), i) for i in (1.0, 4.0, 0.0)}
CHANGES = {
    "an attribute": (lambda s: s.alpha, lambda s, i: setattr(s, "alpha", i)),
    "by a method": (lambda s: s.read(), lambda s, i: setattr(s, "alpha", i)),
    "of an object": (lambda s: s.config.alpha, lambda s, i: setattr(s.config, "alpha", i)),
    "an element": (lambda s: s.values[1], lambda s, i: s.values.__setitem__(1, i)),
    "a class's": (lambda s: s.scale, lambda s, i: setattr(type(s), "scale", i)),
    "instead of a class's": (lambda s: s.scale, lambda s, i: setattr(s, "scale", i)),
    "a global": (lambda s: factor, set_global),
    "a variable": (lambda s: reader(), lambda s, i: writer(i)),
    "another tensor": (lambda s: s.shift, lambda s, i: setattr(s, "shift", TENSORS[i])),
    "of a module": (lambda s: s.model.alpha if hasattr(s.model, "alpha") else 0.0, lambda s, i: setattr(s.model, "alpha", i)),
}


@pytest.mark.parametrize(("value", "change"), CHANGES.values(), ids=CHANGES.keys())
def test_what_a_step_reads_may_change(forced, value, change):
    forced("in turn")
    made, step = trainer(value)
    got = []
    for i in (1.0, 1.0, 1.0, 4.0, 4.0, -0.0):
        change(made, i)
        got.append(step(X).item())
    assert got == [1, 1, 1, 4, 4, 0] and step.captures == 3 and not step.why_eager


def test_what_it_does_not_read_may_change_without_a_new_capture(forced):
    forced("in turn")
    made, step = trainer(lambda s: s.shift)
    global zero_grad
    for i in range(5):
        zero_grad = i  # an attribute's name, and here a global's
        made.seen, made.alpha = i, float(i)
        made.history.append(i)
        made.shift += 1  # in place, so a run sees it
        assert step(X).item() == i + 1
    assert step.captures == 1


def test_a_dropout_that_is_set_is_noticed(forced):
    forced("in turn")
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0))
    optimizer = SGD(model.parameters(), lr=0.0)

    @engine.torch.compile_step
    def step(x):
        optimizer.zero_grad()
        out = model(x)
        out.sum().backward()
        optimizer.step()
        return out

    for p in (0.0, 0.0, 0.0, 1.0, 1.0):
        model[1].p = p
        assert bool(step(torch.ones(2, 4)).any()) == (p == 0.0)
    assert step.captures == 2


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 1, bias=False)
        self.hidden = torch.zeros(1, 1)

    def forward(self, x):
        out = self.inner(x) * 0 + self.hidden + x
        self.hidden = out.detach()
        return out


def stepped(model, after=lambda loss: None):
    optimizer = SGD(model.parameters(), lr=0.0)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        after(loss)
        return loss

    return engine.torch.compile_step(step)


def test_a_module_that_keeps_what_it_computed_runs_eagerly(forced):
    forced("in turn")
    model = Remembering()
    step = stepped(model)
    with pytest.warns(UserWarning, match="runs eagerly: it changes 'hidden' of Remembering, which a run of its plan would not"):
        assert [step(X).item() for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    assert type(model.hidden) is torch.Tensor and model.hidden.item() == 6


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, loss):
        self.total += loss.detach()
        self.count += 1


def kept(what):
    history, meter, by_name, unbound = [], Meter(), {}, 0

    def counted(loss):
        nonlocal unbound
        unbound += 1

    after = {"list": lambda loss: history.append(loss.detach()), "object": lambda loss: meter.add(loss),
             "dict": lambda loss: by_name.update(loss=loss.detach()), "variable": counted}[what]  # fmt: skip
    return after, lambda: {"list": len(history), "object": meter.count, "dict": len(by_name), "variable": unbound}[what], \
        lambda: [*history, meter.total, *by_name.values()]  # fmt: skip


@pytest.mark.parametrize(("what", "told", "count"), [("list", "a list", 4), ("object", "of Meter", 4), ("dict", "'loss' of a dict", 1),
                                                     ("variable", "'unbound' of a variable of kept", 4)])  # fmt: skip
def test_a_step_that_leaves_something_behind_runs_eagerly(forced, what, told, count):
    forced("in turn")
    after, counted, held = kept(what)
    step = stepped(nn.Linear(1, 1), after)
    with pytest.warns(UserWarning, match=f"runs eagerly: it changes .*{told}"):
        for _ in range(4):
            step(X)
    assert counted() == count and all(type(h) in (float, torch.Tensor) for h in held())


def test_a_scheduler_inside_of_the_step_runs_eagerly(forced):
    forced("in turn")
    rates = []
    for wrap in (engine.torch.compile_step, lambda step: step):
        model = nn.Linear(1, 1)
        optimizer = SGD(model.parameters(), lr=1.0)
        scheduler = StepLR(optimizer, 1, 0.5)

        def step(x, model=model, optimizer=optimizer, scheduler=scheduler):
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss

        step = wrap(step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(4):
                step(X)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.0625, 0.0625]


def test_a_hook_that_stashes_what_it_sees_runs_eagerly(forced):
    forced("in turn")
    model, seen = nn.Linear(1, 1), {}
    model.register_forward_hook(functools.partial(lambda held, module, args, out: held.update(out=out.detach()), seen))
    step = stepped(model)
    with pytest.warns(UserWarning, match="it changes 'out' of a dict"):
        for i in range(4):
            step(X * i)
    assert torch.equal(seen["out"], model(X * 3))


def test_weights_in_a_list_of_a_module_are_left_as_they_were(forced):
    forced("in turn")
    model = nn.GRU(1, 1)
    step = stepped(type("First", (nn.Module,), {"__init__": lambda s: (nn.Module.__init__(s), setattr(s, "gru", model))[0],
                                                "forward": lambda s, x: s.gru(x)[0]})())  # fmt: skip
    for _ in range(4):
        step(X)
    assert not step.why_eager and all(any(w is p for p in model.parameters()) for w in model._flat_weights)


# --- objects that hold attributes in other ways: what makes an object with a number, what reads it, what sets it


class Slots:
    __slots__ = ("alpha",)


class SlotsBelow(Slots):
    pass


class Listed(list):
    pass


class Named(dict):
    def __getattr__(self, name):
        return self[name]


class Meta(type):
    alpha = 0.0


class Local(threading.local):
    alpha = 0.0


def called():
    return called.alpha


called.alpha = 0.0
variable_of_context = contextvars.ContextVar("alpha", default=0.0)
get_alpha = operator.attrgetter("config.alpha")
proxied = {"alpha": 0.0}


def at_alpha(held):
    return lambda i: setattr(held, "alpha", i)


def with_alpha(held):
    held.alpha = 0.0
    return held


def in_item(held):
    return lambda i: held.__setitem__("alpha", i)


below, listed, local, meta = with_alpha(SlotsBelow()), with_alpha(Listed()), with_alpha(Local()), Meta("WithMeta", (), {})
named, parsed, tensor, user = Named(alpha=0.0), argparse.Namespace(alpha=0.0), with_alpha(torch.zeros(1)), UserDict(alpha=0.0)
chained, proxy = ChainMap({}, proxied), types.MappingProxyType(proxied)
HELD = {
    "slots of a base": (lambda s: below.alpha, at_alpha(below)),
    "of a list": (lambda s: listed.alpha, at_alpha(listed)),
    "a dict by attributes": (lambda s: named.alpha, in_item(named)),
    "of a metaclass": (lambda s: meta.alpha, lambda i: setattr(Meta, "alpha", i)),
    "of a thread": (lambda s: local.alpha, at_alpha(local)),
    "of a function": (lambda s: called(), at_alpha(called)),
    "of a namespace": (lambda s: parsed.alpha, at_alpha(parsed)),
    "of a tensor": (lambda s: tensor.alpha, at_alpha(tensor)),
    "a UserDict": (lambda s: user["alpha"], in_item(user)),
    "a ChainMap": (lambda s: chained["alpha"], in_item(proxied)),
    "a proxy": (lambda s: proxy["alpha"], in_item(proxied)),
    "of a context": (lambda s: variable_of_context.get(), lambda i: variable_of_context.set(i)),
    "of the environment": (lambda s: float(os.environ["ALPHA"]), lambda i: os.environ.__setitem__("ALPHA", str(i))),
    "by os.getenv": (lambda s: float(os.getenv("ALPHA")), lambda i: os.environ.__setitem__("ALPHA", str(i))),
}


@pytest.mark.parametrize(("value", "change"), HELD.values(), ids=HELD.keys())
def test_what_a_step_reads_may_be_held_in_any_way(forced, value, change):
    forced("in turn")
    _, step = trainer(value)
    got = []
    for i in (1.0, 1.0, 1.0, 4.0, 4.0):
        change(i)
        got.append(step(X).item())
    assert got == [1, 1, 1, 4, 4] and step.captures == 2 and not step.why_eager


def test_what_an_attrgetter_reads_may_change(forced):
    forced("in turn")
    made, step = trainer(lambda s: get_alpha(s))
    for i in (1.0, 1.0, 4.0):
        made.config = types.SimpleNamespace(alpha=i)
        assert step(X).item() == i


def counts_itself(x):
    counts_itself.alpha += 1


def counts_in_a_list(x):
    listed.alpha += 1


def counts_in_a_context(x):
    variable_of_context.set(variable_of_context.get() + 1)


def evaluates(model):
    return lambda x: model.eval() if model.training else model.train()


def freezes(model):
    return lambda x: model.weight.requires_grad_(False) if model.weight.requires_grad else model.weight.requires_grad_()


counts_itself.alpha = 0
LEFT = {
    "on a function": (lambda model: counts_itself, "it changes 'alpha' of the function counts_itself"),
    "on a list": (lambda model: counts_in_a_list, "it changes 'alpha' of Listed"),
    "in a context": (lambda model: counts_in_a_context, "it changes the variable alpha"),
    "whether it trains": (evaluates, "it changes 'training' of Linear"),
    "what needs gradients": (freezes, "it changes which parameters require gradients"),
}


@pytest.mark.parametrize(("after", "told"), LEFT.values(), ids=LEFT.keys())
def test_what_a_step_leaves_behind_elsewhere_makes_it_run_eagerly(forced, after, told):
    forced("in turn")
    model = nn.Linear(1, 1)
    step = stepped(model, after(model))
    with pytest.warns(UserWarning, match=f"runs eagerly: {told}"):
        for _ in range(4):
            step(X)


def test_attributes_by_computed_names_are_as_they_were_behind_a_capture(forced):
    forced("in turn")
    found = []
    for compile in (engine.torch.compile_step, lambda step: step):
        torch.manual_seed(0)
        model, kept = nn.Linear(1, 1), types.SimpleNamespace()
        optimizer = SGD(model.parameters(), lr=0.1)
        name = ["hidden", "calls"]
        setattr(kept, name[0], torch.zeros(1, 1)), setattr(kept, name[1], 0)

        def step(x):
            optimizer.zero_grad()
            h = model(x) + getattr(kept, name[0])
            setattr(kept, name[0], h.detach()), setattr(kept, name[1], getattr(kept, name[1]) + 1)
            loss = h.square().sum()
            loss.backward()
            optimizer.step()
            return loss

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = compile(step)
            found.append([compiled(torch.full((1, 1), 0.1)).item() for _ in range(4)] + [kept.hidden.item(), kept.calls])
    assert found[0] == found[1]


def test_what_a_handler_of_a_signal_writes_during_a_capture_is_not_lost(forced):
    forced("in turn")
    made, step = trainer(lambda s: signal.raise_signal(signal.SIGUSR1) or s.alpha)
    came = []

    def handle(*_):
        came.append(made)
        made.seen += 1  # which no code of the step's names

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                step(X)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert made.seen == len(came) > 2


@pytest.mark.parametrize("change", ["evaluating", "another layer", "a hook"])
def test_a_module_inside_of_an_object_may_change(forced, change):
    forced("in turn")
    model, box = nn.Linear(1, 1), types.SimpleNamespace(inner=nn.Sequential(nn.Dropout(1.0)))
    optimizer = SGD(model.parameters(), lr=0.0)

    @engine.torch.compile_step
    def step(x):
        optimizer.zero_grad()
        loss = (model(x) * 0 + box.inner(x)).sum()
        loss.backward()
        optimizer.step()
        return loss

    for i in range(5):
        if i == 3:
            {"evaluating": box.inner.eval, "another layer": lambda: box.inner.__setitem__(0, nn.Identity()),
             "a hook": lambda: box.inner.register_forward_hook(lambda module, given, out: given[0])}[change]()  # fmt: skip
        assert step(X).item() == (i >= 3)
    assert step.captures == 2 and not step.why_eager


def test_a_batch_norm_inside_of_an_object_counts_batches_once(forced):
    forced("in turn")
    model, box = nn.Linear(1, 2), types.SimpleNamespace(norm=nn.BatchNorm1d(2, affine=False))
    step = stepped(model, lambda loss: box.norm(model(torch.randn(4, 1))))
    for _ in range(5):
        step(X)
    assert box.norm.num_batches_tracked.item() == 5 and not step.why_eager


class Compiled:
    def __init__(self):
        self.model = nn.Linear(1, 1, bias=False)
        self.optimizer = SGD(self.model.parameters(), lr=1.0)

    @engine.torch.compile_step
    def fit(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach() * 0 + self.model.weight.sum()


def test_a_method_in_a_class_is_a_step_of_each_object(forced):
    forced("in turn")
    first, second = Compiled(), Compiled()
    copied = copy.copy(first)
    copied.model = nn.Linear(1, 1, bias=False)
    copied.optimizer = SGD(copied.model.parameters(), lr=1.0)
    before = [made.model.weight.item() for made in (first, second, copied)]
    for _ in range(3):
        first.fit(X), copied.fit(X)
    second.fit(X)
    deep = copy.deepcopy(first)
    deep.fit(X)
    assert [made.model.weight.item() for made in (first, second, copied)] == pytest.approx([before[0] - 3, before[1] - 1, before[2] - 3])
    assert deep.model.weight.item() == pytest.approx(before[0] - 4)
    assert first.fit is first.fit and first.fit.captures == 1 and Compiled.fit is vars(Compiled)["fit"]
