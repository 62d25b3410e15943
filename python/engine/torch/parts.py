"""What modules hold of their own: parameters, buffers, modules and hooks, by name and in order, and whether they train.

Looked at before each run, so what grows with the number of modules is compared in a few calls of C, as far as that goes."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from . import glance

HELD = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_parts = operator.itemgetter("training", *HELD, *HOOKS)
_shared = operator.itemgetter(*(f"_global{name}" for name in HOOKS))
_each = itertools.chain.from_iterable


class Parts:
    def __init__(self, modules: list[nn.Module]) -> None:
        of_torch_jit = torch.jit.ScriptModule  # whose parts lie elsewhere
        self.modules = [(m, vars(m)) for m in modules if not isinstance(m, of_torch_jit) and {*HELD, *HOOKS, "training"} <= vars(m).keys()]
        self.vars = [own for _, own in self.modules]
        self.shared = vars(torch.nn.modules.module)  # holds the hooks of all modules
        self.parts = self._parts()
        self.tensors = [(own[n], name, t) for own in self.vars for n in ("_parameters", "_buffers") for name, t in own[n].items()]
        held = [(own, name) for own in self.vars for name in HELD]
        hooks = [(own, name) for own in self.vars for name in HOOKS] + [(self.shared, f"_global{name}") for name in HOOKS]
        self.empty = [own[name] for own, name in (*held, *hooks) if not own[name]]
        # By name: those that hold something, whose they are, and how much.
        self.filled = {name: [own for own, n in held if n == name and own[name]] for name in HELD}
        self.dicts = {name: [own[name] for own in of] for name, of in self.filled.items()}
        self.sizes = {name: list(map(len, dicts)) for name, dicts in self.dicts.items()}
        self.inside = self.dicts["_modules"]
        self.names, self.values = list(_each(self.inside)), self._values()
        self.hooks = [(own, name, own[name], list(own[name].items())) for own, name in hooks if own[name]]

    def _parts(self) -> list[tuple[Any, ...]]:
        return [*map(_parts, self.vars), _shared(self.shared)]

    def _values(self) -> list[Any]:
        return list(_each(held.values() for held in self.inside))

    def changed(self) -> str:
        """What is no longer as it was; '' if nothing."""
        for name, dicts in self.dicts.items():
            if not all(map(operator.is_, map(operator.itemgetter(name), self.filled[name]), dicts)) or list(map(len, dicts)) != self.sizes[name]:
                return "what a module holds"
        for held, name, tensor in self.tensors:
            if held.get(name) is not tensor:
                return f"another tensor as '{name}'"
        if list(_each(self.inside)) != self.names or not all(map(operator.is_, self._values(), self.values)):
            return "another module inside of one"
        if any(own[name] is not held or list(held.items()) != before for own, name, held, before in self.hooks):
            return "hooks"
        # What is left are empty dicts, and what the program may have put in the place of one. A dict is equal to itself without a look
        # into it, so only those in a place of another are compared by what they hold.
        if any(self.empty) or self._parts() != self.parts:
            return "training or evaluation of a module, what a module holds, or hooks"
        return ""

    def noted(self) -> Iterator[glance.Place]:
        """All that changed() looks at."""
        for own in self.vars:
            yield glance.ITEM, own, "training", own["training"]
            for name in (*HELD, *HOOKS):
                yield glance.ITEM, own, name, own[name]
                yield glance.items(own[name])
        for name in (f"_global{name}" for name in HOOKS):
            yield glance.ITEM, self.shared, name, self.shared[name]
            yield glance.items(self.shared[name])

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
