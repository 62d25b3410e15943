"""What ``engine.explain`` returns for a trace."""

from __future__ import annotations

import os
import pathlib

from ..errors import UsageError
from . import analysis, model, page, text


class TraceExplanation:
    """A trace, explained: print it, ``write`` it as a page, or look at ``analysis``.

    ``analysis`` has ``work`` (all ops, in seconds), ``span`` and ``path`` (the longest chain of ops that had to come
    one after the other), ``makespan``, ``bound`` (no schedule on these workers takes less), ``idle_by_cause``,
    ``at_once``, ``busy`` and ``kinds``.
    """

    def __init__(self, data: model.TraceData) -> None:
        if not data.events:
            held = (
                f"; {data.pending} were pushed and had not run: end the block with wait_all()" if data.pending else ""
            )
            raise UsageError(
                f"explain: no op ended while '{data.name}' was recorded{held or ', so there is nothing to explain'}"
            )
        self.analysis = analysis.analyse(data)

    @classmethod
    def of_file(cls, path: model.Source) -> TraceExplanation:
        """UsageError if the file is no trace; FileNotFoundError and the like as ``open`` raises them."""
        return cls(model.read(path))

    def __repr__(self) -> str:
        a = self.analysis
        return f"<engine.TraceExplanation of {a.data.name!r}: {len(a.data.events)} ops, span {a.span:.6g} s of {a.makespan:.6g} s>"

    def __str__(self) -> str:
        return text.text(self.analysis)

    def html(self) -> str:
        """One HTML page with a timeline; it loads nothing from anywhere."""
        return page.page(self.analysis)

    def write(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """Writes the page to a file, and returns its path."""
        where = pathlib.Path(path)
        where.write_text(self.html(), encoding="utf-8")
        return where

    def _repr_html_(self) -> str:
        return page.embedded(self.analysis)
