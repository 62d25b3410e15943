"""What goes wrong, as Python classes; and how an exception that an op raised comes back at a wait.

A body's own exception is raised at every wait as a copy of its own: same type, arguments, attributes, cause and
traceback, plus a note that says which op failed, where it was pushed and through which ops the error came. A copy,
because several threads may wait for one failed Var, and raising one object twice mixes up its tracebacks.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any, NamedTuple


class Hop(NamedTuple):
    """An op that an error passed through: skipped, because something that it reads had failed."""

    op: str
    file: str
    line: int

    def __str__(self) -> str:
        where = f" pushed at {self.file}:{self.line}" if self.file else ""
        return f"'{self.op or 'unnamed op'}'{where}"


class Error(Exception):
    """Base of everything that the engine raises by itself."""


class UsageError(Error, ValueError):
    """A call that cannot be honoured; nothing was changed by it."""


class BackPressureError(Error):
    """Too many ops are pending: the hard bound (``hard_max_pending``) was reached."""


class OpError(Error):
    """An op failed for a reason that is not a Python exception.

    ``op``, ``file``, ``line``: the op that failed first and where it was pushed. ``path``: the ops it came through.
    """

    op: str = ""
    file: str = ""
    line: int = 0
    path: tuple[Hop, ...] = ()


class CancelledError(OpError):
    """The op's CancelScope was cancelled before it started."""


class StageTimeoutError(Error, TimeoutError):
    """An item waited too long for room in its stage, or a consumer too long for an item."""


class EndOfData(Error):
    """There is no more data: what ``take`` of a stage and ``step`` of a smart stage raise then, and what a source may raise."""


class ShutdownError(OpError):
    """The engine was shut down before the op could finish."""


class ForkedWhilePending(OpError):
    """The Var had pending writes when the process forked; in the child they never happen."""


class CompletionError(OpError):
    """An asynchronous op lost its ``done``, or called it twice."""


class CommunicatorError(OpError):
    """A collective failed: an error of the library or of another rank, a timeout, an abort; or the library is missing."""


def describe(exception: BaseException) -> str:
    """One line for reports that are not written by Python: type, text and where it was raised."""
    text = f"{type(exception).__name__}: {exception}"
    trace = exception.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return text
    code = trace.tb_frame.f_code
    return f"{text} ({os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name})"


_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def copy_exception(exception: BaseException) -> BaseException:
    """A shallow copy made without running code of the exception's class.

    The nearest built-in base makes the object from ``args``; then every field, slot and attribute is taken over.
    Returns ``exception`` itself where even that is impossible.
    """
    cls = type(exception)
    base = next(c for c in cls.__mro__ if c.__module__ == "builtins" and issubclass(c, BaseException))
    try:
        copy: BaseException = base.__new__(cls, *exception.args)
        for c in cls.__mro__:
            for name, field in vars(c).items():
                if isinstance(field, _FIELDS) and name not in ("__dict__", "__weakref__"):
                    _take(copy, exception, name)
        copy.__dict__.update(exception.__dict__)
    except Exception:
        return exception
    if "__notes__" in copy.__dict__:
        copy.__notes__ = list(copy.__notes__)
    return copy.with_traceback(exception.__traceback__)


def _take(copy: BaseException, exception: BaseException, name: str) -> None:
    try:
        value = getattr(exception, name)
        if getattr(copy, name, None) is not value:  # OSError tells None from never set
            setattr(copy, name, value)
    except (AttributeError, TypeError):
        pass  # unset, or read-only: then the constructor has set it from args


def _story(op: str, file: str, line: int, path: list[tuple[str, str, int]]) -> str:
    parts = [f"op {Hop(op, file, line)} failed"] if op or file else []  # what a fork poisons names no op
    if path:
        parts.append("skipped on the way here: " + ", ".join(str(Hop(*hop)) for hop in path))
    return "engine: " + "; ".join(parts) if parts else ""


def at_wait(
    exception: BaseException, op: str, file: str, line: int, path: list[tuple[str, str, int]]
) -> BaseException:
    """What a wait raises for an op whose body raised ``exception``. Called by the extension."""
    return noted(exception, _story(op, file, line, path))


def noted(exception: BaseException, note: str) -> BaseException:
    """A copy of ``exception`` to be raised once, with ``note`` added. Called by the extension."""
    copy = copy_exception(exception)
    if copy is exception:
        # Shared between waits: at least begin with the body's frames and say it once.
        if note in getattr(exception, "__notes__", ()):
            return exception
    if sys.version_info >= (3, 11):
        copy.add_note(note)
    else:
        copy.__dict__.setdefault("__notes__", []).append(note)
        if copy.__cause__ is None and copy.__context__ is None:
            copy.__cause__ = OpError(note)  # the only place where older versions would show it
    return copy


def from_engine(cls: type[Error], text: str, op: str, file: str, line: int, path: list[Any]) -> Error:
    """What a wait raises for an op that failed without a Python exception. Called by the extension."""
    story = _story(op, file, line, path)
    error = cls(f"{text} [{story}]" if story else text)
    if isinstance(error, OpError):
        error.op, error.file, error.line, error.path = op, file, line, tuple(Hop(*hop) for hop in path)
    return error
