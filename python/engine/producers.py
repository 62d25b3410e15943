"""Producers: the threads that run the source of a stage.

They are daemon threads of Python's own: one that is stuck in its source cannot keep the interpreter from ending.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable

from . import _core
from .sources import Source, nbytes

_OVER, _SPAWN = -1, -2
_Types = tuple[type[BaseException], ...]


class Run:
    """One run of a stage: what its producers share. Knows nothing of the Stage, so that one may be forgotten."""

    def __init__(self, area: _core.StagingArea, source: Source, closed: _Types, ignored: _Types, sized: bool) -> None:
        self.area, self.source, self.closed, self.ignored = area, source, closed, ignored
        # Only capacity_bytes needs to know how large items are.
        self._put: Callable[[int, Any], bool] = self._put_sized if sized else area.put
        self.pulling = threading.Lock()
        self.threads: list[threading.Thread] = []

    def spawn(self) -> None:
        """Starts one more producer."""
        thread = threading.Thread(target=self._produce, name=f"stage {self.area.name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _produce(self) -> None:
        self.area.enter()
        try:
            if self.source.pull is None:
                self._make_items()
            else:
                self._pull_items(self.source.pull)
        finally:
            self.area.leave()

    def _make_items(self) -> None:
        begin, make, put = self.area.begin, self.source.make, self._put
        assert make is not None
        while (ticket := begin()) != _OVER:
            if ticket == _SPAWN:
                self._spawn_another()
                continue
            try:
                item = make(None)
            except BaseException as error:
                self._settle(ticket, error, pulled=True)
                continue
            has_room = put(ticket, item)
            item = None  # it may have been taken: not kept alive by this frame
            if not has_room:
                self.area.await_room(ticket)

    def _pull_items(self, pull: Callable[[], Any]) -> None:
        begin, make, put = self.area.begin, self.source.make, self._put
        pulling, item = self.pulling, None
        while True:
            with pulling:  # the ticket too, so that tickets are in the order of the source
                ticket = begin()
                if ticket >= 0:
                    try:
                        item = pull()
                    except BaseException as error:
                        self._settle(ticket, error, pulled=False)
                        continue
            if ticket == _OVER:
                return
            if ticket == _SPAWN:
                self._spawn_another()
                continue
            if make is not None:
                try:
                    item = make(item)
                except BaseException as error:
                    self._settle(ticket, error, pulled=True)
                    item = None
                    continue
            has_room = put(ticket, item)
            item = None
            if not has_room:
                self.area.await_room(ticket)

    def _put_sized(self, ticket: int, item: Any) -> bool:
        return self.area.put(ticket, item, nbytes(item))

    def _spawn_another(self) -> None:
        with contextlib.suppress(RuntimeError):  # no more threads to be had: only autotune asks, it does without
            self.spawn()

    def _settle(self, ticket: int, error: BaseException, pulled: bool) -> None:
        # An iterator says StopIteration when it ends, whatever closed_exception_types is.
        if isinstance(error, self.closed) or (not pulled and isinstance(error, StopIteration)):
            self.area.end(ticket, self.source.pull is not None)
        elif isinstance(error, self.ignored):
            self.area.skip(ticket, error)
        elif isinstance(error, (StopIteration, StopAsyncIteration)):
            # Out of __next__ it would look like the end.
            wrapped = RuntimeError(f"the source of stage '{self.area.name}' raised {type(error).__name__}")
            wrapped.__cause__ = error
            self.area.fail(ticket, wrapped)
        else:
            self.area.fail(ticket, error)
