"""Containers: Values inside of arguments and results, which may be nested.

Lists, tuples, dicts, deques, what derives from them (namedtuples, OrderedDicts), slices, dataclasses and NumPy's arrays of objects are
looked into. A container without Values is passed on as it is, and not copied. Sets, and Values in keys of dicts, are refused, because replacing them may
merge them.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
from typing import Any, Callable, Iterable, Iterator

from .constants import is_constant
from .errors import UsageError
from .extents import objects_in
from .values import Value


class Place:
    """Where a recorded value stood in a structure: the number of a node's input, or of a run's output."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


def mapped(item: Any, change: Callable[[Any], Any]) -> Any:
    """The container with ``change(item)`` for each item; the container itself if no item has changed."""
    kind = type(item)
    if issubclass(kind, Value):
        return item
    if issubclass(kind, (list, tuple)):
        items = [change(each) for each in item]
        if all(new is old for new, old in zip(items, item)):
            return item
        if kind is list or kind is tuple:
            return kind(items)
        if hasattr(kind, "_make"):
            return kind._make(items)
        if issubclass(kind, tuple):
            return kind(items)
        made = copy.copy(item)
        made[:] = items
        return made
    if issubclass(kind, dict):
        changes = {key: new for key, old in item.items() if (new := change(old)) is not old}
        if not changes:
            return item
        made = copy.copy(item)
        for key, new in changes.items():  # not update, by which a Counter adds
            made[key] = new
        return made
    if kind is slice:
        ends = [item.start, item.stop, item.step]
        items = [change(end) for end in ends]
        return item if all(new is old for new, old in zip(items, ends)) else slice(*items)
    if issubclass(kind, collections.deque):
        items = [change(each) for each in item]
        if all(new is old for new, old in zip(items, item)):
            return item
        made = copy.copy(item)
        made.clear()
        made.extend(items)
        return made
    if issubclass(kind, (set, frozenset)):
        for each in item:
            if isinstance(each, Value) or isinstance(each, (tuple, frozenset)) and found_in(each):
                raise UsageError("a set has Values in it, which cannot be replaced by their data; give a list")
        return item
    if hasattr(kind, "__dataclass_fields__"):
        fields = [f.name for f in dataclasses.fields(item) if hasattr(item, f.name)]
        new = {name: change(getattr(item, name)) for name in fields}
        if all(new[name] is getattr(item, name) for name in fields):
            return item
        made = copy.copy(item)
        for name in fields:
            object.__setattr__(made, name, new[name])
        return made
    return item if (objects := objects_in(item)) is None else _mapped_array(item, objects, change)


def _mapped_array(array: Any, objects: list[Any], change: Callable[[Any], Any]) -> Any:
    if array.dtype.names is None:
        items = [change(each) for each in objects]
        changed = any(new is not old for new, old in zip(items, objects))
        return put_objects(array.copy(), enumerate(items)) if changed else array
    fields = {name: array[name] for name in array.dtype.names if array.dtype[name].hasobject}
    new = {name: mapped(field, change) for name, field in fields.items()}
    if all(new[name] is fields[name] for name in fields):
        return array
    made = array.copy()
    for name in fields:
        made[name] = new[name]
    return made


def put_objects(array: Any, objects: Iterable[tuple[int, Any]]) -> Any:
    """Puts objects into an array of them, which it returns: each at its number in the order of the indices."""
    import numpy

    places = array.reshape(1) if array.ndim == 0 else array  # one item of an array of no dimensions cannot be set as it is
    for at, item in objects:
        places[numpy.unravel_index(at, places.shape)] = item
    return array


def found_in(item: Any) -> list[Value[Any]]:
    """The Values in a container, however nested."""
    found: list[Value[Any]] = []

    def look(each: Any) -> Any:
        if isinstance(each, Value):
            found.append(each)
            return each
        _refuse_keys(each)
        return mapped(each, look)

    try:
        look(item)
    finally:
        del look  # it refers to itself, so only the garbage collector would free what it has found
    return found


def _refuse_keys(item: Any) -> None:
    """UsageError for a dict with Values in its keys. (The extension looks into what is a dict and nothing more.)"""
    if isinstance(item, dict) and any(isinstance(key, Value) or (type(key) not in (str, int) and found_in(key)) for key in item):
        raise UsageError("a dict has a Value as a key, or in one, which cannot be replaced by its data; give a list of pairs")


def filled(item: Any, inputs: tuple[Any, ...] | None = None) -> Any:
    """``item`` with data in the places of Values, and ``inputs`` in their Places."""

    def fill(each: Any) -> Any:
        if type(each) is Place:
            assert inputs is not None
            each = inputs[each.place]
        if isinstance(each, Value):
            return each._data
        return mapped(each, fill)

    try:
        return fill(item)
    finally:
        del fill  # it refers to itself, so only the garbage collector would free the inputs


def _attributes(item: Any, named: frozenset[str]) -> Iterator[tuple[str, type, Any]]:
    """What a container has by one of these names that is neither an item nor a field, and what tells it from that of another one:
    a function that is recorded with the container reads it once."""
    kind = type(item)
    values = dict(getattr(item, "__dict__", None) or {})
    if values and item.__dict__ is item:
        return  # a dict whose items are its attributes
    for cls in kind.__mro__:
        for name, slot in cls.__dict__.items() if "__slots__" in cls.__dict__ else ():
            if isinstance(slot, types.MemberDescriptorType) and hasattr(item, name):
                values[name] = getattr(item, name)
    for name, value in values.items():
        if name in named and name not in getattr(kind, "__dataclass_fields__", ()):
            yield name, type(value), repr(value) if is_constant(type(value)) else id(value)


def spread(item: Any, named: frozenset[str]) -> tuple[list[Any], Any, tuple[Any, ...]]:
    """What a nested container holds, in order; the container with a Place for each; and its shape, for comparing. ``named``: by
    the function that takes it."""
    held: list[Any] = []
    shape: list[Any] = []

    def take(each: Any) -> Any:
        at = len(shape)
        shape.append(None)
        _refuse_keys(each)
        if isinstance(each, (list, tuple, dict)) and not each:
            shape[at] = type(each)
            return each
        objects = objects_in(each)  # there may be a million of texts, so they are looked at only if there are Values, too
        if not isinstance(each, Value) and (objects is None or found_in(objects)) and (placed := mapped(each, take)) is not each:
            says = tuple(each) if isinstance(each, dict) else each.shape if objects else None
            shape[at] = (type(each), says, tuple(_attributes(each, named)), len(shape) - at)
            return placed
        held.append(each)
        return Place(len(held) - 1)

    placed = take(item)
    return held, placed, tuple(shape)
