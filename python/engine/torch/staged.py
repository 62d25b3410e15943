"""Tensors that see the calls of a step, and such calls as keys that can be compared and as templates that can be filled.

A ``Staged`` tensor belongs to an item. While the step runs with that item, calls on the tensor go through the item's
Program. For every other item, such as that of the next step where the step has kept the tensor, it is a plain tensor."""

from __future__ import annotations

import copy
import threading
from typing import Any, Iterator

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch.utils import _pytree as pytree

_NUMBERS = (bool, int, float, complex)
_CONSTANTS = (str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.memory_format, torch.layout)


class Ref:
    """The place of a staged value in the arguments of a node: the number of a node or, below zero, of a leaf."""

    __slots__ = ("node", "part")

    def __init__(self, node: int, part: int | None) -> None:
        self.node, self.part = node, part

    def value(self, leaves: list[Any], made: list[Any]) -> Any:
        """What is there for an item. LookupError if it was not made."""
        value = leaves[-1 - self.node] if self.node < 0 else made[self.node]
        value = value if self.part is None or value is None else value[self.part]
        if value is None:
            raise LookupError("an input of the node was not made")
        return value


class _Gone:
    """Stands for an item whose step is over."""

    over = True


class _AsTensor(type(Tensor)):  # type: ignore[misc]
    """A class of the program's takes no part in a call unless it derives from all classes in the call: as from Tensor, so from Staged."""

    def __subclasscheck__(cls, other: Any) -> bool:
        return other is not Tensor and type.__subclasscheck__(Tensor, other)


class Staged(Tensor, metaclass=_AsTensor):
    """A tensor made from an item alone. It is a tensor in every way; calls on it go through its Program."""

    _item: Any = _Gone()  # that of a step is an attribute of the tensor
    _at = 0
    _part: int | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if len(types) > 1 and not {Tensor, cls}.issuperset(types):  # a class of the program's has a say, and knows torch's own alone
            return func(*plain(args), **plain(kwargs or {}))
        # What Dynamo traces is compiled, and nobody sees its calls; nor is what it asks a tensor for a call of the step.
        if not torch.compiler.is_dynamo_compiling() and TracingContext.try_get() is None:
            first = _live(args)
            if first is None and kwargs:
                first = _live(tuple(kwargs.values()))
            if first is not None:
                item = first._item
                if item.thread == threading.get_ident():
                    return item.program.call(func, args, kwargs, item)
                item.program.elsewhere(func, item)
        return unseen(func, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return plain(self).__repr__(tensor_contents=tensor_contents)  # type: ignore[no-any-return]

    def __format__(self, spec: str) -> str:
        return format(plain(self), spec)

    def detach(self) -> Tensor:
        """What runs ahead of the one runs ahead of the other. torch.nn.Parameter asks for a tensor of the same class."""
        return of(unseen(Tensor.detach, (self,), None), self._item, self._at, self._part)

    @property
    def _is_param(self) -> bool:
        return False

    @_is_param.setter
    def _is_param(self, _: bool) -> None:  # torch.nn.Parameter marks what it has made so; it makes none of another class than torch's
        self.__dict__.clear()
        self.__class__ = torch.nn.Parameter  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:  # what is saved, or sent to a process, is a plain tensor
        return plain(self).__reduce_ex__(protocol)

    def __copy__(self) -> Tensor:  # which has its memory, and counts its changes by itself
        self._item.over = True  # type: ignore[attr-defined]
        return copy.copy(plain(self))  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:  # as is a copy
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        with torch._C.DisableTorchFunctionSubclass():
            if not self.is_leaf:
                return copy.deepcopy(self.as_subclass(Tensor), memo)  # raises, and says why
            with torch.no_grad():
                made = copy.deepcopy(self.as_subclass(Tensor), memo).requires_grad_(self.requires_grad)
            made.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = made
        return made


def unseen(func: Any, args: Any, kwargs: Any) -> Any:
    """The call itself, which no Staged tensor sees."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))


def plain(data: Any) -> Any:
    """The data with plain tensors for Staged ones: for compiled functions, and for what a step returns."""
    if type(data) in (Tensor, float):
        return data
    try:
        if not any(isinstance(leaf, Staged) for leaf in pytree.tree_leaves(data)):
            return data  # the very object, which the step may keep
    except RecursionError:  # it contains itself
        return data
    with torch._C.DisableTorchFunctionSubclass():
        return pytree.tree_map(_plain, data, is_leaf=_is_named)


def _is_named(data: Any) -> bool:
    return isinstance(data, tuple) and hasattr(data, "_fields")


def _plain(leaf: Any) -> Any:
    if _is_named(leaf):  # whose class may do more with its parts than to keep them, or have other attributes
        made = tuple.__new__(type(leaf), map(plain, leaf))
        if own := getattr(leaf, "__dict__", None):
            made.__dict__.update(own)
        return made
    return leaf.as_subclass(Tensor) if isinstance(leaf, Staged) else leaf


def can_be_made_anew(data: Any) -> bool:
    """Whether an item with other tensors is an item of the same kind: a named tuple's class may do more than to keep its parts."""
    return all(map(_keeps_its_parts, _tuples(data)))


def _tuples(data: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, tuple) and type(data) is not tuple:
        yield data
    if isinstance(data, (tuple, list, dict)):
        for part in data.values() if isinstance(data, dict) else data:
            yield from _tuples(part)


def _keeps_its_parts(data: tuple[Any, ...]) -> bool:
    by = getattr(type(data).__new__, "__globals__", {}).get("__name__", "")
    return not getattr(data, "__dict__", None) and (by.startswith("namedtuple_") or not _is_named(data))


def _live(args: Any) -> Staged | None:
    """The first tensor of an item that a step runs with now."""
    for arg in args:
        if isinstance(arg, Staged):
            if not arg._item.over:
                return arg
        elif isinstance(arg, (tuple, list)) and (found := _live(arg)) is not None:
            return found
    return None


def of(tensor: Tensor, item: Any, at: int, part: int | None) -> Staged:
    if not torch.is_grad_enabled():  # a view that is made so may not be changed in place where gradients are on
        with torch.enable_grad():
            return of(tensor, item, at, part)
    if type(tensor) is Tensor:
        made = tensor.as_subclass(Staged)
    else:
        with torch._C.DisableTorchFunctionSubclass():
            made = tensor.as_subclass(Staged)
    made._item, made._at, made._part = item, at, part  # type: ignore[attr-defined]
    return made  # type: ignore[return-value]


def wrapped(made: Any, item: Any, index: int) -> Any:
    if isinstance(made, (tuple, list)):
        parts = [of(t, item, index, i) for i, t in enumerate(made)]
        # A named tuple such as torch.max's keeps its class.
        return type(made)(parts) if type(made) in (tuple, list) or hasattr(made, "n_fields") else type(made)(*parts)
    return of(made, item, index, None)


def of_item(arg: Any, item: Any) -> bool:
    return isinstance(arg, Staged) and arg._item is item


def key(arg: Any, item: Any, found: list[Tensor], others: list[Tensor]) -> Any:
    """The arguments as something hashable: equal for calls that give equal results on equal items. ``found``: takes the
    tensors that are made from the item; ``others``: all other tensors, among them those of other items."""
    kind = type(arg)
    if kind is Staged and arg._item is item:
        found.append(arg)
        return Ref, arg._at, arg._part
    if arg is None:
        return arg
    if kind in _NUMBERS:
        return kind, repr(arg) if not arg or kind is complex else arg  # 0.0 and -0.0 are equal
    if kind is tuple or kind is list or kind is torch.Size:
        return kind, *[key(part, item, found, others) for part in arg]
    if isinstance(arg, Tensor):
        others.append(arg)
        return "tensor", id(arg)
    if kind is slice:
        return kind, *[key(part, item, found, others) for part in (arg.start, arg.stop, arg.step)]
    if kind is dict:
        return kind, *[(name, key(part, item, found, others)) for name, part in arg.items()]
    if isinstance(arg, _CONSTANTS):
        return arg
    raise TypeError("an argument that is no constant")


def form(args: Any, kwargs: Any, item: Any) -> Any:
    """What of a call decides whether it changes tensors: which arguments are the item's, and flags, such as inplace."""
    return (*[_form(arg, item) for arg in args], *[(name, _form(arg, item)) for name, arg in (kwargs or {}).items()])


def _form(arg: Any, item: Any) -> Any:
    if arg is True or arg is False:
        return arg
    if type(arg) is Staged and arg._item is not item:
        return Tensor
    if type(arg) is list or type(arg) is tuple:
        return type(arg), *dict.fromkeys(_form(part, item) for part in arg)
    return type(arg)


def template(arg: Any, item: Any) -> Any:
    if isinstance(arg, Staged):
        return Ref(arg._at, arg._part) if arg._item is item else plain(arg)
    if type(arg) in (tuple, list, torch.Size):
        return type(arg)(template(part, item) for part in arg) if type(arg) is not torch.Size else arg
    if type(arg) is dict:
        return {name: template(part, item) for name, part in arg.items()}
    return slice(*[template(p, item) for p in (arg.start, arg.stop, arg.step)]) if type(arg) is slice else arg


def is_same(arg: Any, given: Any, item: Any) -> bool:
    """Whether an argument is the item's at the place that a template gives, or the very object that it has there."""
    if type(given) is Ref:
        return type(arg) is Staged and arg._item is item and arg._at == given.node and arg._part == given.part
    return arg is given


def filled(arg: Any, leaves: list[Any], made: list[Any]) -> Any:
    kind = type(arg)
    if kind is Ref:
        return arg.value(leaves, made)
    if kind is tuple or kind is list:
        return kind([filled(part, leaves, made) for part in arg])
    if kind is dict:
        return {name: filled(part, leaves, made) for name, part in arg.items()}
    if kind is slice:
        return slice(*[filled(p, leaves, made) for p in (arg.start, arg.stop, arg.step)])
    return arg


def refs(arg: Any) -> Iterator[Ref]:
    if type(arg) is Ref:
        yield arg
    elif type(arg) in (tuple, list):
        for part in arg:
            yield from refs(part)
    elif type(arg) is dict:
        yield from refs(list(arg.values()))
    elif type(arg) is slice:
        yield from refs([arg.start, arg.stop, arg.step])
