"""What a call of a step does besides its result: the memory that it changes, and whether it draws random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from . import generators
from .calls import changed
from .unchanged import storage

_OF_TORCH = ("aten", "prims", "prim", "torchvision", "profiler")


class Effects(TorchDispatchMode):
    """Notes whether a call changes memory that it did not make, or draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()
        self.made: set[int] = set()
        self.random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        given = [args[i] if i < len(args) else kwargs.get(argument.name) for i, argument in enumerate(schema.arguments)]
        for value in changed(schema, given):
            self.written |= {storage(t) for t in pytree.tree_leaves(value) if isinstance(t, Tensor)}
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        before = {storage(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        states = None if func.namespace in _OF_TORCH else generators.states()  # an op of the program's may draw by other means
        made = func(*args, **kwargs)
        self.random |= states is not None and bool(generators.drawn_from(states))
        self.made |= {storage(t) for t in pytree.tree_leaves(made) if isinstance(t, Tensor)} - before
        return made

    @property
    def outside(self) -> bool:
        return bool(self.written - self.made)


def with_effects(func: Any, args: Any, kwargs: Any) -> tuple[Any, Effects]:
    with torch._C.DisableTorchFunctionSubclass(), Effects() as effects:
        return func(*args, **(kwargs or {})), effects
