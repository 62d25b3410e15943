"""Aliases: data that shares memory with other data that the engine orders.

Two Vars for one piece of memory would order nothing. So data that shares memory with Values that ``engine.value`` made gets
their Vars or is copied; and an output that shares memory with its op's arguments, or with another output, is copied when its
op ends: then it means the same under every policy, however late it is looked at.
"""

from __future__ import annotations

from typing import Any

from .containers import mapped
from .extents import PLAIN, Extent, Extents, extents, leaves, loaded, overlap


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


_known = Extents()  # the Values that engine.value made


def memory_of(data: Any) -> list[Extent]:
    """The memory of all arrays and buffers in ``data``."""
    return [extent for leaf in leaves(data, set()) for extent in extents(leaf) or []]


def found(where: list[Extent], engine: Any) -> list[Any]:
    """The Values of the engine whose memory lies there."""
    # Compared with the data that they have now: data that they had before may be gone, and their memory in use again.
    return [value for value in _known.overlapping(where) if value.var.engine == engine and overlap(where, memory_of(value._data))]


def note(value: Any, where: list[Extent]) -> None:
    """Remembers, for ``found`` and until the Value goes, that its data lie there, or will."""
    _known.add(value, where)


def unshared(outputs: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The outputs; what shares memory with an argument or an earlier output is copied, and so is a container that is an
    argument or part of one. The extension calls it."""
    containers: set[int] = set()
    taken: list[Extent] = []
    kept: list[Any] = []  # so that the ids stay those of these objects
    for argument in arguments:
        for leaf in leaves(argument, containers):
            kept.append(leaf)
            taken += extents(leaf) or []

    def fresh(item: Any) -> Any:
        kind = type(item)
        if kind in PLAIN:
            return item
        if issubclass(kind, (list, tuple, dict)) or hasattr(kind, "__dataclass_fields__"):
            made = mapped(item, fresh)
            if made is item and id(item) in containers and not issubclass(kind, tuple):
                import copy

                made = copy.copy(item)
            containers.add(id(made))
            kept.append(made)
            return made
        if issubclass(kind, (set, bytearray)) and any(item is leaf for leaf in kept):
            return item.copy()
        where = extents(item)
        if not where:
            return item
        if overlap(where, taken):
            item = copied(item)
            where = extents(item) or []
        here.extend(where)
        kept.append(item)
        return item

    made = []
    try:
        for output in outputs:
            here: list[Extent] = []
            made.append(fresh(output))
            taken += here
    finally:
        del fresh  # it refers to itself, so only the garbage collector would free what it has kept
    return tuple(made)
