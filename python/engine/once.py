"""What a recorded function makes once, and an eager one in each call: Values, and the data that ``overwrite`` is given.

A replay finds what the replay before it has left in them. So each run gets a copy of the data of ``overwrite``, and a Value that an
op of the function changes, or that the function returns, is refused: it would go on from call to call. State that the first call
makes, and later calls find by a name, may stay. Such a recording is for one call: the next one records the function anew, and
must not make the Value again, unless the former one is found by a name, as where one line makes state for several keys.
"""

from __future__ import annotations

from typing import Any, Iterable

from .containers import found_in
from .extents import Extent, extents, fixed, identity, memory_of, overlap
from .traced import EAGERLY, Traced, Unreadable, where
from .values import Value


def _refuse_recorded(what: str, data: Any) -> None:
    """Unreadable for data with a recorded value inside."""
    if any(isinstance(each, Traced) for each in found_in(data)):
        raise Unreadable(f"{what} is given a recorded value, which has no data while the function is recorded: use the value "
                         f"itself, let an op make the data, or use {EAGERLY}")  # fmt: skip


MadeFirst = dict[str, tuple[str, Value[Any]]]  # by line: why there is no other call, and the Value


class MadeOnce:
    """What the function that is being recorded has made so far. Used by the thread that records it."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[Value[Any], str]] = {}  # by id, with the line
        self._changes: dict[int, str] = {}  # of these: what changes it, or that it is returned
        self._given: list[tuple[str, list[Extent]]] = []  # to `overwrite`: the Value and the line, and the memory of the data

    def value(self, data: Any, name: str | None) -> str:
        """The name of the Var of a Value that the function makes of ``data``."""
        line = where()
        _refuse_recorded(f"engine.value at {line}", data)
        return name or f"value made at {line}"

    def note(self, value: Value[Any]) -> None:
        self._values[id(value)] = value, where()

    def overwrites(self, value: Value[Any], data: Any) -> str:
        """What the call of ``overwrite`` is called in errors."""
        called = f"overwrite of {repr(value.var.name) if value.var.name else 'a Value'} at {where()}"
        _refuse_recorded(called, data)
        return called

    def given(self, called: str, data: Any) -> None:
        """An eager call of this ``overwrite`` would not copy the data."""
        self._given.append((called, memory_of(data)))

    def changed(self, value: Value[Any], by: str) -> None:
        """An op changes it, or it is returned."""
        if id(value) in self._values:
            self._changes.setdefault(id(value), f"{by} at {where()} changes it")

    def returned(self, value: Value[Any]) -> None:
        if id(value) in self._values:
            self._changes.setdefault(id(value), "the function returns it")

    def pushed(self, nodes: Iterable[tuple[str, str, list[tuple[str, str]]]]) -> None:
        """Notes what pushes change, which name Vars. ``nodes``: those of the plan."""
        names: dict[str, list[int]] = {}
        for at, (value, _) in self._values.items():
            names.setdefault(value.var.name, []).append(at)
        for name, line, effects in nodes if names else ():
            for var, mode in effects:
                for at in names.get(var, ()) if mode != "reads" else ():
                    self._changes.setdefault(at, f"op '{name}' at {line} changes it")

    def values(self) -> list[Value[Any]]:
        """The Values that would go on from call to call."""
        return [self._values[at][0] for at in self._changes]

    def refuse(self, called: str, unnamed: list[Value[Any]], seen: list[Any], before: MadeFirst) -> MadeFirst:
        """Refuses what no later call could do again. Returns what is made for the first call alone, if that is state.

        ``unnamed``: Values that the function finds by no name, in this call or in later ones. ``seen``: what it finds by name.
        ``before``: what this returned for the call before.
        """
        found = set(map(id, seen))
        first: MadeFirst = {}
        for at, how in self._changes.items():
            value, line = self._values[at]
            text = (f"'{called}' calls engine.value at {line}, which makes one Value for all calls while it is recorded, and {how}: make the "
                    f"Value outside of the function, let an op make the data, or use {EAGERLY}")  # fmt: skip
            if any(value is one for one in unnamed) or line in before and id(before[line][1]) not in found:
                raise Unreadable(text)
            first[line] = text, value
        if any(memory for _, memory in self._given):
            known = [extent for thing in seen if not fixed(thing) for extent in extents(thing) or [identity(thing)]]
            for what, memory in self._given:
                if overlap(memory, known):
                    raise Unreadable(f"{what} is given data that '{called}' finds by a name, too. Ops that change the Value would change these, "
                                     f"and no call after that would begin with what they are now: give it a copy, or use {EAGERLY}")  # fmt: skip
        return first


__all__ = ["MadeOnce"]
