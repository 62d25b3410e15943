"""Values: data that ops make, change and read, each with the Var that orders them."""

from __future__ import annotations

from typing import Any, Generator, Generic, TypeVar

from . import _core, aio

T = TypeVar("T")


class _Unset:
    def __repr__(self) -> str:
        return "<not computed yet>"


UNSET = _Unset()


class Value(Generic[T]):
    """Some data and the Var that orders the ops on it. Made by ``engine.value`` and by calling an ``engine.op``.

    ``get()``, ``np.asarray(v)`` and ``await v`` wait for the ops called so far that change it, and raise what these
    raised. They return the data itself and not a copy, so an op that is called later may still change it in place.
    Any thread may use a Value.
    """

    __slots__ = ("var", "_data", "__weakref__")

    def __init__(self, data: Any, var: _core.Var) -> None:
        self.var = var
        self._data = data  # ops that update or write the Var store it; read it after a wait for the Var

    def get(self, timeout: float | None = None) -> T:
        """Waits for the data and returns it. TimeoutError after ``timeout`` seconds."""
        if not self.var.wait(timeout):
            raise TimeoutError(f"{self.var.name or 'value'} was not there within {timeout} s")
        data: T = self._data
        return data

    def wait(self, timeout: float | None = None) -> bool:
        """As Var.wait."""
        return self.var.wait(timeout)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        data = np.asarray(self.get())
        if dtype is not None and data.dtype != dtype:
            if copy is False:
                raise ValueError(f"{data.dtype} cannot become {np.dtype(dtype)} without a copy")
            return data.astype(dtype)
        return data.copy() if copy else data

    def __await__(self) -> Generator[Any, None, T]:
        return aio.of_value(self).__await__()

    def __repr__(self) -> str:
        return f"Value({self.var.name!r}, version={self.var.version})"


def value(data: T, name: str | None = None, engine: _core.Engine | None = None) -> Value[T]:
    """Makes ``data`` a Value, for ops to read and change. It is not copied, so touch it only in ops from here on.

    ``engine``: the engine that orders the ops on it (the default one). TypeError if ``data`` is a Value already.
    """
    if isinstance(data, Value):
        raise TypeError("value: data is a Value already")
    return Value(data, _core.Var(name, engine))
