"""compile_step: a capture runs nothing and changes nothing, and what stands for a tensor in it is not told from the tensor."""

import collections
import contextvars
import functools
import gc
import types

import pytest
import torch
from kinds import with_changes
from torch import nn
from torch.optim import SGD

from engine.torch.stand_ins import Made

nothing = lambda *_: None  # noqa: E731


def training(loss, between=nothing, optimizer=lambda m: SGD(m.parameters(), lr=0.1), prepare=lambda m: None):
    """``loss(model, x, of)``; ``of`` holds what ``prepare`` made."""

    def make():
        model = nn.Linear(8, 4)
        chosen, of = optimizer(model), prepare(model)

        def step(x):
            chosen.zero_grad()
            out = loss(model, x, of)
            out.backward()
            chosen.step()
            return out

        return model, step, lambda i: between(i, of)

    return make


def plain(model, x):
    return model(x).square().mean()


class Meter:
    def __init__(self):
        self.count, self.mean = torch.zeros(()), torch.zeros(4)

    def add(self, out):
        self.count += 1
        self.mean.mul_(0.5).add_(out.detach().mean(0))
        return self.mean.sum() * self.count


def counted(model, x, meter):
    out = model(x)
    return out.square().mean() + meter.add(out)


def test_a_capture_leaves_tensors_that_are_no_buffers(forced):
    forced("in turn")
    meters = []
    make = training(counted, lambda i, of: None, prepare=lambda m: meters.append(Meter()) or meters[-1])
    assert not with_changes(make).why_eager
    ours, theirs = meters
    assert ours.count == theirs.count == 6 and torch.equal(ours.mean, theirs.mean)


def test_a_capture_that_is_refused_leaves_them_too():
    meters = []
    make = training(lambda m, x, of: counted(m, x, of) * of.mean[0].item(), lambda i, of: None,
                    prepare=lambda m: meters.append(Meter()) or meters[-1])  # fmt: skip
    assert "reads a number out of a tensor" in with_changes(make).why_eager
    assert meters[0].count == meters[1].count == 6


NUMBERS = {
    "item": lambda t: t[0].item(),
    "float": lambda t: float(t[1]),
    "a list": lambda t: t.tolist()[0],
    "sizes": lambda t: torch.ones(6).split(t.long().tolist())[0].sum() / 6,
    "numpy": lambda t: float(t.numpy()[0]),
    "a condition": lambda t: 2.0 if t[0] > 2 else 1.0,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_read_out_of_any_tensor_make_the_step_run_eagerly(name):
    read = NUMBERS[name]
    make = training(lambda m, x, of: plain(m, x) * read(of), lambda i, of: of.copy_(torch.tensor([1.0 + i % 4, 5 - i % 4])),
                    prepare=lambda m: torch.tensor([1.0, 5.0]))  # fmt: skip
    assert with_changes(make).why_eager


def test_a_tensor_that_gets_another_shape_is_captured_again(forced):
    forced("in turn")
    make = training(lambda m, x, of: (m(x) * of).square().mean() / of.shape[0],
                    lambda i, of: of.resize_(6, 4).fill_(2.0) if i == 3 else None, prepare=lambda m: torch.ones(1, 4))  # fmt: skip
    step = with_changes(make)
    assert step.captures == 2 and not step.why_eager


# --- what keeps stand-ins


@functools.lru_cache
def ramp(n):
    return torch.linspace(0, 1, n)[:, None]


@functools.lru_cache(maxsize=None)
def ramps(n):
    return torch.linspace(0, 1, n)[:, None], 1.0


memo = collections.UserDict()


def remembered(n):
    if n not in memo:
        memo[n] = torch.linspace(0, 1, n)[:, None]
    return memo[n]


@pytest.mark.parametrize("get", [ramp, lambda n: ramps(n)[0], remembered], ids=["a cache", "tuples", "a UserDict"])
def test_a_memo_keeps_no_stand_in(get):
    sizes = [6, 6, 6, 4, 4, 4]
    make = training(lambda m, x, of: (m(x) * get(len(x))).square().mean())
    step = with_changes(make, lambda i: (torch.randn(sizes[i], 8),))
    assert step.why_eager
    assert type(get(4)) is torch.Tensor and type(get(6)) is torch.Tensor


class Slots:
    __slots__ = ("mask",)


def in_a_slot():
    slots = Slots()

    def get(x):
        if not hasattr(slots, "mask"):
            slots.mask = torch.full_like(x, 2.0)
        return slots.mask

    return get, lambda: hasattr(slots, "mask") and delattr(slots, "mask")


def in_a_cell():
    def get(x):
        nonlocal mask
        try:
            return mask
        except NameError:
            mask = torch.full_like(x, 2.0)
        return mask

    def forget():
        nonlocal mask
        mask = None
        del mask

    mask = None
    del mask
    return get, forget


def in_a_context():
    variable = contextvars.ContextVar("mask")

    def get(x):
        if variable.get(None) is None:
            variable.set(torch.full_like(x, 2.0))
        return variable.get()

    return get, lambda: variable.set(None)


@pytest.mark.parametrize("kept", [in_a_slot, in_a_cell, in_a_context])
def test_what_was_not_set_before_a_capture_is_not_set_behind_it(kept):
    """The first call sets it, and the capture is of a call that finds it unset."""

    def prepare(model):
        get, forget = kept()
        return types.SimpleNamespace(get=get, forget=forget)

    make = training(lambda m, x, of: (m(x * of.get(x))).square().mean(), lambda i, of: of.forget() if i == 1 else None, prepare=prepare)
    assert with_changes(make).why_eager


def test_a_dict_of_parameters_whose_order_a_capture_changes_is_put_back():
    """Keys that are compared by ``==`` would be compared as tensors."""
    ages = []

    def prepare(model):
        ages.append({model.weight: 0, model.bias: 0})
        return ages[-1]

    def loss(model, x, of):
        of[model.weight] = of.pop(model.weight) + 1
        return plain(model, x)

    assert "it changes a dict" in with_changes(training(loss, prepare=prepare)).why_eager
    assert [[*of.values()] for of in ages] == [[0, 6], [0, 6]]


@pytest.mark.parametrize("keys", [[("a", 1), ("b", 2)], [("a", ("b",)), ("a", ("c",))], [1, ("a", 1)], [frozenset("a"), frozenset("b")]])
def test_a_change_of_a_dict_with_other_keys_than_texts_is_seen(keys):
    def loss(model, x, of):
        of[keys[0]] += 1
        return plain(model, x)

    held = []
    make = training(loss, prepare=lambda model: held.append(dict.fromkeys(keys, 0)) or held[-1])
    assert "it changes a dict" in with_changes(make).why_eager
    assert [[*of.values()] for of in held] == [[6, 0], [6, 0]]


def test_each_trace_of_a_capture_begins_with_the_context_of_the_call(forced):
    """A step that clears gradients at its end is traced twice."""
    forced("in turn")

    def make():
        model, variable = nn.Linear(8, 4), contextvars.ContextVar("seen", default=0)
        optimizer = SGD(model.parameters(), lr=0.1)

        def step(x):
            factor = 1.0
            if variable.get() == 0:
                variable.set(1)
                factor = 2.0
            loss = plain(model, x) * factor
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss + variable.get()

        return model, step, lambda i: variable.set(0)

    assert "the variable seen" in with_changes(make).why_eager


# --- what tells tensors apart


def squares(model, chosen):
    return sum(p.square().sum() for p in model.parameters() if chosen(p))


def marked(model):
    model.weight.decay = True


TOLD = {
    "an attribute": (lambda m, of: squares(m, lambda p: getattr(p, "decay", False)), marked),
    "a set": (lambda m, of: squares(m, lambda p: p in of), lambda m: {m.weight}),
    "a dict": (lambda m, of: squares(m, lambda p: of.get(p)), lambda m: {m.weight: 1.0}),
    "a set of the step's": (lambda m, of: squares(m, lambda p: p in {of}), lambda m: m.weight),
    "a set of both": (lambda m, of: len({*m.parameters(), of}) * plain(m, torch.ones(1, 8)), lambda m: m.weight),
    "parameters": (lambda m, of: squares(m, lambda p: isinstance(p, nn.Parameter)), lambda m: None),
}


@pytest.mark.parametrize("name", TOLD)
def test_parameters_are_told_apart_as_eagerly(forced, name):
    forced("in turn")
    extra, prepare = TOLD[name]
    assert not with_changes(training(lambda m, x, of: plain(m, x) + extra(m, of), prepare=prepare)).why_eager


def test_the_state_of_an_optimizer_is_found_by_a_parameter(forced):
    forced("in turn")

    def make():
        model = nn.Linear(8, 4)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            loss = plain(model, x)
            loss.backward()
            optimizer.step()
            return loss + sum(optimizer.state.get(p, {}).get("momentum_buffer", p).sum() for p in model.parameters())

        return model, step, nothing

    assert not with_changes(make).why_eager


class Own(nn.Parameter):
    pass


def seen(model, out):
    model.weight.seen = out.detach()
    return 0.0


REFUSED = {
    "ids": (lambda m, of, out: squares(m, lambda p: id(p) in of), lambda m: {id(m.weight)}, "the id of a parameter"),
    "a version": (lambda m, of, out: 1.0 + m.weight._version, lambda m: None, "how often a tensor was changed"),
    "an address": (lambda m, of, out: float(m.weight.data_ptr() in of), lambda m: {m.weight.data_ptr()}, "the address"),
    "an own class": (lambda m, of, out: squares(m, lambda p: type(p) is Own), lambda m: setattr(m, "weight", Own(m.weight.data)), "the class Own"),
    "an attribute that is set": (lambda m, of, out: seen(m, out), lambda m: None, "it changes 'seen' of a parameter"),
    "an attribute of another": (lambda m, of, out: setattr(of, "n", of.n + 1) or of.n, lambda m: counter(), "it changes 'n' of Tensor"),
}  # fmt: skip


def counter():
    made = torch.zeros(())
    made.n = 0
    return made


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_stand_in_cannot_say_makes_the_step_run_eagerly(name):
    extra, prepare, why = REFUSED[name]

    def loss(model, x, of):
        out = plain(model, x)
        return out + extra(model, of, out)

    assert why in with_changes(training(loss, prepare=prepare)).why_eager


def test_an_attribute_of_a_tensor_that_changes_is_noticed(forced):
    forced("in turn")

    def between(i, of):
        of.t.scale = 1.0 + (i > 3)
        of.m.weight.decay = i > 2

    step = with_changes(training(lambda m, x, of: plain(m, x) * of.t.scale + squares(m, lambda p: getattr(p, "decay", False)), between,
                                 prepare=lambda m: types.SimpleNamespace(t=torch.zeros(()), m=m)))  # fmt: skip
    assert not step.why_eager


TEXTS = {"str": str, "repr": repr, "format": lambda t: f"{t}", "format with digits": lambda t: f"{t:.3f}"}


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_tensor_makes_the_step_run_eagerly(name):
    def make():
        model = nn.Linear(8, 4)
        optimizer = SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = plain(model, x)
            loss.backward()
            optimizer.step()
            return TEXTS[name](loss.detach())

        return model, step, nothing

    assert "makes text of a tensor" in with_changes(make).why_eager


@pytest.mark.parametrize("frozen", [False, True])
def test_what_a_capture_sets_aside_it_gives_back_and_nothing_else(frozen):
    if frozen:
        gc.freeze()  # the program's own
    try:
        made = Made()
        assert gc.get_freeze_count() > 0
        made.outlive(ValueError())
        assert bool(gc.get_freeze_count()) is frozen
    finally:
        gc.unfreeze()
