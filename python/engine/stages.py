"""Stages: run the part of a step that does not depend on the model ahead of the rest, on threads of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import numbers
import os
import queue
import threading
import weakref
from typing import Any, AsyncIterator, Callable, Iterator, Mapping, Union

from . import _core
from .errors import EndOfData, ForkedWhilePending, UsageError, an
from .refusals import refuse_while_recording
from .sources import Source, compile_source

_END = object()
_NEVER = 3e8  # seconds: ten years
_INT = 2**31 - 1
# What each number may be. ranges: written by .ci/tables.py from include/engine/stage_options.h
_RANGES = {
    "capacity": (1, 1073741824),
    "capacity_bytes": (0, 9223372036854775807),
    "num_threads": (1, 1024),
    "num_clients": (1, 1048576),
    "ignored_budget": (0, 1073741824),
    "max_capacity": (0, 9223372036854775807),
    "max_threads": (0, 2147483647),
}
# /ranges
# The stages of the program. A set of its own references and no WeakSet, whose iteration another thread could disturb.
_alive: set[weakref.ref[Any]] = set()

_Turns = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
Exceptions = Union[type[BaseException], tuple[type[BaseException], ...]]


def note(stage: Any) -> None:
    """Adds a stage or smart stage to those that ``alive`` returns."""
    _alive.add(weakref.ref(stage, _alive.discard))


def alive() -> list[Any]:
    """The stages and smart stages that the program has."""
    # The tuple is made in one step, with the GIL, and so without another thread.
    return [stage for stage in (ref() for ref in tuple(_alive)) if stage is not None]


async def next_of(stage: Any, take: Callable[[], Any], end: Any = None) -> Any:
    """What ``take()`` returns on a thread, so that the event loop goes on; it runs in the caller's context. Each result goes to one
    await; if that is cancelled, to the next one. ``end``: what ``take`` returns from the end on. The tasks of a loop take turns, so
    they are one client of the stage.
    """
    loop = asyncio.get_running_loop()
    turns: _Turns = vars(stage).setdefault("_turns", weakref.WeakKeyDictionary())
    left: list[_Taken] = vars(stage).setdefault("_left", [])  # taken for awaits that were cancelled; of any event loop
    async with turns.setdefault(loop, asyncio.Lock()):
        while True:
            try:
                taken = left.pop(0)
            except IndexError:
                taken = _begin(take, left)
            here = taken.awaited_by(loop)
            try:
                await here
            except BaseException:  # also where the coroutine is closed
                taken.leave()
                raise
            try:
                result = taken.given()
            finally:
                del taken  # which has the exception, and that this frame
            if result is not end or not left:
                return result


class _Taken(concurrent.futures.Future[Any]):
    """What a thread takes for an await, or for the next one if that gives up."""

    def __init__(self, left: list[_Taken]) -> None:
        super().__init__()
        self._left, self._over = left, False  # what is left for the next await; whether one has it
        self._here: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self.add_done_callback(_Taken._is_done)

    def given(self) -> Any:
        self._over = True
        return self.result()

    def leave(self) -> None:
        if not self._over and self not in self._left:
            self._left.append(self)

    def awaited_by(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """What the loop's task waits for until this one is done."""
        here = loop.create_future()
        self._here = loop, here
        if self.done():  # maybe before it knew whom to tell
            self._tell()
        return here

    @staticmethod
    def _is_done(taken: concurrent.futures.Future[Any]) -> None:
        assert isinstance(taken, _Taken)
        taken._tell()

    def _tell(self) -> None:
        told, self._here = self._here, None
        if told is None:
            return
        loop, here = told

        def tell() -> None:
            if not here.done():
                here.set_result(None)

        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:  # the loop has ended, and with it the await
            self.leave()


# Threads that have taken something for an await, and wait for the next take. They are no executor's, because asyncio.run and the end of
# the interpreter wait for those: also for a take that its await has given up, and for ever if the source hangs.
_idle: list[queue.SimpleQueue[Callable[[], None]]] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)


def _run(taken: _Taken, take: Callable[[], Any]) -> None:
    if not taken.set_running_or_notify_cancel():
        return
    try:
        taken.set_result(take())
    except StopIteration as error:  # of the program's; an await may not raise it
        stopped = RuntimeError("a StopIteration was raised in a thread that takes for an await")
        stopped.__cause__ = error
        taken.set_exception(stopped)
    except BaseException as error:
        taken.set_exception(error)
    finally:
        del taken, take  # an exception has this frame


def _begin(take: Callable[[], Any], left: list[_Taken]) -> _Taken:
    taken = _Taken(left)
    try:
        work = _idle.pop()
    except IndexError:
        work = queue.SimpleQueue()
        threading.Thread(target=_work, args=(work,), name="engine-await", daemon=True).start()
    work.put(functools.partial(contextvars.copy_context().run, _run, taken, take))
    return taken


def _work(work: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        work.get()()
        _idle.append(work)


class Stage(_core.Stage):
    """Items that are made ahead by producer threads. Made by ``engine.data.staged``; iterate over it.

    The first request for an item starts the producers. Any thread may take items; each item goes to one thread. What
    the source raised is raised here as it is, after the items before it, at every later request too. A cancelled stage
    raises CancelledError. ``with stage:`` cancels the stage at the end of the block; a stage that the program forgets
    is cancelled too.
    """

    def __init__(self, features: Any, feed_dict: dict[str, Any], closed: tuple[type[BaseException], ...],
                 options: dict[str, Any]) -> None:  # fmt: skip
        source = compile_source(features, feed_dict)
        self._source = source
        self._left: list[_Taken] = []
        super().__init__(*_weakly(source), closed, options)
        self._features, self._feed, self._once = features, feed_dict, source.once
        note(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        _refuse_recording(self)
        item = self._take_or(None, _END)
        if item is _END:
            raise StopIteration
        return item

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        _refuse_recording(self)
        item = await next_of(self, lambda: self._take_or(None, _END), _END)
        if item is _END:
            raise StopAsyncIteration
        return item

    def take(self, timeout: float | None = None) -> Any:
        """As next(stage), but raises EndOfData at the end, and TimeoutError after ``timeout`` seconds. A time-out loses
        no item. Unreadable, a UsageError, while a function is recorded."""
        _refuse_recording(self)
        item = self._take_or(_within("take", timeout), _END)
        if item is _END:
            raise EndOfData(f"stage '{self.name}': there is no more data")
        return item

    def cancel(self) -> None:
        """Ends everything now: a thread that waits for an item gets CancelledError, and buffered items are dropped. May be repeated. In
        the child of a fork it does nothing, because nothing of the stage runs there."""
        with contextlib.suppress(ForkedWhilePending):
            super().cancel()

    def restart(self, features: Any = None, feed_dict: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> None:
        """Starts over, and keeps nothing of the items before: with new ``features`` and a new ``feed_dict``, or with the
        same ones if they can begin again.

        Waits until the producers have left the source; TimeoutError after ``timeout`` seconds. UsageError if an
        iterator is left of what is not new, because an iterator cannot begin again. In the child of a fork this makes
        the stage usable.
        """
        for part, given in ("features", features), ("feed_dict", feed_dict):
            if given is None and part in self._once:
                raise UsageError(f"stage '{self.name}': {self._once[part]}, which cannot begin again; restart with a new one")
        features = self._features if features is None else features
        feed = self._feed if feed_dict is None else _feed_of(feed_dict)
        within, source = _within("restart", timeout), compile_source(features, feed)
        if not self._restart(*_weakly(source), within):
            raise TimeoutError(f"stage '{self.name}': its source has not returned within {timeout} s")
        self._features, self._feed, self._once, self._source = features, feed, source.once, source
        before, self._left[:] = self._left[:], []  # taken before the restart, for awaits that were cancelled
        for taken in before:
            taken.cancel()

    @property
    def position(self) -> int:
        """How many items of the source are done with; a program that resumes leaves out this many."""
        return int(self.stats()["position"])

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __repr__(self) -> str:
        return f"<engine.data.Stage {self.name!r}>"

    def _repr_html_(self) -> str:
        from .explanation.pictures import stage_html

        return stage_html(self)


def _refuse_recording(stage: Any) -> None:
    refuse_while_recording(f"an item of stage '{stage.name}' is asked for", "Take it outside and give it as an argument")


def _weakly(source: Source) -> tuple[Any, Any]:
    """``pull`` and ``make`` for the extension, which the collector cannot look into: they refer weakly to the source, which
    the stage has, so that an object may have a stage on one of its methods and still go."""

    def weak(fn: Any) -> Any:
        if fn is None:
            return None
        holder = _Holder(fn)
        source.holders.append(holder)
        ref = weakref.ref(holder)

        def call(*args: Any) -> Any:
            held = ref()
            if held is None:
                raise StopIteration  # the program has forgotten the stage
            return held.fn(*args)

        return call

    return weak(source.pull), weak(source.make)


class _Holder:
    __slots__ = ("fn", "__weakref__")

    def __init__(self, fn: Any) -> None:
        self.fn = fn


def staged(
    features: Any,
    feed_dict: Mapping[str, Any] | None = None,
    *,
    capacity: int = 1,
    capacity_bytes: int = 0,
    num_threads: int = 1,
    num_clients: int = 1,
    num_client: int | None = None,
    ordered: bool = True,
    timeout: float | None = None,
    on_timeout: str = "error",
    take_timeout: float | None = None,
    closed_exception_types: Exceptions = (StopIteration, EndOfData),
    ignored_exception_types: Exceptions = (),
    ignored_budget: int = 100,
    use_stage_subgraph_thread_pool: bool = False,
    stage_subgraph_thread_pool_id: int = 0,
    stage_subgraph_stream_id: int = 0,
    autotune: bool = False,
    max_capacity: int = 256,
    max_threads: int = 0,
    name: str | None = None,
    engine: _core.Engine | None = None,
) -> Stage:
    """Runs ``features`` ahead on threads of its own.

    ``for batch in engine.data.staged(read("train.csv"), capacity=4): ...``

    ``features``: an iterator or iterable, a callable, or a list, tuple or dict of these, nested; None stays None.
    Iterators advance in order, one producer at a time; callables run on all ``num_threads``. ``feed_dict`` gives
    their arguments by name: an iterator or a callable in it is asked once for each item, anything else is a constant.
    ``engine``: the engine that has the device lane ``stage_subgraph_stream_id``; the default one if it is not given.
    Options and their defaults: docs/stages.md. Source: DeepRec's tf.staged.
    """
    if num_client is not None:
        if num_clients not in (1, num_client):
            raise UsageError(f"staged: num_client is {num_client} and num_clients is {num_clients}; give one of them")
        num_clients = num_client
    options = stage_options(
        capacity=capacity, capacity_bytes=capacity_bytes, num_threads=num_threads, num_clients=num_clients,
        ordered=ordered, timeout=timeout, on_timeout=on_timeout, take_timeout=take_timeout,
        ignored_exception_types=ignored_exception_types, ignored_budget=ignored_budget,
        use_stage_subgraph_thread_pool=use_stage_subgraph_thread_pool,
        stage_subgraph_thread_pool_id=stage_subgraph_thread_pool_id, stage_subgraph_stream_id=stage_subgraph_stream_id,
        autotune=autotune, max_capacity=max_capacity, max_threads=max_threads, name=name, engine=engine)  # fmt: skip
    return Stage(features, _feed_of(feed_dict or {}), exception_types("closed_exception_types", closed_exception_types), options)


def _feed_of(feed_dict: Any) -> dict[str, Any]:
    if not isinstance(feed_dict, Mapping):
        raise TypeError(f"staged: feed_dict is {an(type(feed_dict))}; a dict of names of parameters is expected")
    return dict(feed_dict)


def stage_options(*, on_timeout: str, ignored_exception_types: Exceptions, use_stage_subgraph_thread_pool: bool,
                  stage_subgraph_thread_pool_id: int, stage_subgraph_stream_id: int, name: str | None,
                  engine: _core.Engine | None, autotune: bool, timeout: float | None, take_timeout: float | None,
                  ordered: bool = True, called: str = "staged", **numbers: int) -> dict[str, Any]:  # fmt: skip
    """The options of a stage as the extension takes them. A TypeError or UsageError names the wrong option, and the function ``called``."""
    if on_timeout not in ("error", "drop"):
        raise UsageError(f"{called}: on_timeout is {on_timeout!r}; 'error' or 'drop' is expected")
    for option, value in numbers.items():
        check_int(option, value, *_RANGES[option], called)
    for option, flag in ("ordered", ordered), ("autotune", autotune), ("use_stage_subgraph_thread_pool", use_stage_subgraph_thread_pool):
        check_type(option, flag, bool, "True or False", called)
    check_type("name", name, (str, type(None)), "a text or None", called)
    check_type("engine", engine, (_core.Engine, type(None)), "an Engine or None", called)
    for option, value in ("thread_pool_id", stage_subgraph_thread_pool_id), ("stream_id", stage_subgraph_stream_id):
        check_int(f"stage_subgraph_{option}", value, 0, _INT, called)  # the extension knows which there are
    return {
        **numbers,
        "pool": stage_subgraph_thread_pool_id,
        "stream": stage_subgraph_stream_id,
        "timeout": _NEVER if timeout is None else seconds("timeout", timeout, called),
        "take_timeout": 0.0 if take_timeout is None else seconds("take_timeout", take_timeout, called),
        "name": name or "",
        "ordered": ordered,
        "drop": on_timeout == "drop",
        "ignored": exception_types("ignored_exception_types", ignored_exception_types, called),
        "use_pool": use_stage_subgraph_thread_pool,
        "autotune": autotune,
        # The engine that has the device of the lane. Lane 0, the main one, needs none.
        "engine": engine or (_core.default() if stage_subgraph_stream_id else None),
    }


def seconds(option: str, value: Any, called: str = "staged") -> float:
    """The time-out ``value``, checked: 0 to ten years."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{called}: {option} is {an(type(value))}; seconds are expected, an int or a float")
    if not 0 <= value <= 3e8:
        raise UsageError(f"{called}: {option} is {value}; 0 to 3e8 seconds are expected")
    return float(value)


def _within(called: str, timeout: Any) -> float | None:
    """The ``timeout`` of a call, checked: a number of seconds, or None."""
    if timeout is None:
        return None
    if not isinstance(timeout, numbers.Real):
        raise TypeError(f"{called}: timeout is {an(type(timeout))}; seconds or None are expected")
    if timeout != timeout:
        raise UsageError(f"{called}: timeout is not a number; give seconds, or None")
    return float(timeout)


def check_type(option: str, value: Any, kind: type | tuple[type, ...], expected: str, called: str) -> None:
    """TypeError if the value is of no such class."""
    if not isinstance(value, kind):
        raise TypeError(f"{called}: {option} is {an(type(value))}; {expected} is expected")


def check_int(option: str, value: Any, least: int, most: int, called: str = "staged") -> None:
    """TypeError if the value is no int; UsageError if it is not in the range."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{called}: {option} is {an(type(value))}; an int is expected")
    if not least <= value <= most:
        raise UsageError(f"{called}: {option} is {value}; {least} … {most} is expected")


def exception_types(option: str, given: Any, called: str = "staged") -> tuple[type[BaseException], ...]:
    """The exception classes that are given for an option, one or several. TypeError for anything else."""
    types = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    for one in types:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise TypeError(f"{called}: {option} has {one!r}; exception classes are expected")
    return types


def stage_pool(global_name: str, *, inter_op_threads_num: int = 1, intra_op_threads_num: int = 1) -> int:
    """Makes a named pool for stages, for the life of the process. Returns its number, which stages take as
    stage_subgraph_thread_pool_id.

    At most ``inter_op_threads_num`` producers run at once, over all its stages; producers that wait for room, or take
    from another stage, do not count. ``intra_op_threads_num`` is for sources in C++; stage_pools() shows it. UsageError
    if the name is taken.
    """
    check_type("global_name", global_name, str, "a text", "stage_pool")
    for option, value in ("inter_op_threads_num", inter_op_threads_num), ("intra_op_threads_num", intra_op_threads_num):
        check_type(option, value, int, "an int", "stage_pool")
    return _core._make_stage_pool(global_name, inter_op_threads_num, intra_op_threads_num)


def stage_pools() -> list[dict[str, Any]]:
    """The pools made so far, by number: global_name, inter_op_threads_num, intra_op_threads_num."""
    keys = ("global_name", "inter_op_threads_num", "intra_op_threads_num")
    return [dict(zip(keys, pool)) for pool in _core._stage_pools()]


class PrefetchHook:
    """Starts all stages that exist, and cancels them at the end, smart stages too. Made by ``engine.data.make_prefetch_hook``."""

    def __init__(self) -> None:
        self._stages: list[weakref.ref[Any]] = []  # so that one which the program forgets goes

    def begin(self) -> None:
        """Starts the stages made so far. Smart stages start with their first step, with which they are recorded."""
        for stage in alive():
            self._stages.append(weakref.ref(stage))
            if isinstance(stage, Stage):
                stage.start()

    def end(self) -> None:
        """Cancels the stages that there were at ``begin``, and of which it still has any; also behind one whose cancel raises."""
        with contextlib.ExitStack() as ends:
            for stage in filter(None, (ref() for ref in self._stages)):
                ends.callback(stage.cancel)
            self._stages = []

    def __enter__(self) -> PrefetchHook:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def make_prefetch_hook() -> PrefetchHook:
    """``with engine.data.make_prefetch_hook():`` starts all stages before the first step, and cancels them and all smart stages at
    the end.

    For programs that come from DeepRec, and so that the first step need not wait. Without it, the first take starts a
    stage.
    """
    return PrefetchHook()
