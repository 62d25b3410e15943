"""asyncio: await on Vars and Values. One wake-up of the event loop serves every op that has finished meanwhile."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import OpError, Unreadable

if TYPE_CHECKING:
    from .values import Value

LOOK_EVERY = 0.001  # seconds that a result may wait for the next ones


class _Mailbox:
    """Which ops have finished, and which future of the event loop waits for each. Workers fill it, the loop empties
    it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._lock = threading.Lock()
        self._finished: list[tuple[asyncio.Future[Any], BaseException | None, Any]] | None = []  # None: the loop is closed
        self._woken = False  # the loop has been woken for what is there
        self._looks = False  # the loop will look by itself within LOOK_EVERY

    def post(self, future: asyncio.Future[Any], error: BaseException | None, data: Any) -> None:
        """Called on a worker, by the op that ends, or by one behind it (python/src/await.cc)."""
        with self._lock:
            if self._finished is None:
                return
            self._finished.append((future, error, data))
            if self._woken or (self._looks and _core._many_runs_wait()):
                return
            self._woken = True
        loop = self._loop()
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed, so nobody waits any more; what is kept for it would keep it
                with self._lock:
                    self._finished = None

    def expect(self) -> None:
        """Called on the loop by whoever awaits a run. While many runs wait for a worker, those that end don't each wake the
        loop, which would take the GIL from the next run; the loop looks by itself, and a wake comes before they are all done.
        """
        if not self._looks and _core._many_runs_wait():
            self._looks = True
            asyncio.get_running_loop().call_later(LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._looks = False
        self._deliver()

    def _deliver(self) -> None:
        with self._lock:
            finished, self._finished = self._finished or [], []
            self._woken = False
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


async def of_value(value: Value[Any]) -> Any:
    """Awaits a Value: the data at this place in the order."""
    if _here(value._settled):
        error = value._outcome(0)[1]
        if error is not None:
            raise error
        return value._data
    told = _told(value)
    if told is not None:
        return await told
    await asyncio.get_running_loop().run_in_executor(None, value.wait)
    return value._data


async def of_var(var: _core.Var) -> None:
    """Awaits a Var: the writes of it that were pushed so far."""
    if _here(var.settled):
        error = var._outcome(0)[1]
        if error is not None:
            raise error
        return
    told = _told(var)
    await (asyncio.get_running_loop().run_in_executor(None, var.wait) if told is None else told)


def _here(settled: bool) -> bool:
    """Whether the data or the error can be taken at once, without an op. Unreadable while a function is recorded."""
    if _core.is_recording():
        raise Unreadable("await while the function is recorded: the data of this moment would be part of every replay; read it "
                         "in an op, or outside of the function")  # fmt: skip
    return settled


def _told(target: _core.Var | Value[Any]) -> asyncio.Future[Any] | None:
    """A future that is set when what changes ``target`` has ended. None: nobody can set it, so a thread has to wait. That is
    so without workers, where ops run inside waits, and if there is no room for the op that would set it.
    """
    loop = asyncio.get_running_loop()
    mailbox = _mailboxes.get(loop)
    if mailbox is None:
        mailbox = _mailboxes.setdefault(loop, _Mailbox(loop))
    mailbox.expect()
    future = loop.create_future()
    return future if _core._await(target, mailbox.post, future) else None
