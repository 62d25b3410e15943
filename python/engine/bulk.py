"""Bulk: what a thread pushes starts together, as one dispatch."""

from __future__ import annotations

import contextlib
import threading
from typing import Iterator

from . import _core
from .errors import UsageError


def set_bulk_size(size: int, engine: _core.Engine | None = None) -> int:
    """Sets the calling thread's bulk size, for its pushes from now on, and returns the one before. 0 and 1: no bulk.

    ``engine``: of which engine (the default one). UsageError for a negative size, or one above 1,048,576.
    """
    return (engine or _core.default()).set_bulk_size(size)


@contextlib.contextmanager
def bulk(size: int = 15, engine: _core.Engine | None = None) -> Iterator[None]:
    """``with engine.bulk(15):`` starts what this thread pushes in the block together, ``size`` ops as one dispatch.

    Order, errors, names, traces and waits stay those of each op, and nothing is hidden: a bulk starts when it is full,
    when an op comes that cannot be in it (``push_async``, another placement or priority, ``io()``), when anybody waits for
    one of its ops or pushes behind one, after 1 to 2 ms without a push, and at the end of the block, thread or engine.
    Blocks nest. UsageError for a size that makes no sense, and for a block that is left on another thread.
    """
    target = engine or _core.default()
    previous = target.set_bulk_size(size)
    thread = threading.get_ident()
    try:
        yield
    finally:
        if threading.get_ident() != thread:
            raise UsageError("bulk: the block was entered on another thread, whose bulk size stays as it was set there")
        target.set_bulk_size(previous)
