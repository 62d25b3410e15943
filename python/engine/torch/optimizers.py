"""The optimizers whose steps can be part of a plan: their arithmetic, operation by operation as torch.optim does it without
foreach, so that results are bitwise those of eager.

What changes from step to step (the learning rate, momentum and betas, corrections by the number of steps) are numbers that each run is
given; all else is fixed when the step is captured, and checked before each run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam
from torch.optim._functional import sparse_adam
from torch.optim.adagrad import _make_sparse

from . import glance
from .glance import MISSING
from .lines import is_torch
from .refusals import Unsupported


@dataclass(frozen=True)
class Rule:
    """``update(parameter, gradient, state, group, number)`` makes the calls for one parameter; ``number`` stands for a
    number of the run by its name. ``numbers(group, step)`` computes them; ``step`` counts from 1. ``sparse``: what kinds of
    gradients it takes."""

    update: Callable[..., None]
    numbers: Callable[[dict[str, Any], float], dict[str, float]]
    counts: bool  # whether the state holds "step"
    sparse: tuple[bool, ...] = (False,)


def _decayed(gradient: Any, parameter: Any, group: dict[str, Any]) -> Any:
    gradient = -gradient if group["maximize"] else gradient
    return gradient.add(parameter, alpha=group["weight_decay"]) if group["weight_decay"] else gradient


@torch.library.custom_op("engine_torch::sparse_adagrad", mutates_args=("parameter", "total"))
def _sparse_adagrad(parameter: Tensor, gradient: Tensor, total: Tensor, negative_rate: float, eps: float) -> None:
    """Adagrad of the rows that a gradient has. How many these are is known only here, so it is one call."""
    gradient = gradient.coalesce()
    indices, values = gradient._indices(), gradient._values()
    total.add_(_make_sparse(gradient, indices, values.pow(2)))
    deviation = total.sparse_mask(gradient)._values().sqrt_().add_(eps)
    parameter.add_(_make_sparse(gradient, indices, values / deviation), alpha=negative_rate)


@torch.library.custom_op("engine_torch::sparse_adam", mutates_args=("parameter", "first", "second"))
def _sparse_adam(parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: float, rate: float,
                 betas: list[float], eps: float) -> None:  # fmt: skip
    sparse_adam([parameter], [gradient], [first], [second], [int(step)], eps=eps, beta1=betas[0], beta2=betas[1], lr=rate,
                maximize=False)  # fmt: skip


@torch.library.custom_op("engine_torch::sparse_momentum", mutates_args=("parameter", "buffer"))
def _sparse_momentum(parameter: Tensor, gradient: Tensor, buffer: Tensor, negative_rate: float, momentum: float, dampening: float,
                     nesterov: bool) -> None:  # fmt: skip
    """SGD with momentum of the rows that a gradient or the buffer has. The buffer is sparse and gets rows, so it is one call."""
    buffer.mul_(momentum).add_(gradient, alpha=1 - dampening)
    parameter.add_(gradient.add(buffer, alpha=momentum) if nesterov else buffer, alpha=negative_rate)


@_sparse_adagrad.register_fake
@_sparse_adam.register_fake
@_sparse_momentum.register_fake
def _nothing(*_: Any) -> None:
    pass


def _sgd(parameter: Any, gradient: Any, state: dict[str, Any], group: dict[str, Any], number: Any) -> None:
    gradient = _decayed(gradient, parameter, group)
    if gradient.is_sparse and group["momentum"]:
        torch.ops.engine_torch.sparse_momentum(parameter, gradient, state["momentum_buffer"], number("-rate"),
                                               number("momentum"), group["dampening"], group["nesterov"])  # fmt: skip
        return
    if group["momentum"]:
        buffer = state["momentum_buffer"]
        buffer.mul_(number("momentum")).add_(gradient, alpha=1 - group["dampening"])
        gradient = gradient.add(buffer, alpha=number("momentum")) if group["nesterov"] else buffer
    parameter.add_(gradient, alpha=number("-rate"))


def _adam(parameter: Any, gradient: Any, state: dict[str, Any], group: dict[str, Any], number: Any) -> None:
    first, second = state["exp_avg"], state["exp_avg_sq"]
    state["step"].add_(1)
    if group["weight_decay"] and group["decoupled_weight_decay"]:
        gradient = -gradient if group["maximize"] else gradient
        parameter.mul_(number("decay"))
    else:
        gradient = _decayed(gradient, parameter, group)
    first.lerp_(gradient, number("1-beta1"))
    second.mul_(number("beta2")).addcmul_(gradient, gradient, value=number("1-beta2"))
    if group["amsgrad"]:
        most = state["max_exp_avg_sq"]
        most.copy_(torch.maximum(most, second))
        second = most
    parameter.addcdiv_(first, second.sqrt().div_(number("correction")).add_(group["eps"]), value=number("-size"))


def _adam_numbers(group: dict[str, Any], step: float) -> dict[str, float]:
    (beta1, beta2), rate = group["betas"], float(group["lr"])
    return {"decay": 1 - rate * group["weight_decay"], "correction": (1 - beta2**step) ** 0.5,
            "-size": -(rate / (1 - beta1**step)), "1-beta1": 1 - beta1, "beta2": beta2, "1-beta2": 1 - beta2}  # fmt: skip


def _adagrad(parameter: Any, gradient: Any, state: dict[str, Any], group: dict[str, Any], number: Any) -> None:
    state["step"].add_(1)
    gradient = _decayed(gradient, parameter, group)
    if gradient.is_sparse:
        torch.ops.engine_torch.sparse_adagrad(parameter, gradient, state["sum"], number("-rate"), group["eps"])
        return
    state["sum"].addcmul_(gradient, gradient, value=1)
    parameter.addcdiv_(gradient, state["sum"].sqrt().add_(group["eps"]), value=number("-rate"))


def _adam_of_rows(parameter: Any, gradient: Any, state: dict[str, Any], group: dict[str, Any], number: Any) -> None:
    gradient = -gradient if group.get("maximize") else gradient
    torch.ops.engine_torch.sparse_adam(parameter, gradient, state["exp_avg"], state["exp_avg_sq"], number("step"),
                                       number("rate"), [number("beta1"), number("beta2")], group["eps"])  # fmt: skip


RULES: dict[type, Rule] = {
    SGD: Rule(_sgd, lambda g, _: {"-rate": -float(g["lr"]), "momentum": g["momentum"]}, False, (False, True)),
    Adam: Rule(_adam, _adam_numbers, True),
    AdamW: Rule(_adam, _adam_numbers, True),
    Adagrad: Rule(_adagrad, lambda g, step: {"-rate": -(float(g["lr"]) / (1 + (step - 1) * g["lr_decay"]))}, True,
                  (False, True)),
    SparseAdam: Rule(_adam_of_rows, lambda g, step: {"step": step, "rate": float(g["lr"]), **dict(zip(("beta1", "beta2"), g["betas"]))}, True,
                     (True,)),
}  # fmt: skip
REFUSED = ("foreach", "fused", "capturable", "differentiable")


def rule_of(optimizer: Optimizer) -> Rule:
    """Unsupported, with the reason, for an optimizer that no rule knows."""
    name = type(optimizer).__name__
    rule = RULES.get(type(optimizer))
    if rule is None:
        raise Unsupported(f"the optimizer {name}; {', '.join(r.__name__ for r in RULES)} can be captured")
    for group in optimizer.param_groups:
        for option in REFUSED:
            if group.get(option):
                raise Unsupported(f"{name} with {option}={group[option]}")
        if any(torch.is_complex(p) for p in group["params"]):
            raise Unsupported(f"{name} with complex parameters")
        for option in ("lr", "momentum", "betas"):
            given = group.get(option, ())
            if any(isinstance(part, Tensor) for part in (given if isinstance(given, (tuple, list)) else (given,))):
                raise Unsupported(f"{name} with {option} as a tensor, whose arithmetic has other types")
    if hooks_of(optimizer):
        raise Unsupported(f"{name} with hooks around its steps")
    refuse_replaced(optimizer)
    return rule


class Leading:
    """A hook before all optimizers' steps, on the thread that made it. Other captured steps do not take it for one."""

    def __init__(self, lead: Callable[..., Any]) -> None:
        self.lead, self.thread = lead, threading.get_ident()

    def __call__(self, *args: Any) -> Any:
        return self.lead(*args) if threading.get_ident() == self.thread else None


_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_HOOKS_OF_ALL = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_STEPS = ("step", "zero_grad")


def hooks_of(optimizer: Optimizer) -> list[Any]:
    """The hooks around its steps, those of all optimizers among them."""
    every = vars(sys.modules[Optimizer.__module__])
    hooks = [hook for name in _HOOKS_OF_ALL for hook in list(every[name].values()) if not isinstance(hook, Leading)]
    return [hook for name in _HOOKS for hook in getattr(optimizer, name).values()] + hooks


def steps_of(optimizer: Optimizer) -> tuple[Any, ...]:
    """What the program calls as its step and its zero_grad."""
    own = vars(optimizer)
    return *map(own.get, _STEPS), *[getattr(type(optimizer), name) for name in _STEPS]


def noted(optimizer: Optimizer) -> Iterator[glance.Place]:
    """All that these two look at."""
    own, every = vars(optimizer), vars(sys.modules[Optimizer.__module__])
    for held, name in [*((own, name) for name in _HOOKS), *((every, name) for name in _HOOKS_OF_ALL)]:
        yield glance.ITEM, held, name, held[name]
        yield from glance.in_any_order(held[name])
    for name in _STEPS:
        yield glance.ITEM, own, name, own.get(name, MISSING)
        yield glance.ATTRIBUTE, type(optimizer), name, getattr(type(optimizer), name)


def refuse_replaced(optimizer: Optimizer) -> None:
    """Unsupported where the program has put a function of its own in the place of one of these. A scheduler's is none."""
    for function in steps_of(optimizer):
        while function is not None:
            function = getattr(function, "__func__", function)
            code = getattr(function, "__code__", None)
            if code is None or not is_torch(code.co_filename):
                raise Unsupported(f"{type(optimizer).__name__} with a step or a zero_grad that the program has replaced")
            function = getattr(function, "__wrapped__", None)


RATES = ("lr", "initial_lr", "momentum", "betas")  # of a group: those that may change from run to run, as by a scheduler


def settings(optimizer: Optimizer) -> tuple[Any, ...]:
    """All that a captured step has fixed of the optimizer."""
    return tuple(
        (tuple(map(id, g["params"])), *(isinstance(part, Tensor) for part in (g["lr"], g.get("momentum"), *g.get("betas", ()))),
         *((k, _frozen(v)) for k, v in g.items() if k not in ("params", *RATES)))
        for g in optimizer.param_groups  # fmt: skip
    )


class _Held:
    """A setting that is equal to itself alone, while nobody has changed it as far as torch counts."""

    def __init__(self, value: Any) -> None:
        self.value, self.version = value, getattr(value, "_version", 0)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Held) and self.value is other.value and self.version == other.version


def _frozen(value: Any) -> Any:
    """A setting as it is now: lists and dicts may be changed in place."""
    if isinstance(value, (list, tuple)):
        return type(value), *map(_frozen, value)
    if isinstance(value, dict):
        return dict, *((k, _frozen(v)) for k, v in value.items())
    return value if isinstance(value, (bool, int, float, complex, str, bytes, type(None))) else _Held(value)


@dataclass(frozen=True)
class UpdatedTogether:
    """Parameters of one group that a step updates with the same numbers. They must have been updated equally often. The group is
    known by its number, because load_state_dict makes other groups. ``done``: how often the step has updated them before."""

    optimizer: Optimizer
    rule: Rule
    group: int
    updated: list[Any]
    done: int
    momentum: bool  # whether the group has some

    def switched(self) -> str:
        """What makes the arithmetic another one: momentum that is no longer 0, or is now, or betas that are tensors now. '' if nothing."""
        group = self.optimizer.param_groups[self.group]
        if bool(group.get("momentum")) is not self.momentum:
            return "whether an optimizer has momentum"
        return "betas that are tensors" if any(isinstance(beta, Tensor) for beta in group.get("betas", ())) else ""

    def counts(self) -> set[float]:
        """How often these parameters have been updated: several numbers if they differ."""
        if not self.rule.counts:
            return {0.0}
        kept = [self.optimizer.state[p]["step"] for p in self.updated]
        if len(kept) > 1 and all(type(step) is Tensor for step in kept):
            return set(torch.stack(kept).tolist())
        return set(map(float, kept))

    def numbers(self) -> dict[str, float]:
        """Those of the next step."""
        step = float(self.optimizer.state[self.updated[0]]["step"]) + 1 + self.done if self.rule.counts else 0
        return self.rule.numbers(self.optimizer.param_groups[self.group], step)


def counted(optimizer: Optimizer, updated: list[Any]) -> None:
    """After a step: counts it where an optimizer counts in Python. Others count in the plan."""
    for parameter in updated:
        step = optimizer.state[parameter].get("step") if parameter in optimizer.state else None
        if isinstance(step, int):
            optimizer.state[parameter]["step"] = step + 1
