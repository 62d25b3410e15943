"""compile_step: attributes, globals and lists that a step reads are looked at; one that changes them is not captured."""

import functools
import itertools
import queue
import types
import warnings

import pytest
import torch
from kinds import with_changes
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

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


def filled(items):
    made = queue.Queue()
    for item in items:
        made.put(item)
    return made


BATCHES = {
    "list_iterator": (iter, next),
    "generator": (lambda batches: (batch for batch in batches), next),
    "a generator in a list": (lambda batches: [batch for batch in batches].__iter__(), next),
    "Queue": (filled, lambda held: held.get()),
    "count": (lambda batches: (itertools.count(), batches), lambda held: held[1][next(held[0])]),
    "SingleProcessDataLoaderIter": (lambda batches: iter(DataLoader(batches, batch_size=None)), next),
    "enumerate": (enumerate, lambda held: next(held)[1]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_step_that_takes_its_batches_itself_runs_eagerly_and_misses_none(name):
    hold, take = BATCHES[name]

    def make():
        model, batches = nn.Linear(8, 4), hold([torch.randn(6, 8) for _ in range(9)])
        optimizer = SGD(model.parameters(), lr=0.1)

        def step():
            optimizer.zero_grad()
            loss = model(take(batches)).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return model, step, lambda i: None

    assert "which gives something else each time" in with_changes(make, lambda i: ()).why_eager


SET = {
    "no gradients": lambda i: torch.set_grad_enabled(i % 4 != 3),
    "a default type": lambda i: torch.set_default_dtype(torch.float64 if i > 3 else torch.float32),
    "an attention": lambda i: torch.backends.cuda.enable_flash_sdp(i < 4),
    "oneDNN": lambda i: torch._C._set_mkldnn_enabled(i < 4),
    "a search for errors": lambda i: torch.autograd.set_detect_anomaly(i > 3),
}


@pytest.mark.parametrize("name", SET)
def test_what_a_program_sets_around_a_call_is_noticed(forced, name):
    forced("in turn")

    def make():
        model = nn.Linear(8, 4, dtype=torch.float32)
        optimizer = SGD(model.parameters(), lr=0.1)

        def step(x):
            scale = 1.0 + 2 * torch.backends.cuda.flash_sdp_enabled() + 4 * torch.backends.mkldnn.enabled * torch._C._get_mkldnn_enabled()
            loss = (model(x) * scale).square().mean() + torch.ones(2).sum() / 3 + torch.is_anomaly_enabled()
            if torch.is_grad_enabled():
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return loss

        return model, step, SET[name]

    try:
        step = with_changes(make, lambda i: (torch.randn(6, 8, dtype=torch.float32),), steps=8)
        assert not step.why_eager and step.captures <= 2
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        torch.backends.cuda.enable_flash_sdp(True)
        torch._C._set_mkldnn_enabled(True)
        torch.autograd.set_detect_anomaly(False)
