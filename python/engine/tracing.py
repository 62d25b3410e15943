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
_running: dict[_core.Engine, Trace] = {}  # by engine: its Trace; a second one would take the first one's events


class Trace:
    """``with engine.trace("step.json") as t:`` records every op that ends inside the block.

    Afterwards ``t.events`` is the list of ops (TraceEvent), ``t.waits`` says when threads waited, and for what
    (TraceWait), and ``engine.explain(t)`` says what follows. The file, if one is named, opens in Perfetto and
    chrome://tracing. The block does not wait for ops: end it with wait_all() to see all of them.
    UsageError if a trace of this engine is already running. Waits of all threads of the process are recorded.
    """

    _yields = False  # to a trace that begins meanwhile: it ends then, and has what was recorded so far

    def __init__(self, path: str | os.PathLike[str] | None = None, engine: _core.Engine | None = None) -> None:
        self.path, self.data = path, model.TraceData("trace", [], [], [], 0.0)
        self._engine, self._json = engine, None  # type: _core.Engine | None, str | None

    @property
    def events(self) -> list[TraceEvent]:
        """The ops that ended inside the block, by the time they began."""
        return self.data.events

    @property
    def waits(self) -> list[TraceWait]:
        """When threads waited inside the block, and for what; of all threads of the process."""
        return self.data.waits

    def __enter__(self) -> Trace:
        self._engine, self._json = self._engine or _core.default(), None
        with _lock:
            running = _running.get(self._engine)
            if running is not None:
                if not running._yields:
                    raise UsageError("trace: a trace of this engine is already running; end it first")
                running._end()
            self._engine.start_trace()
            _running[self._engine] = self
        return self

    def __exit__(self, *exc: Any) -> None:
        with _lock:
            self._end()
        json, self._json = self._json, None
        assert json is not None
        self.data = model.parse(json, "trace" if self.path is None else pathlib.Path(self.path).name)
        if self.path is not None:
            pathlib.Path(self.path).write_text(json, encoding="utf-8")

    def _end(self) -> None:
        """Takes what was recorded, unless that was done already. With the lock."""
        assert self._engine is not None
        if _running.get(self._engine) is self:
            del _running[self._engine]
            self._json = self._engine.stop_trace()

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


class Sample(Trace):
    """A short trace for a table of rates, which does not keep the program from tracing. ``whole``: no trace has cut it short."""

    _yields = True
    whole = True

    def __exit__(self, *exc: Any) -> None:
        assert self._engine is not None
        self.whole = _running.get(self._engine) is self
        super().__exit__(*exc)


def traced(engine: _core.Engine) -> bool:
    """Whether a trace of the engine is running."""
    with _lock:
        return engine in _running


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent may have had it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

trace = Trace
