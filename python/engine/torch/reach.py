"""What a function or an object reaches, by the ways that code takes: closures, globals that it names, defaults, bound objects, containers."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .named import names_of


def walk(start: Iterable[Any], inside: Callable[[Any], Iterable[Any]], most: float = float("inf")) -> Iterator[Any]:
    """Each object once, at most so many. ``inside``: what an object holds that is gone to from there."""
    left, seen = list(start), {}
    while left and len(seen) < most:
        item = left.pop()
        if id(item) not in seen:
            seen[id(item)] = item  # which keeps its id taken
            if is_there(item):
                yield item
                left += inside(item)


def is_there(item: Any) -> bool:
    """Whether it can be asked what it is: not a proxy of what has gone."""
    try:
        return bool(item.__class__)
    except Exception:
        return False


def held_by(item: Any) -> Iterable[Any]:
    """What a container, a partial, a method or a function holds."""
    if isinstance(item, (list, tuple, set)):
        return item
    if isinstance(item, dict):
        return [*item, *item.values()]
    if isinstance(item, functools.partial):
        return [item.func, *item.args, item.keywords]
    if isinstance(item, types.MethodType):
        return [item.__func__, item.__self__]
    return used_by(item) if isinstance(item, types.FunctionType) else ()


def used_by(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not bound yet
            yield cell.cell_contents
    for name in names_of(function.__code__):
        yield function.__globals__.get(name)
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def reached(step: Any, kind: type) -> list[Any]:
    """The objects of a kind that a function reaches: through its closure, the globals that it names, its defaults, the
    object it is a method of and that object's attributes, and the functions, lists, tuples and dicts found there."""

    def inside(item: Any) -> Iterable[Any]:
        if isinstance(item, kind) or isinstance(item, types.FunctionType) and (item.__module__ or "").startswith(("torch.", "engine.")):
            return ()
        if isinstance(item, types.MethodType):
            return [*held_by(item), *getattr(item.__self__, "__dict__", {}).values()]
        if item is step and callable(item) and not isinstance(item, (types.FunctionType, functools.partial)):
            return [type(item).__call__, *getattr(item, "__dict__", {}).values()]
        return held_by(item)

    return [item for item in walk([step], inside) if isinstance(item, kind)]
