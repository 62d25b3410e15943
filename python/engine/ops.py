"""Ops: functions that become asynchronous. An argument that is a Value is read when the op runs."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Iterable, overload

from . import _core
from .errors import UsageError
from .graphs import Recorder
from .values import UNSET, Value


class Op:
    """A function whose calls are pushed to the engine. Made by ``engine.op``.

    A call returns at once: a new Value (a tuple of them if ``outputs`` is above one, None if it is zero). It is
    pushed on the engine of its first Value. The function gets the data of arguments that are Values, and of Values
    inside lists, tuples and dicts that are arguments. TypeError if an argument named in ``updates`` is not a Value.
    """

    def __init__(
        self, fn: Callable[..., Any], updates: tuple[str, ...], outputs: int, options: dict[str, Any]
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn, self._outputs, self._options = fn, outputs, options
        self._name = options.pop("name") or getattr(fn, "__name__", type(fn).__name__)
        self._node_options = {**options}
        options.pop("collective", None)  # an option of nodes in a recorded step, not of pushes
        self._signature = inspect.signature(fn) if updates else None
        self._updates = updates
        for name in updates:
            if self._signature is None or name not in self._signature.parameters:
                raise UsageError(f"op '{self._name}': updates names '{name}', which is not one of its parameters")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        updated = self._updated(args, kwargs) if self._updates else ()
        found: list[Value[Any]] = []
        for arg in args:
            _collect(arg, found)
        for arg in kwargs.values():
            _collect(arg, found)
        if recorder := Recorder.current():
            outputs = recorder.call(
                self._name, self._run, args, kwargs, found, list(updated), self._outputs, self._node_options
            )
            return outputs[0] if self._outputs == 1 else tuple(outputs) or None
        engine = found[0].var.engine if found else _core.default()
        made: list[Value[Any]] = [Value(UNSET, _core.Var(self._name, engine)) for _ in range(self._outputs)]
        engine.push(
            _Call(self, args, kwargs, made),
            reads=[v.var for v in found if not any(v is u for u in updated)],
            updates=[v.var for v in updated],
            writes=[v.var for v in made],
            name=self._name,
            **self._options,
        )
        if self._outputs == 1:
            return made[0]
        return tuple(made) or None

    def _run(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """Calls the function with data; returns its outputs, checked."""
        result = self._fn(*args, **kwargs)
        if self._outputs > 1:
            if not isinstance(result, (tuple, list)) or len(result) != self._outputs:
                raise TypeError(f"op '{self._name}' returned {_shape(result)}; {self._outputs} outputs are expected")
        elif self._outputs:
            result = (result,)
        elif result is not None:
            raise TypeError(
                f"op '{self._name}' returned {_shape(result)} although it only updates; if it has a result, say outputs=1"
            )
        return tuple(_fresh(data, args, kwargs) for data in result or ())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)  # so that methods can be ops

    def __repr__(self) -> str:
        return f"<engine.op {self._name}>"

    def _updated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Value[Any]]:
        assert self._signature is not None
        bound = self._signature.bind(*args, **kwargs)
        updated = [bound.arguments.get(name) for name in self._updates]
        for name, given in zip(self._updates, updated):
            if not isinstance(given, Value):
                raise TypeError(
                    f"op '{self._name}': it updates '{name}', which is a {type(given).__name__}; a Value is expected"
                )
        return updated  # type: ignore[return-value]


class _Call:
    """One pushed call: the body that the engine runs."""

    __slots__ = ("_op", "_args", "_kwargs", "_outputs")

    def __init__(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Value[Any]]) -> None:
        self._op, self._args, self._kwargs, self._outputs = op, args, kwargs, outputs

    def __call__(self) -> None:
        args = [_data(arg) for arg in self._args]
        kwargs = {name: _data(arg) for name, arg in self._kwargs.items()}
        for output, data in zip(self._outputs, self._op._run(args, kwargs)):
            output._data = data


def _collect(arg: Any, found: list[Value[Any]]) -> None:
    if isinstance(arg, Value):
        found.append(arg)
    elif type(arg) in (list, tuple):
        for item in arg:
            _collect(item, found)
    elif type(arg) is dict:
        for item in arg.values():
            _collect(item, found)


def _data(arg: Any) -> Any:
    if isinstance(arg, Value):
        return arg._data
    if type(arg) in (list, tuple):
        return type(arg)(_data(item) for item in arg)
    if type(arg) is dict:
        return {key: _data(item) for key, item in arg.items()}
    return arg


def _fresh(data: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """An output as new data: an array that shares memory with an argument is copied.

    Otherwise an op that updates the argument would change the output too, and nothing would order the two ops.
    """
    if not hasattr(data, "__array_interface__") or not hasattr(data, "copy"):
        return data
    import numpy as np

    if isinstance(data, np.ndarray):
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, np.ndarray) and np.may_share_memory(data, arg):
                return data.copy()
    return data


def _shape(result: Any) -> str:
    kind = type(result).__name__
    return f"a {kind} of {len(result)}" if isinstance(result, (tuple, list)) else f"a {kind}"


@overload
def op(fn: Callable[..., Any]) -> Op: ...
@overload
def op(
    *,
    updates: str | Iterable[str] = (),
    outputs: int | None = None,
    name: str | None = None,
    priority: int = 0,
    place: _core.Placement | str | None = None,
    run_always: bool = False,
    graph_key: _core.GraphKey | None = None,
    collective: bool = False,
) -> Callable[[Callable[..., Any]], Op]: ...
def op(fn: Any = None, *, updates: Any = (), outputs: int | None = None, name: Any = None, **options: Any) -> Any:
    """Makes a function an op: ``@engine.op``, or ``@engine.op(updates="w")`` for one that changes arguments in place.

    ``updates``: parameter names, in a list or separated by commas. ``outputs``: how many new Values a call returns
    (by default one, and none for an op that updates). ``name``, ``priority``, ``place``, ``run_always``,
    ``graph_key``: as for ``engine.push``. ``collective``: every process calls the op in the same order, so
    ``engine.data.smart_stage`` never runs it ahead of its step. Each wait for an output, or for what the op updates,
    raises what the function raised.
    """
    unknown = set(options) - {"priority", "place", "run_always", "graph_key", "collective"}
    if unknown:
        raise TypeError(f"op: '{unknown.pop()}' is unknown; updates, outputs, name, priority, place, run_always, "
                        "graph_key, collective are allowed")  # fmt: skip
    if fn is None:
        return functools.partial(op, updates=updates, outputs=outputs, name=name, **options)
    if not callable(fn):
        raise TypeError(f"op: a {type(fn).__name__} is no function")
    if inspect.iscoroutinefunction(fn):
        raise TypeError(f"op: '{fn.__name__}' is a coroutine function; push_async runs what completes later")
    names = tuple(n.strip() for n in updates.split(",")) if isinstance(updates, str) else tuple(updates)
    if outputs is None:
        outputs = 0 if names else 1
    if not isinstance(outputs, int) or outputs < 0:
        raise TypeError(f"op '{getattr(fn, '__name__', fn)}': outputs is {outputs!r}; a count is expected")
    return Op(fn, names, outputs, {"name": name, **options})
