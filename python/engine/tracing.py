"""Tracing: what ran where and when, and what waited for what."""

from __future__ import annotations

import os
import pathlib
import threading
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import UsageError
from .explanation import model
from .explanation.model import TraceEvent, TraceWait

if TYPE_CHECKING:
    from .explanation import TraceExplanation

_lock = threading.Lock()
_traced: list[_core.Engine] = []  # engines that a Trace records; a second one would take the first one's events


class Trace:
    """``with engine.trace("step.json") as t:`` records every op that ends inside the block.

    Afterwards ``t.events`` is the list of ops (TraceEvent), ``t.waits`` says when threads waited, and for what
    (TraceWait), and ``engine.explain(t)`` says what follows. The file, if one is named, opens in Perfetto and
    chrome://tracing. The block does not wait for ops: end it with wait_all() to see all of them.
    UsageError if a trace of this engine is already running. Waits of all threads of the process are recorded.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, engine: _core.Engine | None = None) -> None:
        self.path, self.data = path, model.TraceData("trace", [], [], [], 0.0)
        self._engine = engine

    @property
    def events(self) -> list[TraceEvent]:
        """The ops that ended inside the block, by the time they began."""
        return self.data.events

    @property
    def waits(self) -> list[TraceWait]:
        """When threads waited inside the block, and for what; of all threads of the process."""
        return self.data.waits

    def __enter__(self) -> Trace:
        self._engine = self._engine or _core.default()
        with _lock:
            if self._engine in _traced:
                raise UsageError("trace: a trace of this engine is already running; end it first")
            self._engine.start_trace()
            _traced.append(self._engine)
        return self

    def __exit__(self, *exc: Any) -> None:
        assert self._engine is not None
        try:
            json = self._engine.stop_trace()
        finally:
            with _lock:
                _traced.remove(self._engine)
        self.data = model.parse(json, "trace" if self.path is None else pathlib.Path(self.path).name)
        if self.path is not None:
            pathlib.Path(self.path).write_text(json, encoding="utf-8")

    def explain(self) -> TraceExplanation:
        """As ``engine.explain(trace)``."""
        from .explanation import TraceExplanation

        return TraceExplanation(self.data)

    def __repr__(self) -> str:
        d = self.data
        return (
            f"<engine.trace {d.name!r}, {len(d.events)} ops in {d.length:.6g} s>"
            if d.length
            else "<engine.trace, not ended>"
        )

    def _repr_html_(self) -> str | None:
        return self.explain()._repr_html_() if self.events else None


trace = Trace
