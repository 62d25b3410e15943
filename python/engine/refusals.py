"""Refusals: what tells that a recorded function uses data, where the recorded value itself was not asked.

A recorded value may lie in an object that nobody looks into, such as a closure, where no run would put data in its place. And
C code asks for the type of what it is given, so it raises an error of its own.
"""

from __future__ import annotations

import dis
import functools
import gc
import re
import types
from typing import Any, Iterator

from . import _core
from .containers import found_in
from .errors import UsageError, an
from .traced import EAGERLY, Traced, Unreadable, is_the_users, where

_VIEWS: tuple[type, ...] = (types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()))
_TOLD = re.compile(r"\bTraced\b")  # the type's name in an error of C code


def refuse_while_recording(what: str, instead: str) -> None:
    """Unreadable if this thread records a function. ``what``: what the caller was asked for, which no replay would do again."""
    if _core.is_recording():
        raise Unreadable(f"{what} while the function is recorded, at {where()}: no replay would do that. {instead}, "
                         f"or use {EAGERLY}")  # fmt: skip


def refuse_hidden(item: Any, holder: str, levels: int = 2) -> None:
    """Unreadable if ``item`` is an object with a recorded value inside which no run would replace. ``holder``: what has the item.
    ``levels``: how many objects in objects are looked into."""
    if any(True for _ in _hidden(item, levels)):
        raise Unreadable(f"{holder} has {an(type(item))} with a recorded value inside, at {where()}, and no replay would put "
                         "data there: give the value itself, or a list, tuple, dict, deque, slice, dataclass or array of objects with it, or use "
                         f"{EAGERLY}")  # fmt: skip


def refuse_iterator(item: Any, name: str) -> None:
    """Unreadable if ``item``, which the function ``name`` returned, is an iterator: there would be one for all replays."""
    if _is_iterator(type(item)):
        raise Unreadable(f"'{name}' returns {an(type(item))} while the function is recorded, and all replays would return "
                         f"the same one, which the first uses up: return a list, or use {EAGERLY}")  # fmt: skip


def _is_iterator(kind: type) -> bool:
    """Whether it is one of Python's own, generators too."""
    return hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools")


def _hidden(item: Any, levels: int) -> Iterator[Traced]:
    """The recorded values in what ``containers.mapped`` does not look into."""
    kind = type(item)
    if levels == 0 or issubclass(kind, (Traced, type, types.ModuleType)):
        return
    parts: list[Any] = []
    if issubclass(kind, types.FunctionType):
        parts += [*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values()]
        for cell in item.__closure__ or ():
            try:
                parts.append(cell.cell_contents)
            except ValueError:  # it is bound later
                continue
    elif issubclass(kind, types.MethodType):
        parts.append(item.__self__)
    elif issubclass(kind, functools.partial):
        parts += [item.func, item.args, item.keywords]
    elif _is_iterator(kind) or kind in _VIEWS:
        parts += gc.get_referents(item)
    elif issubclass(kind, _core.OpBase):
        parts.append(item._fn)
    elif not hasattr(kind, "__dataclass_fields__") and type(attributes := getattr(item, "__dict__", None)) is dict:
        parts += attributes.values()
    for part in parts:
        yield from _recorded_in(part)
        yield from _hidden(part, levels - 1)


def _recorded_in(item: Any) -> Iterator[Traced]:
    try:
        yield from (each for each in found_in(item) if isinstance(each, Traced))
    except UsageError:  # a set of Values, which is refused when somebody uses it
        return


def unreadable(error: Exception, guess: bool) -> Unreadable | None:
    """What ``error`` says of a recorded value, as a refusal with the user's line; None if it says nothing of one.

    An error of C code names the type of what it was given. ``guess``: an error that names nothing is one, too, if C code raised it
    for a line that has a recorded value at hand.
    """
    if isinstance(error, UsageError):
        return None
    before = error.__cause__ or error.__context__  # NumPy puts an error of its own in the place of a refusal
    if isinstance(before, Unreadable):
        return Unreadable(*before.args)
    if not isinstance(error, (TypeError, ValueError, AttributeError)):
        return None
    line, last = "", error.__traceback__
    while last is not None:
        if is_the_users(last.tb_frame):
            line = f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}"
        if last.tb_next is None:
            break
        last = last.tb_next
    if not (_TOLD.search(str(error)) or guess and last is not None and _by_c_code(last)):
        return None
    return Unreadable(f"a recorded value has no data while the function is recorded, and {line} gives it to what reads it "
                      f"({type(error).__name__}: {error}): read it in an op, or use {EAGERLY}")  # fmt: skip


def _by_c_code(last: types.TracebackType) -> bool:
    """Whether the last frame has a recorded value in a variable, and is no line of the program that raised the error itself."""
    frame = last.tb_frame
    here = (at.opname for at in dis.get_instructions(frame.f_code) if at.offset == last.tb_lasti)
    raising = is_the_users(frame) and any(name in ("RAISE_VARARGS", "RERAISE") for name in here)
    return not raising and any(True for part in frame.f_locals.values() for _ in _recorded_in(part))


__all__ = ["refuse_hidden", "refuse_iterator", "refuse_while_recording", "unreadable"]
