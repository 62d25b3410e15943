"""Ops: functions that become asynchronous. An argument that is a Value is read when the op runs."""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Any, Callable, Concatenate, Generic, Iterable, Literal, ParamSpec, Protocol, TypeVar, overload

from . import _core
from .alias import unshared
from .containers import filled, found_in
from .errors import UsageError, an
from .rebinding import refuse_rebinding
from .recorder import Recorder
from .traced import Traced
from .values import Value
from .wrapped import signature_of

R = TypeVar("R")
P = ParamSpec("P")
Q = ParamSpec("Q")

OPTIONS = ("updates", "outputs", "name", "priority", "place", "run_always", "graph_key", "collective", "alias", "bytes")

_core._set_containers(found_in, filled)
_core._set_unshared(unshared)


class Op(_core.OpBase, Generic[P, R]):
    """A function whose calls are pushed to the engine. Made by ``engine.op``.

    A call returns at once: a new Value (a tuple of them if ``outputs`` is above one, None if it is zero). It is
    pushed on the engine of its first Value. The function gets the data of arguments that are Values, and of Values
    inside lists, tuples, dicts and dataclasses that are arguments. TypeError if an argument named in ``updates`` is
    not a Value.
    """

    if TYPE_CHECKING:  # the extension makes the calls. Any argument may be a Value, which type checkers take for anything

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Op[P, R]: ...
        @overload
        def __get__(self: Op[Concatenate[Any, Q], R], instance: object, owner: type | None = None) -> Callable[Q, R]: ...
        def __get__(self, instance: Any, owner: type | None = None) -> Any: ...
    else:

        def __get__(self, instance, owner=None):
            return self if instance is None else types.MethodType(self, instance)  # so that methods can be ops

    def __init__(self, fn: Callable[P, Any], updates: tuple[str, ...], outputs: int, options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fn)
        self._fn, self._outputs, self._updates, self._ordered = fn, outputs, updates, options.get("alias") == "order"
        self._name = options.pop("name") or getattr(fn, "__name__", type(fn).__name__)
        try:
            self._signature: inspect.Signature | None = signature_of(fn)
        except (TypeError, ValueError):  # a built-in may have none
            self._signature = None
        places = []
        parameters = self._signature.parameters if self._signature else {}
        for name, parameter in parameters.items():
            if any(not isinstance(value, Traced) for value in found_in(parameter.default)):
                raise UsageError(f"op '{self._name}': the default of '{name}' is or has a Value, which nobody would replace by its data; "
                                 "give it in each call")  # fmt: skip
        for name in updates:
            if name not in parameters:
                hint = "; a decorator stands before them that gives arguments of its own, so make what it decorates the op"
                raise UsageError(f"op '{self._name}': updates names '{name}', which is not one of its parameters"
                                 f"{hint if hasattr(fn, '__wrapped__') else ''}")  # fmt: skip
            by_place = parameters[name].kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            places.append((name, list(parameters).index(name) if by_place else -1))
            if not outputs:
                refuse_rebinding(fn, name, self._name)
        _core._configure_op(
            self, fn, str(self._name), outputs, places, options.get("priority", 0),
            options.get("place"), bool(options.get("run_always", False)), options.get("graph_key"),
            bool(options.get("collective", False)), options.get("alias", "copy") == "copy", *_counts(parameters),
            options.get("bytes"),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<engine.op {self._name}>"

    def __reduce__(self) -> Any:
        return self._fn.__qualname__  # the name by which the module has the op

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any], found: list[Any], updated: list[Any]) -> Any:
        recorder = Recorder.current()
        assert recorder is not None
        outputs = recorder.call(self, args, kwargs, found, updated)
        return outputs[0] if self._outputs == 1 else tuple(outputs) or None

    def _complain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises what is wrong with the arguments of a call. The extension calls it if something may be."""
        if self._signature is None:
            return
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"op '{self._name}': {error}") from None
        for name in self._updates:
            given = bound.arguments.get(name)
            if not isinstance(given, Value):
                raise TypeError(
                    f"op '{self._name}': it updates '{name}', which is {an(type(given))}; a Value is expected"
                )


_core._set_op_class(Op)


def _counts(parameters: Any) -> tuple[int, int]:
    """How many positional arguments a call needs at least, and may have at most, if it names none."""
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in positional)
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters.values()):
        return 1, 0  # no call without names is right: the bounds refuse all of them
    if not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return needed, 2**31 - 1
    return needed, len(positional)


class _ToOp(Protocol):
    def __call__(self, fn: Callable[P, R]) -> Op[P, Value[R]]: ...


class _ToUpdate(Protocol):
    def __call__(self, fn: Callable[P, Any]) -> Op[P, None]: ...


@overload
def op(fn: Callable[P, R]) -> Op[P, Value[R]]: ...
@overload
def op(
    *,
    outputs: Literal[1] | None = None,
    name: str | None = None,
    priority: int = 0,
    place: _core.Placement | str | None = None,
    run_always: bool = False,
    graph_key: _core.GraphKey | None = None,
    collective: bool = False,
    alias: str = "copy",
    bytes: int | Callable[..., int] | None = None,
) -> _ToOp: ...
@overload
def op(
    *,
    updates: str | Iterable[str],
    outputs: Literal[0] | None = None,
    name: str | None = None,
    priority: int = 0,
    place: _core.Placement | str | None = None,
    run_always: bool = False,
    graph_key: _core.GraphKey | None = None,
    collective: bool = False,
    alias: str = "copy",
    bytes: int | Callable[..., int] | None = None,
) -> _ToUpdate: ...
@overload
def op(
    *,
    updates: str | Iterable[str],
    outputs: Literal[1],
    name: str | None = None,
    priority: int = 0,
    place: _core.Placement | str | None = None,
    run_always: bool = False,
    graph_key: _core.GraphKey | None = None,
    collective: bool = False,
    alias: str = "copy",
    bytes: int | Callable[..., int] | None = None,
) -> _ToOp: ...
@overload
def op(
    *,
    updates: str | Iterable[str] = (),
    outputs: int,
    name: str | None = None,
    priority: int = 0,
    place: _core.Placement | str | None = None,
    run_always: bool = False,
    graph_key: _core.GraphKey | None = None,
    collective: bool = False,
    alias: str = "copy",
    bytes: int | Callable[..., int] | None = None,
) -> Callable[[Callable[P, Any]], Op[P, Any]]: ...
def op(fn: Any = None, *, updates: Any = (), outputs: int | None = None, name: Any = None, **options: Any) -> Any:
    """Makes a function an op: ``@engine.op``, or ``@engine.op(updates="w")`` for one that changes arguments in place.

    ``updates``: parameter names, in a list or separated by commas. ``outputs``: how many new Values a call returns
    (by default one, and none for an op that updates). ``name``, ``priority``, ``place``, ``run_always``,
    ``graph_key``: as for ``engine.push``. ``collective``: every process calls the op in the same order, so
    ``engine.data.smart_stage`` never runs it ahead of its step. ``alias``: an output that shares memory with an
    argument, or is kept by somebody else, is a copy ("copy"); or what lies in Values that are arguments stays a view, whose
    ops are ordered with those on them ("order"). Each wait for an output, or for what the op updates, raises what the function raised. ``bytes``: what a pending call counts as
    under ``Engine.max_pending_bytes``, or a function of its arguments that says so; None: the bytes of its arguments and
    of the last result.
    """
    unknown = set(options) - set(OPTIONS)
    if unknown:
        raise TypeError(f"op: '{min(unknown)}' is unknown; {', '.join(OPTIONS)} are allowed")
    if fn is None:
        return functools.partial(op, updates=updates, outputs=outputs, name=name, **options)
    if not callable(fn):
        raise TypeError(f"op: {an(type(fn))} is no function")
    called = getattr(fn, "__name__", type(fn).__name__)
    if inspect.iscoroutinefunction(fn):
        raise TypeError(f"op: '{called}' is a coroutine function; push_async runs what completes later")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"op: '{called}' is a generator function, and calling it runs nothing; return a list")
    if options.get("alias", "copy") not in ("copy", "order"):
        raise UsageError(f"op '{called}': alias is {options['alias']!r}; 'copy' or 'order' is expected")
    weight = options.get("bytes")
    if not (weight is None or callable(weight) or type(weight) is int and weight >= 0):
        raise UsageError(f"op '{called}': bytes is {weight!r}; a count of bytes, a function of the arguments or None is expected")
    names = tuple(n.strip() for n in updates.split(",")) if isinstance(updates, str) else tuple(updates)
    if outputs is None:
        outputs = 0 if names else 1
    if not isinstance(outputs, int) or outputs < 0:
        raise TypeError(f"op '{called}': outputs is {outputs!r}; a count is expected")
    return Op(fn, names, outputs, {"name": name, **options})
