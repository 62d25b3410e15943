"""Stages: run the part of a step that does not depend on the model ahead of the rest, on threads of their own."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any, Iterator, Mapping, Union

from . import _core
from .errors import ForkedWhilePending, UsageError
from .producers import Run
from .sources import compile_source

_END = object()
_alive: weakref.WeakSet[Stage] = weakref.WeakSet()

Exceptions = Union[type[BaseException], tuple[type[BaseException], ...]]


class Stage:
    """Items that are made ahead by producer threads. Made by ``engine.staged``; iterate over it.

    The first request for an item starts it. Any thread may take items; each item goes to one thread. What the source
    raises is raised here as itself, after the items before it, each time an item is asked for. A cancelled stage
    raises CancelledError. ``with stage:`` cancels it at the end of the block; a stage that the program forgets is
    cancelled too.
    """

    def __init__(self, features: Any, feed_dict: dict[str, Any], closed: Any, ignored: Any, area: dict[str, Any]):
        self._features, self._feed = features, feed_dict
        self._closed, self._ignored, self._options = closed, ignored, area
        self._lock = threading.Lock()
        self._renew()
        _alive.add(self)

    def _renew(self) -> None:
        source = compile_source(self._features, self._feed)
        self._area = _core.StagingArea(**self._options)
        self._options["name"] = self._area.name  # a generated name stays the same after a restart
        # Producers have no reference to the Stage. So a forgotten Stage is destroyed, and with it its area, which
        # cancels.
        self._run = Run(self._area.for_producers(), source, self._closed, self._ignored, self._options["capacity_bytes"] > 0)
        self._take = self._area.take
        self._started = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._started:
            self.start()
        item = self._take(None, _END)
        if item is _END:
            raise StopIteration
        return item

    def take(self, timeout: float | None = None) -> Any:
        """As next(stage), but raises TimeoutError after ``timeout`` seconds. No item is lost by that."""
        self.start()
        item = self._take(timeout, _END)
        if item is _END:
            raise StopIteration
        return item

    def start(self) -> None:
        """Starts the producers, unless they run already, so that items are ready when the first is asked for."""
        with self._lock:
            if not self._started:
                self._started = True
                for _ in range(self._options["num_threads"]):
                    self._run.spawn()

    def close(self) -> None:
        """Begins no more items. What was begun is delivered; then the stream ends. May be repeated."""
        self._area.close()

    def cancel(self) -> None:
        """Ends everything now: consumers get CancelledError, and what is buffered is thrown away. May be repeated."""
        self._area.cancel()

    def join(self, timeout: float | None = None) -> bool:
        """Waits until no producer is inside the source; False if one still is after ``timeout`` seconds for each."""
        for thread in list(self._run.threads):
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._run.threads)

    def restart(self, features: Any = None, timeout: float | None = None) -> None:
        """Begins again, with nothing of the run before: with new ``features``, or with the same if these can begin
        again.

        Waits until the producers have left the source; TimeoutError after ``timeout`` seconds. UsageError if the
        source is an iterator, because an iterator cannot begin again. In the child of a fork this makes the stage
        usable.
        """
        with self._lock:
            once = self._run.source.once
            if features is None and once is not None:
                raise UsageError(f"stage '{self.name}': {once}, which cannot begin again; restart with a new one")
            _cancel(self._area)
            if not self.join(timeout):
                raise TimeoutError(f"stage '{self.name}': its source has not returned within {timeout} s")
            if features is not None:
                self._features = features
            self._renew()

    def stats(self) -> dict[str, Any]:
        """Counters of this run: delivered, position, fill, drops, skipped, producer_wait, consumer_wait and more."""
        return self._area.stats()

    @property
    def position(self) -> int:
        """How many items of the source are done with: a resumed run has to leave out as many."""
        return int(self._area.stats()["position"])

    @property
    def name(self) -> str:
        """Its name in errors and in the names of its threads."""
        return self._area.name

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __repr__(self) -> str:
        return f"<engine.Stage {self.name!r}>"


def _cancel(area: _core.StagingArea) -> None:
    with contextlib.suppress(ForkedWhilePending):  # the producers stayed in the parent
        area.cancel()


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
    timeout_millis: int = 300_000,
    on_timeout: str = "error",
    take_timeout_millis: int = 0,
    closed_exception_types: Exceptions = (StopIteration,),
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
    """Runs ``features`` ahead on threads of its own: ``for batch in engine.staged(read("train.csv"), capacity=4):
    ...``

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
    if on_timeout not in ("error", "drop"):
        raise UsageError(f"staged: on_timeout is {on_timeout!r}; 'error' or 'drop' is expected")
    numbers = {
        "capacity": capacity,
        "capacity_bytes": capacity_bytes,
        "num_threads": num_threads,
        "num_clients": num_clients,
        "timeout_millis": timeout_millis,
        "take_timeout_millis": take_timeout_millis,
        "ignored_budget": ignored_budget,
        "max_capacity": max_capacity,
        "max_threads": max_threads,
        "pool": stage_subgraph_thread_pool_id,
        "stream": stage_subgraph_stream_id,
    }
    for option, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"staged: {option} is a {type(value).__name__}; an int is expected")
        if not -1 <= value < 2**31:
            raise UsageError(f"staged: {option} is {value}; at least 0 and less than 2**31 is expected")
    for option in ("capacity_bytes", "max_capacity", "max_threads", "capacity"):
        if numbers[option] < 0:
            raise UsageError(f"staged: {option} is {numbers[option]}; it cannot be negative")
    return Stage(
        features,
        dict(feed_dict or {}),
        _types("closed_exception_types", closed_exception_types),
        _types("ignored_exception_types", ignored_exception_types),
        {
            **numbers,
            "name": name or "",
            "ordered": bool(ordered),
            "drop": on_timeout == "drop",
            "use_pool": bool(use_stage_subgraph_thread_pool),
            "autotune": bool(autotune),
            # The engine that has the device of the lane. Lane 0, the main one, needs none.
            "engine": engine or (_core.default() if stage_subgraph_stream_id else None),
        },
    )


def _types(option: str, given: Any) -> tuple[type[BaseException], ...]:
    types = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    for one in types:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise TypeError(f"staged: {option} has {one!r}; exception classes are expected")
    return types


def stage_pool(global_name: str, *, inter_op_threads_num: int = 1, intra_op_threads_num: int = 1) -> int:
    """Makes a named pool for stages, for the life of the process; its number is their stage_subgraph_thread_pool_id.

    At most ``inter_op_threads_num`` producers run at once, over all its stages; producers that wait for room, or take
    from another stage, do not count. ``intra_op_threads_num`` is for sources in C++; stage_pools() shows it.
    """
    return _core._make_stage_pool(global_name, inter_op_threads_num, intra_op_threads_num)


def stage_pools() -> list[dict[str, Any]]:
    """The pools made so far, by number: global_name, inter_op_threads_num, intra_op_threads_num."""
    keys = ("global_name", "inter_op_threads_num", "intra_op_threads_num")
    return [dict(zip(keys, pool)) for pool in _core._stage_pools()]


class PrefetchHook:
    """Starts every stage there is, and cancels these stages at the end. Made by ``engine.make_prefetch_hook``."""

    def __init__(self) -> None:
        self._stages: list[Stage] = []

    def begin(self) -> None:
        """Starts the stages made so far."""
        self._stages = list(_alive)
        for stage in self._stages:
            stage.start()

    def end(self) -> None:
        """Cancels the stages that ``begin`` started."""
        for stage in self._stages:
            stage.cancel()
        self._stages = []

    def __enter__(self) -> PrefetchHook:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def make_prefetch_hook() -> PrefetchHook:
    """``with engine.make_prefetch_hook():`` starts all stages before the first step, and cancels them at the end.

    For programs that come from DeepRec, and for a first step that does not wait. Without it, the first take starts a
    stage.
    """
    return PrefetchHook()
