"""The engine's exception classes; and how an exception that an op raised comes back at a wait.

Each wait raises a new copy of the body's exception: same type, arguments, attributes, cause and traceback, and a note
that says which op failed, where it was pushed and which ops were skipped. It is a copy because several threads may
wait for one failed Var, and raising one object twice would mix up its tracebacks.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any, Iterator, NamedTuple

from . import _core


class Hop(NamedTuple):
    """An op that was skipped because something that it reads had failed, and that passed the error on."""

    op: str
    file: str
    line: int

    def __str__(self) -> str:
        where = f" pushed at {self.file}:{self.line}" if self.file else ""
        return f"'{self.op or 'unnamed op'}'{where}"


def an(kind: type) -> str:
    """The name of a type behind its article, for errors: "an int", "a Value"."""
    name = kind.__name__
    return f"an {name}" if name[:1] in "aeioAEIO" or name == "ndarray" else f"a {name}"


class Error(Exception):
    """Base of everything that the engine itself raises. Raised as such if the system refuses a thread."""


class OpError(Error):
    """An op failed for a reason that is not a Python exception.

    ``op``, ``file``, ``line``: the op that failed first, and where it was pushed. ``path``: the ops that were
    skipped.
    """

    op: str = ""
    file: str = ""
    line: int = 0
    path: tuple[Hop, ...] = ()


# <errors: written by .ci/tables.py from include/engine/error.h>
class DeviceError(OpError):
    """A call of a device failed, the device was lost, or there is no such device."""


class EndOfData(Error):
    """There is no more data: a source may raise it, and ``take`` of a stage and ``step`` of a smart stage do."""


class UsageError(Error, ValueError):
    """A call cannot be honoured: a null, deleted or foreign Var, an unknown pool, a wait inside its own op, a value
    out of range. The call changed nothing."""


class BackPressureError(Error):
    """Too many ops are pending: the hard bound (``hard_max_pending``) was reached."""


class CancelledError(OpError):
    """The cancel scope of the op was cancelled before the op started."""


class DeadlineError(OpError, TimeoutError):
    """The deadline of a run had passed before this op of it started."""


class ShutdownError(OpError):
    """The engine was shut down before the op could finish."""


class ForkedWhilePending(OpError):
    """The Var had pending writes when the process forked; in the child they never happen."""


class CompletionError(OpError):
    """An asynchronous op lost its completion without calling it, or called it twice."""


class CommunicatorError(OpError):
    """A collective failed: an error of the library or of another rank, a timeout, an abort; or there is no
    library."""


class StageTimeoutError(Error, TimeoutError):
    """An item waited too long for room in its stage, or a consumer too long for an item."""


__all__ = [
    "Error", "BackPressureError", "CancelledError", "CommunicatorError", "CompletionError", "DeadlineError",
    "DeviceError", "EndOfData", "ForkedWhilePending", "OpError", "ShutdownError", "StageTimeoutError", "UsageError",
]  # fmt: skip
# </errors>


class Unreadable(UsageError):
    """A recorded function looked at data; with ``fallback="eager"`` it is not recorded. The extension raises it, too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        recorder = _core.recorder()
        if recorder is not None and not recorder.refused:
            recorder.refused = args  # the program may catch this one, as numpy.array_equal does


__all__ += ["Unreadable"]


def describe(exception: BaseException) -> str:
    """One line for reports that C++ writes: the type, the text and where it was raised."""
    text = f"{type(exception).__name__}: {exception}"
    trace = exception.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return text
    code = trace.tb_frame.f_code
    return f"{text} ({os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name})"


def kept(exception: BaseException) -> BaseException:
    """The exception as the engine keeps it: a copy whose traceback has files, functions and lines, and no frames' locals,
    because these would live as long as the error. So for its causes and contexts, and for exceptions and tracebacks among its
    arguments, attributes and slots, also in lists, tuples, dicts and sets there; frames there become None. The extension calls it.
    """
    done, chain = dict[int, Any](), _Chain()
    copy: BaseException = _kept(exception, done, chain)
    while chain:  # which may be as long as the stack was deep
        part, made = chain.pop()
        suppress = part.__suppress_context__
        _set(made, "__cause__", _kept(part.__cause__, done, chain))
        _set(made, "__context__", _kept(part.__context__, done, chain))
        _set(made, "__suppress_context__", suppress)
    return copy


_CONTAINERS = (list, tuple, dict, set, frozenset)
_LEAVES = (str, int, float, bool, bytes, type(None))
_Chain = list[tuple[BaseException, BaseException]]


def _kept(part: Any, done: dict[int, Any], chain: _Chain) -> Any:
    """``part``; of an exception the copy, also where it is in a container. ``done``: by id, what was made of it. ``chain``: gets
    the exceptions, each with its copy, whose cause and context are still to come."""
    if type(part) in _LEAVES:
        return part
    if type(part) in _CONTAINERS:
        return _kept_container(part, done, chain)
    if isinstance(part, types.TracebackType):
        return _core._light_traceback(part)
    if isinstance(part, types.FrameType):
        return None
    if not isinstance(part, BaseException):
        return part
    if id(part) in done:
        return done[id(part)]
    done[id(part)] = None  # what its arguments refer back to, in a circle
    copy = copy_exception(part, tuple(_kept(each, done, chain) for each in part.args))
    done[id(part)] = done[id(copy)] = copy
    if copy is not part:
        if isinstance(copy, AttributeError):
            object.__delattr__(copy, "obj")  # of which Python tells similar names only
        for name in _fields(type(copy)):
            _put(copy, name, _kept(getattr(copy, name, None), done, chain))
        for name, each in list(copy.__dict__.items()):
            copy.__dict__[name] = _kept(each, done, chain)
    _set(copy, "__traceback__", _core._light_traceback(part.__traceback__))
    chain.append((part, copy))
    return copy


def _kept_container(part: Any, done: dict[int, Any], chain: _Chain) -> Any:
    """The container itself if nothing in it has to be replaced."""
    if id(part) in done:
        return done[id(part)]
    done[id(part)] = part  # what it has of itself, in a circle, stays
    if type(part) is dict:
        before = [each for item in list(part.items()) for each in item]
    else:
        before = list(part)
    after = [_kept(each, done, chain) for each in before]
    if all(new is old for new, old in zip(after, before)):
        return part
    made = dict(zip(after[::2], after[1::2])) if type(part) is dict else type(part)(after)
    done[id(part)] = done[id(made)] = made
    return made


_set = object.__setattr__  # an exception may be a frozen dataclass, whose own refuses
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_OF_EVERY = ("__dict__", "__weakref__")


def _fields(cls: type) -> Iterator[str]:
    """The slots of an exception class, and the fields of the built-in classes, without those of every exception."""
    for c in cls.__mro__:
        if c is not BaseException:
            for name, field in vars(c).items():
                if isinstance(field, _FIELDS) and name not in _OF_EVERY:
                    yield name


def copy_exception(exception: BaseException, args: tuple[Any, ...] | None = None) -> BaseException:
    """A shallow copy, made without running code of the exception's class.

    The nearest built-in base class makes the object from ``args`` (if not given: those that it has); then every field, slot and
    attribute is copied. Returns ``exception`` itself where that is impossible.
    """
    args = exception.args if args is None else args
    cls = type(exception)
    base = next(c for c in cls.__mro__ if c.__module__ == "builtins" and issubclass(c, BaseException))
    try:
        copy: BaseException = base.__new__(cls, *args)
        for c in cls.__mro__:
            for name, field in vars(c).items():
                if isinstance(field, _FIELDS) and name not in _OF_EVERY:
                    _take(copy, exception, name)
        _set(copy, "args", args)
        copy.__dict__.update(exception.__dict__)
    except Exception:
        return exception
    if "__notes__" in copy.__dict__:
        copy.__dict__["__notes__"] = list(copy.__notes__)
    return copy.with_traceback(exception.__traceback__)


def _take(copy: BaseException, exception: BaseException, name: str) -> None:
    try:
        _put(copy, name, getattr(exception, name))
    except AttributeError:
        pass  # unset


def _put(copy: BaseException, name: str, value: Any) -> None:
    try:
        if getattr(copy, name, None) is not value:  # for OSError, None is not the same as never set
            _set(copy, name, value)
    except (AttributeError, TypeError):
        pass  # read-only, and then the constructor has set it from args


def _story(op: str, file: str, line: int, path: list[tuple[str, str, int]]) -> str:
    parts = [f"op {Hop(op, file, line)} failed"] if op or file else []  # an error of a fork names no op
    if path:
        parts.append("skipped on the way here: " + ", ".join(str(Hop(*hop)) for hop in path))
    return "engine: " + "; ".join(parts) if parts else ""


def at_wait(
    exception: BaseException, op: str, file: str, line: int, path: list[tuple[str, str, int]]
) -> BaseException:
    """What a wait raises for an op whose body raised ``exception``. The extension calls it."""
    return noted(exception, _story(op, file, line, path))


def noted(exception: BaseException, note: str) -> BaseException:
    """A copy of ``exception``, to be raised once, with ``note`` added. The extension calls it."""
    copy = copy_exception(exception)
    if copy is exception:
        # Waits share this object, so the note is added once only.
        if note in getattr(exception, "__notes__", ()):
            return exception
    copy.__dict__.setdefault("__notes__", []).append(note)
    if sys.version_info < (3, 11) and copy.__cause__ is None and copy.__context__ is None:
        _set(copy, "__cause__", OpError(note))  # the only place where older versions show it
    return copy


def from_engine(cls: type[Error], text: str, op: str, file: str, line: int, path: list[Any]) -> Error:
    """What a wait raises for an op that failed without a Python exception. The extension calls it."""
    story = _story(op, file, line, path)
    error = cls(f"{text} [{story}]" if story else text)
    if isinstance(error, OpError):
        error.op, error.file, error.line, error.path = op, file, line, tuple(Hop(*hop) for hop in path)
    return error
