"""compile_step: attributes that are named in a text, methods that are replaced, what arguments bring along: a change has the effect that
it has eagerly."""

import dataclasses
import operator
import threading
import types
import warnings
from collections import namedtuple

import pytest
import torch
from programs import at, compared, nothing, plain
from support import OPTIONS
from torch import nn
from torch.optim import SGD

import engine.torch

scale = 1.0


def with_loss(loss_of):
    """``loss_of()``: a loss of (model, x), and what the program does before a call."""

    def make():
        model = nn.Linear(8, 4)
        loss, between = loss_of()
        return model, plain(SGD(model.parameters(), 0.1), lambda x: loss(model, x)), nothing, between

    return make


def factor(read):
    def of():
        config = types.SimpleNamespace(beta=1.0)
        return lambda model, x: model(x).square().mean() * read(config), at(4, lambda: setattr(config, "beta", 5.0))

    return of


READS = {
    "getattr": factor(lambda config: getattr(config, "beta", 1.0)),
    "attrgetter": factor(lambda config: operator.attrgetter("beta")(config)),
    "__dict__": factor(lambda config: config.__dict__["beta"]),
    "vars": factor(lambda config: vars(config)["beta"]),
}


@pytest.mark.parametrize("reads", READS)
def test_an_attribute_that_is_named_in_a_text_is_looked_at(forced, reads):
    forced("in turn")
    assert not compared(with_loss(READS[reads])).why_eager


def appears():
    config = types.SimpleNamespace()
    return lambda model, x: model(x).square().mean() * (3 if hasattr(config, "beta") else 1), at(4, lambda: setattr(config, "beta", 5.0))


class Trained:
    criterion = nn.MSELoss()

    def loss(self, out):
        return self.criterion(out, torch.ones(()).expand_as(out))


def replaced(act):
    def of():
        class Own(Trained):
            pass

        trained = Own()
        return lambda model, x: trained.loss(model(x)), at(4, lambda: act(trained, Own))

    return of


METHODS = {
    "hasattr": appears,
    "a method of the object": replaced(lambda trained, kind: setattr(trained, "loss", lambda out: out.abs().mean())),
    "a method of its class": replaced(lambda trained, kind: setattr(kind, "loss", lambda self, out: out.abs().mean())),
    "a module that the class has": replaced(lambda trained, kind: setattr(trained, "criterion", nn.L1Loss())),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_is_replaced_is_noticed(forced, method):
    forced("in turn")
    assert not compared(with_loss(METHODS[method])).why_eager


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_forward_that_is_put_on_a_module_is_noticed(forced):
    forced("in turn")

    def make():
        model = Doubled(8, 4)
        step = plain(SGD(model.parameters(), 0.1), lambda x: model(x).square().mean())
        return model, step, nothing, at(4, lambda: setattr(model, "forward", lambda x: nn.Linear.forward(model, x)))

    assert not compared(make).why_eager


def test_another_shape_in_the_same_memory_is_noticed(forced):
    forced("in turn")

    def of():
        mask = torch.ones(6, 4)
        return lambda model, x: (model(x) * mask).sum() / mask.numel(), at(4, lambda: setattr(mask, "data", mask[:1]))

    assert not compared(with_loss(of)).why_eager


@dataclasses.dataclass
class Batch:
    more: torch.Tensor

    def scaled(self, x):
        return x + scale * self.more


class Pair(namedtuple("Pair", "more")):
    def scaled(self, x):
        return x + scale * self.more


@pytest.mark.parametrize("kind", [Batch, Pair])
def test_what_the_class_of_an_argument_reads_is_looked_at(forced, kind, monkeypatch):
    forced("in turn")

    def make():
        model = nn.Linear(8, 4)
        monkeypatch.setitem(globals(), "scale", 1.0)
        step = plain(SGD(model.parameters(), 0.1), lambda x, batch: model(batch.scaled(x)).square().mean())
        return model, step, lambda i: (kind(torch.ones(8)),), at(4, lambda: globals().__setitem__("scale", 3.0))

    assert not compared(make).why_eager


def test_a_module_that_is_an_argument_is_looked_at_beside_named_ones(forced):
    forced("in turn")
    losses = []
    for compiles in (True, False):
        torch.manual_seed(0)
        model, teacher = nn.Linear(8, 4), nn.Sequential(nn.Dropout(1.0))
        optimizer = SGD(model.parameters(), 0.1)
        step = plain(optimizer, lambda x, teacher, model=model: (model(x) - teacher(x)[:, :4]).square().mean())
        if compiles:
            step = engine.torch.compile_step(step, modules=[model], optimizers=[optimizer], options=OPTIONS)
        losses.append([])
        for i in range(8):
            if i == 4:
                teacher.eval()
            torch.manual_seed(i)
            losses[-1].append(float(step(torch.randn(6, 8), teacher)))
    assert losses[0] == losses[1]


def test_an_argument_that_was_computed_runs_eagerly():
    model, prompt = nn.Linear(8, 4), nn.Parameter(torch.zeros(10, 8))
    inner, outer = SGD(model.parameters(), 0.1), SGD([prompt], 0.1)
    step = engine.torch.compile_step(plain(inner, lambda x, p: model(x + p).square().mean()), options=OPTIONS)
    with pytest.warns(UserWarning, match="computed from what requires gradients"):
        for _ in range(4):
            outer.zero_grad()
            step(torch.randn(5, 8), prompt[:5])
            assert prompt.grad is not None and prompt.grad[:5].abs().sum() > 0
    assert "computed" in step.why_eager


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_a_capture_is_raised(kind):
    model = nn.Linear(8, 4)
    optimizer, interrupted = SGD(model.parameters(), 0.1), [True]

    @engine.torch.compile_step(options=OPTIONS)
    def step(x):
        out = model(x)
        if engine.torch.refusals.capturing() and interrupted:
            raise kind
        optimizer.zero_grad()
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.randn(4, 8)
    step(x)
    with pytest.raises(kind):
        step(x)
    interrupted.clear()
    step(x)
    assert not step.why_eager and step.last


def test_a_step_may_call_itself():
    model = nn.Linear(8, 4)
    body = plain(SGD(model.parameters(), 0.1), lambda x: model(x).square().mean())

    @engine.torch.compile_step(options=OPTIONS)
    def step(x):
        return torch.stack([step(half) for half in x.split(4)]).mean() if len(x) > 4 else body(x)

    ended = []
    thread = threading.Thread(target=lambda: ended.append(step(torch.randn(8, 8))), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread.start()
        thread.join(60)
    assert ended


class DistributedDataParallel(nn.Module):
    """Called as torch's: only its name is asked for."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


def test_a_module_that_averages_over_processes_runs_eagerly():
    model = DistributedDataParallel(nn.Linear(8, 4))
    step = engine.torch.compile_step(plain(SGD(model.parameters(), 0.1), lambda x: model(x).square().mean()), options=OPTIONS)
    with pytest.warns(UserWarning, match="sums over processes"):
        for _ in range(3):
            step(torch.randn(4, 8))


def test_the_reason_names_the_line_that_cannot_be_captured():
    model = nn.Linear(8, 4)
    optimizer = SGD(model.parameters(), 0.1)

    @engine.torch.compile_step(options=OPTIONS)
    def step(x):
        loss = model(x).square().mean()
        if loss > 10:  # the line
            loss = loss / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            step(torch.randn(4, 8))
    assert "test_names_in_texts.py" in step.why_eager, step.why_eager


def test_a_step_that_has_become_eager_keeps_nothing_of_its_captures():
    model = nn.Linear(8, 4)
    body = plain(SGD(model.parameters(), 0.1), lambda x: model(x).square().mean())
    step = engine.torch.compile_step(lambda x, more=None: body(x), options=OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            step(torch.randn(4, 8))
        assert step.ready and step.last
        step(torch.randn(4, 8), object())  # an argument that may change unseen
    assert step.why_eager and not step.ready and step.last is None
