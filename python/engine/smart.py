"""SmartStage: the engine finds what of a step may run ahead of the rest, and runs it ahead where that is faster."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import threading
import time
from typing import Any, Callable, Iterator, Sequence

from . import _core
from .errors import CancelledError, StageTimeoutError, UsageError
from .graphs import Hybrid
from .sources import Source, compile_source, data_of
from .stages import Exceptions, Stage, _types, staged

_numbers = itertools.count(1)


@dataclasses.dataclass
class SmartStageOptions:
    """Options of ``engine.smart_stage``: those of ``engine.staged`` with their meanings and defaults, and these.

    ``graph``: the step itself, or None (DeepRec's field). ``do_smart_stage``: None does as ``engine.do_smart_stage`` or
    ``set_policy(..., smart_stage=)`` said last; on at first. ``stage_subgraph_on_cpu``: ops placed on a GPU stay in the
    step, and what the host makes for them is copied there ahead: they get an ``engine.DeviceArray`` for each NumPy array
    or other buffer of numbers, also in lists, tuples and dicts. ``input_state``: Values and Vars that only input work uses (a random state, a counter, a vocabulary); ops that
    change others stay in the step, so that who looks at these between two steps finds what the steps left. ``max_levels``:
    stages one behind the other. ``profile_steps``: how many are timed before the cut; 0: all that may be staged is.
    ``guard_steps``: how many are compared, each way and twice; 0: staged without a comparison. ``engine``: which runs the
    steps; None: the default one.
    """

    capacity: int = 1
    num_threads: int = 1
    num_clients: int = 1
    timeout_millis: int = 300_000
    closed_exception_types: Exceptions = (StopIteration,)
    ignored_exception_types: Exceptions = ()
    use_stage_subgraph_thread_pool: bool = False
    stage_subgraph_thread_pool_id: int = 0
    stage_subgraph_stream_id: int = 0
    graph: Any = None
    name: str | None = None
    capacity_bytes: int = 0
    on_timeout: str = "error"
    take_timeout_millis: int = 0
    ignored_budget: int = 100
    autotune: bool = False
    max_capacity: int = 256
    max_threads: int = 0
    do_smart_stage: bool | None = None
    stage_subgraph_on_cpu: bool | None = None
    input_state: Sequence[Any] = ()
    max_levels: int = 1
    profile_steps: int = 8
    guard_steps: int = 16
    engine: _core.Engine | None = None


_OWN = {"graph", "do_smart_stage", "stage_subgraph_on_cpu", "input_state", "max_levels", "profile_steps", "guard_steps"}
_config = {"do_smart_stage": True, "stage_subgraph_on_cpu": False}


def do_smart_stage(on: bool = True, *, stage_subgraph_on_cpu: bool | None = None) -> None:
    """What ``engine.smart_stage`` does from now on where its options do not say: cut the steps, or run them whole.

    As DeepRec's ``optimizer_options.do_smart_stage`` and ``stage_subgraph_on_cpu``; also ``set_policy(..., smart_stage=on)``.
    """
    _config["do_smart_stage"] = bool(on)
    if stage_subgraph_on_cpu is not None:
        _config["stage_subgraph_on_cpu"] = bool(stage_subgraph_on_cpu)


class _Reader:
    """The sources of a step, read in order by one thread at a time. Knows nothing of the SmartStage."""

    def __init__(self, source: Any, fn: Callable[..., Any], name: str, ignored: tuple[type[BaseException], ...]) -> None:
        self.source, self.name, self.ignored, self.read = compile_source(source, {}), name, ignored, 0
        self.first: list[Any] = []  # the item by which the step was recorded
        needed = [p for p in _parameters(fn) if p.default is p.empty]
        # A step of one parameter is given the item as it is.
        self.spreads = len(needed) != 1 or needed[0].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        self.shape: tuple[int, list[str]] = (0, [])  # of the items

    def item(self) -> Any:
        """What the sources give next, as it comes. Values in it are waited for."""
        if self.first:
            return self.first.pop()
        try:
            raw = self.source.pull() if self.source.pull else None
            return data_of(self.source.make(raw) if self.source.make else raw)
        except self.ignored:
            self.read += 1  # it counts as an item, too
            raise

    def parts(self, item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the step: a tuple or list is several, a dict is keywords, all else is the first."""
        if self.spreads and isinstance(item, dict):
            return (), item
        if self.spreads and isinstance(item, (tuple, list)):
            return tuple(item), {}
        return (item,), {}

    def next(self) -> _core.StepItem:
        args, kwargs = self.parts(self.item())
        if (len(args), list(kwargs)) != self.shape:
            raise UsageError(f"smart stage '{self.name}': item {self.read} gives {len(args)} arguments and the keywords "
                             f"{list(kwargs)}; the first gave {self.shape[0]} and {self.shape[1]}")  # fmt: skip
        item = _core.StepItem([*args, *kwargs.values()], self.read)
        self.read += 1
        return item


class _Pipeline:
    """The levels of a cut step as stages, one behind the other."""

    def __init__(self, core: _core.SmartStep, reader: _Reader, closed: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.closing, self.data_ended = False, []  # filled once the data, not only this pipeline, has ended
        self.levels: list[Stage] = []
        ends = (StopIteration, *closed)
        for k in range(core.levels):
            before = self.levels[-1].__next__ if k else _watched(reader.next, self.data_ended, ends)
            make = _watched(_level(core, k), self.data_ended, closed)
            if core.serial(k):  # in the order of the items
                source = Source(_both(before, make), None, "a level of a smart stage")
            else:
                source = Source(before, make, "a level of a smart stage")
            self.levels.append(staged(source, **{**options, "name": options["name"] + (f"-{k + 1}" if k else "")}))

    def cancel(self) -> None:
        for stage in self.levels:
            stage.cancel()


def _both(pull: Callable[[], Any], make: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: make(pull())


def _level(core: _core.SmartStep, level: int) -> Callable[[_core.StepItem], _core.StepItem]:
    def make(item: _core.StepItem) -> _core.StepItem:
        core.run_level(level, item)
        return item

    return make


def _watched(fn: Callable[..., Any], ended: list[bool], ends: tuple[Any, ...]) -> Callable[..., Any]:
    def watch(*args: Any) -> Any:
        try:
            return fn(*args)
        except ends:
            ended.append(True)
            raise

    return watch


class SmartStage:
    """The steps of a program, each with the next item of its source. Made by ``engine.smart_stage``; iterate over it.

    Each step returns at once what the step function returns, as Values. What an op raises comes out of these; what the
    source raises comes out of the iteration, after the steps before it, as often as asked. ``with steps:`` cancels it at
    the end of the block; so does forgetting it.
    """

    def __init__(self, step: Callable[..., Any], source: Any, options: SmartStageOptions) -> None:
        self._options = options
        fields = [field.name for field in dataclasses.fields(options) if field.name not in _OWN]
        self._staged: dict[str, Any] = {name: getattr(options, name) for name in fields}
        self._staged["name"] = options.name or f"smart-stage-{next(_numbers)}"
        self._closed = _types("closed_exception_types", options.closed_exception_types)
        self._ignored = _types("ignored_exception_types", options.ignored_exception_types)
        staged(lambda: None, **self._staged)  # refuses what cannot be honoured, now
        fn = step._fn if isinstance(step, Hybrid) else step
        self._hybrid = Hybrid(fn, False, False, options.engine)
        self._reader = _Reader(source, fn, self.name, self._ignored)
        self._core: _core.SmartStep | None = None  # once the first item has come
        self._given: list[str] = []
        self._lock, self._clients = threading.Lock(), threading.BoundedSemaphore(options.num_clients)
        self._pipeline: _Pipeline | None = None
        self._asked: Stage | None = None  # reads one item while somebody waits for it with a time-out
        self._held: tuple[_core.StepItem, bool, bool] | None = None  # its step was refused: it is the next
        self._failure: BaseException | None = None
        self._ended, self._over = False, threading.Event()
        self._ignored_in_a_row = self._steps = self._position = self._skipped = 0

    @property
    def name(self) -> str:
        """What it goes by in errors and in the names of its threads."""
        return str(self._staged["name"])

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.step()

    def step(self, **given: Any) -> Any:
        """The next step; ``given``: arguments that the source does not give. StopIteration at the end of the data."""
        if not self._clients.acquire(blocking=False):
            raise UsageError(f"smart stage '{self.name}': more than num_clients ({self._options.num_clients}) threads ask "
                             "for steps at once")  # fmt: skip
        try:
            with self._lock:
                return self._next(given)
        finally:
            self._clients.release()

    def cancel(self) -> None:
        """Ends now: who waits for a step gets CancelledError, what was read ahead is thrown away. May be repeated."""
        self._over.set()
        for stage in (self._pipeline, self._asked):
            if stage is not None:
                stage.cancel()

    @property
    def position(self) -> int:
        """How many items of the source are done with: what a resumed program has to leave out."""
        return self._position

    @property
    def report(self) -> dict[str, Any]:
        """What was decided: nodes with the reasons why they are not staged, boundary, predicted and measured seconds."""
        return self._core.report() if self._core else {"on": False, "decided": False, "staged": 0, "nodes": [], "text": ""}

    def explain(self) -> str:
        """The same as text."""
        return str(self.report["text"]) or f"smart stage '{self.name}': no step was run yet\n"

    def stats(self) -> dict[str, Any]:
        """Counters: steps, position, read, skipped, on; ``stage``: those of the last level, while steps are staged."""
        pipeline = self._pipeline
        levels = [level.stats() for level in pipeline.levels] if pipeline else []
        return {
            "steps": self._steps,
            "position": self._position,
            "read": self._reader.read,
            "skipped": self._skipped + sum(level["skipped"] for level in levels),
            "on": bool(levels),
            "stage": levels[-1] if levels else {},
        }

    def __enter__(self) -> SmartStage:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __repr__(self) -> str:
        return f"<engine.SmartStage {self.name!r}>"

    # --- one at a time from here on

    def _next(self, given: dict[str, Any]) -> Any:
        self._check_cancelled()
        if self._failure is not None:
            raise self._failure
        if self._ended:
            raise StopIteration
        seconds = 0.0
        if self._core is None:
            self._core = self._record(given)
        core = self._core
        core.asked()
        if list(given) != self._given:
            missing = [name for name in self._given if name not in given]
            if missing or len(given) != len(self._given):
                raise UsageError(f"smart stage '{self.name}': a step is given {list(given)}; {self._given} is expected, "
                                 "as in the first step")  # fmt: skip
        if self._held is None:
            item, halves, as_planned, seconds = self._next_item(core)
            self._held = item, halves, as_planned
        item, halves, as_planned = self._held
        values = [given[name] for name in self._given]
        mode = core.mode
        if halves:
            run = core.start(item, values, True)
        elif mode == "profile":
            run = core.profile(item, values, seconds)
        else:
            run = core.start(item, values, False)
        self._held = None
        self._steps += 1
        self._position = item.number + 1
        if as_planned and mode != "profile":
            core.started(run)
        return self._hybrid._rebuilt(self._hybrid._returned, run)

    def _record(self, given: dict[str, Any]) -> _core.SmartStep:
        """Records the step with the first item, which then comes again."""
        reader, options, hybrid = self._reader, self._options, self._hybrid
        item = self._read(reader.item)
        args, kwargs = reader.parts(item)
        reader.shape = len(args), list(kwargs)
        try:
            hybrid.record(*args, **kwargs, **given)
        finally:
            reader.first = [item]
        self._given = list(given)
        judged = self._closed != (StopIteration,) or self._ignored != ()
        judged_types = (*self._closed, *self._ignored)

        def judge(error: BaseException) -> bool:
            return isinstance(error, judged_types)

        def chosen(field: str) -> bool:
            value = getattr(options, field)
            return bool(_config[field] if value is None else value)

        return _core.SmartStep(
            hybrid.engine, hybrid.recorded, list(range(len(args) + len(kwargs))), name=self.name,
            capacity=options.capacity, num_threads=options.num_threads, stream=options.stage_subgraph_stream_id,
            judge=judge if judged else None, on=chosen("do_smart_stage"), on_cpu=chosen("stage_subgraph_on_cpu"),
            targets=hybrid.targets,
            input_state=[getattr(state, "var", state) for state in options.input_state], max_levels=options.max_levels, profile_steps=options.profile_steps,
            guard_steps=options.guard_steps)  # fmt: skip

    def _next_item(self, core: _core.SmartStep) -> tuple[_core.StepItem, bool, bool, float]:
        """The item, whether its stage has run, whether it came as ``mode`` says, and how long it took to read."""
        while True:
            self._check_cancelled()
            mode, pipeline = core.mode, self._pipeline
            if mode != "staged" and pipeline is None:
                begin = time.perf_counter()
                halves = mode == "halves"
                item = self._read(self._halved(core) if halves else self._reader.next)
                return item, halves, True, time.perf_counter() - begin
            if pipeline is None:
                self._pipeline = _Pipeline(core, self._reader, self._closed, self._staged)
                continue
            if mode != "staged" and not pipeline.closing:
                pipeline.levels[0].close()
                pipeline.closing = True
            try:
                return next(pipeline.levels[-1]), True, not pipeline.closing, 0.0
            except StopIteration:
                self._skipped += sum(level.stats()["skipped"] for level in pipeline.levels)
                self._pipeline = None
                if not pipeline.closing or pipeline.data_ended:
                    self._ended = True
                    raise

    def _halved(self, core: _core.SmartStep) -> Callable[[], _core.StepItem]:
        def read() -> _core.StepItem:
            item = self._reader.next()
            for level in range(core.levels):
                core.run_level(level, item)
            return item

        return read

    def _read(self, read: Callable[[], Any]) -> Any:
        """Reads on this thread, or, so that the wait can end, on one of its own."""
        while True:
            try:
                item = self._within_time(read) if self._options.take_timeout_millis else read()
                self._ignored_in_a_row = 0
                return item
            except (StageTimeoutError, KeyboardInterrupt):
                raise  # the wait was given up, not the source
            except BaseException as error:
                self._check_cancelled()
                if isinstance(error, (StopIteration, *self._closed)):
                    self._ended = True
                    raise StopIteration from None
                self._ignored_in_a_row += 1
                if not isinstance(error, self._ignored) or self._ignored_in_a_row > self._options.ignored_budget:
                    self._failure = error
                    raise
                self._skipped += 1
                beyond = self._ignored_in_a_row - 8  # a pause as in a stage: src/stage/backoff.h
                if beyond > 0:
                    self._over.wait(min(2 ** (beyond - 1), 1000) / 1000)
                self._check_cancelled()

    def _within_time(self, read: Callable[[], Any]) -> Any:
        if self._asked is None:
            once = iter((read,))
            self._asked = staged(Source(lambda: next(once)(), None, "one item"), name=self.name,
                                 take_timeout_millis=self._options.take_timeout_millis)  # fmt: skip
        try:
            item = next(self._asked)
        except StageTimeoutError:
            raise
        except BaseException:
            self._asked = None
            raise
        self._asked = None
        return item

    def _check_cancelled(self) -> None:
        if self._over.is_set():
            self.cancel()  # what was opened since
            raise CancelledError(f"smart stage '{self.name}': it was cancelled")


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # built-ins need not have one
        return []


def smart_stage(step: Any, source: Any, options: SmartStageOptions | None = None, **fields: Any) -> SmartStage:
    """Runs ``step`` with each item of ``source``; what of it does not depend on the model runs ahead, if that is faster.

    ``for loss in engine.smart_stage(step, read("train.csv"), capacity=4): ...``. ``step``: a function that calls ops, as for
    ``engine.hybridize``; it is recorded with the first item. A tuple or list gives its arguments in order, a dict by name,
    and a step of one parameter gets the item itself. ``source``: as for ``engine.staged``, one of those included; read in
    order by one thread at a time. ``options``, ``fields``: SmartStageOptions. Source: DeepRec's SmartStage.
    """
    unknown = set(fields) - {field.name for field in dataclasses.fields(SmartStageOptions)}
    if unknown:
        raise TypeError(f"smart_stage: '{unknown.pop()}' is unknown; fields of SmartStageOptions are allowed")
    if not callable(step):
        raise TypeError(f"smart_stage: a {type(step).__name__} is no function")
    options = dataclasses.replace(options or SmartStageOptions(), **fields)
    if options.graph is not None and options.graph is not step:
        raise UsageError("smart_stage: its option graph is another function than its step")
    return SmartStage(step, source, options)
