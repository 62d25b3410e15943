"""Values: data that ops make, change and read, each with the Var that orders them."""

from __future__ import annotations

import logging
import operator
import time
from typing import Any, Callable, Generator, Generic, Iterable, Iterator, TypeVar

from . import _core, aio
from .errors import UsageError, an

T = TypeVar("T")


class _Missing:
    """Stands for data that were never made, because the op that should have made them failed. Only ops with
    ``run_always`` meet it."""

    def __repr__(self) -> str:
        return "<engine.MISSING>"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class Value(_core.ValueBase, Generic[T]):
    """Some data and the Var that orders the ops on it. Made by ``engine.value`` and by calling an ``engine.op``.

    ``get()``, ``np.asarray(v)``, ``await v``, and ``bool``, ``len``, ``int``, ``float`` and ``f"{v:.3f}"`` of it wait for the ops called so far that change it, and raise what these
    raised. They return the data itself and not a copy, so an op that is called later may still change it in place.
    Operators, indexing and functions that take a Value make ops: ``(x + y)[0]`` is a Value. ``==`` compares Values and
    not data, so that they can be keys. Any thread may use a Value. One that shares memory with others is waited for with
    what changes these, and has their errors.
    """

    __slots__ = ()

    def __init__(self, *given: Any) -> None:  # the engine's own: the data and their Var
        if type(self) is Value and (len(given) != 2 or not isinstance(given[1], _core.Var)):
            raise TypeError("Value: programs do not make one so; engine.value(data) and calls of ops make Values")
        super().__init__(*given)

    def get(self, timeout: float | None = None) -> T:
        """Waits for the data and returns it. TimeoutError after ``timeout`` seconds."""
        if not self.wait(timeout):
            raise TimeoutError(f"{self.var.name or 'value'} was not there within {timeout} s")
        data: T = self._data
        return data

    result = get  # as a concurrent.futures.Future has it

    def wait(self, timeout: float | None = None) -> bool:
        """As Var.wait."""
        if self._shares is None:
            return self.var.wait(timeout)
        ended, error = self._outcome(timeout)
        if error is not None:
            raise error
        return ended

    def wait_to_write(self) -> None:
        """As Var.wait_to_write: afterwards no op that was called so far uses the data."""
        for var in vars_of(self):
            var.wait_to_write()

    def done(self) -> bool:
        """Whether every op called so far that changes it has ended; also if one failed. Does not wait."""
        return self._settled

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits; returns what ``get`` would raise, or None. TimeoutError after ``timeout`` seconds."""
        ended, error = self._outcome(timeout)
        if not ended:
            raise TimeoutError(f"{self.var.name or 'value'} was not there within {timeout} s")
        return error

    def _outcome(self, timeout: float | None) -> tuple[bool, BaseException | None]:
        """(in time, the error that an op on it would be skipped with), as Var._outcome of each of its Vars."""
        begin, left, first = time.monotonic(), timeout, None
        for var in vars_of(self):
            ended, error = var._outcome(left)
            if not ended:
                return False, None
            first = error if first is None else first
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - begin))
        return True, first

    def add_done_callback(self, fn: Callable[[Value[T]], object]) -> None:
        """Calls ``fn(self)`` on an I/O thread once the ops called so far that change it have ended, failed or not. What it raises is
        logged by ``logging.getLogger("engine")`` and goes nowhere else, as for futures.
        """
        # Two ops, because an op may not wait for what it names, and `fn` may ask for the error.
        engine, ended = self.var.engine, _core.Var("done", self.var.engine)
        engine.push(lambda: None, reads=[self], writes=[ended], run_always=True, name="done", place=_core.io())
        engine.push(lambda: self._tell(fn), reads=[ended], run_always=True, name="done callback", place=_core.io())

    def _tell(self, fn: Callable[[Value[T]], object]) -> None:
        try:
            fn(self)
        except Exception:
            logging.getLogger("engine").exception("engine: a callback of %r raised", self)

    def overwrite(self, data: T) -> None:
        """Replaces the data, in order: ops called so far still see the old. Clears an error. Data that share memory with
        another Value are copied, behind the ops called so far that change that; so are those of a recorded function, in each call.
        """
        from . import alias as aliases

        if isinstance(data, Value):
            raise TypeError("overwrite: data is a Value; give data, or call an op")
        engine, made = self.var.engine, _made_once()
        called = "" if made is None else made.overwrites(self, data)
        # Ops that were recorded with this Value name its Var and no other that it might get, so it must not share memory now.
        others = [v for v in aliases.found(aliases.memory_of(data), engine) if all(var != self.var for var in vars_of(v))]
        if made is not None and not others:
            made.given(called, data)
        # So that whoever brings this memory meanwhile finds the Var. Each run of a recorded function installs a copy.
        coming: Value[T] | None = None if others or made is not None else Value(data, self.var)

        def replace() -> None:
            self._data = aliases.apart(data) if coming is None else coming._data

        # Its own Var alone: ops on it name that, too, so the old data stay until they have ended, and those whose memory it
        # shares keep theirs, with their errors.
        engine.push(replace, reads=others, writes=[self.var], run_always=bool(others), name="overwrite")
        if made is None:
            self._shares = None  # not before: a push by another thread in between would find the old data, with one Var

    def __bool__(self) -> bool:
        return bool(self.get())

    def __len__(self) -> int:
        return len(self.get())  # type: ignore[arg-type]

    def __int__(self) -> int:
        return int(self.get())  # type: ignore[call-overload, no-any-return]

    def __float__(self) -> float:
        return float(self.get())  # type: ignore[arg-type]

    def __complex__(self) -> complex:
        return complex(self.get())  # type: ignore[call-overload, no-any-return]

    def __index__(self) -> int:
        return operator.index(self.get())  # type: ignore[arg-type]

    def __format__(self, spec: str) -> str:
        return format(self.get(), spec) if spec else str(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        given: Any = self.get()
        data = np.asarray(given)
        if copy is False and (data is not given and not np.may_share_memory(data, np.asarray(given)) or dtype not in (None, data.dtype)):
            raise ValueError(f"{an(type(given))} cannot become an array{f' of {np.dtype(dtype)}' if dtype else ''} without a copy")
        if dtype is not None and data.dtype != dtype:
            return data.astype(dtype)
        return data.copy() if copy else data

    def __dlpack__(self, **options: Any) -> Any:
        return self.get().__dlpack__(**options)  # type: ignore[attr-defined]

    def __dlpack_device__(self) -> Any:
        return self.get().__dlpack_device__()  # type: ignore[attr-defined]

    def __await__(self) -> Generator[Any, None, T]:
        return aio.of_value(self).__await__()

    def __copy__(self) -> Value[T]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Value[T]:
        import copy

        return value(copy.deepcopy(self.get(), memo), self.var.name, self.var.engine)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a Value belongs to this process; pickle its data: v.get()")

    def __repr__(self) -> str:
        name = self.var.name
        return f"<engine.Value{' ' + repr(name) if name else ''}: {self._state()}>"

    def _state(self) -> str:
        if not self.done():
            return "pending"
        error = self.exception(0)
        if error is not None:
            return f"failed, {type(error).__name__}: {error}"
        data = self._data
        shape = getattr(data, "shape", None)
        if isinstance(shape, tuple):
            return f"{type(data).__name__} of {getattr(data, 'dtype', '?')}, shape {tuple(shape)}"
        text = repr(data)
        return text if len(text) <= 60 else f"{type(data).__name__}, {text[:50]}..."


def _made_once() -> Any:
    """What the function that this thread is recording has made (once.py); None: it records none."""
    return _core.recorder().made if _core.is_recording() else None


def vars_of(value: Value[Any]) -> Iterator[_core.Var]:
    """The Vars that an op on the Value names: its own, and those of its roots, whose memory it shares."""
    yield value.var
    for root in value._shares or ():
        yield root.var


def roots_of(values: Iterable[Value[Any]]) -> tuple[Value[Any], ...]:
    """The roots of what shares memory with these Values: theirs, and those of them that have none."""
    return tuple({id(root): root for value in values for root in value._shares or (value,)}.values())


def value(data: T, name: str | None = None, engine: _core.Engine | None = None, *, alias: str = "order") -> Value[T]:
    """Makes ``data`` a Value, for ops to read and change. It is not copied, so touch it only in ops from here on.

    ``engine``: the engine that orders the ops on it (the default one). ``alias``: what shares memory with the data of
    other Values gets their Vars ("order"), or is copied ("copy"). TypeError if ``data`` is a Value already. A recorded function may only
    read a Value that it makes; UsageError if it changes or returns one.
    """
    from . import alias as aliases

    if isinstance(data, Value):
        raise TypeError("value: data is a Value already; use it as it is")
    if alias not in ("order", "copy"):
        raise UsageError(f"value: alias is {alias!r}; 'order' or 'copy' is expected")
    recorded = _made_once()
    if recorded is not None:
        name = recorded.value(data, name)
    where = aliases.memory_of(data)
    known = aliases.found(where, engine or _core.default())
    if known and alias == "order":
        made: Value[T] = Value(data, known[0].var)
        if any(var != made.var for other in known for var in vars_of(other)):
            made._shares = roots_of(known)
    else:
        if known:
            data = aliases.apart(data)
        made = Value(data, _core.Var(name, engine))
    if recorded is not None:
        recorded.note(made)
    return made


_core._set_value_class(Value, MISSING)
__all__ = ["MISSING", "UsageError", "Value", "value"]
