"""Extents: where in memory data lies, and which objects have memory there.

The extent of an array of NumPy goes from its first byte to its last, that of a tensor of PyTorch is its whole storage, that of
other objects is what ``__array_interface__``, the buffer protocol or ``__dlpack__`` says. An object that says nothing has none: if it
may change, its identity stands for its memory.
"""

from __future__ import annotations

import datetime
import enum
import math
import numbers
import pathlib
import re
import sys
import types
import weakref
from collections import deque
from typing import Any, Iterator

from . import _core

PLAIN = (int, float, complex, bool, str, bytes, type(None), range, type)
FIXED = (
    *PLAIN, frozenset, slice, type(Ellipsis), type(NotImplemented), types.ModuleType, types.CodeType, types.FunctionType, types.MethodType,
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, property, weakref.ref, numbers.Number, enum.Enum,
    datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, pathlib.PurePath, re.Pattern, re.Match, BaseException,
)  # fmt: skip
# "host" or a device, the address of the first byte, and the one behind the last. Or "id", the id of an object, and the number behind
# it, for an object that may change and has no memory that can be found.
Extent = tuple[str, int, int]


def loaded(module: str, its_class: str) -> Any:
    """The module, or None. One that another thread is importing, or a folder of that name, has no such class; nothing is of it."""
    loaded = sys.modules.get(module)
    return loaded if hasattr(loaded, its_class) else None


def fixed(item: Any) -> bool:
    """Whether the object never changes, so that it does not matter who else has it."""
    kind = type(item)
    if issubclass(kind, FIXED):
        return True
    if str(kind.__module__).partition(".")[0] == "engine":  # Values, Vars and what belongs to them
        return kind.__name__ != "DeviceArray"
    numpy, torch = loaded("numpy", "ndarray"), loaded("torch", "Tensor")
    if numpy is not None and isinstance(item, (numpy.generic, numpy.dtype, numpy.ufunc)):
        return not isinstance(item, numpy.void)
    return torch is not None and isinstance(item, (torch.dtype, torch.device, torch.layout, torch.memory_format))


def identity(item: Any) -> Extent:
    return ("id", id(item), id(item) + 1)


def extents(item: Any) -> list[Extent] | None:
    """The memory of an array or buffer; None: it has none that can be found."""
    kind = type(item)
    numpy, torch = loaded("numpy", "ndarray"), loaded("torch", "Tensor")
    if numpy is not None and isinstance(item, numpy.ndarray):
        found = [("host", *(_core._bounds(item) or _bounds_by_numpy(item)))]
        mask = None if kind is numpy.ndarray else getattr(item, "_mask", None)  # of a masked array
        return found + (extents(mask) or []) if isinstance(mask, numpy.ndarray) else found
    if numpy is not None and isinstance(item, numpy.flatiter):
        return extents(item.base)
    if numpy is not None and isinstance(item, numpy.generic):  # a number, which never changes: what it says is the address of a copy
        bounds = _core._bounds(item) if isinstance(item, numpy.void) else None  # or one of an array's structures, in its place there
        return bounds and [("host", *bounds)]
    if torch is not None and isinstance(item, torch.Tensor):
        return _of_tensor(item, torch)
    if torch is not None and isinstance(item, (torch.UntypedStorage, torch.TypedStorage)):
        return _of_storage(item.untyped() if isinstance(item, torch.TypedStorage) else item)
    if hasattr(kind, "__array_interface__"):
        return _of_interface(item.__array_interface__)
    if hasattr(kind, "__cuda_array_interface__") and not kind.__module__.startswith("engine"):
        return None
    bounds = _core._bounds(item)
    if bounds is not None:
        return [("host", *bounds)] if bounds[0] < bounds[1] else []
    return _exported(item) if hasattr(kind, "__dlpack__") and not kind.__module__.startswith("engine") else None


def _of_storage(storage: Any) -> list[Extent] | None:
    if storage.device.type == "meta":
        return None
    first = storage.data_ptr()
    return [("host" if storage.device.type == "cpu" else str(storage.device), first, first + storage.nbytes())]


_SPARSE = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def _of_tensor(tensor: Any, torch: Any) -> list[Extent] | None:
    """Its storage, or those of what a sparse one consists of; and that of its gradient."""
    if tensor.layout is torch.strided:
        found = _of_storage(tensor.untyped_storage())
    else:
        parts = [getattr(tensor, name)() for name in _SPARSE.get(str(tensor.layout), ())]
        found = [extent for part in parts for extent in extents(part) or []] or None
    grad = tensor.grad if found is not None and tensor.is_leaf else None
    return found if grad is None else [*(found or ()), *(extents(grad) or ())]


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


def objects_in(item: Any) -> list[Any] | None:
    """The objects in an array of objects, or of structures with some; None: it is none."""
    numpy = loaded("numpy", "ndarray")
    if numpy is None or not isinstance(item, numpy.ndarray) or not item.dtype.hasobject:
        return None
    if item.dtype.kind == "O":
        return list(item.flat)
    names = item.dtype.names  # None: texts of any length say that they have objects, too
    return names and [each for name in names for each in objects_in(item[name]) or ()]


def leaves(item: Any, seen: set[int], changing: list[Extent] | None = None) -> Iterator[Any]:
    """The objects in ``item`` that are no containers, however nested; and arrays of objects, which are both. Looks into each
    container once. ``changing`` gets the identities of the containers that may change.
    """
    kind = type(item)
    if kind in PLAIN:
        return
    may_change = True
    # A list or a tuple of the items is made in one step of the interpreter, so an op on another thread may change the container.
    if issubclass(kind, (list, tuple, set, frozenset, deque)):
        parts: Any = tuple(item)
        may_change = not issubclass(kind, (tuple, frozenset))
    elif issubclass(kind, dict):
        parts = tuple(item.values())
    elif hasattr(kind, "__dataclass_fields__"):
        parts = [getattr(item, name) for name in kind.__dataclass_fields__ if hasattr(item, name)]
        may_change = not kind.__dataclass_params__.frozen
    else:
        yield item
        parts, may_change = objects_in(item), False
        if parts is None:
            return
    if id(item) in seen:
        return
    seen.add(id(item))
    if may_change and changing is not None:
        changing.append(identity(item))
    for part in parts:
        if type(part) not in PLAIN:
            yield from leaves(part, seen, changing)


def memory_of(data: Any) -> list[Extent]:
    """The memory of all arrays and buffers in ``data``, and the identities of what else in it may change."""
    changing: list[Extent] = []
    found = []
    for leaf in leaves(data, set(), changing):
        found += extents(leaf) or ([] if fixed(leaf) else [identity(leaf)])
    return found + changing


def overlap(some: list[Extent], taken: list[Extent]) -> bool:
    if len(some) > 4 and len(taken) > 4:
        return _overlap_of_many(some, taken)
    return any(space == other and low < end and begin < high for space, low, high in some for other, begin, end in taken)


def _overlap_of_many(some: list[Extent], taken: list[Extent]) -> bool:
    """By one look through all in the order of their addresses."""
    spaces, ends = ["", ""], [0, 0]  # of each list: the space of its last extent, and the largest end there
    for space, low, high, which in sorted([(*one, 0) for one in some] + [(*one, 1) for one in taken]):
        if low >= high:
            continue
        if spaces[1 - which] == space and low < ends[1 - which]:
            return True
        ends[which] = max(ends[which], high) if spaces[which] == space else high
        spaces[which] = space
    return False
