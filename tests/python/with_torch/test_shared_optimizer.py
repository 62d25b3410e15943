"""compile_step: two compiled steps that share one optimizer train as the two steps do eagerly, in any order."""

import random
import warnings

import pytest
import torch
from support import OPTIONS, same
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW
from torch.optim.lr_scheduler import StepLR

import engine.torch

TURNS = {
    "in turns": [0, 1] * 6,
    "one late": [0] * 5 + [1] * 5 + [0, 1],
    **{f"at random {seed}": [random.Random(seed).randrange(2) for _ in range(12)] for seed in range(1)},
}
OPTIMIZERS = {
    "Adam": lambda p: Adam(p, lr=0.05),
    "AdamW, amsgrad": lambda p: AdamW(p, lr=0.05, amsgrad=True, weight_decay=0.1),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda p: Adagrad(p, lr=0.1, lr_decay=0.1),
}


def trained(kind, turns, compile, parts, at_end, scheduled=False):
    """Two losses of three parts of a model: ``parts`` are those of each. Returns what has been seen, and the steps."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 4), nn.Linear(8, 2)])
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = StepLR(optimizer, 3, 0.5) if scheduled else None

    def step_of(mine):
        def step(x):
            if not at_end:
                optimizer.zero_grad()
            loss = sum(part(x).square().mean() for part in (model[i] for i in mine))
            loss.backward()
            optimizer.step()
            if at_end:
                optimizer.zero_grad()
            return loss

        return compile(step)

    steps, seen = [step_of(mine) for mine in parts], []
    for i, turn in enumerate(turns):
        torch.manual_seed(i)
        loss = steps[turn](torch.randn(6, 8))
        if scheduler:
            scheduler.step()
        seen.append((loss.detach().clone(), [p.detach().clone() for p in model.parameters()]))
    kept = [{name: torch.as_tensor(t).clone() for name, t in optimizer.state[p].items()} for p in model.parameters() if p in optimizer.state]
    return seen, kept, steps


def compiled(step):
    return engine.torch.compile_step(step, options=OPTIONS)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("parts", [((0, 1), (0, 2)), ((0, 1, 2), (0, 1, 2)), ((0,), (1, 2))], ids=["a shared part", "all shared", "none shared"])
@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_two_steps_that_share_an_optimizer_train_as_eagerly(kind, turns, parts, at_end):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = trained(kind, TURNS[turns], compiled, parts, at_end)
    theirs = trained(kind, TURNS[turns], lambda step: step, parts, at_end)
    same(ours[:2], theirs[:2])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_two_steps_that_share_an_optimizer_are_both_captured(forced, kind):
    forced("in turn")
    parts = (0, 1), (0, 2)
    ours = trained(kind, TURNS["in turns"], compiled, parts, False, scheduled=True)
    same(ours[:2], trained(kind, TURNS["in turns"], lambda step: step, parts, False, scheduled=True)[:2])
    assert not any(step.why_eager for step in ours[2]) and all(step.captures for step in ours[2])
