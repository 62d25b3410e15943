"""What users of concurrent.futures expect: as_completed, map, and an executor."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import numbers
import operator
import os
import queue
import threading
import time
import weakref
from typing import Any, Callable, Iterable, Iterator, TypeVar

from . import _core
from .errors import Error, UsageError, an, kept
from .ops import OPTIONS, Op, op
from .refusals import refuse_while_recording
from .values import Value

T = TypeVar("T")
_FOR_EVER = 3e9  # seconds; Python's queues refuse to wait for longer


def _deadline(called: str, timeout: float | None) -> float | None:
    """When ``timeout`` seconds from now are over, by the monotonic clock. TypeError and UsageError for what is no number."""
    if timeout is not None and not isinstance(timeout, numbers.Real):
        raise TypeError(f"{called}: timeout is {an(type(timeout))}; seconds or None are expected")
    if timeout is not None and timeout != timeout:
        raise UsageError(f"{called}: timeout is not a number; give seconds, or None")
    return None if timeout is None or timeout > _FOR_EVER else time.monotonic() + timeout


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def as_completed(values: Iterable[Value[T]], timeout: float | None = None) -> Iterator[Value[T]]:
    """Yields the Values as their ops end, failed or not; each once. TimeoutError ``timeout`` seconds after the call.
    TypeError for what is no Value. UsageError while a function is recorded. In the body of an op, and of an engine without
    workers, those that have not ended at the call come in the order in which they were given.

    ``for v in engine.as_completed(map(load, names)): use(v.get())``
    """
    refuse_while_recording("as_completed asks what has ended", "Call it outside, with the results")
    deadline = _deadline("as_completed", timeout)
    given = dict.fromkeys(values)
    for value in given:
        if not isinstance(value, Value):
            raise TypeError(f"as_completed: one of the values is {an(type(value))}; Values are expected, as calls of ops return them")
    there = dict.fromkeys(value for value in given if value.done())
    pending = dict.fromkeys(value for value in given if value not in there)
    # Nobody else runs the ops of an engine without workers, so the loop does, as ``get`` would. And a worker whose op waits by
    # ``get`` has another thread in its place, as it has not where it waits for this queue.
    own = [value for value in pending if _core.in_body() or value.var.engine.workers == 0]
    ended: queue.SimpleQueue[Value[T]] = queue.SimpleQueue()
    for value in pending.keys() - set(own):
        value.add_done_callback(ended.put)

    def each() -> Iterator[Value[T]]:
        yield from there
        for value in own:
            if not value._outcome(_left(deadline))[0]:
                break
            del pending[value]
            yield value
        while pending:
            try:
                late = [ended.get(timeout=_left(deadline))]
            except queue.Empty:  # those that have ended, and whose callbacks come later, are not late
                late = [value for value in pending if value.done()]
                if not late:
                    raise TimeoutError(
                        f"as_completed: {len(pending)} of {len(given)} values were not there within {timeout} s"
                    ) from None
            for value in late:
                if value in pending:
                    del pending[value]
                    yield value

    return each()


def map(fn: Callable[..., T], *iterables: Iterable[Any], engine: _core.Engine | None = None,
        ahead: int | None = None, timeout: float | None = None, **options: Any) -> Iterator[T]:  # fmt: skip
    """Results of ``fn`` for the items, in their order; calls run on the workers, at most ``ahead`` of them in advance
    of the loop (default: four for each worker). ``fn``: a function or an op; ``options``: as for ``engine.op``, for a function.
    ``engine``: where the calls run (that of their first Value, or the default one). Items may be Values, as arguments of an op may.
    TimeoutError for a result that is not there ``timeout`` seconds after the call of ``map``; UsageError if ``ahead`` is less than 1.

    The calls have a CancelScope of their own, so one around ``map`` does not cancel them; end the loop instead.
    The error of a call, or of an iterable, is raised in its place, and ends the iteration. Leaving the loop early cancels what has not begun; errors
    of calls that ran ahead are not raised anywhere, not by ``wait_all`` either.
    """
    if isinstance(ahead, bool) or ahead is not None and not hasattr(type(ahead), "__index__"):
        raise TypeError(f"map: ahead is {an(type(ahead))}; an int is expected")
    bound = operator.index(ahead) if ahead is not None else 4 * max(1, (engine or _core.default()).workers)
    if bound < 1:
        raise UsageError(f"map: ahead is {bound}; at least 1 is expected")
    if options.keys() - set(OPTIONS):
        raise TypeError(f"map: '{min(options.keys() - set(OPTIONS))}' is unknown; engine, ahead, timeout, {', '.join(OPTIONS)} are allowed")
    deadline = _deadline("map", timeout)
    if isinstance(fn, Op) and options:
        raise UsageError(f"map: fn is an op, which has options of its own; leave {', '.join(options)} out, or give the function")
    call = fn if isinstance(fn, Op) else op(fn, **options)
    if not call._outputs:
        raise UsageError(f"map: op '{call._name}' has no outputs, so there are no results; call it in a loop")

    def results() -> Iterator[T]:
        scope, running, reads = _core.CancelScope(), queue.SimpleQueue[Any](), True
        items = zip(*iterables)
        try:
            while True:
                while reads and running.qsize() < bound:
                    try:
                        item = next(items)
                        with scope:
                            running.put(call(*item) if engine is None else _core._call_on(call, engine, item))
                    except StopIteration:
                        reads = False
                    except Exception as error:  # its place is behind the results of the items before it
                        reads = False
                        running.put(error)
                if running.empty():
                    return
                made = running.get()
                if isinstance(made, Exception):
                    try:
                        raise made
                    finally:
                        del made  # it refers to this frame
                for value in () if deadline is None else made if isinstance(made, tuple) else (made,):
                    if not value.wait(_left(deadline)):
                        running.put(made)  # whose error nobody will see
                        raise TimeoutError(f"map: a result of '{call._name}' was not there {timeout} s after the call of map")
                result: Any = made.get() if isinstance(made, Value) else tuple(value.get() for value in made)
                yield result
        finally:
            scope.cancel()
            while not running.empty():
                made = running.get()
                for value in made if isinstance(made, tuple) else (made,):
                    if isinstance(value, Value):
                        _overlook(value)
                del made  # it may be an error that refers to this frame

    return results()


def _overlook(value: Value[Any]) -> None:
    """Makes an error of the Value one that somebody has seen."""
    if not _core.is_recording():
        with contextlib.suppress(Error):  # the engine may be gone
            value.add_done_callback(Value.exception)


_here = threading.local()  # futures: those whose calls this thread runs, the innermost last
_executors: set[weakref.ref[Executor]] = set()  # no WeakSet, whose iteration another thread could disturb


class _Lazy(concurrent.futures.Future[T]):
    """A Future of an engine without workers: who asks it for its result runs ops meanwhile, as ``Value.get`` does."""

    ended: _core.Var

    def result(self, timeout: float | None = None) -> T:
        return super().result(self._left(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return super().exception(self._left(timeout))

    def _left(self, timeout: float | None) -> float | None:
        return timeout if self.done() or self.ended.wait(timeout) else 0.0


class Executor(concurrent.futures.Executor):
    """An executor of concurrent.futures whose calls are ops: ``with engine.Executor() as pool: pool.submit(work, x)``.

    Calls without Vars in common run in parallel on the engine's workers, in any order. A future that is cancelled
    before its call has begun never runs, and a call that its CancelScope skips has a cancelled future. ``future.exception()``
    is a copy of what the call raised, without the locals of its frames. In the child of a fork pending futures are cancelled.
    ``engine``: the engine (the default one; TypeError for anything else); ``place``, ``priority``: as for ``engine.push``.
    asyncio takes it: ``loop.run_in_executor(pool, work)``. With no workers ``result``, ``exception``, ``map`` and ``shutdown``
    run the calls; ``concurrent.futures.wait`` does not. TypeError for options of a ThreadPoolExecutor: the threads are the engine's,
    whose number ``engine.init(workers=...)`` says.
    """

    def __init__(self, engine: _core.Engine | None = None, *, place: Any = None, priority: int = 0, **others: Any) -> None:
        if others:
            raise TypeError(f"Executor: '{min(others)}' is unknown; engine, place, priority are allowed. Its calls run on the engine's workers: "
                            "engine.init(workers=...) or Engine(workers=...) says how many there are, and thread_name, on_start, and on_end "
                            "there are what thread_name_prefix and initializer of a ThreadPoolExecutor are")  # fmt: skip
        if engine is not None and not isinstance(engine, _core.Engine):
            raise TypeError(f"Executor: engine is {an(type(engine))}; an Engine is expected, whose workers run the calls")
        self._engine, self._options = engine or _core.default(), {"place": place, "priority": priority}
        self._lock = threading.Lock()
        self._pending: set[concurrent.futures.Future[Any]] = set()
        self._shut_down = False
        _executors.add(weakref.ref(self, _executors.discard))

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Pushes ``fn(*args, **kwargs)``; returns its Future. RuntimeError after ``shutdown``; UsageError
        while a function is recorded."""
        refuse_while_recording("a call is submitted to an Executor", "Call an op")
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        writes: tuple[_core.Var, ...] = ()
        if self._engine.workers == 0:
            future = _Lazy[T]()
            future.ended = _core.Var("submitted", self._engine)
            writes = (future.ended,)
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
                              writes=writes, run_always=True, **self._options)  # fmt: skip
        except BaseException:
            future.cancel()
            raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; waits for those that were submitted. The engine goes on. RuntimeError in a call of this
        executor, which cannot wait for itself, unless ``wait`` is False."""
        with self._lock:
            if wait and not self._pending.isdisjoint(getattr(_here, "futures", ())):
                raise RuntimeError("shutdown: a call of this executor cannot wait for its own end; give wait=False")
            self._shut_down = True
            pending = list(self._pending)
        if cancel_futures:
            pending = [future for future in pending if not future.cancel()]
        if wait:
            for future in pending:
                if isinstance(future, _Lazy):
                    future._left(None)
            concurrent.futures.wait(pending)


def _run(future: concurrent.futures.Future[Any], work: list[Callable[[], Any]]) -> None:
    """The body of a submitted call. The function and its arguments are gone before anybody who waits for the future goes on."""
    if _core.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    failed = None
    futures = vars(_here).setdefault("futures", [])
    futures.append(future)
    try:
        result = work.pop()()
    except BaseException as error:
        try:
            failed = kept(error)
        except Exception:  # code of the exception's class or of its arguments; who waits for the future must hear of something
            failed = error
    finally:
        futures.pop()
    if failed is None:
        future.set_result(result)
    else:
        future.set_exception(failed)


def _after_fork_in_child() -> None:
    """The calls that were pending never run here, and a thread of the parent may have had any lock."""
    for executor in [ref() for ref in _executors]:
        if executor is not None:
            executor._lock = threading.Lock()
            pending, executor._pending = list(executor._pending), set()
            for future in pending:
                future.__init__()  # type: ignore[misc]  # with a lock of its own, and without the parent's waiters and callbacks
                future.cancel()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
