"""Traced: what stands for data while a function is recorded. Whatever would look at the data is refused, because the
answer would be part of every replay."""

from __future__ import annotations

import pathlib
import sys
from typing import Any, Callable, NoReturn

from .errors import UsageError
from .values import Value

_PACKAGE = str(pathlib.Path(__file__).parent)


def _where() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Unreadable(UsageError):
    """A recorded function looked at data; with ``fallback="eager"`` it is not recorded."""


class Unknown:
    """Stands for the Var of a recorded value."""

    def __init__(self, name: str) -> None:
        self.name, self.version = name, 0

    def __getattr__(self, attribute: str) -> NoReturn:
        raise Unreadable(f"'{self.name}' has no Var while the function is recorded, so nobody can ask for its '{attribute}' "
                         f"({_where()}); use it in an op, or return it")  # fmt: skip


def _refused(how: str) -> Callable[..., Any]:
    def refuse(self: Traced, *args: Any, **kwargs: Any) -> NoReturn:
        raise Unreadable(f"'{self.called}' has no data while the function is recorded, and {_where()} {how}: the answer "
                         "would be part of every replay. Decide in an op (numpy.where), give what decides as an argument "
                         "that is a bool or None, or use hybridize(..., fallback=\"eager\")")  # fmt: skip

    return refuse


class Traced(Value[Any]):
    """Stands for a value while a function is recorded: it can be an argument of ops, and has no data yet.

    ``brought``: whether it is what each run is given. One that shares memory has roots, recorded values and Values from outside.
    """

    __slots__ = ("index", "called", "brought")

    def __init__(self, index: int, name: str, brought: bool = False) -> None:
        super().__init__()
        self.index, self.called, self.brought = index, name, brought

    @property
    def var(self) -> Any:  # type: ignore[override]
        return Unknown(self.called)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what isinstance asks for if the type itself is not the answer
        return _refused("asks for its class")(self)

    get = result = wait = done = exception = __array__ = __dlpack__ = __dlpack_device__ = _refused("reads it")  # type: ignore[assignment]
    __await__ = __copy__ = __deepcopy__ = wait_to_write = add_done_callback = overwrite = _refused("reads it")  # type: ignore[assignment]
    __bool__ = _refused("decides by it")
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refused("compares it")  # type: ignore[assignment]
    __contains__ = _refused("looks for something in it")
    __hash__ = _refused("looks it up")  # type: ignore[assignment]
    __len__ = __iter__ = _refused("counts its items")  # type: ignore[assignment]
    __float__ = __int__ = __index__ = __complex__ = _refused("makes a number of it")
    __str__ = __format__ = __bytes__ = _refused("makes a text of it")  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.called}, recorded>"


__all__ = ["Traced", "Unknown", "Unreadable"]
