"""Aliases: outputs of an op that share memory with its arguments, or with each other.

Two Vars for one piece of memory would order nothing, so an output that shares memory is copied when its op ends: then it
means the same under every policy, however late it is looked at. Two objects share memory if their ranges of addresses
overlap: of an array of NumPy from its first byte to its last, of a tensor of PyTorch its whole storage, of other objects
what ``__array_interface__`` or the buffer protocol says. An object that says nothing is taken to share nothing.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Iterator

from .containers import mapped

_PLAIN = (int, float, complex, bool, str, bytes, type(None), range, type, frozenset)
Extent = tuple[str, int, int]  # "host" or a device, the address of the first byte, and the one behind the last


def _loaded(module: str, its_class: str) -> Any:
    """The module, or None. One that another thread is importing, or a folder of that name, has no such class; nothing is of it."""
    loaded = sys.modules.get(module)
    return loaded if hasattr(loaded, its_class) else None


def _extents(item: Any) -> list[Extent] | None:
    """The memory of an array or buffer; None: it has none that can be found."""
    kind = type(item)
    numpy, torch = _loaded("numpy", "ndarray"), _loaded("torch", "Tensor")
    if numpy is not None and isinstance(item, numpy.ndarray):
        return [("host", *_bounds(item))]
    if torch is not None and isinstance(item, torch.Tensor):
        if item.layout is not torch.strided or item.device.type == "meta":
            return None
        storage = item.untyped_storage()
        first = storage.data_ptr()
        return [("host" if item.device.type == "cpu" else str(item.device), first, first + storage.nbytes())]
    if hasattr(kind, "__array_interface__"):
        at = item.__array_interface__["data"]
        return [("host", at[0], at[0] + item.nbytes)] if at and hasattr(item, "nbytes") else None
    if hasattr(kind, "__cuda_array_interface__") and not kind.__module__.startswith("engine"):
        return None
    try:
        with memoryview(item) as view:
            return [("host", *_bounds(view))] if view.nbytes else []
    except (TypeError, ValueError, BufferError):
        return None


def _bounds(item: Any) -> tuple[int, int]:
    """The address of the first byte of an array or buffer, and the one behind its last."""
    import numpy

    bounds = numpy.lib.array_utils.byte_bounds if hasattr(numpy.lib, "array_utils") else numpy.byte_bounds  # type: ignore[attr-defined]
    low, high = bounds(numpy.asarray(item))
    return int(low), int(high)


def _leaves(item: Any, seen: set[int]) -> Iterator[Any]:
    """The objects in ``item`` that are no containers, however nested. Looks into each container once."""
    kind = type(item)
    if kind in _PLAIN:
        return
    if issubclass(kind, (list, tuple, set, frozenset)):
        parts: Any = item
    elif issubclass(kind, dict):
        parts = item.values()
    elif hasattr(kind, "__dataclass_fields__"):
        parts = [getattr(item, name) for name in kind.__dataclass_fields__ if hasattr(item, name)]
    else:
        yield item
        return
    if id(item) in seen:
        return
    seen.add(id(item))
    for part in parts:
        if type(part) not in _PLAIN:
            yield from _leaves(part, seen)


def _overlap(extents: list[Extent], taken: list[Extent]) -> bool:
    return any(space == other and low < end and begin < high for space, low, high in extents for other, begin, end in taken)


def copied(item: Any) -> Any:
    """A copy with memory of its own of a tensor, array or buffer; of anything else a shallow copy."""
    torch = _loaded("torch", "Tensor")
    if torch is not None and isinstance(item, torch.Tensor):
        return item.detach().clone(memory_format=torch.preserve_format).requires_grad_(item.requires_grad) if item.is_leaf else item.clone()
    if isinstance(item, memoryview):
        return _copied_view(item)
    numpy = _loaded("numpy", "ndarray")
    if numpy is not None and isinstance(item, numpy.ndarray):
        return item.copy(order="K") if type(item) is numpy.ndarray else item.copy()
    import copy

    return copy.copy(item)


def _copied_view(view: memoryview) -> memoryview:
    made = memoryview(bytearray(view.tobytes()))
    return made if view.format == "B" and view.ndim == 1 else made.cast(view.format, view.shape)  # type: ignore[call-overload]


# The Values that engine.value made, by the beginning of the memory that their arrays belong to.
_known: dict[Any, list[weakref.ref[Any]]] = {}


def _origin(item: Any) -> Any:
    """The beginning of the allocation that an array belongs to; None: it is no array."""
    numpy, torch = _loaded("numpy", "ndarray"), _loaded("torch", "Tensor")
    while numpy is not None and isinstance(item, numpy.ndarray) and item.base is not None:
        base = item.base
        if isinstance(base, memoryview):
            base = base.obj
        if torch is not None and isinstance(base, torch.Tensor) or isinstance(base, (numpy.ndarray, bytearray)):
            item = base
        else:
            break
    if torch is not None and isinstance(item, torch.Tensor):
        return item.untyped_storage().data_ptr() if item.layout is torch.strided and item.device.type != "meta" else None
    if numpy is not None and isinstance(item, numpy.ndarray):
        return item.__array_interface__["data"][0]
    if isinstance(item, bytearray):
        extents = _extents(item)
        return extents[0][1] if extents else None
    return None


def found(data: Any, engine: Any) -> Any:
    """A Value of the engine whose memory ``data`` shares; or None."""
    entries = _known.get(_origin(data)) if _known else None
    if not entries:
        return None
    extents = _extents(data) or []
    for ref in list(entries):
        value = ref()
        # Compared with the data that it has now: data that it had before may be gone, and their memory in use again.
        if value is not None and value.var.engine == engine and _overlap(extents, _extents(value._data) or []):
            return value
    return None


def note(value: Any, data: Any) -> None:
    """Remembers, for ``found`` and until the Value goes, that it has ``data``, or will have."""
    origin = _origin(data)
    if origin is None:
        return
    entries = _known.setdefault(origin, [])

    def forget(ref: Any) -> None:
        entries[:] = [entry for entry in entries if entry is not ref]
        if not entries and _known.get(origin) is entries:
            del _known[origin]

    entries.append(weakref.ref(value, forget))


def unshared(outputs: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The outputs; what shares memory with an argument or an earlier output is copied, and so is a container that is an
    argument or part of one. The extension calls it."""
    containers: set[int] = set()
    taken: list[Extent] = []
    kept: list[Any] = []  # so that the ids stay those of these objects
    for argument in arguments:
        for leaf in _leaves(argument, containers):
            kept.append(leaf)
            taken += _extents(leaf) or []

    def fresh(item: Any) -> Any:
        kind = type(item)
        if kind in _PLAIN:
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
        extents = _extents(item)
        if not extents:
            return item
        if _overlap(extents, taken):
            item = copied(item)
            extents = _extents(item) or []
        here.extend(extents)
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
