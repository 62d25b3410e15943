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
        self._finished: list[tuple[asyncio.Future[Any], BaseException | None, Any]] = []

    def post(self, future: asyncio.Future[Any], error: BaseException | None, data: Any) -> None:
        """Called on a worker, by the op that python/src/await.cc pushes."""
        with self._lock:
            first = not self._finished
            self._finished.append((future, error, data))
        loop = self._loop()
        if first and loop is not None:
            try:
                loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                pass  # the loop is closed, so nobody waits any more

    def _deliver(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, []
        for future, error, data in finished:
            if future.done():  # it was cancelled meanwhile
                continue
            if error is None:
                future.set_result(data)
            elif isinstance(error, (StopIteration, StopAsyncIteration)):
                wrapped = OpError(f"the op raised {type(error).__name__}, which a future cannot carry")
                wrapped.__cause__ = error
                future.set_exception(wrapped)
            else:
                future.set_exception(error)


_mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = weakref.WeakKeyDictionary()


async def _settled(var: _core.Var, value: Value[Any] | None) -> Any:
    """Waits behind the writes of ``var`` pushed so far; returns the data of ``value`` at this place in the order."""
    loop = asyncio.get_running_loop()
    if _core.is_recording():
        raise UsageError("await while the function is recorded: the data of this moment would be part of every replay")
    if var.settled:  # no op is needed to find out
        error = var._outcome(0)[1]
        if error is not None:
            raise error
        return None if value is None else value._data
    # With no workers ops run inside waits, so a thread has to wait.
    if var.engine.workers:
        mailbox = _mailboxes.get(loop)
        if mailbox is None:
            mailbox = _mailboxes.setdefault(loop, _Mailbox(loop))
        future = loop.create_future()
        if _core._push_await(var if value is None else value, mailbox.post, future):
            return await future
    await loop.run_in_executor(None, var.wait)
    return None if value is None else value._data


async def of_value(value: Value[Any]) -> Any:
    """Awaits a Value."""
    return await _settled(value.var, value)


async def of_var(var: _core.Var) -> None:
    """Awaits a Var."""
    await _settled(var, None)
