"""What objects of the standard library hold that their attributes do not show."""

from __future__ import annotations

import configparser
import contextvars
import functools
import gc
import io
import operator
import os
import sys
import threading
import types
import weakref
from collections import ChainMap, UserDict, UserList
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from .glance import MISSING
from .parts import refill


class Notes(Protocol):
    """What takes down what is found (surroundings.py)."""

    names: set[str]

    def guard(self, owner: str, read: Callable[[], Any]) -> None: ...

    def place(self, owner: str, read: Callable[[], dict[Any, Any]], write: Callable[[dict[Any, Any]], Any]) -> None: ...


def inside(item: Any, notes: Notes) -> list[Any]:
    """What an object of the standard library holds that its attributes do not show."""
    if isinstance(item, (UserDict, UserList)):
        return [item.data]
    if isinstance(item, ChainMap):
        return [item.maps]
    if isinstance(item, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)):
        return [item.data, *item]
    if isinstance(item, weakref.ref):
        return [item()]
    if isinstance(item, configparser.RawConfigParser):
        return [item._sections, item.defaults()]  # type: ignore[attr-defined]
    if isinstance(item, configparser.SectionProxy):
        return [item.parser]
    if isinstance(item, functools._lru_cache_wrapper):
        # What it has kept. Its dict itself may not be written.
        found = [part for part in gc.get_referents(item) if not isinstance(part, type)]
        return [kept for part in found for kept in (part.values() if type(part) is dict else [part])]
    if isinstance(item, threading.Event):
        notes.guard("an Event", lambda: (item.is_set(),))
        notes.place("an Event", lambda: {None: item.is_set()}, lambda before: item.set() if before[None] else item.clear())
    if isinstance(item, types.MappingProxyType):
        return gc.get_referents(item)
    if isinstance(item, (operator.attrgetter, operator.methodcaller)):
        made, arguments = item.__reduce__()[:2]  # type: ignore[misc]
        read = arguments if isinstance(item, operator.attrgetter) else getattr(made, "args", arguments)[:1]
        notes.names.update(part for name in read for part in name.split("."))
    if isinstance(item, contextvars.ContextVar):
        notes.guard(f"the variable {item.name}", lambda: (item.get(MISSING),))
        notes.place(f"the variable {item.name}", lambda: {None: item.get(MISSING)}, lambda _: None)  # each trace has a context of its own
        return [item.get(MISSING)]
    if isinstance(item, os._Environ):
        notes.guard("the environment", lambda: (*item._data, *item._data.values()))
        notes.place("the environment", lambda: dict(item._data), lambda before: _restore(item, before))
    if isinstance(item, threading.local):
        owner, names = type(item).__qualname__, [n for n in vars(item) if n in notes.names]  # of this thread, here and later
        notes.guard(owner, lambda: tuple(vars(item).get(n, MISSING) for n in names))
        notes.place(owner, lambda: dict(vars(item)), lambda before: refill(vars(item), before))
        return [vars(item)[n] for n in names]
    return []


def _restore(environment: Any, before: dict[Any, Any]) -> None:
    now = dict(environment._data)
    for name in now.keys() - before.keys():
        del environment[environment.decodekey(name)]
    environment.update({environment.decodekey(n): environment.decodevalue(v) for n, v in before.items() if now.get(n) != v})


def gives_another_each_time(item: Any) -> bool:
    """Whether an object is an iterator or a queue. Files are not meant, which a step may write."""
    queues = [getattr(sys.modules.get(module), name, None) for module, name in
              (("queue", "Queue"), ("_queue", "SimpleQueue"), ("multiprocessing.queues", "Queue"), ("multiprocessing.queues", "SimpleQueue"))]
    return isinstance(item, (Iterator, *(kind for kind in queues if kind))) and not isinstance(item, io.IOBase)
