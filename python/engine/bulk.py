"""Bulk: the ops that a thread pushes start together, as one dispatch."""

from __future__ import annotations

import operator

from . import _core
from .errors import UsageError, an

_MOST = 1 << 20  # bulk.h: kMaxBulkSize


def set_bulk_size(size: int, engine: _core.Engine | None = None) -> int:
    """Sets the bulk size of the calling thread's later pushes to devices; returns the size before. 0, 1: no bulk.

    ``engine``: the engine that gets the pushes (the default one). UsageError for a size below 0 or above 1,048,576.
    """
    return (engine or _core.default()).set_bulk_size(size)


def bulk(size: int = 15, engine: _core.Engine | None = None) -> _core.BulkBlock:
    """``with engine.bulk(15):`` starts the ops that this thread pushes to one device in the block together, ``size`` of
    them as one dispatch. Ops for the host are never held: in a block or not, they start as soon as they can.

    Each op keeps its own order, errors, name, trace and waits. A bulk starts when it is full; when the thread pushes an
    op for another device or lane, one of another priority, or one for a device with ``push_async``; when anybody waits
    for one of its ops or pushes an op behind one; when nothing was added to it for 1 to 2 ms; and at the end of the
    block, the thread or the engine.
    Blocks nest. TypeError for a size that is no int. UsageError for one below 0 or above 1,048,576, and for a block that is left on another
    thread.
    """
    if isinstance(size, bool) or not hasattr(type(size), "__index__"):
        raise TypeError(f"bulk: size is {an(type(size))}; an int is expected")
    if not 0 <= size <= _MOST:
        raise UsageError(f"bulk: size is {size}; 0 (no bulk) to {_MOST} are allowed")
    return _core.BulkBlock(engine or _core.default(), operator.index(size))
