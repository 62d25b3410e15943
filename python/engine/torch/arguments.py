"""The arguments of a step, taken apart into leaves and put together again, and what tells two calls apart.

An argument must be something that shows its changes: a tensor, whose data each run reads, or a constant, which is compared
by its value. Anything else, such as a NumPy array, may hold other data in the next call, and nobody would notice."""

from __future__ import annotations

import dataclasses
import enum
import numbers
from collections import UserDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import TreeSpec, is_namedtuple_class, tree_flatten, tree_unflatten

from . import adapter
from .refusals import Unsupported
from .staged import plain

ALWAYS = (torch.Tensor, nn.Module, Optimizer)  # told apart by which they are; what they hold is looked at elsewhere
_SHORT = {type(None), bool, int, str, bytes, type(Ellipsis), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, range}
_PLAIN = _SHORT | {torch.Tensor, nn.Parameter, float, complex}
ALLOWED = ("tensors, numbers, strings, None, types, modules and optimizers, in tuples, lists, dicts, named tuples, dataclasses and "
           "UserDicts, are allowed")  # fmt: skip


_TENSORS = {torch.Tensor, nn.Parameter}


class Unseen:
    """What a subclass of UserDict keeps besides its items and constants. Its changes are not followed, so a step that looks at
    it while it is captured does not find it, and is not captured."""

    def __init__(self, value: Any) -> None:
        self.value = value


_LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
LEFT_OUT = object()  # the leaf of an attribute that an object is made without


@dataclass(frozen=True)
class Opened:
    """An object among the leaves whose attributes are arguments of their own: a dataclass, or a UserDict."""

    place: int
    kind: type
    names: tuple[str, ...]
    parts: Spec

    def closed(self, leaves: list[Any]) -> Any:
        made = object.__new__(self.kind)
        for name, value in zip(self.names, self.parts.closed(leaves)):
            if value is not LEFT_OUT:
                object.__setattr__(made, name, value.value if type(value) is Unseen else value)  # also where it is frozen
        return made


@dataclass(frozen=True)
class Spec:
    """How leaves are put together. Equal for arguments of one structure."""

    outer: TreeSpec
    opened: tuple[Opened, ...] = ()
    count: int = 0  # leaves, those of opened objects among them

    def closed(self, leaves: list[Any]) -> Any:
        if not self.opened:
            return tree_unflatten(leaves, self.outer)
        left, out = list(leaves), []
        opened = {o.place: o for o in self.opened}
        for place in range(self.outer.num_leaves):
            if place in opened:
                count = opened[place].parts.count
                out.append(opened[place].closed(left[:count]))
                del left[:count]
            else:
                out.append(left.pop(0))
        return tree_unflatten(out, self.outer)


def flat(data: Any) -> tuple[list[Any], Spec]:
    """The leaves of the data, and how they are put together. Unsupported for data that contains itself."""
    try:
        return _flat(data)
    except RecursionError:
        raise Unsupported("data that contains itself") from None


def _is_size(data: Any) -> bool:
    """Of a torch.Size torch would make a tuple."""
    return type(data) is torch.Size


def _flat(data: Any) -> tuple[list[Any], Spec]:
    leaves, outer = tree_flatten(data, is_leaf=_is_size)
    if all(type(leaf) in _PLAIN for leaf in leaves):
        return leaves, Spec(outer, (), len(leaves))
    out: list[Any] = []
    opened: list[Opened] = []
    for place, leaf in enumerate(leaves):
        attributes = _attributes(leaf)
        if attributes is None:
            out.append(leaf)
            continue
        parts, spec = _flat(tuple(attributes.values()))
        opened.append(Opened(place, type(leaf), tuple(attributes), spec))
        out += parts
    return out, Spec(outer, tuple(opened), len(out))


_structures: dict[Any, Spec] = {}
_named: set[type] = set()  # named tuples that have been met
_MOST = 256  # of each of these


def taken_apart(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Spec, Any]:
    """The leaves of a call, how they are put together, and what tells its structure from that of another call."""
    native = adapter.load()
    usual = native and native.flatten((args, kwargs), _PLAIN, _named)
    if not usual:
        plainly = plain(given := (args, kwargs))
        if plainly is not given:  # a smart_stage sees no call that is made in a run
            return taken_apart(*plainly)
        leaves, spec = flat(given)
        named = {kind for kind in kinds_of(spec) if is_namedtuple_class(kind) and kind.__iter__ is tuple.__iter__}
        if native is None or named <= _named:
            return leaves, spec, spec
        if len(_named | named) > _MOST:
            _named.clear()
        _named.update(named)
        usual = native.flatten((args, kwargs), _PLAIN, _named)  # else the next call would seem to be of another structure
        if not usual:
            return leaves, spec, spec
    leaves, how = usual
    spec = _structures.get(how)
    if spec is None:
        if len(_structures) >= _MOST:
            _structures.clear()
        spec = _structures[how] = flat((args, kwargs))[1]
    return leaves, spec, how


def kinds_of(spec: Spec) -> list[type]:
    """The program's classes among the arguments: of dataclasses and UserDicts, and of named tuples."""
    kinds = [o.kind for o in spec.opened] + [kind for o in spec.opened for kind in kinds_of(o.parts)]
    todo = [spec.outer]
    while todo:
        at = todo.pop()
        if at.type is not None and isinstance(at.context, type):  # a named tuple's
            kinds.append(at.context)
        todo += at.children()
    return kinds


def _attributes(leaf: Any) -> dict[str, Any] | None:
    """What an object with parts is made of; None: it is no such object."""
    if isinstance(leaf, UserDict):
        return {n: v if n == "data" or type(v) in _PLAIN else Unseen(v) for n, v in vars(leaf).items()}
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, (type, dict, list, tuple, set, *ALWAYS)):
        return None
    slots = {f.name: getattr(leaf, f.name) for f in dataclasses.fields(leaf) if hasattr(leaf, f.name)}
    return slots | getattr(leaf, "__dict__", {})


def signature(leaf: Any) -> Any:
    """Equal for leaves with which a step does the same. Unsupported for what may change unseen."""
    if isinstance(leaf, torch.Tensor):
        if type(leaf) not in _TENSORS:
            raise Unsupported(f"an argument of the tensor class {type(leaf).__qualname__}, which a capture cannot stand in for")
        if named := [name for name in leaf.__dict__ if not name.startswith("_dynamo")]:
            raise Unsupported(f"an argument that has an attribute '{named[0]}' of the program's, which may change unseen; give it as an argument")
        if leaf.is_nested or leaf.layout not in _LAYOUTS:
            raise Unsupported(f"an argument that is a {'nested tensor' if leaf.is_nested else leaf.layout}, which a capture cannot stand in for")
        if leaf.requires_grad and not leaf.is_leaf and torch.is_grad_enabled():
            raise Unsupported("an argument that was computed from what requires gradients, to which a run would send none; detach it, or "
                              "compute it inside of the step")  # fmt: skip
        strides = leaf.stride() if leaf.layout is torch.strided else (leaf._nnz(), leaf.layout is torch.sparse_coo and leaf.is_coalesced())
        return (type(leaf), leaf.shape, strides, leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_conj(), leaf.is_neg())
    kind = type(leaf)
    if kind is Unseen:
        return kind
    if kind in _SHORT or isinstance(leaf, (enum.Enum, type, *ALWAYS)):
        return (kind, leaf)
    if isinstance(leaf, numbers.Number):
        return (kind, repr(leaf))  # 0.0 and -0.0 are equal, and no NaN is
    raise Unsupported(f"an argument of type {kind.__module__}.{kind.__qualname__}, which may change unseen; {ALLOWED}")


def signatures(leaves: list[Any]) -> tuple[Any, ...]:
    """Equal for calls with which a step does the same. Unsupported for what may change unseen."""
    native = adapter.load()
    if native is None:
        return repeated(leaves), *map(signature, leaves)
    return native.signatures(leaves, _TENSORS, signature)


def returnable(value: Any) -> None:
    """Unsupported for what a captured step returns that is no tensor, unless it is a constant."""
    try:
        if type(value) is Unseen:
            raise Unsupported("")
        signature(value)
    except Unsupported:
        raise Unsupported(f"it returns a {type(value).__qualname__}; {ALLOWED}") from None


def repeated(leaves: list[Any]) -> tuple[int, ...]:
    """For each leaf, the place at which the same object comes first. Empty if all tensors are different objects."""
    ids = [id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return () if len(set(ids)) == len(ids) else tuple(map(ids.index, ids))
