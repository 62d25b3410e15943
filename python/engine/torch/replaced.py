"""What stands in for attributes of modules for a while. Several parts of a program may ask for that at once, on several threads, and end in
any order; so the originals are kept here alone, and are back when the last one has ended."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

Stand = tuple[ModuleType, str, Callable[[Any], Any]]  # the module, a name in it, and what makes of what is there what stands in for it

_lock = threading.RLock()  # for what follows, and for the attributes


class _Place:
    """An attribute: what it was, what makes what stands in for it, the latest outermost, and what is there now."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self.module, self.name = module, name
        self.original = self.now = vars(module)[name]
        self.makers: list[Callable[[Any], Any]] = []

    def is_theirs(self) -> bool:
        """Whether the program has put something there itself, which stays."""
        return vars(self.module)[self.name] is not self.now

    def make(self) -> None:
        if not self.is_theirs():
            self.now = functools.reduce(lambda made, maker: maker(made), self.makers, self.original)
            setattr(self.module, self.name, self.now)
        if not self.makers and _there.get((self.module, self.name)) is self:
            del _there[self.module, self.name]


_there: dict[tuple[ModuleType, str], _Place] = {}


@contextlib.contextmanager
def replacing(stands: Iterable[Stand]) -> Iterator[None]:
    """Inside, others stand in for what is there."""
    put: list[tuple[_Place, Callable[[Any], Any]]] = []
    try:
        with _lock:
            for module, name, maker in stands:
                place = _there.get((module, name))
                if place is None or place.is_theirs():
                    place = _there[module, name] = _Place(module, name)
                put.append((place, maker))
                place.makers.append(maker)
                place.make()
        yield
    finally:
        with _lock:
            for place, maker in put:
                place.makers.remove(maker)
                place.make()


def caller() -> str:
    """The module whose code has called what stands in for a function, be it by way of others that do."""
    frame: Any = sys._getframe(1)
    while frame is not None and (name := str(frame.f_globals.get("__name__"))).startswith("engine.torch."):
        frame = frame.f_back
    return name
