"""The whole step compiled by Inductor is one of the modes, where it is asked for."""

import copy
import functools

import pytest
import torch
from support import layers, training
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW

import engine
import engine.torch
from engine.torch import fused
from engine.torch.modes import INDUCTOR

OPTIONS = {"partition": "inductor", "workers": 2}


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.top = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def forward(self, ids):
        return self.top(self.table(ids))


@pytest.mark.parametrize("make", [
    functools.partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01), functools.partial(AdamW, lr=0.01, maximize=True),
    functools.partial(Adagrad, lr=0.1, lr_decay=0.01), functools.partial(Adam, lr=0.01, amsgrad=True),
], ids=["sgd", "adamw", "adagrad", "adam"])  # fmt: skip
def test_parameters_and_state_are_close_to_eagers(forced, make):
    forced(INDUCTOR)
    model = Mixed()
    pairs = [(m, make(m.parameters())) for m in (model, copy.deepcopy(model))]
    ours, theirs = (training(*pair) for pair in pairs)
    ours = engine.torch.compile_step(ours, options=OPTIONS)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for _, optimizer in pairs]
    for _ in range(5):
        ids, losses = torch.randint(0, 20, (16,)), []
        for step in (ours, theirs):
            losses.append(step(ids).detach())
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(*(dict(m.state_dict()) for m, _ in pairs), rtol=1e-4, atol=1e-5)
        for scheduler in schedulers:  # the rate is no constant
            scheduler.step()
    assert not ours.why_eager and ours.captures == 1 and ours.last.program.fused


def test_it_is_measured_like_the_other_modes():
    model = layers()
    step = engine.torch.compile_step(training(model, SGD(model.parameters(), lr=0.01)), options=OPTIONS)
    for _ in range(250):
        step(torch.ones(4, 8))
    assert INDUCTOR in engine.torch.explain(step)[0].times


def test_what_inductor_cannot_do_is_told_and_runs_without_it(monkeypatch):
    def refuses(*_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(fused, "compile_fx", refuses)
    model = layers()
    step = engine.torch.compile_step(training(model, SGD(model.parameters(), lr=0.01)), options=OPTIONS)
    with pytest.warns(UserWarning, match="'step' runs without Inductor: RuntimeError: no such thing"):
        for _ in range(3):
            step(torch.ones(4, 8))
    assert not step.why_eager and INDUCTOR not in step.last.choice.candidates


def test_an_index_out_of_range_is_an_error_with_two_threads_too(forced):
    forced(INDUCTOR)
    torch.set_num_threads(2)
    model = nn.Sequential(nn.Embedding(2000, 16), nn.Linear(16, 1))
    step = engine.torch.compile_step(training(model, SGD(model.parameters(), lr=0.1)), options=OPTIONS)
    ids = torch.arange(4096) % 2000  # enough rows for an OpenMP region
    for _ in range(3):
        step(ids)
    with pytest.raises(RuntimeError, match="index out of bounds"):
        step(torch.cat([ids, torch.tensor([2005])])[1:])
    step(ids)


def test_a_step_that_changes_its_arguments_runs_without_it():
    model = layers()
    optimizer = SGD(model.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        x.add_(1)
        return loss

    ours = engine.torch.compile_step(step, options=OPTIONS)
    x = torch.zeros(4, 8)
    with pytest.warns(UserWarning, match="changes its arguments"):
        for _ in range(3):
            ours(x)
    assert x.eq(3).all()


def test_a_step_that_draws_random_numbers_runs_without_it_and_draws_eagers():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    other = copy.deepcopy(model)
    ours, theirs = (training(m, SGD(m.parameters(), lr=0.01)) for m in (model, other))
    ours = engine.torch.compile_step(ours, options=OPTIONS)
    with pytest.warns(UserWarning, match="draws random numbers"):
        for i in range(4):
            losses = []
            for step in (ours, theirs):
                torch.manual_seed(i)
                losses.append(step(torch.ones(4, 8)).item())
            assert losses[0] == losses[1]


def test_torch_compile_has_a_backend_of_its_own_for_it():
    with pytest.raises(engine.UsageError, match="for compile_step"):
        engine.torch.backend(None, [], options={"partition": "inductor"})
