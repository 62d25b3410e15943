"""What the tests of engine.torch share."""

import copy

import torch
from torch.utils._pytree import tree_leaves

import engine.torch

MODES = ["in turn", "caller", "workers"]
OPTIONS = {"workers": 2}


def compiled(model, **kwargs):
    return torch.compile(model, backend=engine.torch.backend, **{"options": OPTIONS} | kwargs)


def trained(model, *given):
    """Compiled, and behind a first call with a backward pass, which torch compiles then."""
    ours = compiled(model)
    out = ours(*[g.detach().requires_grad_(g.requires_grad) for g in given])
    (out[0] if isinstance(out, tuple) else out).sum().backward()
    return ours


def square(x, weight):
    return (x @ weight).square().sum(1)


def made():
    """For ``square``."""
    return [torch.randn(3, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)]


def training(model, optimizer, loss_of=lambda out: out.square().mean()):
    """A training step as one writes it, on a batch: what the model is given, then what the loss is given besides."""

    def step(given, *besides):
        optimizer.zero_grad()
        loss = loss_of(model(given), *besides)
        loss.backward()
        optimizer.step()
        return loss

    return step


def layers():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def same(ours, theirs):
    """Equal to the bit, in structure and type too."""
    assert type(ours) is type(theirs) or {type(ours), type(theirs)} <= {torch.Tensor, torch.nn.Parameter}
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.requires_grad == theirs.requires_grad
        assert ours.layout == theirs.layout
        ours, theirs = ours.to_dense(), theirs.to_dense()
        assert torch.equal(ours, theirs) or torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(
            ours.nan_to_num(), theirs.nan_to_num())  # fmt: skip
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            same(a, b)
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            same(ours[key], theirs[key])
    else:
        assert ours == theirs


def close(ours, theirs):
    """Equal but for the order of sums: for gradients that autograd adds up from three places or more."""
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def check(model, *inputs, steps=3, gradients=same, before=lambda step: None, **kwargs):
    """Outputs, gradients and state of `steps` calls, compiled and eager, from the same state and random numbers. `gradients`:
    how gradients are compared. `before`: is called before each step, with its number."""
    other = copy.deepcopy(model)
    ours = compiled(model, **kwargs)
    for i in range(steps):
        before(i)
        torch.manual_seed(i)
        a = ours(*inputs)
        after = torch.random.get_rng_state()
        torch.manual_seed(i)
        b = other(*inputs)
        same(a, b)
        same(after, torch.random.get_rng_state())
        for out in (a, b):
            if total := [t.float().sum() for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]:
                sum(total).backward()
        if isinstance(model, torch.nn.Module):
            same(dict(model.state_dict()), dict(other.state_dict()))
            gradients([p.grad for p in model.parameters()], [p.grad for p in other.parameters()])
    return ours
