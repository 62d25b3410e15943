"""Producers: the threads that run the source of a stage.

They are daemon threads of Python's own: one that is stuck in its source cannot keep the interpreter from ending.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from . import _core
from .sources import Source, nbytes

_OVER, _SPAWN = -1, -2
_Types = tuple[type[BaseException], ...]


class Run:
    """One run of a stage: what its producers share. Knows nothing of the Stage, so that one may be forgotten."""

    def __init__(self, area: _core.StagingArea, source: Source, closed: _Types, ignored: _Types, sized: bool) -> None:
        self.area, self.source, self.closed, self.ignored = area, source, closed, ignored
        self.sized = sized  # capacity_bytes needs to know how large items are
        self.pulling: Any = threading.Lock() if source.pull else contextlib.nullcontext()
        self.threads: list[threading.Thread] = []

    def spawn(self) -> None:
        """Starts one more producer."""
        thread = threading.Thread(target=self._produce, name=f"stage {self.area.name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _produce(self) -> None:
        self.area.enter()
        try:
            while self._produce_one():
                pass
        finally:
            self.area.leave()

    def _produce_one(self) -> bool:
        area, (pull, make, _) = self.area, self.source
        item = None
        with self.pulling:  # the ticket too, so that tickets are in the order of the source
            ticket = area.begin()
            if ticket >= 0 and pull is not None:
                try:
                    item = pull()
                except BaseException as error:
                    self._settle(ticket, error, pulled=False)
                    return True
        if ticket < 0:
            if ticket == _SPAWN:
                with contextlib.suppress(
                    RuntimeError
                ):  # no more threads to be had: only autotune asks, it does without
                    self.spawn()
            return ticket != _OVER
        if make is not None:
            try:
                item = make(item)
            except BaseException as error:
                self._settle(ticket, error, pulled=True)
                return True
        area.put(ticket, item, nbytes(item) if self.sized else 0)
        return True

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
