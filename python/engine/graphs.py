"""Graphs: functions that are recorded once and replayed, without finding out again what depends on what."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, Iterator

from . import _core
from .errors import UsageError
from .values import UNSET, Value


class Traced(Value[Any]):
    """Stands for a value while a function is recorded: it can be an argument of ops, and has no data yet."""

    __slots__ = ("index",)

    def __init__(self, index: int, name: str) -> None:
        self.index, self.var = index, _Unknown(name)  # type: ignore[assignment]
        self._data = UNSET

    def get(self, timeout: float | None = None) -> Any:
        raise UsageError(f"'{self.var.name}' has no data while the function is recorded; use it in an op, or return it")

    wait = __array__ = __await__ = __bool__ = __len__ = __iter__ = __float__ = __int__ = get  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.var.name}, recorded>"


class _Unknown:
    """Stands for the Var of a recorded value."""

    def __init__(self, name: str) -> None:
        self.name, self.version = name, 0


class Result(Value[Any]):
    """An output of a run. Its Var is the Var of the run, so ops on it come after the run."""

    __slots__ = ("_run", "_index")

    def __init__(self, run: _core.Run, index: int) -> None:
        self.var, self._run, self._index = run.var, run, index

    @property
    def _data(self) -> Any:  # type: ignore[override]
        return self._run.output(self._index)


class Recorder:
    """The graph that this thread is recording a function into."""

    _current = threading.local()

    def __init__(self, engine: _core.Engine) -> None:
        self.engine, self.graph = engine, _core.Graph()
        self.readers: dict[int, list[int]] = {}  # value -> nodes that read it
        self.states: dict[int, Value[Any]] = {}  # Values from outside that the function uses, kept alive
        self.makers: dict[int, int] = {}  # value -> node that makes it
        self.targets: set[int] = set()  # nodes that mark_target_node marked

    @classmethod
    def current(cls) -> Recorder | None:
        return getattr(cls._current, "recorder", None)

    def __enter__(self) -> Recorder:
        Recorder._current.recorder = self
        _core.record(self.graph)
        return self

    def __exit__(self, *exc: object) -> None:
        _core.record(None)
        Recorder._current.recorder = None

    def input(self, name: str) -> Traced:
        return Traced(self.graph.input(name), name)

    def call(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, found: list[Value[Any]],
             updated: list[Value[Any]], outputs: int, options: dict[str, Any]) -> list[Traced]:  # fmt: skip
        """Records one call of an op. ``function(args, kwargs)`` returns its outputs as a tuple."""
        traced = list({v.index: v for v in found if isinstance(v, Traced)}.values())
        places = {v.index: i for i, v in enumerate(traced)}
        state = [v for v in found if not isinstance(v, Traced)]
        changed = [v for v in updated if isinstance(v, Traced)]
        for v in state:
            self.states[id(v)] = v
        recorded_args, recorded_kwargs = _placed(args, places), _placed(kwargs, places)
        changed_places = [places[v.index] for v in changed]

        def node(*inputs: Any) -> tuple[Any, ...]:
            results = function(_filled(recorded_args, inputs), _filled(recorded_kwargs, inputs))
            return (*results, *(inputs[i] for i in changed_places))

        index, first = self.graph.add(
            node, [v.index for v in traced], outputs + len(changed),
            [v.var for v in state if not any(v is u for u in updated)],
            [v.var for v in updated if not isinstance(v, Traced)],
            name=name, engine=self.engine, **options)  # fmt: skip
        for v in traced:
            self.readers.setdefault(v.index, []).append(index)
        # A value that is changed in place becomes another value. Nodes that read the old one come before this node.
        for i, v in enumerate(changed):
            for reader in self.readers[v.index]:
                if reader != index:
                    self.graph.order(reader, index)
            v.index = first + outputs + i
        self.makers.update({value: index for value in range(first, first + outputs + len(changed))})
        return [Traced(first + i, name) for i in range(outputs)]


class _Place:
    """The place of a node's input in the arguments of its function."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


def _placed(arg: Any, places: dict[int, int]) -> Any:
    if isinstance(arg, Traced):
        return _Place(places[arg.index])
    return _mapped(arg, lambda item: _placed(item, places))


def _filled(arg: Any, inputs: tuple[Any, ...]) -> Any:
    if type(arg) is _Place:
        return inputs[arg.place]
    if isinstance(arg, Value):
        return arg._data
    return _mapped(arg, lambda item: _filled(item, inputs))


def _mapped(arg: Any, change: Callable[[Any], Any]) -> Any:
    if type(arg) in (list, tuple):
        return type(arg)(change(item) for item in arg)
    if type(arg) is dict:
        return {key: change(item) for key, item in arg.items()}
    return arg


class Hybrid:
    """A function whose first call is recorded and whose later calls replay it. Made by ``engine.hybridize``."""

    def __init__(self, fn: Callable[..., Any], static_alloc: bool, static_shape: bool,
                 engine: _core.Engine | None = None) -> None:  # fmt: skip
        functools.update_wrapper(self, fn)
        self._engine = engine
        self._fn, self._static_alloc, self._static_shape = fn, static_alloc, static_shape
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._lock = threading.Lock()
        self.plan: _core.Plan | None = None  # once it is recorded
        self._profile: _core.Run | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Records the function at the first call; starts a run and returns at once, with Values for the results."""
        if Recorder.current():
            return self._fn(*args, **kwargs)  # nested: its ops become ops of the outer function
        return self._start(args, kwargs)

    def profile(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, times its nodes and waits. ``engine.explain`` then shows costs and critical path."""
        result = self._start(args, kwargs, timed=True)
        assert self._profile is not None
        self._profile.var.wait()
        return result

    def record(self, *args: Any, **kwargs: Any) -> _core.Plan:
        """Records the function with arguments like these, if it is not recorded yet. Runs nothing."""
        with self._lock:
            if self.plan is None:
                self._record(args, kwargs)
        assert self.plan is not None
        return self.plan

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        raise UsageError(f"hybridize: '{self._name}' is a method; hybridize the bound method of each object instead: "
                         f"step = engine.hybridize(object.{self._name})")  # fmt: skip

    def __repr__(self) -> str:
        return f"<engine.hybridize {self._name}{'' if self.plan is None else ', recorded'}>"

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any], timed: bool = False) -> Any:
        plan = self.plan or self.record(*args, **kwargs)
        if not self._static_shape:
            self._check(args, kwargs)
        run = plan.start([*args, *(kwargs[name] for name in self._names)], timed=timed)
        if timed:
            self._profile = run
        return self._rebuilt(self._returned, run)

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state = [a for a in (*args, *kwargs.values()) if isinstance(a, Value)]
        engine = self._engine or (state[0].var.engine if state else _core.default())
        recorder = Recorder(engine)
        self._names = list(kwargs)
        given = [(f"argument {i}", a) for i, a in enumerate(args)] + [(f"argument '{n}'", kwargs[n]) for n in self._names]
        self._state = {name: a for name, a in given if isinstance(a, Value)}
        self._types = {name: type(a) for name, a in given}
        # Arguments that are Values are state. They keep their places among the graph's inputs; ops find them by their
        # Vars.
        inputs = [recorder.input(name) for name, _ in given]
        traced = [a if isinstance(a, Value) else t for (_, a), t in zip(given, inputs)]
        with recorder:
            returned = self._fn(*traced[: len(args)], **dict(zip(self._names, traced[len(args) :])))
        outputs: dict[int, int] = {}
        self._returned = self._noted(returned, recorder, outputs)
        if recorder.graph.size == 0:
            raise UsageError(f"hybridize: '{self._name}' calls no op, so there is nothing to replay")
        self._bound = list(_bindings(self._fn))
        self._kept = recorder.states
        self.engine, self.recorded, self.targets = engine, recorder.graph, sorted(recorder.targets)
        self.plan = recorder.graph.compile(
            engine, name=self._name, static_alloc=self._static_alloc, static_shape=self._static_shape
        )

    def _noted(self, returned: Any, recorder: Recorder, outputs: dict[int, int]) -> Any:
        """What the function returned, with each recorded value replaced by the number of its output."""
        if isinstance(returned, Traced):
            if returned.index not in outputs:
                outputs[returned.index] = len(outputs)
                recorder.graph.output(returned.index)
            return _Place(outputs[returned.index])
        return _mapped(returned, lambda item: self._noted(item, recorder, outputs))

    def _rebuilt(self, noted: Any, run: _core.Run) -> Any:
        if type(noted) is _Place:
            return Result(run, noted.place)
        return _mapped(noted, lambda item: self._rebuilt(item, run))

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) + len(self._names) != len(self._types) or kwargs.keys() != set(self._names):
            raise UsageError(f"hybridize: '{self._name}' was recorded with {len(self._types) - len(self._names)} arguments "
                             f"and the keywords {self._names}; it is called with {len(args)} and {list(kwargs)}")  # fmt: skip
        for (name, kind), given in zip(self._types.items(), (*args, *(kwargs[n] for n in self._names))):
            if name in self._state:
                if given is not self._state[name]:
                    raise UsageError(f"hybridize: {name} of '{self._name}' was {self._state[name]!r} when it was recorded, "
                                     "and is another object now; give data that changes as data, not as a Value")  # fmt: skip
            elif type(given) is not kind:
                raise UsageError(f"hybridize: {name} of '{self._name}' was a {kind.__name__} when it was recorded, and is "
                                 f"a {type(given).__name__} now")  # fmt: skip
        for where, name, look, was in self._bound:
            if look() is not was:
                raise UsageError(f"hybridize: {where} '{name}' of '{self._name}' stood for {was!r} when it was recorded, "
                                 "and for something else now; record it again, or change it in place with an op")  # fmt: skip


def _bindings(fn: Any) -> Iterator[tuple[str, str, Callable[[], Any], Any]]:
    """The names by which the function reaches Values and Vars. If one is bound anew, the recording is stale."""
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, fn.__closure__ or ()):
        if isinstance(cell.cell_contents, (Value, _core.Var)):
            yield "the variable", name, functools.partial(getattr, cell, "cell_contents", None), cell.cell_contents
    for name in code.co_names:
        found = fn.__globals__.get(name)
        if isinstance(found, (Value, _core.Var)):
            yield "the global", name, functools.partial(fn.__globals__.get, name), found


def hybridize(fn: Any = None, *, static_alloc: bool = False, static_shape: bool = False) -> Any:
    """``@engine.hybridize``: the first call records the ops that the function calls, later calls replay them.

    Arguments are data that every call brings. Values that the function reaches in other ways are state: ops on them
    keep their order with all other ops. The function must call the same ops each time; whatever else it does happens
    once, while it is recorded. ``static_alloc``: values keep their place in memory from run to run. ``static_shape``:
    arguments and bindings are not checked between calls. Source: MXNet's hybridize.
    """
    if fn is None:
        return functools.partial(hybridize, static_alloc=static_alloc, static_shape=static_shape)
    if not callable(fn):
        raise TypeError(f"hybridize: a {type(fn).__name__} is no function")
    return Hybrid(fn, static_alloc, static_shape)


def mark_target_node(values: Any) -> None:
    """Inside a step that ``engine.data.smart_stage`` runs: the ops that made these Values belong to the step.

    ``values``: a Value, or Values in lists, tuples or dicts. While nothing is recorded, it does nothing, because
    nothing is staged then. Source: DeepRec's tf.train.mark_target_node.
    """
    recorder = Recorder.current()

    def mark(item: Any) -> Any:
        if isinstance(item, Traced):
            if recorder and item.index in recorder.makers:
                recorder.targets.add(recorder.makers[item.index])
        elif not isinstance(item, (Value, list, tuple, dict)):
            raise TypeError(f"mark_target_node: a {type(item).__name__} is no Value")
        return _mapped(item, mark)

    mark(values)


def graph(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> _core.Plan:
    """Records ``fn(*args, **kwargs)`` and returns the plan, to look at or to start. Runs nothing."""
    return (fn if isinstance(fn, Hybrid) else Hybrid(fn, False, False)).record(*args, **kwargs)
