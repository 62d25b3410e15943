"""What modules hold of their own: parameters, buffers, modules and hooks, by name and in order, and whether they train.

Looked at before each run; usually a glance is enough (glance.py)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import glance

HELD = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True)
class Place:
    """Where values are found: whose they are; ``read()`` gives them by name, and ``write`` puts them back."""

    owner: str
    read: Callable[[], dict[Any, Any]]
    write: Callable[[dict[Any, Any]], Any]


def refill(held: Any, before: dict[Any, Any]) -> None:
    """Makes a dict what it was."""
    held.clear()
    held.update(before)


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
                yield from glance.held_by(own, name)
        for name in HOOKS:
            yield from glance.held_by(self.shared, f"_global{name}")

    def places(self) -> Iterator[Place]:
        for module, own in self.modules:
            for name in (*HELD, *HOOKS):
                yield _of(own, name, f"{'the hooks' if name in HOOKS else name[1:]} of {type(module).__qualname__}")
            yield Place(type(module).__qualname__, lambda own=own: {"training": own["training"]}, own.update)  # type: ignore[misc]


def _of(own: dict[str, Any], name: str, owner: str) -> Place:
    held = own[name]

    def write(before: dict[Any, Any]) -> None:
        own[name] = held
        refill(held, before)

    return Place(owner, lambda: dict(own[name]), write)
