"""What users of concurrent.futures expect: as_completed, map, and an executor."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import time
from typing import Any, Callable, Iterable, Iterator, TypeVar

from . import _core
from .ops import Op, op
from .values import Value

T = TypeVar("T")


def as_completed(values: Iterable[Value[T]], timeout: float | None = None) -> Iterator[Value[T]]:
    """Yields the Values as their ops end, failed or not; each once. TimeoutError ``timeout`` seconds after the call.

    ``for v in engine.as_completed(map(load, names)): use(v.get())``
    """
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
    of the loop (default: four for each worker). ``fn``: a function or an op; ``options``: as for ``engine.push``.

    The error of a call is raised in its place, and ends the iteration. Leaving the loop early cancels what has not begun.
    """
    target = engine or _core.default()
    bound = ahead if ahead is not None else 4 * max(1, target.workers)
    if bound < 1:
        raise ValueError(f"map: ahead is {bound}; at least 1 is expected")
    call = fn if isinstance(fn, Op) else op(fn, **options)

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
                        running.put(call(*item) if engine is None else _on(target, call, item))
                if running.empty():
                    return
                yield running.get().get()
        finally:
            scope.cancel()

    return results()


def _on(engine: _core.Engine, call: Op[Any, T], item: tuple[Any, ...]) -> Value[T]:
    """Calls the op on ``engine``, also where none of its arguments is a Value of that engine."""
    made: Value[Any] = Value(None, _core.Var(call._name, engine))

    def run() -> None:
        made._data = call._fn(*item)

    engine.push(run, writes=[made], name=call._name)
    return made


class Executor(concurrent.futures.Executor):
    """An executor of concurrent.futures whose calls are ops: ``with engine.Executor() as pool: pool.submit(work, x)``.

    Calls without Vars in common run in parallel on the engine's workers, in any order. A future that is cancelled
    before its call has begun never runs. ``engine``: the engine (the default one); ``place``, ``priority``: as for
    ``engine.push``. asyncio takes it: ``loop.run_in_executor(pool, work)``.
    """

    def __init__(self, engine: _core.Engine | None = None, *, place: Any = None, priority: int = 0) -> None:
        self._engine, self._options = engine or _core.default(), {"place": place, "priority": priority}
        self._lock = threading.Lock()
        self._pending: set[concurrent.futures.Future[Any]] = set()
        self._shut_down = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Pushes ``fn(*args, **kwargs)``; returns its Future. RuntimeError after ``shutdown``."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            if self._shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        self._engine.push(run, name=getattr(fn, "__name__", None) or type(fn).__name__, **self._options)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; waits for those that were submitted. The engine goes on."""
        with self._lock:
            self._shut_down = True
            pending = list(self._pending)
        if cancel_futures:
            for future in pending:
                future.cancel()
        if wait:
            concurrent.futures.wait(pending)
