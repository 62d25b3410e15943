"""Training steps for the suite `torch`: each contender is a function that runs one step of a model from the same state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "policies" / "graphs"))
from models import MODELS  # noqa: E402

RATE = 1e-6
CONTENDERS = ["eager 1", "eager 2", "compile 2", "inductor 2", "in turn", "ours inductor", "ours fast", "ours",
              "eager 1 gradients", "eager 2 gradients", "dynamo 2 gradients", "compile 2 gradients"]  # fmt: skip


def training(model, inputs, loss_of, forward=None, steps: bool = True) -> Callable[[], torch.Tensor]:
    """``steps``: whether the optimizer makes its step, behind forward and backward."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    forward = model if forward is None else forward

    def step(*given):
        optimizer.zero_grad()
        loss = loss_of(forward(*given))
        loss.backward()
        if steps:
            optimizer.step()
        return loss

    return step


def inductor(model, inputs, loss_of):
    """Forward and loss as one graph with its backward, and the optimizer's step as another."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loss = torch.compile(lambda *given: loss_of(model(*given)))
    update = torch.compile(optimizer.step)

    def step(*given):
        optimizer.zero_grad()
        value = loss(*given)
        value.backward()
        update()
        return value

    return step


def forced(step, mode: str):
    """The compiled step in one mode, from the second call on."""

    def call(*given):
        if step.last and not step.last.choice.decided:
            step.last.choice.hold(mode)
        return step(*given)

    return call


class Contender(NamedTuple):
    step: Callable[[], torch.Tensor]
    threads: int  # of torch
    decided: Callable[[], bool] = lambda: True  # whether it has chosen how to run
    compiled: Any = None  # what compile_step made
    inputs: tuple = ()
    modes: Callable[[], list[str]] = lambda: []  # of the graphs of torch.compile

def contender(name: str, case: str, workers: int) -> Contender:
    import engine.torch

    torch.manual_seed(0)
    model, inputs, loss_of = MODELS[case]()
    options = {"workers": workers}
    if name == "inductor 2":
        step = inductor(model, inputs, loss_of)
        return Contender(lambda: step(*inputs), workers)
    steps = not name.endswith("gradients")
    if name.startswith("dynamo 2"):
        step = training(model, inputs, loss_of, torch.compile(model, backend="eager"), steps)
        return Contender(lambda: step(*inputs), workers)
    if name.startswith("compile 2"):
        if not steps:  # else Dynamo would find what it has compiled for the whole step
            options["policy"] = "cost_model"
        before = set(engine.torch.regions.compiled)
        step = training(model, inputs, loss_of, torch.compile(model, backend=engine.torch.backend, options=options), steps)

        def decided() -> list:
            return [r.choice.decided for r in set(engine.torch.regions.compiled) - before]

        return Contender(lambda: step(*inputs), workers, lambda: all(decided()), modes=decided)
    step = training(model, inputs, loss_of, steps=steps)
    if name.startswith("eager"):
        return Contender(lambda: step(*inputs), int(name.split()[1]))
    if name == "ours inductor":
        options["partition"] = "inductor"
    if name == "ours fast":
        options["products"] = "fast"
    compiled = engine.torch.compile_step(step, options=options)
    call = forced(compiled, "in turn") if name == "in turn" else compiled
    return Contender(lambda: call(*inputs), workers,
                     lambda: bool(compiled.why_eager or compiled.last and compiled.last.choice.decided), compiled, inputs)  # fmt: skip
