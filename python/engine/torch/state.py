"""The state of a step: the parameters and buffers of its modules and what its optimizers keep; found, checked, swapped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .calls import Unsupported
from .optimizers import rule_of, settings


def reached(step: Callable[..., Any], kind: type) -> list[Any]:
    """The objects of a kind that the function reaches: itself, its closure, its globals, the object it is a method of and
    the attributes of that, defaults, and what is in lists, tuples and dicts there."""
    function = getattr(step, "__func__", step)
    if not hasattr(function, "__code__"):
        function = getattr(type(step), "__call__", None)
    places = [step, getattr(step, "__self__", None)]
    owner = getattr(step, "__self__", step)
    places += list(vars(owner).values()) if hasattr(owner, "__dict__") and not isinstance(owner, nn.Module) else []
    code = getattr(function, "__code__", None)
    if code is not None:
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # not bound yet
                places.append(cell.cell_contents)
        places += [function.__globals__.get(name) for name in _names(code)]
        places += list(function.__defaults__ or ())
    found: dict[int, Any] = {}
    for place in places:
        for item in _items(place):
            if isinstance(item, kind):
                found.setdefault(id(item), item)
            elif callable(item) and hasattr(item, "__closure__") and item is not function:
                for cell in item.__closure__ or ():
                    with contextlib.suppress(ValueError):
                        if isinstance(cell.cell_contents, kind):
                            found.setdefault(id(cell.cell_contents), cell.cell_contents)
    return list(found.values())


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names(constant)


def _items(place: Any) -> Iterator[Any]:
    if isinstance(place, (list, tuple)):
        yield from place
    elif isinstance(place, dict):
        yield from place.values()
    else:
        yield place


class State:
    """Every tensor that lasts from step to step, once, with the place that it is found in."""

    def __init__(self, modules: list[nn.Module], optimizers: list[Optimizer]) -> None:
        self.modules, self.optimizers = modules, optimizers
        self.rules = [rule_of(o) for o in optimizers]
        self.tensors: list[torch.Tensor] = []
        self.number: dict[int, int] = {}  # id of a tensor -> its number
        self.places: list[tuple[Any, Any, torch.Tensor]] = []  # (dict, key, tensor)
        self.parts = list({id(m): m for module in modules for m in module.modules()}.values())
        for part in self.parts:
            for held in (part._parameters, part._buffers):
                for name, tensor in held.items():
                    if tensor is not None:
                        self._add(held, name, tensor)
        self.members = len(self.places)  # those that tracing swaps
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in self.number:
                        raise Unsupported("an optimizer has a parameter of no module that the step reaches; "
                                          "name the modules: compile_step(step, modules=[...])")  # fmt: skip
                    kept = optimizer.state.get(parameter, {})
                    for name, tensor in kept.items():
                        if isinstance(tensor, torch.Tensor):
                            self._add(kept, name, tensor)
        self.fixed = self._fixed()

    def _add(self, held: Any, name: Any, tensor: torch.Tensor) -> None:
        self.places.append((held, name, tensor))
        if id(tensor) not in self.number:
            self.number[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)

    def _fixed(self) -> tuple[Any, ...]:
        cpu = torch.is_autocast_enabled("cpu")
        return ([m.training for m in self.parts], [t.requires_grad for t in self.tensors],
                [settings(o) for o in self.optimizers], cpu and torch.get_autocast_dtype("cpu"))  # fmt: skip

    def changed(self) -> str:
        """What is no longer as when the step was captured; '' if nothing."""
        for held, name, tensor in self.places:
            if held.get(name) is not tensor:
                return f"'{name}' is another tensor"
        if (now := self._fixed()) != self.fixed:
            names = ("training or evaluation of a module", "which tensors require gradients", "an optimizer's settings", "autocast")
            return next(n for n, a, b in zip(names, self.fixed, now) if a != b)
        return ""

    @contextlib.contextmanager
    def swapped(self, tensors: list[torch.Tensor]) -> Iterator[None]:
        """While it lasts, modules and optimizers hold these tensors instead."""
        try:
            for held, name, tensor in self.places:
                held[name] = tensors[self.number[id(tensor)]]
            yield
        finally:
            for held, name, tensor in self.places:
                held[name] = tensor
