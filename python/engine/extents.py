"""Extents: where in memory data lies, and which objects have memory there.

The extent of an array of NumPy goes from its first byte to its last, that of a tensor of PyTorch is its whole storage, that of
other objects is what ``__array_interface__``, the buffer protocol or ``__dlpack__`` says. An object that says nothing has none.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from typing import Any, Iterator

from . import _core

PLAIN = (int, float, complex, bool, str, bytes, type(None), range, type, frozenset)
Extent = tuple[str, int, int]  # "host" or a device, the address of the first byte, and the one behind the last


def loaded(module: str, its_class: str) -> Any:
    """The module, or None. One that another thread is importing, or a folder of that name, has no such class; nothing is of it."""
    loaded = sys.modules.get(module)
    return loaded if hasattr(loaded, its_class) else None


def extents(item: Any) -> list[Extent] | None:
    """The memory of an array or buffer; None: it has none that can be found."""
    kind = type(item)
    numpy, torch = loaded("numpy", "ndarray"), loaded("torch", "Tensor")
    if numpy is not None and isinstance(item, numpy.ndarray):
        return [("host", *(_core._bounds(item) or _bounds_by_numpy(item)))]
    if numpy is not None and isinstance(item, numpy.generic):
        return None  # a number, which never changes; what it says is the address of a copy
    if torch is not None and isinstance(item, torch.Tensor):
        if item.layout is not torch.strided or item.device.type == "meta":
            return None
        storage = item.untyped_storage()
        first = storage.data_ptr()
        return [("host" if item.device.type == "cpu" else str(item.device), first, first + storage.nbytes())]
    if hasattr(kind, "__array_interface__"):
        return _of_interface(item.__array_interface__)
    if hasattr(kind, "__cuda_array_interface__") and not kind.__module__.startswith("engine"):
        return None
    bounds = _core._bounds(item)
    if bounds is not None:
        return [("host", *bounds)] if bounds[0] < bounds[1] else []
    return _exported(item) if hasattr(kind, "__dlpack__") and not kind.__module__.startswith("engine") else None


def _of_interface(says: dict[str, Any]) -> list[Extent] | None:
    """What ``__array_interface__`` says: the address of the first element, the shape, and strides of either sign."""
    at, shape, strides = says.get("data"), says["shape"], says.get("strides")
    if not isinstance(at, tuple):  # it is a buffer, in which the elements lie
        bounds = None if at is None else _core._bounds(at)
        return bounds and [("host", *bounds)]
    item = int(says["typestr"][2:]) * (4 if says["typestr"][1] == "U" else 1)  # which counts characters
    if 0 in shape:
        return []
    if strides is None:
        return [("host", at[0], at[0] + item * math.prod(shape))]
    reach = [stride * (length - 1) for stride, length in zip(strides, shape)]
    return [("host", at[0] + sum(r for r in reach if r < 0), at[0] + item + sum(r for r in reach if r > 0))]


def _exported(item: Any) -> list[Extent] | None:
    """What ``__dlpack__`` says of an array on the host. Without NumPy nobody here can read it."""
    try:
        import numpy

        return extents(numpy.from_dlpack(item)) if item.__dlpack_device__()[0] == 1 else None
    except Exception:  # what a foreign exporter raises is its own affair: it says nothing
        return None


def _bounds_by_numpy(array: Any) -> tuple[int, int]:
    """Of arrays that export no buffer."""
    import numpy

    bounds = numpy.lib.array_utils.byte_bounds if hasattr(numpy.lib, "array_utils") else numpy.byte_bounds  # type: ignore[attr-defined]
    low, high = bounds(array)
    return int(low), int(high)


def leaves(item: Any, seen: set[int]) -> Iterator[Any]:
    """The objects in ``item`` that are no containers, however nested. Looks into each container once."""
    kind = type(item)
    if kind in PLAIN:
        return
    if issubclass(kind, (list, tuple, set, frozenset, deque)):
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
        if type(part) not in PLAIN:
            yield from leaves(part, seen)


def overlap(some: list[Extent], taken: list[Extent]) -> bool:
    return any(space == other and low < end and begin < high for space, low, high in some for other, begin, end in taken)
