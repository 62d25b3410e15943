"""What a step looks at before each run, as places: in the usual case the same objects are in all of them, which one call of C finds
out. Where they are not, the code that noted the places decides whether that makes a difference.

A place has four parts: one of the kinds below, what holds it, a key, and what was there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator
from typing import Any

from . import adapter

# As in adapter/glance.h: what a mapping has by a key; all items of a dict, in order; all elements of a list; the type of what a dict has
# by a key; how many items a dict has; that a dict has by a key one certain dict, which is empty; what a variable of a closure is; an attribute; the
# class of an object.
ITEM, ITEMS, ELEMENTS, TYPE, SIZE, EMPTY, CELL, ATTRIBUTE, CLASS = range(9)
MISSING = object()  # as what an ITEM, a CELL or an ATTRIBUTE was: it is not there

Place = tuple[int, Any, Any, Any]
NEVER: Place = (SIZE, {}, None, -1)  # for what cannot be compared here


def held_by(owner: dict[str, Any], name: str) -> Iterator[Place]:
    """A dict that another one has by a name, and all of it."""
    held = owner[name]
    if isinstance(held, dict) and not held:
        yield EMPTY, owner, name, held
    else:
        yield ITEM, owner, name, held
        yield items(held)


def items(held: dict[Any, Any]) -> Place:
    """All of a dict. The order of other classes lies elsewhere, so such a one has to stay empty."""
    if type(held) in (dict, defaultdict):
        return ITEMS, held, tuple(held), tuple(held.values())
    return (SIZE, held, None, 0) if isinstance(held, dict) and not held else NEVER


def items_were(held: dict[Any, Any], before: tuple[Any, ...]) -> Place:
    """All of a dict, as its keys and values were noted before."""
    count = len(before) // 2
    return ITEMS, held, before[:count], before[count:]


def elements(held: list[Any]) -> Place:
    return (ELEMENTS, held, None, tuple(held)) if type(held) is list else NEVER


def in_any_order(held: dict[Any, Any]) -> Iterator[Place]:
    """All of a dict of any class, to which other threads may add."""
    found = list(held.items())
    yield SIZE, held, None, len(found)
    yield from ((ITEM, held, key, value) for key, value in found)


def settings(held: dict[str, Any], but: Container[str]) -> Iterator[Place]:
    """What a dict has by its names; of those in ``but`` the types alone."""
    if not isinstance(held, dict):
        yield NEVER
        return
    yield SIZE, held, None, len(held)
    for name, value in held.items():
        yield (TYPE, held, name, type(value)) if name in but else (ITEM, held, name, value)
        if name not in but:
            yield from inside(value)


def inside(value: Any) -> Iterator[Place]:
    """What lists and dicts have that a setting is made of."""
    if isinstance(value, dict):
        yield items(value)
    elif isinstance(value, list):
        yield elements(value)
    if isinstance(value, (dict, list, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from inside(part)


class Glance:
    """``same()``: whether all is as it was noted. Without an adapter nothing is known at a glance. Threads: those of the step."""

    def __init__(self, places: list[Place]) -> None:
        self._places = tuple(part for place in places for part in place)

    def same(self) -> bool:
        native = adapter.load()
        return native is not None and native.as_noted(self._places, MISSING)
