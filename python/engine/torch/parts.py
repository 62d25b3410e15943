"""What modules hold of their own: parameters, buffers, modules and hooks, by name and in order, and whether they train.

Looked at before each run, so all is compared in a few calls of C."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

HELD = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_own = operator.itemgetter("training", *HELD, *HOOKS)
_values = operator.methodcaller("values")
_each = itertools.chain.from_iterable


class Parts:
    def __init__(self, modules: list[nn.Module]) -> None:
        of_torch_jit = torch.jit.ScriptModule  # whose parts lie elsewhere
        self.modules = [(m, vars(m)) for m in modules if not isinstance(m, of_torch_jit) and {*HELD, *HOOKS, "training"} <= vars(m).keys()]
        self.vars = [own for _, own in self.modules]
        self.own = list(_each(map(_own, self.vars)))
        dicts = [own[name] for own in self.vars for name in (*HELD, *HOOKS)]
        dicts += [getattr(torch.nn.modules.module, f"_global{name}") for name in HOOKS]
        self.empty, self.full = [held for held in dicts if not held], [held for held in dicts if held]
        self.sizes, self.names, self.values = list(map(len, self.full)), list(_each(self.full)), list(_each(map(_values, self.full)))
        self.before = [{name: dict(own[name]) for name in (*HELD, *HOOKS)} for own in self.vars]

    def changed(self) -> str:
        """What is no longer as it was; '' if nothing."""
        if (all(map(operator.is_, _each(map(_own, self.vars)), self.own)) and not any(self.empty)
                and list(map(len, self.full)) == self.sizes and list(_each(self.full)) == self.names
                and all(map(operator.is_, _each(map(_values, self.full)), self.values))):  # fmt: skip
            return ""
        training = self.own[:: len(HELD) + len(HOOKS) + 1]
        if any(own["training"] is not before for own, before in zip(self.vars, training)):
            return "training or evaluation of a module"
        for own, before in zip(self.vars, self.before):
            for name in HELD:
                for key in {**before[name], **own[name]}:
                    if own[name].get(key, self) is not before[name].get(key, self):
                        return f"another {'module' if name == '_modules' else 'tensor'} as '{key}'"
            if any(list(own[name]) != list(before[name]) for name in HELD):
                return "the order of a module's parts"
        return "hooks"

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
