"""Tracing: what ran where and when."""

from __future__ import annotations

import os
import pathlib
from typing import Any, NamedTuple

from . import _core


class TraceEvent(NamedTuple):
    """One op that ran. ``lane``: its thread, such as "cpu/0"; ``begin`` and ``end``: seconds since the trace began."""

    name: str
    lane: str
    begin: float
    end: float
    op: int
    skipped: bool


class Trace:
    """``with engine.trace("step.json") as t:`` records every op that ends inside the block.

    Afterwards ``t.events`` is the list. The file, if one is named, opens in Perfetto and chrome://tracing. The block
    does not wait for ops: end it with wait_all() to see all of them. UsageError if a trace is already running.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, engine: _core.Engine | None = None) -> None:
        self.path, self.events = path, list[TraceEvent]()
        self._engine = engine

    def __enter__(self) -> Trace:
        self._engine = self._engine or _core.default()
        self._engine.start_trace()
        return self

    def __exit__(self, *exc: Any) -> None:
        assert self._engine is not None
        json, events = self._engine.stop_trace()
        self.events = [TraceEvent(*event) for event in events]
        if self.path is not None:
            pathlib.Path(self.path).write_text(json, encoding="utf-8")


trace = Trace
