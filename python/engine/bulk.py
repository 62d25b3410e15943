"""Bulk: the ops that a thread pushes start together, as one dispatch."""

from __future__ import annotations

import contextlib
import threading
from typing import Iterator

from . import _core
from .errors import UsageError


def set_bulk_size(size: int, engine: _core.Engine | None = None) -> int:
    """Sets the bulk size of the calling thread for its pushes to devices from now on, and returns the size before. 0 and
    1: no bulk.

    ``engine``: the engine that the pushes go to (the default one). UsageError for a size below 0 or above 1,048,576.
    """
    return (engine or _core.default()).set_bulk_size(size)


@contextlib.contextmanager
def bulk(size: int = 15, engine: _core.Engine | None = None) -> Iterator[None]:
    """``with engine.bulk(15):`` starts the ops that this thread pushes to one device in the block together, ``size`` of
    them as one dispatch. Ops for the host are never held: in a block or not, they start as soon as they can.

    Each op keeps its own order, errors, name, trace and waits. A bulk starts when it is full; when an op for another
    device or lane, of another priority, or with ``push_async`` for a device comes; when a thread waits for one of its
    ops or pushes an op behind one; after 1 to 2 ms in which nothing was added; and at the end of the block, the thread
    or the engine.
    Blocks nest. UsageError for a size below 0 or above 1,048,576, and for a block that is left on another thread.
    """
    target = engine or _core.default()
    previous = target.set_bulk_size(size)
    thread = threading.get_ident()
    try:
        yield
    finally:
        if threading.get_ident() != thread:
            raise UsageError(
                "bulk: the block was entered on another thread, whose bulk size stays as the block set it; "
                "leave the block on the thread that entered it"
            )
        target.set_bulk_size(previous)
