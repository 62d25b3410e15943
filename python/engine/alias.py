"""Aliases: data that shares memory with other data that the engine orders.

Two Vars for one piece of memory would order nothing. So data that shares memory with a Value's gets its Var or is copied; and an
output that shares memory with its op's arguments, with another output or with some Value, or that somebody else has, too, is copied
when its op ends: then it means the same under every policy, however late it is looked at.

What this costs a call: nothing for numbers, texts and None; for an array, or a container of arrays and numbers, that nobody but the
call knows, a look at its reference counts and an entry in a list (python/src/memory.cc, which is looked through only when somebody
asks what lies at an address); for a tensor of PyTorch's that nobody but the call knows, some 2 us (python/src/tensors.cc); for all else, 5
to 40 us in ``unshared``, and the copy. An op that updates a container looks at each part
of it that may have memory, in less than 0.1 us, if another argument may have some (python/src/op_stored.cc).
"""

from __future__ import annotations

import copy
import functools
import sys
from collections import deque
from typing import Any, Callable

from . import _core
from .containers import mapped, put_objects
from .extents import PLAIN, Extent, extents, fixed, leaves, loaded, memory_of, objects_in, overlap


def copied(item: Any) -> Any:
    """A copy with memory of its own of a tensor, array, buffer or what exports one; of anything else a deep copy. An object that
    never changes, or that cannot be copied, is returned itself.
    """
    torch = loaded("torch", "Tensor")
    if torch is not None and isinstance(item, torch.Tensor):
        layout = {"memory_format": torch.preserve_format} if item.layout is torch.strided else {}
        if not item.is_leaf:
            return item.clone()
        made = item.detach().clone(**layout).requires_grad_(item.requires_grad)
        made = torch.nn.Parameter(made, item.requires_grad) if type(item) is torch.nn.Parameter else made
        if item.grad is not None:
            made.grad = copied(item.grad)
        return made
    if torch is not None and isinstance(item, (torch.UntypedStorage, torch.TypedStorage)):
        return item.clone()
    if isinstance(item, memoryview):
        return _copied_view(item)
    numpy = loaded("numpy", "ndarray")
    if numpy is not None and isinstance(item, numpy.ndarray):
        return item.copy(order="K") if type(item) is numpy.ndarray else item.copy()
    if numpy is not None and isinstance(item, numpy.flatiter):
        return copied(item.base).flat
    where = extents(item)
    if where is not None:
        made = copy.copy(item)
        return copy.deepcopy(item) if where and overlap(where, extents(made) or []) else made
    if fixed(item):
        return item
    try:
        return copy.deepcopy(item)
    except Exception:  # a file, a lock, a socket: there can be only one
        return item


def _copied_view(view: memoryview) -> memoryview:
    made = memoryview(bytearray(view.tobytes()))
    return made if view.format == "B" and view.ndim == 1 else made.cast(view.format, view.shape)  # type: ignore[call-overload]


def _is_container(kind: type) -> bool:
    return issubclass(kind, (list, tuple, dict, set, frozenset, deque)) or hasattr(kind, "__dataclass_fields__")


def _may_change(kind: type) -> bool:
    """Whether containers of this kind can be changed in place."""
    return not issubclass(kind, (tuple, frozenset)) and not (hasattr(kind, "__dataclass_params__") and kind.__dataclass_params__.frozen)


def changeable(item: Any) -> bool:
    """Whether it is a container, an array of NumPy's or a bytearray, which can be changed in place."""
    kind, numpy = type(item), loaded("numpy", "ndarray")
    return (
        _is_container(kind) and _may_change(kind)
        or issubclass(kind, bytearray)
        or numpy is not None and issubclass(kind, numpy.ndarray)
    )  # fmt: skip


def _remade(item: Any, change: Callable[[Any], Any]) -> Any:
    """As ``mapped``, and also for sets and deques: the container with ``change(part)`` for each part, or itself."""
    kind = type(item)
    if not issubclass(kind, (set, frozenset, deque)):
        return mapped(item, change)
    old = list(item)
    new = [change(part) for part in old]
    if all(one is other for one, other in zip(new, old)):
        return item
    if not issubclass(kind, deque):
        return kind(new)
    made = copy.copy(item)  # which keeps its bound
    made.clear()
    made.extend(new)
    return made


def apart(data: Any) -> Any:
    """A copy that shares no array, buffer, container or other object that may change with ``data``."""
    kind = type(data)
    if kind in PLAIN:
        return data
    if not _is_container(kind):
        return copied(data) if objects_in(data) is None else _own_objects(data)
    made = _remade(data, apart)
    return copy.copy(data) if made is data and _may_change(kind) else made


def _own_objects(array: Any) -> Any:
    made = _remade(array, apart)
    return array.copy() if made is array else made


_core._set_memory_of(memory_of)


def found(where: list[Extent], engine: Any) -> list[Any]:
    """The Values of the engine whose memory lies there."""
    # Compared with what they have now: an op may just be changing a container, whose parts of before are gone.
    return [value for value in _core._values_at(where) if value.var.engine == engine and overlap(where, memory_of(value._data))]


def sharing(some: list[tuple[str, Any]], others: list[tuple[str, Any]]) -> tuple[str, str] | None:
    """What the first two of these are called that share memory; None: none do. Each is (what it is called, the data)."""
    where = [(title, memory_of(data)) for title, data in others]
    for title, data in some if where else ():
        memory = memory_of(data)
        for other, taken in where:
            if overlap(memory, taken):
                return title, other
    return None


def unshared(outputs: tuple[Any, ...], arguments: list[Any], values: list[Any], held: set[int]) -> tuple[Any, ...]:
    """The outputs; what shares memory with one of the arguments, an earlier output or a Value is copied, and so are containers and
    other objects that are arguments or parts of them. The extension calls it.

    ``values``: data whose Vars the outputs name, so that they may share its memory. ``held``: ids of parts of the outputs that
    somebody else has, too: containers, arrays and buffers among them are copied.
    """
    taken: list[Extent] = []
    containers: set[int] = set()  # and objects that have no memory that can be found, and are those of Values
    kept: list[Any] = [outputs]  # so that the ids stay those of these objects
    changing: list[Extent] = []
    seen: set[int] = set()
    for argument in arguments:
        for leaf in leaves(argument, seen, changing):
            kept.append(leaf)
            taken += extents(leaf) or []
    containers.update(at for _, at, _ in changing)
    allowed = memory_of(values)
    elsewhere = _of_values_at(memory_of(outputs), allowed)
    containers.update(at for space, at, _ in elsewhere if space == "id")

    def fresh(item: Any, shared: bool) -> Any:
        kind = type(item)
        if kind in PLAIN:
            return item
        shared = shared or id(item) in held
        objects = None
        if _is_container(kind) or (objects := objects_in(item)) is not None:
            made = _remade(item, lambda part: fresh(part, shared))
            if objects is not None:
                return memory_of_its_own(item, shared) if made is item else noted(made, extents(made) or [])
            if made is item and _may_change(kind) and (shared or id(item) in containers):
                made = copy.copy(item)
            if _may_change(kind):
                new_containers.add(id(made))
            kept.append(made)
            return made
        return memory_of_its_own(item, shared)

    def memory_of_its_own(item: Any, shared: bool) -> Any:
        if isinstance(item, bytearray) and id(item) in containers:  # it is empty
            return item.copy()
        where = extents(item)
        if not where:
            if id(item) in containers and not fixed(item):
                item = copied(item)
            if where is None and not fixed(item):
                new_containers.add(id(item))
            kept.append(item)
            return item
        kind = type(item)
        if not (overlap(where, taken) or overlap(where, elsewhere)):
            if overlap(where, allowed):
                return item  # ordered by the Vars of what it lies in, as are other outputs that do
            if not (_copies(kind) and (shared or _is_kept(item))):
                return noted(item, where)
        item = copied(item)
        return noted(item, extents(item) or [])

    def noted(item: Any, where: list[Extent]) -> Any:
        here.extend(where)
        kept.append(item)
        return item

    made = []
    try:
        for output in outputs:
            here: list[Extent] = []
            new_containers: set[int] = set()
            try:
                made.append(fresh(output, False))
            except RecursionError:  # it contains itself
                made.append(copy.deepcopy(output))
            if not values:  # else the outputs name common Vars
                taken += here
                containers |= new_containers
    finally:
        del fresh  # it refers to itself, so only the garbage collector would free what it has kept
    return tuple(made)


def separated(parts: list[tuple[Any, Any, Any]], arguments: list[Any]) -> None:
    """Puts copies in the places of those parts that share memory with an argument. The extension calls it, with what an op has put
    into a container that it updates.

    ``parts``: of each the container, its index or key there or the name of its field, and the part itself.
    """
    taken = memory_of(arguments)
    for container, key, part in parts:
        if not overlap(memory_of(part), taken):
            continue
        made = apart(part)
        if isinstance(container, set):
            container.discard(part)
            container.add(made)
        elif isinstance(container, (list, dict, deque)):
            container[key] = made
        elif objects_in(container) is not None:
            put_objects(container, [(key, made)])
        else:
            object.__setattr__(container, key, made)


_core._set_separated(separated)


def _copies(kind: type) -> bool:
    """Whether data of this kind are an array or a buffer of Python's own, NumPy's or PyTorch's, which a copy may stand for."""
    numpy, torch = loaded("numpy", "ndarray"), loaded("torch", "Tensor")
    return (
        issubclass(kind, (bytearray, memoryview))
        or kind.__module__ == "array"
        or numpy is not None and issubclass(kind, (numpy.ndarray, numpy.void, numpy.flatiter))
        or torch is not None and issubclass(kind, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage))
    )  # fmt: skip


def _of_values_at(where: list[Extent], allowed: list[Extent]) -> list[Extent]:
    """The memory of the Values that have some of this, but of those that lie in what is allowed."""
    of_each = [memory_of(value._data) for value in _core._values_at(where)]
    return [extent for now in of_each if not (allowed and overlap(now, allowed)) for extent in now]


class _Alone:
    """An object that has another, which nobody else has."""

    base: object

    def __init__(self) -> None:
        self.base = bytearray()


def _base_of(item: Any, name: str) -> tuple[Any, int]:
    """What the item is a view of, and how many references this has here."""
    base = getattr(item, name, None)
    return base, sys.getrefcount(base)


_REFERENCES = _base_of(_Alone(), "base")[1]  # of what the item alone has


def _is_kept(item: Any) -> bool:
    """Whether somebody else has what an array, a tensor or a buffer is a view of. It follows ``base`` of arrays and ``_base`` and the
    storage of tensors; the extension has looked at plain arrays and buffers.
    """
    numpy, torch = loaded("numpy", "ndarray"), loaded("torch", "Tensor")
    while True:
        if torch is not None and isinstance(item, torch.Tensor):
            return _is_kept_storage(item, torch)
        of_numpy = numpy is not None and isinstance(item, (numpy.ndarray, numpy.void, numpy.flatiter))
        name = "obj" if isinstance(item, memoryview) else "base" if of_numpy else ""
        if not name:
            return False
        base, references = _base_of(item, name)
        if base is None or isinstance(base, bytes):
            return False
        if references > _REFERENCES:
            return True
        item = base


def _is_kept_storage(tensor: Any, torch: Any) -> bool:
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or not hasattr(torch._C, "_storage_Use_Count"):
        return False
    base, references = _base_of(tensor, "_base")
    storage = tensor.untyped_storage()
    users = torch._C._storage_Use_Count(storage._cdata)
    alone = _users_of_storages()
    if base is None:
        return bool(users > alone[0])
    return bool(references > alone[2] or users > alone[1])


@functools.cache
def _users_of_storages() -> tuple[int, int, int]:
    """How many users PyTorch counts of the storage of a tensor and of a view that nobody else has; and the references to what it is a
    view of."""
    import torch

    with torch.no_grad():
        tensor, view = torch.empty(1), torch.empty(1)[:]
    of_tensor, of_view = tensor.untyped_storage(), view.untyped_storage()
    count = torch._C._storage_Use_Count
    base, references = _base_of(view, "_base")
    return count(of_tensor._cdata), count(of_view._cdata), references
