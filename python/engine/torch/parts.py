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
PARTS = ("training", *HELD, *HOOKS)
_parts, _values = operator.itemgetter(*PARTS), operator.methodcaller("values")
_shared = operator.itemgetter(*(f"_global{name}" for name in HOOKS))
_each = itertools.chain.from_iterable


class Parts:
    def __init__(self, modules: list[nn.Module]) -> None:
        of_torch_jit = torch.jit.ScriptModule  # whose parts lie elsewhere
        self.modules = [(m, vars(m)) for m in modules if not isinstance(m, of_torch_jit) and {*HELD, *HOOKS, "training"} <= vars(m).keys()]
        self.vars = [own for _, own in self.modules]
        self.shared = vars(torch.nn.modules.module)  # holds the hooks of all modules
        self.own = list(self._own())  # also which dicts they are, because the program may put another in the place of one
        self.tensors = [(own[n], name, t) for own in self.vars for n in ("_parameters", "_buffers") for name, t in own[n].items()]
        held = [own[name] for own in self.vars for name in HELD]
        hooks = [own[name] for own in self.vars for name in HOOKS] + list(_shared(self.shared))
        self.empty = [parts for parts in (*held, *hooks) if not parts]
        self.filled = [parts for parts in held if parts]
        self.sizes, self.names, self.values = list(map(len, self.filled)), list(_each(self.filled)), list(self._values())
        self.hooks = [(each, list(each.items())) for each in hooks if each]

    def _own(self) -> Iterator[Any]:
        return itertools.chain(_each(map(_parts, self.vars)), _shared(self.shared))

    def _values(self) -> Iterator[Any]:
        return _each(map(_values, self.filled))

    def changed(self) -> str:
        """What is no longer as it was; '' if nothing."""
        if not all(map(operator.is_, self._own(), self.own)):
            if [own["training"] for own in self.vars] != self.own[: len(self.vars) * len(PARTS) : len(PARTS)]:
                return "training or evaluation of a module"
            return "what a module holds, or hooks"
        if any(self.empty) or list(map(len, self.filled)) != self.sizes:
            return "what a module holds, or hooks"
        if list(_each(self.filled)) != self.names or not all(map(operator.is_, self._values(), self.values)):
            return "another tensor or module inside of one"
        if any(list(each.items()) != before for each, before in self.hooks):
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
