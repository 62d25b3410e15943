"""SmartStage: finds the part of a step that may run ahead of the rest, and runs it ahead if that is faster."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import weakref
from typing import Any, AsyncIterator, Callable, Iterator, Sequence

from . import _core
from .bindings import named_by
from .containers import spread
from .errors import EndOfData, UsageError, an
from .graphs import Hybrid
from .noted import rebuilt, results_of
from .refusals import refuse_while_recording
from .sources import compile_source, data_of
from .stages import Exceptions, check_int, check_type, exception_types, next_of, note, stage_options
from .values import Value

_numbers = itertools.count(1)


@dataclasses.dataclass
class SmartStageOptions:
    """Options of ``engine.data.smart_stage``: those of ``engine.data.staged``, with the same meanings and defaults, and

    ``graph``: the step itself, or None (DeepRec's field). ``do_smart_stage``: False runs every step whole; None does as
    the parameter ``smart_stage`` of the policy says when the stage is made (True unless it was set).
    ``stage_subgraph_on_cpu``: ops on a GPU stay in the step, and what the host makes for them is copied there ahead:
    they get an ``engine.DeviceArray`` for each NumPy array or other buffer of numbers, also in lists, tuples and dicts.
    ``input_state``: Values and Vars that only input work uses (a random state, a counter, a vocabulary); ops that
    change others stay in the step, so that code between two steps finds what the steps left. ``max_levels``: how many
    stages may stand one behind the other. ``profile_steps``: how many steps are timed before the cut; 0: everything
    that may be staged is. ``guard_steps``: how many steps the first comparison of staged and whole steps has; 0:
    steps are staged without one. ``engine``: the engine that runs the steps; None: the default one.
    """

    capacity: int = 1
    num_threads: int = 1
    num_clients: int = 1
    timeout: float | None = None
    closed_exception_types: Exceptions = (StopIteration, EndOfData)
    ignored_exception_types: Exceptions = ()
    use_stage_subgraph_thread_pool: bool = False
    stage_subgraph_thread_pool_id: int = 0
    stage_subgraph_stream_id: int = 0
    graph: Any = None
    name: str | None = None
    capacity_bytes: int = 0
    on_timeout: str = "error"
    take_timeout: float | None = None
    ignored_budget: int = 100
    autotune: bool = False
    max_capacity: int = 256
    max_threads: int = 0
    do_smart_stage: bool | None = None
    stage_subgraph_on_cpu: bool = False
    input_state: Sequence[Any] = ()
    max_levels: int = 1
    profile_steps: int = 8
    guard_steps: int = 16
    engine: _core.Engine | None = None


_OWN = {"graph", "do_smart_stage", "stage_subgraph_on_cpu", "input_state", "max_levels", "profile_steps", "guard_steps"}
_DEFAULT_END = (StopIteration, EndOfData)


def smart_options(options: SmartStageOptions | None, fields: dict[str, Any], others: Sequence[str] = ()) -> SmartStageOptions:
    """The options with ``fields`` in place of theirs, all checked. TypeError or UsageError names the wrong one. ``others``: what else the
    caller takes by name."""
    known = [*others, *(field.name for field in dataclasses.fields(SmartStageOptions))]
    if unknown := fields.keys() - set(known):
        raise TypeError(f"smart_stage: '{min(unknown)}' is unknown; {', '.join(known)} are allowed")
    check_type("options", options, (SmartStageOptions, type(None)), "a SmartStageOptions or None", "smart_stage")
    made = dataclasses.replace(options or SmartStageOptions(), **fields)
    _parts(made)
    return made


def _parts(options: SmartStageOptions) -> tuple[dict[str, Any], dict[str, Any], tuple[type[BaseException], ...]]:
    """For the extension: the options of its stages, its own ones, and the exceptions that end the data. All are checked."""
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    own = {name: given.pop(name) for name in _OWN}
    closed = exception_types("closed_exception_types", given.pop("closed_exception_types"), "smart_stage")
    for option, least in ("max_levels", 1), ("profile_steps", 0), ("guard_steps", 0):
        check_int(option, own[option], least, 2**31 - 1, "smart_stage")
    check_type("stage_subgraph_on_cpu", options.stage_subgraph_on_cpu, bool, "True or False", "smart_stage")
    check_type("do_smart_stage", options.do_smart_stage, (bool, type(None)), "True, False or None", "smart_stage")
    return stage_options(called="smart_stage", **given), own, closed


class _Reader:
    """Makes the arguments of the steps from the items of the source.

    It has no reference to the SmartStage, so that a program may forget that.
    """

    def __init__(self, source: Any, fn: Callable[..., Any]) -> None:
        self.source, self.fn, self.name, self.read = compile_source(source, {}), fn, "", 0
        self.first: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # the step is recorded with these
        self.shape: tuple[int, list[str], list[int]] | None = None  # of each item: arguments, keywords, what is None
        needed = [p for p in _parameters(fn) if p.default is p.empty]
        # A step of one parameter gets the item as it is.
        self.spreads = len(needed) != 1 or needed[0].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

    def next(self) -> list[Any]:
        number = self.read
        self.read += 1
        raw = self.source.pull() if self.source.pull else None
        # Waits for the Values in the item.
        args, kwargs = self._parts(data_of(self.source.make(raw) if self.source.make else raw))
        if kwargs and self.shape is not None and kwargs.keys() == set(self.shape[1]):
            kwargs = {name: kwargs[name] for name in self.shape[1]}  # values are given by place
        # Which arguments are None decides what is recorded: a recording cannot notice that a function asks `is None`.
        shape = len(args), list(kwargs), [i for i, item in enumerate((*args, *kwargs.values())) if item is None]
        if self.shape is None:
            self.shape, self.first = shape, (args, kwargs)
        elif shape != self.shape:
            text = "{} arguments and the keywords {}, and None as arguments number {}".format
            raise UsageError(f"smart stage '{self.name}': item {number} gives {text(*shape)}; the first item gave "
                             f"{text(*self.shape)}; all items must be alike in this")  # fmt: skip
        return [*args, *kwargs.values()]

    def _parts(self, item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the step: several from a tuple or list, keywords from a dict, else one."""
        if self.spreads and isinstance(item, dict):
            return (), item
        if self.spreads and isinstance(item, (tuple, list)):
            return tuple(item), {}
        return (item,), {}


class _Given:
    """What the program gives each step. A container of Values is given as what it holds, each by a name such as ``params[0]``.

    It has no reference to the SmartStage, because the function that is recorded has one to it.
    """

    def __init__(self, named: frozenset[str]) -> None:
        self.named = named  # by the step
        self.containers: dict[str, tuple[Any, Any, list[str]]] = {}  # of the first step: with Places, the shape, names of what it holds

    def first(self, given: dict[str, Any]) -> dict[str, Any]:
        self.containers.clear()
        for name, item in given.items():
            if _core._any_holds((item,), {}):
                held, placed, shape = spread(item, self.named)
                self.containers[name] = placed, shape, [f"{name}[{i}]" for i in range(len(held))]
        return self.spread(given)

    def spread(self, given: dict[str, Any]) -> dict[str, Any]:
        """UsageError for a container that is not like the one of the first step."""
        flat: dict[str, Any] = {}
        for name, item in given.items():
            if name not in self.containers:
                flat[name] = item
                continue
            held, _, shape = spread(item, self.named)
            if shape != self.containers[name][1]:
                raise UsageError(f"smart_stage: '{name}' holds other Values than in the first step, or not in the same places, or has other attributes")
            flat.update(zip(self.containers[name][2], held))
        return flat

    def whole(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Calls the step with the containers."""
        for name, (placed, _, names) in self.containers.items():
            named[name] = rebuilt(placed, tuple(named.pop(each) for each in names))
        return fn(*args, **named)


def _weakly(reader: _Reader) -> Callable[[], list[Any]]:
    """``reader.next`` for the extension, which the collector cannot look into: the SmartStage has the reader, so that an object may
    have a stage on one of its methods and still go."""
    ref = weakref.ref(reader)

    def pull() -> list[Any]:
        held = ref()
        if held is None:
            raise StopIteration  # the program has forgotten the stage
        return held.next()

    return pull


class SmartStage(_core.SmartStage):
    """Runs the steps of a program, each with the next item of its source. Made by ``engine.data.smart_stage``; iterate
    over it.

    Each step returns at once what the step function returns, as Values. Waits for these raise what an op raised. The
    iteration raises what the source raised, after the steps before it, at every later request too. ``with steps:``
    cancels the stage at the end of the block; a stage that the program forgets is cancelled too.
    """

    def __init__(self, step: Callable[..., Any], source: Any, options: SmartStageOptions) -> None:
        given, own, closed = _parts(options)
        given["name"] = given["name"] or f"smart-stage-{next(_numbers)}"
        fn = step._fn if isinstance(step, Hybrid) else step
        self._reader, self._asked = _Reader(source, fn), None
        eng = options.engine or _core.default()
        self._hybrid = Hybrid(fn, False, False, eng, constants=(type(None),))
        self._given = _Given(named_by(fn))
        self._hybrid._fn = functools.partial(self._given.whole, fn)
        self._names: list[str] | None = None  # of what each step is given; None before the first
        super().__init__(eng, _weakly(self._reader), None if closed == _DEFAULT_END else closed, given, own)
        self._reader.name = self.name

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        started = self._start({})
        if started is None:
            raise StopIteration
        return self._returned(*started)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        started = await next_of(self, lambda: self._start({}))
        if started is None:
            raise StopAsyncIteration
        return self._returned(*started)

    def step(self, **given: Any) -> Any:
        """Starts the next step. ``given``: arguments that no item gives. EndOfData at the end of the data."""
        started = self._start(given)
        if started is None:
            raise EndOfData(f"smart stage '{self.name}': there is no more data")
        return self._returned(*started)

    def _returned(self, outputs: tuple[Any, ...], given: list[Any]) -> Any:
        recording = self._hybrid._last
        assert recording is not None
        return results_of(recording, outputs, [None] * (len(recording.types) - len(given)) + given)

    def _start(self, given: dict[str, Any]) -> tuple[tuple[Any, ...], list[Any]] | None:
        """The outputs of the next step, and what it was given; None at the end of the data."""
        refuse_while_recording(f"a step of smart stage '{self.name}' is asked for", "Take it outside")
        if self._names is None:
            self._record(functools.partial(self._recorded, given))
        named = [] if self._names is None else self._checked(given, self._names)  # None: the data has ended before the first item
        outputs = self._next(named)
        return None if outputs is None else (outputs, named)

    def _recorded(self, given: dict[str, Any]) -> tuple[_core.Graph, int, list[int]]:
        assert self._reader.first is not None
        args, kwargs = self._reader.first
        by_place = [p.name for p in _parameters(self._reader.fn)[: len(args)] if p.kind is p.POSITIONAL_OR_KEYWORD]
        if both := given.keys() & {*by_place, *kwargs}:
            raise UsageError(f"smart stage '{self.name}': a step is given '{min(both)}', which comes from a source; do not give it")
        flat = self._given.first(given)
        try:
            self._hybrid.record(*args, **kwargs, **flat)
        except StopIteration as error:  # it would look like the end of the data
            raise RuntimeError(f"smart stage '{self.name}': the step raised StopIteration") from error
        self._names, self._reader.first = list(flat), None
        return self._hybrid.recorded, len(args) + len(kwargs), self._hybrid.targets

    def _checked(self, given: dict[str, Any], names: list[str]) -> list[Any]:
        """What the recorded step is given. UsageError if what the recording has taken once is something else now. The step is not
        recorded again, because items were read ahead for it."""
        recording, flat = self._hybrid._last, self._given.spread(given)
        assert recording is not None
        if flat.keys() != set(names):
            raise UsageError(f"smart stage '{self.name}': a step is given {list(flat)}; {names} is expected, as in the "
                             "first step")  # fmt: skip
        for place, name in enumerate(names, len(recording.types) - len(names)):
            argument = flat[name]
            state, kind = recording.state.get(place), recording.types[place]
            if state is not None:
                fits = argument is state
            else:  # a step waits for no Value that it did not know, and which arguments are None decides what is recorded
                new = isinstance(argument, Value) or _core._any_holds((argument,), {})
                fits = not new and (argument is None) == (kind is type(None))
            if fits:
                continue
            other = "another one" if type(argument) is kind else an(type(argument))
            raise UsageError(f"smart stage '{self.name}': '{name}' was {an(kind)} when the step was recorded, and is {other} now; "
                             "give the same Value, or data, in each step")  # fmt: skip
        named = [flat[name] for name in names]
        if recording.holds():
            return named
        if (change := recording.changed()) is not None:
            raise UsageError(f"smart stage '{self.name}': {change.said()}. A step is recorded once: give what differs with its item, or as "
                             "an argument, as in steps.step(rate=rate), or make another smart stage")  # fmt: skip
        if (way := recording.exchanged()) is not None:
            raise UsageError(f"smart stage '{self.name}': {way.title} stood for {way.was!r} when the step was recorded, and for something "
                             "else now; change it in place with an op, or make another smart stage")  # fmt: skip
        recording.link()
        return named

    @property
    def position(self) -> int:
        """How many items of the source are done with; a program that resumes leaves out this many."""
        return int(self.stats()["position"])

    def explain(self) -> str:
        """What was decided and why, as text."""
        return str(self.report["text"]) or f"smart stage '{self.name}': no step was run yet\n"

    def __enter__(self) -> SmartStage:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __repr__(self) -> str:
        return f"<engine.data.SmartStage {self.name!r}>"


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a built-in may have no signature
        return []


def smart_stage(step: Any, source: Any, options: SmartStageOptions | None = None, **fields: Any) -> SmartStage:
    """Runs ``step`` with each item of ``source``; what does not depend on the model runs ahead if that is faster.

    ``for loss in engine.data.smart_stage(step, read("train.csv"), capacity=4): ...``. ``step``: a function that calls
    ops, as for ``engine.hybridize``; it is recorded with the first item. An item that is a tuple or list gives the
    arguments in order, a dict gives them by name, and a step of one parameter gets the item itself. ``source``: as for
    ``engine.data.staged``, or a stage that it made; one thread at a time reads it, in order. ``options``, ``fields``:
    SmartStageOptions. Source: DeepRec's SmartStage.
    """
    options = smart_options(options, fields)
    if not callable(step):
        raise TypeError(f"smart_stage: {an(type(step))} is no function")
    if options.graph is not None and options.graph is not step:
        raise UsageError("smart_stage: its option graph is another function than its step; leave graph out")
    made = SmartStage(step, source, options)
    note(made)
    return made
