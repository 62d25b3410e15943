"""Traced: what stands for data while a function is recorded. Whatever would look at the data is refused, because the
answer would be part of every replay."""

from __future__ import annotations

import collections.abc
import functools
import os
import pathlib
import sys
from typing import Any, Callable, NoReturn

from . import _core
from .errors import Unreadable
from .values import Value

_PACKAGE = str(pathlib.Path(__file__).parent) + os.sep
_DECIDE = ("the answer would be part of every replay. Decide in an op (numpy.where), give what decides as an argument that is "
           "a bool or None, or use hybridize(..., fallback=\"eager\")")  # fmt: skip
_CHANGE = ("no replay would do that. Change it in an op (engine.op(updates=...)), give the result another name, or use "
           "hybridize(..., fallback=\"eager\")")  # fmt: skip
_IN_PLACE = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_SEQUENCE, _MAPPING = 1 << 5, 1 << 6  # of a type's __flags__: whether patterns like [a, b] and {"k": a} may match its objects


def _where() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename.startswith(_PACKAGE) or _is_numpy(frame)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_numpy(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "numpy"


class Unknown:
    """Stands for the Var of a recorded value."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        raise Unreadable(f"'{self.name}' has no Var while the function is recorded, so nobody can ask for its '{attribute}' "
                         f"({_where()}); use it in an op, or return it")  # fmt: skip


def _refuse(called: str, how: str, instead: str = _DECIDE) -> NoReturn:
    raise Unreadable(f"'{called}' has no data while the function is recorded, and {_where()} {how}: {instead}")


def _refused(how: str, instead: str = _DECIDE) -> Callable[..., Any]:
    def refuse(self: Traced, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self.called, how, instead)

    return refuse


class Traced(Value[Any]):
    """Stands for a value while a function is recorded: it can be an argument of ops, and has no data yet.

    ``brought``: whether it is what each run is given. One that shares memory has roots, recorded values and Values from outside. Nothing can
    see that a function asks for its type or its identity (``type(x)``, ``x is y``), nor ``callable(x)``; ``standing_for`` makes
    the last one right for arguments.
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
        frame = sys._getframe(1)
        if frame.f_code.co_name == "sum" and _is_numpy(frame):  # numpy.sum asks whether it is a generator
            return type(self)
        _refuse(self.called, "asks for its class")

    def __getattr__(self, name: str) -> Any:
        # Names with an underscore are protocols, which say no by AttributeError. NumPy's functions ask for a method of their
        # name, and have another way.
        if name.startswith("_") or _is_numpy(sys._getframe(1)):
            raise AttributeError(f"'{self.called}', which is recorded, has no attribute '{name}'")
        _refuse(self.called, f"asks for its '{name}'")

    def __setattr__(self, name: str, data: Any) -> None:
        if name not in Traced.__slots__ and not name.startswith("_"):
            _refuse(self.called, f"sets its '{name}'", _CHANGE)
        super().__setattr__(name, data)

    get = result = wait = done = exception = __array__ = __dlpack__ = __dlpack_device__ = _refused("reads it")  # type: ignore[assignment]
    __await__ = __copy__ = __deepcopy__ = wait_to_write = add_done_callback = overwrite = _refused("reads it")  # type: ignore[assignment]
    __reduce_ex__ = _refused("pickles it")
    __bool__ = _refused("decides by it")
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refused("compares it")  # type: ignore[assignment]
    __contains__ = _refused("looks for something in it")
    __hash__ = _refused("looks it up")  # type: ignore[assignment]
    __len__ = __iter__ = __reversed__ = __next__ = _refused("counts its items")  # type: ignore[assignment]
    __float__ = __int__ = __index__ = __complex__ = _refused("makes a number of it")
    __trunc__ = __floor__ = __ceil__ = __divmod__ = __rdivmod__ = _refused("makes a number of it")
    __str__ = __format__ = __bytes__ = _refused("makes a text of it")  # type: ignore[assignment]
    __enter__ = __exit__ = _refused("enters it")
    __setitem__ = __delitem__ = __delattr__ = _refused("changes it", _CHANGE)  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if kwargs.get("out") is not None:
            _refuse(self.called, "writes it into an array that is there", _CHANGE)
        return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)  # type: ignore[misc]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _refuse("a recorded value", f"gives it to {getattr(function, '__name__', 'a function')} of PyTorch")

    def __repr__(self) -> str:
        if _core.is_recording():
            _refuse(self.called, "makes a text of it")
        return f"<{self.called}, recorded>"


def _in_place(name: str) -> Callable[..., Any]:
    def change(self: Traced, other: Any) -> Any:
        if self.brought:  # data, which eager calls would change. What ops make are Values, which get another one by this
            _refuse(self.called, f"changes it by an operator ({name}=)", _CHANGE)
        return NotImplemented

    return change


for _name in _IN_PLACE:
    setattr(Traced, f"__i{_name}__", _in_place(_name))


class Made(Traced):
    """Stands for what an op makes. Its type is unknown, so a pattern like [a, b] asks for its length, which is refused."""

    __slots__ = ()


collections.abc.Sequence.register(Made)  # for patterns only: isinstance asks for the class, which is refused


@functools.lru_cache(maxsize=64)
def _standing_for(flags: int, called: bool) -> type[Traced]:
    methods: dict[str, Any] = {"__slots__": ()}
    if called:
        methods["__call__"] = _refused("calls it")
    made: type[Traced] = type("Traced", (Traced,), methods)
    if flags & _MAPPING:
        collections.abc.Mapping.register(made)
    if flags & _SEQUENCE:
        collections.abc.Sequence.register(made)
    return made


def standing_for(kind: type) -> type[Traced]:
    """The class of what stands for an argument of this type: ``callable`` and patterns have the answers that they have for it."""
    if issubclass(kind, Value):
        return Made
    return _standing_for(kind.__flags__ & (_SEQUENCE | _MAPPING), any("__call__" in base.__dict__ for base in kind.__mro__))


__all__ = ["Made", "Traced", "Unknown", "Unreadable", "standing_for"]
