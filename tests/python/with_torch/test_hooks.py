"""compile_step: hooks run. Those of modules are captured; with those of parameters and optimizers a step runs eagerly."""

import pytest
import torch
from support import layers, same, training
from torch.nn.modules.module import register_module_forward_hook
from torch.optim import SGD
from torch.optim.optimizer import register_optimizer_step_post_hook

import engine.torch

X = torch.arange(24.0).reshape(3, 8) / 24


def halved(parameter):
    parameter.grad.mul_(0.5)


def with_a_clamp(optimizer, *_):
    with torch.no_grad():
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.clamp_(-0.1, 0.1)


HOOKS = {
    "gradients": (lambda m, o: m[0].weight.register_hook(lambda g: g * 0.5), "hooks of a parameter"),
    "gradients that were added up": (lambda m, o: m[0].weight.register_post_accumulate_grad_hook(halved), "hooks of a parameter"),
    "an optimizer": (lambda m, o: o.register_step_post_hook(with_a_clamp), "with hooks around its steps"),
    "all optimizers": (lambda m, o: register_optimizer_step_post_hook(with_a_clamp), "with hooks around its steps"),
    "a module": (lambda m, o: m[1].register_forward_hook(lambda m, a, out: out * 0.5), ""),
    "a module's inputs": (lambda m, o: m[1].register_forward_pre_hook(lambda m, a: (a[0] * 0.5,)), ""),
    "a module's gradients": (lambda m, o: m[2].register_full_backward_hook(lambda m, given, out: (given[0] * 0.5,)), ""),
    "all modules": (lambda m, o: register_module_forward_hook(lambda m, a, out: out * 0.5), ""),
}  # fmt: skip


def trained(hook, after, compiled):
    """Trains with a hook that comes after some steps and goes after two more."""
    torch.manual_seed(1)
    model = layers()
    optimizer = SGD(model.parameters(), lr=0.1)
    step, losses, why = training(model, optimizer), [], []
    step = engine.torch.compile_step(step) if compiled else step
    handle = None
    try:
        for i in range(8):
            if i == after:
                handle = hook(model, optimizer)
            if i == after + 4:
                handle.remove()
            losses.append(step(X).detach().clone())
            why.append(getattr(step, "why_eager", ""))
    finally:
        handle.remove()
    return losses, list(model.state_dict().values()), why


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize(("hook", "why"), HOOKS.values(), ids=HOOKS.keys())
@pytest.mark.filterwarnings("ignore:engine.torch")
def test_hooks_run_whenever_they_come(forced, hook, why, after):
    forced("in turn")
    ours, theirs = trained(hook, after, True), trained(hook, after, False)
    same(ours[:2], theirs[:2])
    assert why in ours[2][-1] and bool(ours[2][-1]) == bool(why) and not any(ours[2][: after])
