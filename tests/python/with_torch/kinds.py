"""What tests of kinds of training steps share: a net, an optimizer with state, and the comparison with eager."""

import warnings

import torch
from support import OPTIONS, same
from torch import nn
from torch.optim import SGD

import engine.torch

ROWS, WIDTH = 6, 8


def net():
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 4))


def momentum(model):
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


def compared(make, steps=4):
    """``make`` gives modules, and a step over a batch. Returns why the compiled step runs eagerly."""
    found = []
    for compile in (lambda step: engine.torch.compile_step(step, options=OPTIONS), lambda step: step):
        torch.manual_seed(0)
        modules, step = make()
        step, seen = compile(step), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i in range(steps):
                torch.manual_seed(i)
                x = torch.randn(ROWS, WIDTH)
                out = step(x)
                state = [{name: t.detach().clone() for name, t in module.state_dict().items()} for module in modules]
                seen.append([out.detach(), x, torch.get_rng_state(), state])
        found.append((seen, step))
    same(found[0][0], found[1][0])
    return found[0][1].why_eager


def with_changes(make, given=lambda i: (torch.randn(ROWS, WIDTH),), steps=6):
    """``make`` gives a module, a step, and what the program does before call i. The module's state and what the step returns are
    those of eager, call by call. Returns the compiled step."""
    found = []
    for compile in (lambda step: engine.torch.compile_step(step, options=OPTIONS), lambda step: step):
        torch.manual_seed(0)
        module, step, between = make()
        step, seen = compile(step), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i in range(steps):
                between(i)
                torch.manual_seed(i)
                out = step(*given(i))
                seen.append([out.detach().clone() if isinstance(out, torch.Tensor) else out,
                             {name: t.detach().clone() for name, t in module.state_dict().items()}])  # fmt: skip
        found.append((seen, step))
    same(found[0][0], found[1][0])
    return found[0][1]
