"""A call of a step that runs ahead of it, as a node of the program (ahead.py): with what it is made, and whether a call is that one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import Tensor

from . import staged
from .staged import filled

if TYPE_CHECKING:
    from .item import Item


class Node:
    """``places``: what it is given of the item, nodes and, below zero, leaves; ``inputs``: the nodes among them; ``leaves``: the
    leaves of the item that it is made from. ``kinds``: the dtypes of what it makes. ``fresh``: that has memory of its own.
    ``key``: by which its call is found; ``kind``: that of the call. ``unused``: how many steps in a row have left its result alone;
    ``taken``: whether one has ever taken it. Of a node that sleeps, ``called``: the last step that made its call; ``why``: why it sleeps."""

    __slots__ = ("func", "args", "kwargs", "name", "outside", "unused", "moves", "places", "inputs", "leaves", "kinds", "fresh",
                 "key", "kind", "taken", "called", "why", "_base", "_refs")  # fmt: skip

    def __init__(self, func: Callable[..., Any], args: Any, kwargs: Any, outside: list[Tensor], made: Any, before: list[Any],
                 moves: bool, fresh: bool, key: Any, kind: Any) -> None:  # fmt: skip
        self.key, self.kind, self.taken, self.called, self.why = key, kind, False, 0, ""
        self.places = {ref.node for ref in staged.refs((args, kwargs))}
        self.inputs = {at for at in self.places if at >= 0}
        self.leaves = {-1 - at for at in self.places if at < 0}.union(*(before[at].leaves for at in self.inputs if before[at]))
        self.func, self.args, self.kwargs, self.outside, self.moves, self.fresh = func, args, kwargs, outside, moves, fresh
        self.name, self.unused, self.kinds = name_of(func), 0, _kinds(made)
        # The arguments with what is the same for all items, and the places of the rest; None: some are in containers.
        self._base = list(args)
        flat = all(type(arg) is staged.Ref or not any(staged.refs((arg,))) for arg in args)
        self._refs = [(at, arg) for at, arg in enumerate(args) if type(arg) is staged.Ref] if flat else None

    def given(self, leaves: list[Any], made: list[Any]) -> Any:
        """The arguments for an item. LookupError: one of them was not made."""
        if self._refs is None:
            return filled(self.args, leaves, made)
        args = self._base.copy()
        for at, ref in self._refs:
            args[at] = ref.value(leaves, made)
        return args

    def asked(self, func: Callable[..., Any], args: Any, kwargs: Any, item: Item) -> bool:
        """Whether a call of the step is the node's, told at a glance. Constants must be the same objects, as those of a line of
        Python are in each step; so False says nothing."""
        if func != self.func or len(args) != len(self.args) or len(kwargs or ()) != len(self.kwargs):
            return False
        if not all(map(staged.is_same, args, self.args, itertools.repeat(item))):
            return False
        return all(name in kwargs and staged.is_same(kwargs[name], same, item) for name, same in self.kwargs.items())

    def gives_alike(self, made: Any, args: Any, kwargs: Any) -> bool:
        """Whether what a call has made may stand for what the step's call would: of the same kinds, without a gradient, with changes that
        PyTorch counts, and with memory of its own if that of the step had."""
        parts = parts_of(made)
        if len(parts) != len(self.kinds):
            return False
        for part, kind in zip(parts, self.kinds):
            if not isinstance(part, Tensor) or part.dtype != kind or part.requires_grad or part.is_inference():
                return False
        return not (self.fresh and _shares(parts, args, kwargs))


def parts_of(made: Any) -> Any:
    """What a call has made, one by one."""
    return made if isinstance(made, (tuple, list)) else (made,)


def _kinds(made: Any) -> list[Any]:
    with torch._C.DisableTorchFunctionSubclass():
        return [t.dtype if isinstance(t, Tensor) else None for t in parts_of(made)]


def _shares(parts: Any, args: Any, kwargs: Any) -> bool:
    """Whether one of the tensors that a call has made is a view, or an argument, as what ``contiguous`` gives may be."""
    given = [args, kwargs.values(), *[arg for arg in args if type(arg) is list or type(arg) is tuple]]
    return any(t._is_view() or any(t is arg for each in given for arg in each) for t in parts)


def waves(nodes: list[Node | None]) -> list[list[int]]:
    """The nodes in groups: those of a group need only nodes of groups before it."""
    depth = [-1] * len(nodes)  # of nodes that do not run
    groups: list[list[int]] = []
    for i, node in enumerate(nodes):
        if node is not None:
            depth[i] = 1 + max((depth[at] for at in node.inputs), default=-1)
            if depth[i] == len(groups):
                groups.append([])
            groups[depth[i]].append(i)
    return groups


def name_of(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    return getattr(getattr(func, "__self__", None), "__name__", name) if name == "__get__" else name
