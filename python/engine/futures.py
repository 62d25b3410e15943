"""What users of concurrent.futures expect: as_completed, map, and an executor."""

from __future__ import annotations

import concurrent.futures
import functools
import queue
import threading
import time
from typing import Any, Callable, Iterable, Iterator, TypeVar

from . import _core
from .errors import UsageError, kept
from .ops import Op, op
from .refusals import refuse_while_recording
from .values import Value

T = TypeVar("T")


def as_completed(values: Iterable[Value[T]], timeout: float | None = None) -> Iterator[Value[T]]:
    """Yields the Values as their ops end, failed or not; each once. TimeoutError ``timeout`` seconds after the call.
    UsageError while a function is recorded.

    ``for v in engine.as_completed(map(load, names)): use(v.get())``
    """
    refuse_while_recording("as_completed asks what has ended", "Call it outside, with the results")
    pending = set(values)
    ended: queue.SimpleQueue[Value[T]] = queue.SimpleQueue()
    deadline = None if timeout is None else time.monotonic() + timeout
    for value in pending:
        value.add_done_callback(ended.put)

    def each() -> Iterator[Value[T]]:
        total, missing = len(pending), len(pending)
        while pending:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                value = ended.get(timeout=left)
            except queue.Empty:
                raise TimeoutError(f"as_completed: {missing} of {total} values were not there within {timeout} s") from None
            missing -= 1
            pending.discard(value)
            yield value

    return each()


def map(fn: Callable[..., T], *iterables: Iterable[Any], engine: _core.Engine | None = None,
        ahead: int | None = None, **options: Any) -> Iterator[T]:  # fmt: skip
    """Results of ``fn`` for the items, in their order; calls run on the workers, at most ``ahead`` of them in advance
    of the loop (default: four for each worker). ``fn``: a function or an op; ``options``: as for ``engine.op``, for a function.
    ``engine``: where the calls run (that of their first Value, or the default one). Items may be Values, as arguments of an op may.

    The error of a call is raised in its place, and ends the iteration. Leaving the loop early cancels what has not begun.
    """
    bound = ahead if ahead is not None else 4 * max(1, (engine or _core.default()).workers)
    if bound < 1:
        raise ValueError(f"map: ahead is {bound}; at least 1 is expected")
    if isinstance(fn, Op) and options:
        raise UsageError(f"map: fn is an op, which has options of its own; leave {', '.join(options)} out, or give the function")
    call = fn if isinstance(fn, Op) else op(fn, **options)
    if not call._outputs:
        raise UsageError(f"map: op '{call._name}' has no outputs, so there are no results; call it in a loop")

    def results() -> Iterator[T]:
        scope, running = _core.CancelScope(), queue.SimpleQueue[Any]()
        items = zip(*iterables)
        try:
            while True:
                while running.qsize() < bound:
                    try:
                        item = next(items)
                    except StopIteration:
                        break
                    with scope:
                        running.put(call(*item) if engine is None else _core._call_on(call, engine, item))
                if running.empty():
                    return
                made = running.get()
                result: Any = made.get() if isinstance(made, Value) else tuple(value.get() for value in made)
                yield result
        finally:
            scope.cancel()

    return results()


class Executor(concurrent.futures.Executor):
    """An executor of concurrent.futures whose calls are ops: ``with engine.Executor() as pool: pool.submit(work, x)``.

    Calls without Vars in common run in parallel on the engine's workers, in any order. A future that is cancelled
    before its call has begun never runs, and a call that its CancelScope skips has a cancelled future. ``engine``: the
    engine (the default one); ``place``, ``priority``: as for ``engine.push``. asyncio takes it:
    ``loop.run_in_executor(pool, work)``.
    """

    def __init__(self, engine: _core.Engine | None = None, *, place: Any = None, priority: int = 0) -> None:
        self._engine, self._options = engine or _core.default(), {"place": place, "priority": priority}
        self._lock = threading.Lock()
        self._pending: set[concurrent.futures.Future[Any]] = set()
        self._shut_down = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Pushes ``fn(*args, **kwargs)``; returns its Future. RuntimeError after ``shutdown``; UsageError
        while a function is recorded."""
        refuse_while_recording("a call is submitted to an Executor", "Call an op")
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        work: list[Callable[[], Any]] = [functools.partial(fn, *args, **kwargs)]
        future.add_done_callback(lambda _: work.clear())  # if it is cancelled, nobody needs them until its turn comes
        future.add_done_callback(self._pending.discard)
        with self._lock:
            if self._shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._pending.add(future)
        try:
            # run_always: also if it is cancelled, so that the future hears of it.
            self._engine.push(functools.partial(_run, future, work), name=getattr(fn, "__name__", None) or type(fn).__name__,
                              run_always=True, **self._options)  # fmt: skip
        except BaseException:
            future.cancel()
            raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; waits for those that were submitted. The engine goes on."""
        with self._lock:
            self._shut_down = True
            pending = list(self._pending)
        if cancel_futures:
            pending = [future for future in pending if not future.cancel()]
        if wait:
            concurrent.futures.wait(pending)


def _run(future: concurrent.futures.Future[Any], work: list[Callable[[], Any]]) -> None:
    """The body of a submitted call. The function and its arguments are gone before anybody who waits for the future goes on."""
    if _core.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    failed = None
    try:
        result = work.pop()()
    except BaseException as error:
        failed = kept(error)
    if failed is None:
        future.set_result(result)
    else:
        future.set_exception(failed)
