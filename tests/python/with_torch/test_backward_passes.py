"""Models under torch.compile: several backward passes through one graph, checkpoints around compiled blocks, and errors inside of
no_grad, autocast and inference_mode."""

import gc

import pytest
import torch
from support import OPTIONS, close, same
from torch import nn
from torch.utils.checkpoint import checkpoint

import engine.torch

CALLS = 25  # the trial takes up all ways


def compiled(model):
    return torch.compile(model, backend=engine.torch.backend, options=OPTIONS)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(self.norm(x))).square())


def two_losses(compile):
    model = Block()
    net = compile(model)

    def step(x):
        out = net(x)
        first, second = out.square().mean(), out.mean()
        first.backward(retain_graph=True)
        second.backward()
        return first + second

    return model, step


def two_tangents(compile):
    model = Block()
    net = compile(model)

    def step(x):
        out = net(x)
        for i in range(2):
            torch.autograd.backward(out, torch.full_like(out, i + 1.0), retain_graph=i == 0)
        return out.sum()

    return model, step


def checkpointed(blocks, times):
    def make(compile):
        model = nn.ModuleList(Block() for _ in range(blocks))
        called = [compile(block) for block in model] * times

        def step(x):
            for block in called:
                x = checkpoint(block, x, use_reentrant=False)
            loss = x.square().mean()
            loss.backward()
            return loss

        return model, step

    return make


@pytest.mark.parametrize("make", [two_losses, two_tangents, checkpointed(4, 1), checkpointed(1, 4)],
                         ids=["two losses", "two tangents", "four blocks in checkpoints", "a block four times in checkpoints"])  # fmt: skip
def test_training_is_eagers(make):
    found = []
    for compile in (compiled, lambda model: model):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, step = make(compile)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        found.append([])
        for i in range(CALLS):
            torch.manual_seed(i)
            optimizer.zero_grad()
            loss = step(torch.randn(4, 8))
            optimizer.step()
            found[-1].append(loss.detach())
    close(*found)


def test_blocks_in_checkpoints_run_eagerly_and_say_so():
    torch._dynamo.reset()
    block = Block()
    called = compiled(block)
    checkpoint(called, torch.randn(4, 8), use_reentrant=False).sum().backward()
    assert "hooks of saved tensors are around it" in str(engine.torch.explain(called)[-1])


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.top = nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, ids):
        with torch.no_grad():
            rows = self.table(ids)
        return self.top(rows)


class Cast(Frozen):
    def forward(self, ids):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.top(self.table(ids))


def nesting():
    found = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return found


@pytest.mark.parametrize("calls", [1, 3, 7])
@pytest.mark.parametrize("kind", [Frozen, Cast])
def test_an_error_leaves_grad_mode_and_autocast_as_they_were(kind, calls):
    torch._dynamo.reset()
    net = compiled(kind())
    for _ in range(calls):
        net(torch.tensor([0, 4])).float().sum().backward()
    with pytest.raises(IndexError):
        net(torch.tensor([0, 5]))
    try:
        assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and nesting() == 0
        assert net(torch.tensor([0, 4])).requires_grad
    finally:
        torch.set_grad_enabled(True)
        torch.set_autocast_enabled("cpu", False)
        torch.clear_autocast_cache()


@torch.library.custom_op("engine_test::at_most_50", mutates_args=())
def at_most_50(x: torch.Tensor) -> torch.Tensor:
    if x.max() > 50:
        raise ValueError("more than 50")
    return x.clone()


at_most_50.register_fake(torch.empty_like)


def inferred(x):
    with torch.inference_mode():
        return at_most_50(x * 2)


def inferred_in_turn(x):
    with torch.inference_mode(), torch.inference_mode(False), torch.inference_mode():
        return (x * 2)[x.long()]


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("function", [inferred, inferred_in_turn])
def test_an_error_that_is_kept_leaves_inference_mode_as_it_was(forced, function, outside):
    forced("eager")
    run, x = compiled(function), torch.arange(4.0)
    with torch.inference_mode(outside):
        same(run(x), function(x))
        with pytest.raises((ValueError, IndexError)) as kept:
            run(x + 100)
        assert torch.is_inference_mode_enabled() == outside and torch.is_grad_enabled() != outside
        same(run(x), function(x))
    with torch.inference_mode():
        del kept
        gc.collect()
        assert torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
