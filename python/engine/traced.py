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
_STANDARD = os.path.dirname(os.__file__) + os.sep
EAGERLY = "hybridize(..., fallback=\"eager\")"
_DECIDE = ("the answer would be part of every replay. Decide in an op (numpy.where), give what decides as an argument that is "
           f"a bool or None, or use {EAGERLY}")  # fmt: skip
_CHANGE = ("no replay would do that. Change it in an op (engine.op(updates=...)), give the result another name, or use "
           f"{EAGERLY}")  # fmt: skip
_READS = ("get", "result", "wait", "done", "exception", "wait_to_write", "add_done_callback", "__array__", "__dlpack__",
          "__dlpack_device__")  # fmt: skip
_CHANGES = ("overwrite", "__setitem__", "__delitem__", "__setattr__", "__delattr__")
_IN_PLACE = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_SEQUENCE, _MAPPING = 1 << 5, 1 << 6  # of a type's __flags__: whether patterns like [a, b] and {"k": a} may match its objects


def where() -> str:
    """The line of the program that has called the engine."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_the_users(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _library(frame: Any) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _is_numpy(frame: Any) -> bool:
    return _library(frame) == "numpy"


def is_the_users(frame: Any) -> bool:
    """Whether it is the program's own: not of the engine, NumPy, PyTorch or Python's library, which may read for the program."""
    path = frame.f_code.co_filename
    if path.startswith(_STANDARD) and f"-packages{os.sep}" not in path:
        return False
    return not path.startswith((_PACKAGE, "<frozen ")) and _library(frame) not in ("numpy", "torch")


def _refuse(called: str, how: str, instead: str = _DECIDE) -> NoReturn:
    raise Unreadable(f"'{called}' has no data while the function is recorded, and {where()} {how}: {instead}")


def _refused(how: str, instead: str = _DECIDE) -> Callable[..., Any]:
    def refuse(self: Traced, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self._called, how, instead)

    return refuse


class Traced(Value[Any]):
    """Stands for a value while a function is recorded: it can be an argument of ops, and has no data yet.

    ``_brought``: whether it is what each run is given. One that shares memory has roots, recorded values and Values from outside.
    Only the engine, NumPy and PyTorch may ask it for attributes; whoever else does gets Unreadable, whatever the name is. Nothing
    can see that a function asks for its type or its identity (``type(x)``, ``x is y``, ``isinstance(x, engine.Value)``), nor
    ``callable(x)``; ``standing_for`` makes the last one right for arguments.
    """

    __slots__ = ("_index", "_called", "_brought")

    def __init__(self, index: int, name: str, brought: bool = False) -> None:
        super().__init__()
        self._index, self._called, self._brought = index, name, brought

    @property
    def var(self) -> NoReturn:  # type: ignore[override]
        _refuse(self._called, "asks for its 'var'")

    def __getattribute__(self, name: str) -> Any:
        frame = sys._getframe(1)
        ours = frame.f_code.co_filename.startswith(_PACKAGE)
        if name == "__class__":  # what isinstance asks for if the type itself is not the answer
            if frame.f_code.co_name == "sum" and _is_numpy(frame):  # numpy.sum asks whether it is a generator
                return type(self)
            _refuse(self._called, "asks for its class")
        if ours or name == "__torch_function__" or _library(frame) in ("numpy", "torch"):
            return super().__getattribute__(name)
        instead = _CHANGE if name in _CHANGES else _DECIDE
        _refuse(self._called, "reads it" if name in _READS else f"asks for its '{name}'", instead)

    def __getattr__(self, name: str) -> Any:
        # Names with an underscore are protocols, which say no by AttributeError. NumPy's functions ask for a method of their
        # name, and have another way.
        if name.startswith("_") or _is_numpy(sys._getframe(1)):
            raise AttributeError(f"'{self._called}', which is recorded, has no attribute '{name}'")
        _refuse(self._called, f"asks for its '{name}'")

    def __setattr__(self, name: str, data: Any) -> None:
        if not sys._getframe(1).f_code.co_filename.startswith(_PACKAGE):
            _refuse(self._called, f"sets its '{name}'", _CHANGE)
        super().__setattr__(name, data)

    get = result = wait = done = exception = __array__ = __dlpack__ = __dlpack_device__ = _refused("reads it")  # type: ignore[assignment]
    __await__ = __copy__ = __deepcopy__ = wait_to_write = add_done_callback = overwrite = _refused("reads it")  # type: ignore[assignment]
    __reduce_ex__ = _refused("pickles it")
    __bool__ = _refused("decides by it")
    __eq__ = __ne__ = _refused("compares it")  # type: ignore[assignment]
    __contains__ = _refused("looks for something in it")
    __hash__ = _refused("looks it up")  # type: ignore[assignment]
    __len__ = __iter__ = __reversed__ = __next__ = _refused("counts its items")  # type: ignore[assignment]
    __fspath__ = _refused("makes a path of it")
    __float__ = __int__ = __index__ = __complex__ = _refused("makes a number of it")
    __trunc__ = __floor__ = __ceil__ = __divmod__ = __rdivmod__ = _refused("makes a number of it")
    __str__ = __format__ = __bytes__ = _refused("makes a text of it")  # type: ignore[assignment]
    __enter__ = __exit__ = _refused("enters it")
    __setitem__ = __delitem__ = __delattr__ = _refused("changes it", _CHANGE)  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if kwargs.get("out") is not None:
            _refuse(self._called, "writes it into an array that is there", _CHANGE)
        return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)  # type: ignore[misc]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _refuse("a recorded value", f"gives it to {getattr(function, '__name__', 'a function')} of PyTorch")

    def __repr__(self) -> str:
        if _core.is_recording():
            _refuse(self._called, "makes a text of it")
        return f"<{self._called}, recorded>"


def _in_place(name: str) -> Callable[..., Any]:
    def change(self: Traced, other: Any) -> Any:
        if self._brought:  # data, which eager calls would change. What ops make are Values, which get another one by this
            _refuse(self._called, f"changes it by an operator ({name}=)", _CHANGE)
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


Made.__name__ = Made.__qualname__ = "Traced"  # by which errors of C code are known (refusals.py)
__all__ = ["EAGERLY", "Made", "Traced", "Unreadable", "is_the_users", "standing_for", "where"]
