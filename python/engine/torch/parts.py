"""What modules hold of their own: parameters, buffers, modules and hooks, by name and in order, and whether they train.

Looked at before each run, so what grows with the number of modules is compared in a few calls of C, as far as that goes."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

HELD = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_training = operator.itemgetter("training")
_each = itertools.chain.from_iterable


class Parts:
    def __init__(self, modules: list[nn.Module]) -> None:
        of_torch_jit = torch.jit.ScriptModule  # whose parts lie elsewhere
        self.modules = [(m, vars(m)) for m in modules if not isinstance(m, of_torch_jit) and {*HELD, *HOOKS, "training"} <= vars(m).keys()]
        self.vars = [own for _, own in self.modules]
        self.training = list(map(_training, self.vars))
        self.tensors = [(own[n], name, t) for own in self.vars for n in ("_parameters", "_buffers") for name, t in own[n].items()]
        self.dicts = [own[name] for own in self.vars for name in HELD]
        self.sizes = list(map(len, self.dicts))
        self.inside = [own["_modules"] for own in self.vars if own["_modules"]]
        self.names, self.values = list(_each(self.inside)), self._values()
        hooks = [(own, name) for own in (*self.vars, vars(torch.nn.modules.module)) for name in HOOKS]
        hooks = [(own, name if name in own else f"_global{name}") for own, name in hooks]
        self.no_hooks = [own[name] for own, name in hooks if not own[name]]
        self.hooks = [(own, name, own[name], list(own[name].items())) for own, name in hooks if own[name]]

    def _values(self) -> list[Any]:
        return list(_each(held.values() for held in self.inside))

    def changed(self) -> str:
        """What is no longer as it was; '' if nothing."""
        for held, name, tensor in self.tensors:
            if held.get(name) is not tensor:
                return f"another tensor as '{name}'"
        if list(map(_training, self.vars)) != self.training:
            return "training or evaluation of a module"
        if list(map(len, self.dicts)) != self.sizes:
            return "what a module holds"
        if list(_each(self.inside)) != self.names or not all(map(operator.is_, self._values(), self.values)):
            return "another module inside of one"
        if any(self.no_hooks) or any(own[name] is not held or list(held.items()) != before for own, name, held, before in self.hooks):
            return "hooks"
        return ""

    def places(self) -> Iterator[tuple[str, Any, Any]]:
        """Where values are found: whose they are, what reads them, what writes them."""
        for module, own in self.modules:
            for name in (*HELD, *HOOKS):
                yield self._place(f"{'the hooks' if name in HOOKS else name[1:]} of {type(module).__qualname__}", own, name)

            def train(before: dict[str, bool], own: dict[str, Any] = own) -> None:
                own.update(before)

            yield type(module).__qualname__, lambda own=own: {"training": own["training"]}, train

    @staticmethod
    def _place(owner: str, own: dict[str, Any], name: str) -> tuple[str, Any, Any]:
        held = own[name]

        def write(before: dict[Any, Any]) -> None:
            own[name] = held
            held.clear()
            held.update(before)

        return owner, lambda: dict(own[name]), write
