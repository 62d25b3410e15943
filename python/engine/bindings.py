"""Bindings: the names by which a recorded function reaches Values and Vars. If one is bound anew, the recording is stale."""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator

from . import _core
from .values import Value

Binding = tuple[str, str, Callable[[], Any], Any]


def bindings(fn: Any) -> Iterator[Binding]:
    """(where, name, how to look it up, what it is now) of each."""
    owner = getattr(fn, "__self__", None)
    fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    if owner is not None:
        yield from _attributes(owner, "self", code.co_names)
    for name, cell in zip(code.co_freevars, fn.__closure__ or ()):
        try:
            contents = cell.cell_contents
        except ValueError:  # it is bound later
            continue
        if isinstance(contents, (Value, _core.Var)):
            yield "the variable", name, functools.partial(getattr, cell, "cell_contents", None), contents
        else:
            yield from _attributes(contents, name, code.co_names)
    for name in code.co_names:
        found = fn.__globals__.get(name)
        if isinstance(found, (Value, _core.Var)):
            yield "the global", name, functools.partial(fn.__globals__.get, name), found
        elif found is not None:
            yield from _attributes(found, name, code.co_names)


def _attributes(thing: Any, called: str, names: tuple[str, ...]) -> Iterator[Binding]:
    """The attributes of ``thing`` that the function may name and that are Values."""
    attributes = getattr(thing, "__dict__", None)
    if type(attributes) is not dict or isinstance(thing, type):
        return
    for name in names:
        found = attributes.get(name)
        if isinstance(found, (Value, _core.Var)):
            yield "the attribute", f"{called}.{name}", functools.partial(attributes.get, name), found
