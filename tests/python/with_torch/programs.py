"""Programs that train by a step, compared with themselves under compile_step."""

import warnings

import torch
from support import OPTIONS, same

import engine.torch


def plain(optimizer, loss):
    def step(*given):
        optimizer.zero_grad()
        made = loss(*given)
        made.backward()
        optimizer.step()
        return made

    return step


def compared(make, calls=8):
    """``make`` gives a model, a step, what the step is given besides a batch at a call, and what the program does before a call.
    Returns the compiled step."""
    found = []
    for compile in (lambda step: engine.torch.compile_step(step, options=OPTIONS), lambda step: step):
        torch.manual_seed(0)
        model, step, besides, between = make()
        step, seen = compile(step), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i in range(calls):
                between(i)
                torch.manual_seed(i)
                out = step(torch.randn(6, 8), *besides(i))
                seen.append((out.detach(), [p.detach().clone() for p in model.parameters()]))
        found.append((seen, step))
    same(found[0][0], found[1][0])
    return found[0][1]


def nothing(i):
    return ()


def at(call, act):
    return lambda i: act() if i == call else None
