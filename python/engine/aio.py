"""asyncio: await on Vars and Values. One wake-up of the event loop serves every op that has finished meanwhile."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import OpError, UsageError

if TYPE_CHECKING:
    from .values import Value


class _Mailbox:
    """Which ops have finished, and which future of the event loop waits for each. Workers fill it, the loop empties
    it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._lock = threading.Lock()
        self._finished: list[tuple[asyncio.Future[Any], _core.Var, list[Any]]] = []

    def post(self, future: asyncio.Future[Any], settled: _core.Var, data: list[Any]) -> None:
        with self._lock:
            first = not self._finished
            self._finished.append((future, settled, data))
        loop = self._loop()
        if first and loop is not None:
            try:
                loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                pass  # the loop is closed, so nobody waits any more

    def _deliver(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, []
        for future, settled, data in finished:
            if not future.done():  # else it was cancelled meanwhile
                _give(future, settled._outcome(0)[1], data)


def _give(future: asyncio.Future[Any], error: BaseException | None, data: list[Any]) -> None:
    if isinstance(error, (StopIteration, StopAsyncIteration)):
        wrapped = OpError(f"the op raised {type(error).__name__}, which a future cannot carry")
        wrapped.__cause__ = error
        error = wrapped
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(data[0] if data else None)


_mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = weakref.WeakKeyDictionary()


async def _settled(var: _core.Var, take: Any) -> Any:
    """Waits behind the writes of ``var`` pushed so far; returns what ``take()`` gives at this place in the order."""
    loop, engine = asyncio.get_running_loop(), var.engine
    if _core.is_recording():
        raise UsageError("await while the function is recorded: the data of this moment would be part of every replay")
    if var.settled:  # no op is needed to find out
        error = var._outcome(0)[1]
        if error is not None:
            raise error
        return take()
    if engine.workers == 0:  # ops run inside waits, so a thread has to wait
        await loop.run_in_executor(None, var.wait)
        return take()
    mailbox = _mailboxes.get(loop)
    if mailbox is None:
        mailbox = _mailboxes.setdefault(loop, _Mailbox(loop))
    future, data = loop.create_future(), list[Any]()
    # Two ops. The first reads `var` at this place in the order, so it takes the data before a later op changes it. If
    # `var` is poisoned, this op is skipped and passes the error on to `settled`. The second op tells the loop in
    # either case. Both run on the I/O pool, where busy compute workers do not delay them and no policy makes the push
    # wait.
    settled = _core.Var("await", engine)
    with engine.policy_block("threaded"):
        engine.push(
            lambda: data.append(take()), reads=[var], writes=[settled], name="await", place=_core.io(), priority=2
        )
        engine.push(
            lambda: mailbox.post(future, settled, data),
            reads=[settled],
            run_always=True,
            name="awaited",
            place=_core.io(),
            priority=2,
        )
    return await future


async def of_value(value: Value[Any]) -> Any:
    """Awaits a Value."""
    return await _settled(value.var, lambda: value._data)


async def of_var(var: _core.Var) -> None:
    """Awaits a Var."""
    await _settled(var, lambda: None)
