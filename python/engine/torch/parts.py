"""What modules hold of their own: parameters, buffers, modules and hooks, by name and in order, and whether they train.

Looked at before each run; usually a glance is enough (glance.py)."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from . import glance

HELD = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Parts:
    def __init__(self, modules: list[nn.Module]) -> None:
        of_torch_jit = torch.jit.ScriptModule  # whose parts lie elsewhere
        self.modules = [(m, vars(m)) for m in modules if not isinstance(m, of_torch_jit) and {*HELD, *HOOKS, "training"} <= vars(m).keys()]
        self.shared = vars(torch.nn.modules.module)  # holds the hooks of all modules
        self.training = self.trains()
        self.tensors = [(own[n], name, t) for _, own in self.modules for n in ("_parameters", "_buffers") for name, t in own[n].items()]
        places = [(own, name) for _, own in self.modules for name in (*HELD, *HOOKS)] + [(self.shared, f"_global{name}") for name in HOOKS]
        self.held = [(own, name, own[name], dict(own[name])) for own, name in places]

    def trains(self) -> tuple[bool, ...]:
        return tuple([own["training"] for _, own in self.modules])

    def changed(self) -> str:
        """What is no longer as it was; '' if nothing."""
        if self.trains() != self.training:
            return "training or evaluation of a module"
        for own, name, held, before in self.held:
            now = own[name]
            if not (now or before):  # an empty one is as good as another
                continue
            if now is not held or list(now) != list(before) or not all(map(operator.is_, now.values(), before.values())):
                if name in HELD and (other := [n for n in {**before, **now} if now.get(n) is not before.get(n)]):
                    return f"'{other[0]}' of a module's {name[1:]}"
                return "hooks" if name not in HELD else f"a module's {name[1:]}"
        return ""

    def noted(self) -> Iterator[glance.Place]:
        """All that changed() looks at."""
        for _, own in self.modules:
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
