"""Tracing: what ran where and when."""

from __future__ import annotations

import json
import os
import pathlib
import threading
import time
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
    """``with engine.trace("step.json") as t:`` records every op that ends inside the block. Blocks nest.

    Afterwards ``t.events`` is the list. The file, if one is named, opens in Perfetto and chrome://tracing. The block
    does not wait for ops: end it with wait_all() to see all of them. UsageError if a trace that ``Engine.start_trace``
    began is running.
    """

    _open: dict[_core.Engine, list[Trace]] = {}  # by engine, the outermost first
    _lock = threading.Lock()

    def __init__(self, path: str | os.PathLike[str] | None = None, engine: _core.Engine | None = None) -> None:
        self.path, self.events = path, list[TraceEvent]()
        self._engine, self._json, self._begin = engine, list[dict[str, Any]](), 0.0

    def __enter__(self) -> Trace:
        self._engine = self._engine or _core.default()
        with Trace._lock:
            outer = Trace._open.get(self._engine, [])
            if outer:  # what was recorded so far is theirs
                Trace._share(self._engine, outer)
            self._engine.start_trace()
            self._begin = time.monotonic()
            Trace._open.setdefault(self._engine, []).append(self)
            Trace._part_began = self._begin
        return self

    def __exit__(self, *exc: Any) -> None:
        assert self._engine is not None
        with Trace._lock:
            traces = Trace._open[self._engine]
            Trace._share(self._engine, traces)
            traces.remove(self)
            if traces:
                self._engine.start_trace()
                Trace._part_began = time.monotonic()
            else:
                del Trace._open[self._engine]
        if self.path is not None:
            pathlib.Path(self.path).write_text(json.dumps(self._document), encoding="utf-8")

    _part_began = 0.0  # when the engine's trace began, of which `_share` takes the events
    _document: Any = None

    @classmethod
    def _share(cls, engine: _core.Engine, traces: list[Trace]) -> None:
        """Ends the engine's trace, and gives its events to each of the open blocks."""
        text, events = engine.stop_trace()
        document = json.loads(text)
        parts = document["traceEvents"] if isinstance(document, dict) else document
        for trace in traces:
            later = cls._part_began - trace._begin
            for name, lane, begin, end, op, skipped in events:
                trace.events.append(TraceEvent(name, lane, begin + later, end + later, op, skipped))
            for part in parts:
                moved = {**part, "ts": part["ts"] + later * 1e6} if "ts" in part else part
                if "ts" in part or moved not in trace._json:  # names of lanes come with each part
                    trace._json.append(moved)
            trace._document = {**document, "traceEvents": trace._json} if isinstance(document, dict) else trace._json


trace = Trace
