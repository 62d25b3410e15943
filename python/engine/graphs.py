"""Graphs: functions that are recorded once and replayed, without finding out again what depends on what."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
import types
import warnings
from typing import Any, Callable, Generic, ParamSpec, Sequence, TypeVar, overload

from . import _core
from .alias import sharing
from .bindings import Search, changed, named_by
from .containers import mapped, spread
from .errors import UsageError, an
from .noted import Noted, rebuilt, results_of
from .once import MadeFirst
from .recorder import NeedsState, Recorder
from .recording import Known, Recording
from .refusals import unreadable
from .traced import Traced, Unreadable
from .values import Value, vars_of

P = ParamSpec("P")
R = TypeVar("R")

_MAX_RECORDINGS = 64  # of one function, for different arguments that are None or bools


class _Lock:
    """For ``with``. A fork's child has it anew: a thread of the parent's may have it for ever."""

    def __init__(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _owner_of(fn: Any) -> object:
    """The object whose method the function is, or that it calls ``self``: it may have the Hybrid, so the plan must not keep it."""
    if isinstance(fn, types.FunctionType) and "self" in fn.__code__.co_freevars:
        try:
            return (fn.__closure__ or ())[fn.__code__.co_freevars.index("self")].cell_contents
        except ValueError:  # it is bound later
            return None
    return getattr(fn, "__self__", None)


class Hybrid(Generic[P, R]):
    """A function whose first call is recorded and whose later calls replay it. Made by ``engine.hybridize``."""

    def __init__(self, fn: Callable[P, R], static_alloc: bool, static_shape: bool, engine: _core.Engine | None = None,
                 fallback: str | None = None, constants: tuple[type, ...] = (type(None), bool),
                 owner: object = None) -> None:  # fmt: skip
        functools.update_wrapper(self, fn)
        self._engine, self._fallback, self._constants, self._owner = engine, fallback, constants, owner
        self._fn: Callable[..., Any] = fn
        self._static_alloc, self._static_shape = static_alloc, static_shape
        self._source: Any = fn  # the program's own function, whose bindings are checked
        self._named: frozenset[str] | None = None  # what its code names, if it was given a container of Values
        self._nested: dict[Any, Hybrid[..., R]] = {}  # for arguments that are containers of Values, by their shape
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._lock = _Lock()
        self._recordings: dict[Any, Recording] = {}  # by the arguments that are None or bools
        self._others: dict[Any, list[Recording]] = {}  # by the same: recordings for other constants
        self._last: Recording | None = None
        self._known: Known | None = None  # of `_last`, if its calls may take the short way
        self._states: dict[_core.Var, Value[Any]] = {}  # the Values that some recording reaches without an argument
        self._names: list[str] = []  # the keywords of each call
        self._places = 0  # how many positional arguments each call has
        self._part = ""  # what an argument is called in an error; "": by its place or name
        self._guess = fallback == "eager"  # whether errors that C code raises beside recorded values count as looks at them
        self._eager: str | None = None  # why the function runs eagerly, if it does

    @property
    def plan(self) -> _core.Plan | None:
        """The plan of the last call; None before the first."""
        return self._last.plan if self._last else None

    @property
    def unwatched(self) -> list[str]:
        """State of the last call that no name leads to: a call does not notice if there is other state in its place."""
        return self._last.unwatched if self._last else []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Records the function at the first call; starts a run and returns at once, with Values for the results."""
        known = self._known
        if known is not None and not kwargs and asyncio._get_running_loop() is None:
            outputs = _core._replay(known, args, self._owner)
            if outputs is not None:
                return rebuilt(known.returned, outputs)  # type: ignore[no-any-return]
        if self._eager is not None or Recorder.current():
            return self._fn(*args, **kwargs)  # nested: its ops become ops of the outer function
        return self._start(args, kwargs)  # type: ignore[no-any-return]

    def profile(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function, times its nodes and waits. ``engine.explain`` then shows costs and critical path."""
        if Recorder.current():
            raise UsageError(f"profile of '{self._name}' while the function is recorded: nothing runs now; profile the outer one")
        self._refuse_eager("profile")
        runs = list[_core.Run]()
        result = self._start(args, kwargs, runs)
        runs[0].var.wait()
        return result  # type: ignore[no-any-return]

    def record(self, *args: P.args, **kwargs: P.kwargs) -> _core.Plan:
        """Records the function with arguments like these, if it is not recorded yet. Runs nothing."""
        self._refuse_eager("record")
        inner, given, named = self._flat(args, kwargs)
        recording = inner._recording(given, named)
        for refusal, _ in recording.once.values():
            raise Unreadable(refusal)
        self._last = recording
        return self._last.plan

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        raise UsageError(f"hybridize: '{self._name}' is a method; hybridize the bound method of each object instead: "
                         f"step = engine.hybridize(object.{self._name})")  # fmt: skip

    def __repr__(self) -> str:
        state = ", runs eagerly" if self._eager is not None else ", recorded" if self._last else ""
        return f"<engine.hybridize {self._name}{state}>"

    def _flat(self, args: Any, kwargs: Any) -> tuple[Hybrid[..., R], tuple[Any, ...], dict[str, Any]]:
        """Arguments that are containers of Values: what they hold are the arguments of a recording for such containers."""
        if not _core._any_holds(args, kwargs):
            return self, args, kwargs
        if self._named is None:
            self._named = named_by(self._source)
        held, placed, shape = spread((args, kwargs), self._named)
        inner = self._nested.get(shape)
        if inner is None:
            with self._lock:
                if len(self._nested) >= _MAX_RECORDINGS:
                    raise UsageError(f"hybridize: '{self._name}' was recorded for {_MAX_RECORDINGS} shapes of arguments that are "
                                     "containers of Values, or other attributes of them; give what differs so often in an array, "
                                     "or as an item or field")  # fmt: skip
                inner = self._nested.setdefault(shape, self._for_nested(placed))
        return inner, tuple(held), {}

    def _for_nested(self, placed: Any) -> Hybrid[..., R]:
        def fn(*held: Any) -> Any:
            args, kwargs = rebuilt(placed, held)
            return self._fn(*args, **kwargs)

        inner = Hybrid(fn, self._static_alloc, self._static_shape, self._engine, None, self._constants, self._owner)
        inner._name, inner._source, inner._guess = self._name, self._source, self._guess
        inner._part = "item {} of the arguments of '{}', counted through their containers,"
        return inner

    def _title(self, place: int) -> str:
        if self._part:
            return self._part.format(place, self._name)
        named = f"argument {place}" if place < self._places else f"argument '{self._names[place - self._places]}'"
        return f"{named} of '{self._name}'"

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any], timed: list[_core.Run] | None = None) -> Any:
        """``timed``: gets the run, whose nodes are timed."""
        inner, flat, named = self._flat(args, kwargs)
        try:
            if inner is self:
                return self._replay(self._recording(args, kwargs), args, kwargs, timed)
            result = inner._start(flat, named, timed)
        except Unreadable as error:
            if self._fallback != "eager":
                raise
            self._fall_back(error)
            if timed is not None:
                self._refuse_eager("profile")
            return self._fn(*args, **kwargs)
        self._last = inner._last
        return result

    def _fall_back(self, error: Unreadable) -> None:
        """The function runs eagerly from now on, for all arguments."""
        with self._lock:
            first, self._eager, self._known = self._eager is None, str(error), None
        if first:
            warnings.warn(f"hybridize: '{self._name}' runs eagerly from now on, because {error}. In this call its lines up to there "
                          "run twice: the recording has run them, and now the function begins anew", stacklevel=4)  # fmt: skip

    def _refuse_eager(self, what: str) -> None:
        """UsageError if the function runs eagerly. ``what``: who wants a plan."""
        if self._eager is not None:
            raise UsageError(f"{what}: '{self._name}' runs eagerly and has no plan, because {self._eager}. A trace shows its ops: "
                             "with engine.trace() as trace: ...; engine.explain(trace)")  # fmt: skip

    def _replay(self, recording: Recording, args: tuple[Any, ...], kwargs: dict[str, Any], timed: list[_core.Run] | None) -> Any:
        given = [*args, *(kwargs[name] for name in self._names)] if kwargs else list(args)
        for place in recording.state:
            given[place] = None  # ops find it by its Var
        if self._owner is not None:
            given.append(self._owner)
        if asyncio._get_running_loop() is not None and timed is None:
            return results_of(recording, _beside_loop(recording, given), given)
        run, outputs = recording.plan._call(given, timed is not None)
        if timed is not None:
            recording.profile = run
            timed.append(run)
        return results_of(recording, outputs, given)

    def _recording(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording:
        """The recording for such arguments, checked; makes it if there is none."""
        while True:
            key = self._key(args, kwargs)
            recording = self._recordings.get(key)
            if recording is None or recording.once:
                recording = self._make(args, kwargs, key, recording)
            elif self._fits(recording, args, kwargs):
                if self._known is None or self._known.plan is not recording.plan:
                    self._learn(recording, key)
                self._last = recording
                return recording
            elif self._took_another(recording, key):
                continue
            else:
                recording = self._make(args, kwargs, key, recording)
            # A recording may show that an argument is state, too. Then it is one for other arguments.
            if self._key(args, kwargs) == key:
                self._last = recording
                return recording

    def _took_another(self, stale: Recording, key: Any) -> bool:
        """Puts the recording that was made for what the constants are now in the place of ``stale``. False: there is none."""
        with self._lock:
            if self._recordings.get(key) is not stale:
                return True  # another thread did
            if (change := stale.changed()) is None:
                return False
            others = self._others.setdefault(key, [])
            if all(one is not stale for one in others):
                others.append(stale)
            for one in others:
                if one.changed() is None:
                    self._recordings[key], self._known = one, None
                    return True
            if len(others) >= _MAX_RECORDINGS:
                raise UsageError(f"hybridize: {change.said()}; it was recorded {_MAX_RECORDINGS} times, for different values of what it "
                                 "names. Give what differs so often as an argument")  # fmt: skip
            return False

    def _learn(self, recording: Recording, key: Any) -> None:
        """Calls like this one take the short way from now on, or no call does."""
        with self._lock:  # as _make: which Values are state must not change meanwhile
            special = bool(key is not None or self._names or recording.passed or recording.shared)
            if special or self._recordings.get(None) is not recording:
                self._known = None
                return
            places = range(self._places)
            self._known = Known(
                recording.plan, recording.returned, tuple(recording.types), tuple(recording.state.get(place) for place in places),
                tuple(place not in recording.overwritten and not self._states for place in places),
                () if self._static_shape else recording.links)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Which recording such arguments need."""
        key: Any = None
        for place, given in enumerate((*args, *(kwargs[name] for name in sorted(kwargs))) if kwargs else args):
            if type(given) in self._constants:
                key = (key, place, given)
            elif self._states and isinstance(given, Value) and (shared := self._shared_with(given)):
                # What the function reaches as state, too, has one Var in the plan. Each call may give another view of it.
                key = (key, place, frozenset(shared), given.var in self._states)
        return key

    def _shared_with(self, given: Value[Any]) -> tuple[_core.Var, ...]:
        """The Vars of ``given`` that some recording reaches without an argument."""
        return tuple(var for var in vars_of(given) if var in self._states)

    def _make(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any, stale: Recording | None) -> Recording:
        """Records the function for such arguments. ``stale``: the recording that this one replaces, because it takes an
        argument to be the same Value in each call, and now it is another one."""
        with self._lock:
            known = self._recordings.get(key)
            if known is not None and known is not stale:
                if not known.once:
                    return known
                stale = known
            if self._recordings and (len(args) != self._places or kwargs.keys() != set(self._names)):
                self._refuse_count(args, kwargs)
            if len(self._recordings) >= _MAX_RECORDINGS:
                raise UsageError(f"hybridize: '{self._name}' was recorded {_MAX_RECORDINGS} times, for different arguments that "
                                 "are None or bools; give what differs so often in an array")  # fmt: skip
            if not self._recordings:
                self._names, self._places = list(kwargs), len(args)
            results = set(stale.results) if stale else set()
            if stale:
                given = (*args, *(kwargs[name] for name in self._names))
                results |= {place for place, value in stale.state.items() if given[place] is not value}
            made = self._record(args, kwargs, results, stale.once if stale else {})
            self._recordings[key], self._known = made, None
            self._states.update((var, value) for value in made.reached for var in vars_of(value))
            return made

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any], results: set[int], once: MadeFirst) -> Recording:
        given = [*args, *(kwargs[name] for name in self._names)]
        state = {i: a for i, a in enumerate(given) if isinstance(a, Value) and i not in results}
        values = [a for a in given if isinstance(a, Value)]
        engine = self._engine or (values[0].var.engine if values else _core.default())
        recorder = Recorder(engine)
        inputs = [recorder.input(f"argument {i}", type(args[i])) for i in range(len(args))]
        inputs += [recorder.input(f"argument '{name}'", type(kwargs[name])) for name in self._names]
        if self._owner is not None:
            recorder.owned(self._owner)
        indexes = [one._index for one in inputs]  # an input that is changed in place gets another one
        recorder.results = {indexes[i] for i in results}
        for i in results:  # nodes that read another view of state in each call are ordered with the state
            if isinstance(given[i], Value):
                inputs[i]._shares = tuple(self._states[var] for var in self._shared_with(given[i])) or None
        # Arguments that are one Value in all calls are state: ops find it by its Var. Nothing asks None or a bool for data.
        traced = [a if i in state or type(a) in self._constants else inputs[i] for i, a in enumerate(given)]
        try:
            with recorder.block():
                returned = self._fn(*traced[: len(args)], **dict(zip(self._names, traced[len(args) :])))
                if recorder.refused:  # and the function has caught it
                    raise Unreadable(*recorder.refused)
                if recorder.graph.size == 0:
                    raise UsageError(f"hybridize: '{self._name}' calls no op, so there is nothing to replay; "
                                     "mark what it calls with @engine.op")  # fmt: skip
                noted = Noted(self._name, recorder, inputs, indexes)
                noted.returned = noted.place(returned)
        except NeedsState as error:
            place = next(i for i, one in enumerate(inputs) if one is error.args[0])
            kind = type(given[place])
            is_no = "is not the Value that it was when it was recorded" if isinstance(given[place], Value) else f"is {an(kind)} and no Value"
            raise UsageError(f"hybridize: {self._title(place)} {is_no}, and {error.args[1]} changes it in place; give one Value (engine.value), "
                             "the same in each call, or change what an op has made, such as a copy") from None  # fmt: skip
        except Exception as error:
            if (refusal := unreadable(error, self._guess)) is None:
                raise
            raise refusal from error
        made = Recording()
        made.types, made.state, made.results = [type(a) for a in given], state, results
        made.overwritten = {i for i, traced in enumerate(indexes) if traced in recorder.overwritten}
        self._refuse_shared(given, [value for at, value in recorder.states.items() if at in recorder.changed])
        made.returned, made.passed, made.shared = noted.returned, noted.passed, noted.shared
        arguments = {id(value) for value in state.values()}
        made.plan = recorder.graph.compile(
            engine, name=self._name, static_alloc=self._static_alloc, static_shape=self._static_shape
        )
        recorder.made.pushed(node for at, node in enumerate(made.plan.nodes) if at not in recorder.calls)
        reached = (*recorder.states.values(), *recorder.made.values())
        search = Search(self._source, self._name, (v for v in reached if id(v) not in arguments))
        found = [*search.seen, *(v for v in reached if all(v is not one for one in search.missing))]
        made.once = recorder.made.refuse(self._name, search.missing, found, once)
        made.bound, made.constants, made.sizes = search.bindings, search.constants, search.sizes
        made.link()
        made.unwatched = [value.var.name or "a Value without a name" for value in search.missing]
        own = set() if results else {id(value) for value in state.values()}  # no argument is another Value in each call
        made.reached = [value for at, value in recorder.states.items() if at not in own]
        self.engine, self.recorded, self.targets = engine, recorder.graph, sorted(recorder.targets)
        made.engine, made.free = engine, noted.one and not any(effects for _, _, effects in made.plan.nodes)
        return made

    def _fits(self, recording: Recording, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the recording holds for these arguments. False: it was made with other Values, so a new one is needed.
        UsageError: the function cannot be replayed with them."""
        if len(args) != self._places or (kwargs or self._names) and kwargs.keys() != set(self._names):
            self._refuse_count(args, kwargs)
        given = (*args, *(kwargs[n] for n in self._names)) if kwargs else args
        if self._static_shape:
            return all(given[place] is value for place, value in recording.state.items())
        fits = True
        for place, (kind, argument) in enumerate(zip(recording.types, given)):
            if place in recording.state:
                fits &= argument is recording.state[place]
            elif isinstance(argument, Value) and place not in recording.overwritten:
                continue  # the run begins behind what makes it
            elif type(argument) is not kind and not (place in recording.results and not isinstance(argument, Value)):
                raise UsageError(f"hybridize: {self._title(place)} was {an(kind)} when it was recorded, and is "
                                 f"{an(type(argument))} now; hybridize the function once more for that type")  # fmt: skip
        if not recording.holds():
            if changed(recording.constants):
                return False
            if (other := recording.exchanged()) is not None:
                raise UsageError(f"hybridize: {other.title} stood for {other.was!r} when '{self._name}' was recorded, and for "
                                 "something else now; record it again, or change it in place with an op")  # fmt: skip
            if changed(recording.sizes):
                return False
            recording.link()  # over other objects, to the same state
            self._known = None
        return fits

    def _refuse_shared(self, given: Sequence[Any], states: list[Value[Any]]) -> None:
        """UsageError if a raw argument shares memory with one of these Values, which the function changes."""
        raw = [(self._title(place), data) for place, data in enumerate(given) if not isinstance(data, Value)]
        both = sharing(raw, [(f"the state '{value.var.name or 'without a name'}'", value._data) for value in states])
        if both is not None:
            raise UsageError(f"hybridize: {both[1]}, which the function changes in place, shares memory with {both[0]}, and nothing orders "
                             "raw data; give one Value in both places, or a copy in one of them")  # fmt: skip

    def _refuse_count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise UsageError(f"hybridize: '{self._name}' was recorded with {self._places} arguments and the keywords "
                         f"{self._names}; it is called with {len(args)} and {list(kwargs)}; "
                         "hybridize the function once more for such calls")  # fmt: skip


def _beside_loop(recording: Recording, given: list[Any]) -> tuple[Any, ...]:
    """Starts a run on workers under every policy, because the caller's thread has an event loop to keep going."""
    if recording.free:  # under `inline` the whole run is one op
        made = _core._aside(recording.plan, given)
        if made is not None:
            return (made,)
    elif recording.engine.policy[0] in ("inline", "naive"):
        with recording.engine.policy_block("threaded"):
            return recording.plan._call(given)[1]
    return recording.plan._call(given)[1]


@overload
def hybridize(fn: Callable[P, R]) -> Hybrid[P, R]: ...
@overload
def hybridize(
    *, static_alloc: bool = False, static_shape: bool = False, fallback: str | None = None
) -> Callable[[Callable[P, R]], Hybrid[P, R]]: ...
def hybridize(fn: Any = None, *, static_alloc: bool = False, static_shape: bool = False,
              fallback: str | None = None) -> Any:  # fmt: skip
    """``@engine.hybridize``: the first call records the ops that the function calls, later calls replay them.

    Arguments are data that each call brings. An argument that is None or a bool makes a recording of its own. Values
    that the function reaches in other ways are state: ops on them keep their order with all other ops. The function
    must call the same ops each time; whatever else it does happens once, while it is recorded, and looking at data is
    refused. Bools, None, numbers and texts that the function names are part of a recording; a call after a change makes
    another one. ``fallback="eager"``: a function that looks at data runs eagerly, with a warning; in the call that warns,
    its lines up to the look run twice. ``static_alloc``: values keep their place in memory from run to run.
    ``static_shape``: types of arguments, bindings and what the function names are not checked between calls.
    Source: MXNet's hybridize.
    """
    if fallback not in (None, "eager"):
        raise UsageError(f"hybridize: fallback is {fallback!r}; 'eager' or None is expected")
    if fn is None:
        return functools.partial(hybridize, static_alloc=static_alloc, static_shape=static_shape, fallback=fallback)
    if not callable(fn):
        raise TypeError(f"hybridize: {an(type(fn))} is no function")
    called = getattr(fn, "__name__", type(fn).__name__)
    if inspect.iscoroutinefunction(fn):
        raise TypeError(f"hybridize: '{called}' is a coroutine function, and calling it runs nothing that could be recorded; hybridize a "
                        "plain function, and await the Value that it returns")  # fmt: skip
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"hybridize: '{called}' is a generator function, and calling it runs nothing that could be recorded; return a list")
    return Hybrid(fn, static_alloc, static_shape, None, fallback, owner=_owner_of(fn))


def mark_target_node(values: Any) -> None:
    """Inside a step that ``engine.data.smart_stage`` runs: the ops that made these Values belong to the step.

    ``values``: a Value, or Values in lists, tuples or dicts. While nothing is recorded, it does nothing, because
    nothing is staged then. Source: DeepRec's tf.train.mark_target_node.
    """
    recorder = Recorder.current()

    def mark(item: Any) -> Any:
        if isinstance(item, Traced):
            if recorder and item._index in recorder.makers:
                recorder.targets.add(recorder.makers[item._index])
        elif not isinstance(item, (Value, list, tuple, dict)):
            raise TypeError(f"mark_target_node: {an(type(item))} is no Value")
        return mapped(item, mark)

    mark(values)


def graph(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> _core.Plan:
    """Records ``fn(*args, **kwargs)`` and returns the plan, to look at or to start. Runs nothing."""
    if Recorder.current():
        raise UsageError("graph while the function is recorded: call the inner function, whose ops become part of the outer one")
    return (fn if isinstance(fn, Hybrid) else Hybrid(fn, False, False)).record(*args, **kwargs)
