"""Aliases: data that shares memory with other data that the engine orders.

Two Vars for one piece of memory would order nothing. So data that shares memory with a Value's gets its Var or is copied; and an
output that shares memory with its op's arguments, with another output or with some Value, or that somebody else has, too, is copied
when its op ends: then it means the same under every policy, however late it is looked at.

What this costs a call: nothing for numbers, texts and None; for an array, or a container of arrays and numbers, that nobody but the
call knows, a look at its reference counts and an entry in a list (python/src/memory.cc, which is looked through only when somebody
asks what lies at an address); for all else, 5 to 20 us in ``unshared``, and the copy.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from . import _core
from .containers import mapped
from .extents import PLAIN, Extent, extents, leaves, loaded, overlap


def copied(item: Any) -> Any:
    """A copy with memory of its own of a tensor, array, buffer or what exports one; of anything else a shallow copy."""
    torch = loaded("torch", "Tensor")
    if torch is not None and isinstance(item, torch.Tensor):
        return item.detach().clone(memory_format=torch.preserve_format).requires_grad_(item.requires_grad) if item.is_leaf else item.clone()
    if isinstance(item, memoryview):
        return _copied_view(item)
    numpy = loaded("numpy", "ndarray")
    if numpy is not None and isinstance(item, numpy.ndarray):
        return item.copy(order="K") if type(item) is numpy.ndarray else item.copy()
    import copy

    made, where = copy.copy(item), extents(item)
    return copy.deepcopy(item) if where and overlap(where, extents(made) or []) else made


def _copied_view(view: memoryview) -> memoryview:
    made = memoryview(bytearray(view.tobytes()))
    return made if view.format == "B" and view.ndim == 1 else made.cast(view.format, view.shape)  # type: ignore[call-overload]


def apart(data: Any) -> Any:
    """A copy that shares no array or buffer with ``data``, also where they are in containers."""
    kind = type(data)
    if kind in PLAIN:
        return data
    if not issubclass(kind, (list, tuple, dict)) and not hasattr(kind, "__dataclass_fields__"):
        return copied(data)
    return mapped(data, apart)


def memory_of(data: Any) -> list[Extent]:
    """The memory of all arrays and buffers in ``data``."""
    return [extent for leaf in leaves(data, set()) for extent in extents(leaf) or []]


_core._set_memory_of(memory_of)


def found(where: list[Extent], engine: Any) -> list[Any]:
    """The Values of the engine whose memory lies there."""
    # Compared with what they have now: an op may just be changing a container, whose parts of before are gone.
    return [value for value in _core._values_at(where) if value.var.engine == engine and overlap(where, memory_of(value._data))]


def unshared(outputs: tuple[Any, ...], arguments: list[Any], values: list[Any], held: set[int]) -> tuple[Any, ...]:
    """The outputs; what shares memory with one of the arguments, an earlier output or a Value is copied, and so are containers that
    are arguments or parts of them. The extension calls it.

    ``values``: data whose Vars the outputs name, so that they may share its memory. ``held``: ids of parts of the outputs that
    somebody else has, too: containers, arrays and buffers among them are copied.
    """
    containers: set[int] = set()
    taken: list[Extent] = []
    kept: list[Any] = []  # so that the ids stay those of these objects
    for argument in arguments:
        for leaf in leaves(argument, containers):
            kept.append(leaf)
            taken += extents(leaf) or []
    allowed = memory_of(values)

    def fresh(item: Any, shared: bool) -> Any:
        kind = type(item)
        if kind in PLAIN:
            return item
        shared = shared or id(item) in held
        if issubclass(kind, (list, tuple, dict)) or hasattr(kind, "__dataclass_fields__"):
            made = mapped(item, lambda part: fresh(part, shared))
            changes = issubclass(kind, (list, dict)) and shared or id(item) in containers
            if made is item and changes and not issubclass(kind, tuple):
                import copy

                made = copy.copy(item)
            containers.add(id(made))
            kept.append(made)
            return made
        if issubclass(kind, (set, deque)):
            made = item.copy() if shared or id(item) in containers else item
            containers.add(id(made))
            kept.append(made)
            return made
        if issubclass(kind, bytearray) and any(item is leaf for leaf in kept):
            return item.copy()
        where = extents(item)
        if not where:
            return item
        if overlap(where, taken) or shared and _copies(kind) or _known(where, allowed):
            item = copied(item)
            where = extents(item) or []
        elif overlap(where, allowed):
            return item  # ordered by the Vars of what it lies in, as are other outputs that do
        here.extend(where)
        kept.append(item)
        return item

    made = []
    try:
        for output in outputs:
            here: list[Extent] = []
            made.append(fresh(output, False))
            if not values:  # else the outputs name common Vars
                taken += here
    finally:
        del fresh  # it refers to itself, so only the garbage collector would free what it has kept
    return tuple(made)


def _copies(kind: type) -> bool:
    """Whether data of this kind are an array or a buffer of Python's own, NumPy's or PyTorch's, which a copy may stand for."""
    numpy, torch = loaded("numpy", "ndarray"), loaded("torch", "Tensor")
    return (
        issubclass(kind, (bytearray, memoryview))
        or kind.__module__ == "array"
        or numpy is not None and issubclass(kind, numpy.ndarray)
        or torch is not None and issubclass(kind, torch.Tensor)
    )  # fmt: skip


def _known(where: list[Extent], allowed: list[Extent]) -> bool:
    """Whether the memory is that of a Value that lies elsewhere than in what is allowed."""
    values = _core._values_at(where)
    return any(overlap(where, now) and not (allowed and overlap(now, allowed)) for now in (memory_of(v._data) for v in values))
