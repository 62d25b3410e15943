"""Tracing: what ran where and when, and what waited for what."""

from __future__ import annotations

import errno
import os
import pathlib
from typing import TYPE_CHECKING

from . import _core
from .errors import UsageError
from .explanation import model
from .explanation.model import TraceEvent, TraceWait

if TYPE_CHECKING:
    from .explanation import TraceExplanation


class Trace(_core.TraceBlock):
    """``with engine.trace("step.json") as t:`` records every op that ends inside the block.

    Afterwards ``t.events`` is the list of ops (TraceEvent), ``t.waits`` says when threads waited, and for what
    (TraceWait), and ``engine.explain(t)`` says what follows. ``engine``: whose ops (those of the default one). The file, if one is named, opens in Perfetto and
    chrome://tracing. The block does not wait for ops: end it with wait_all() to see all of them.
    UsageError if a trace of this engine is already running; what ``open`` raises, before anything is recorded, if the file
    cannot be written. Waits of all threads of the process are recorded.
    Ctrl-C may come at any moment: the trace ends with its block. If the block is never left, it ends when this object goes,
    and writes nothing.
    """

    _yields = False  # to a trace that begins meanwhile: it ends then, and has what was recorded so far

    def __init__(self, path: str | os.PathLike[str] | None = None, engine: _core.Engine | None = None) -> None:
        super().__init__(engine, self._yields)
        if path is not None:
            _must_be_writable(pathlib.Path(path))
        self.path, self._json = path, ""
        self._data = model.TraceData("trace", [], [], [], 0.0)

    if TYPE_CHECKING:

        def __enter__(self) -> Trace: ...

    @property
    def data(self) -> model.TraceData:
        """All that was recorded. It is read when it is asked for, which takes longer than the recording."""
        if json := self._json:
            self._data = model.parse(json, "trace" if self.path is None else pathlib.Path(self.path).name)
            self._json = ""
        return self._data

    @property
    def events(self) -> list[TraceEvent]:
        """The ops that ended inside the block, by the time they began."""
        return self.data.events

    @property
    def waits(self) -> list[TraceWait]:
        """When threads waited inside the block, and for what; of all threads of the process."""
        return self.data.waits

    def _ended(self, json: str) -> None:
        """The extension calls it when the trace has ended, with what was recorded, in Chrome's format."""
        self._json = json
        if self.path is not None:
            pathlib.Path(self.path).write_text(json, encoding="utf-8")

    def explain(self) -> TraceExplanation:
        """As ``engine.explain(trace)``."""
        from .explanation import TraceExplanation

        if self._open:
            raise UsageError(f"explain: the trace {self.data.name!r} is not over; explain it behind its `with` block")
        return TraceExplanation(self.data)

    def __repr__(self) -> str:
        d = self.data
        return (
            f"<engine.trace {d.name!r}, {len(d.events)} ops in {d.length:.6g} s>"
            if d.length
            else "<engine.trace, not ended>"
        )

    def _repr_html_(self) -> str | None:
        return self.explain()._repr_html_() if self.events and not self._open else None


def _must_be_writable(path: pathlib.Path) -> None:
    """What ``open`` would raise, without making a file."""
    wrong = errno.EISDIR if path.is_dir() else None if path.parent.is_dir() else errno.ENOENT
    if wrong is None and not os.access(path if path.exists() else path.parent, os.W_OK):
        wrong = errno.EACCES
    if wrong is not None:
        raise OSError(wrong, f"trace: {os.strerror(wrong)}", str(path))


class Sample(Trace):
    """A short trace for a table of rates, which does not keep the program from tracing. ``whole``: no trace has cut it short."""

    _yields = True

    @property
    def whole(self) -> bool:
        return self._whole


def traced(engine: _core.Engine) -> bool:
    """Whether a trace of the engine is running."""
    return _core._traced(engine)


trace = Trace
