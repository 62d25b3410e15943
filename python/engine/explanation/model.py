"""What a trace holds, and how a trace file is read. Files of other programs, broken ones and cut ones are refused."""

from __future__ import annotations

import json
import math
import os
import pathlib
from typing import Any, NamedTuple, Union

from ..errors import UsageError


class TraceEvent(NamedTuple):
    """One op, or one node of a plan, that ran. Times are seconds since the trace began.

    ``thread``: the name of its thread, such as "cpu/0"; of an op on a device, of its lane, such as "gpu0/2". ``pushed``:
    None if that was before the trace. ``ready``: when it had been pushed and all that it came behind had ended.
    ``settled``: of an asynchronous op, when its ``done()`` was called. ``after``: numbers of the events that it had to
    wait for. ``uses``: (access mode, number of the Var, name) of its Vars.
    """

    name: str
    thread: str
    begin: float
    end: float
    op: int
    skipped: bool
    pushed: float | None = None
    ready: float = 0.0
    settled: float | None = None
    pusher: str = ""
    plan: str | None = None
    run: int = 0
    site: str = ""
    after: tuple[int, ...] = ()
    uses: tuple[tuple[str, int, str], ...] = ()

    @property
    def seconds(self) -> float:
        """From its begin to its end; of an asynchronous op, to its completion."""
        return max(self.end, self.settled or 0.0) - self.begin


class TraceWait(NamedTuple):
    """A thread waited: ``cause`` is "gil", "stage empty", "stage full", "var", "all" or "room"."""

    cause: str
    name: str
    thread: str
    begin: float
    end: float


CAUSES = ("gil", "stage empty", "stage full", "var", "all", "room")


class TraceData(NamedTuple):
    """A whole trace. ``threads``: all workers, also those that ran nothing. ``pending``: ops that had not run at its end."""

    name: str
    events: list[TraceEvent]
    waits: list[TraceWait]
    threads: list[str]
    length: float
    pending: int = 0
    left_out: int = 0


_READS = "engine.explain reads the files that engine.trace(path) writes"  # for messages of files that are none
Source = Union[str, "os.PathLike[str]"]


def read(path: Source) -> TraceData:
    """The trace in a file that ``engine.trace(path)`` wrote. UsageError, which says what is wrong, for any other file."""
    where = pathlib.Path(path)
    return parse(where.read_bytes(), where.name)


def parse(text: bytes | str, name: str) -> TraceData:
    """The trace in the text of such a file. ``name`` is for messages and titles."""
    if not text.strip():
        raise UsageError(f"{name}: the file is empty; engine.trace(path) writes it at the end of its block")
    try:
        root = json.loads(text)
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: is no trace: it is not UTF-8 (byte {error.start}); {_READS}") from None
    except RecursionError:
        raise UsageError(f"{name}: is no trace: it is nested too deeply; {_READS}") from None
    except ValueError as error:
        raise UsageError(_broken(text, name, error)) from None
    other = root.get("otherData") if isinstance(root, dict) else None
    if not isinstance(other, dict) or other.get("writer") != "engine":
        kind = "a Chrome trace of another program" if _is_chrome(root) else "no Chrome trace at all"
        raise UsageError(f"{name}: is {kind}; {_READS}")
    if other.get("format") != 3:
        raise UsageError(
            f"{name}: has format {other.get('format')!r}, and this version of engine reads format 3; trace again"
        )
    if not isinstance(root.get("traceEvents"), list):
        raise UsageError(f"{name}: has no list 'traceEvents'; trace again")
    return _Reader(name).trace(other, root["traceEvents"])


def _is_chrome(root: Any) -> bool:
    events = root.get("traceEvents") if isinstance(root, dict) else root
    return isinstance(events, list) and bool(events) and isinstance(events[0], dict) and "ph" in events[0]


def _broken(text: bytes | str, name: str, error: ValueError) -> str:
    start, end = text.lstrip()[:12], text.rstrip()[-2:]
    begins, ends = (part if isinstance(part, str) else part.decode("latin1") for part in (start[:1], end))
    if begins == "{" and ends != "]}":
        return f"{name}: is cut off after {len(text)} bytes: whoever wrote or copied it did not finish; trace again"
    return f"{name}: is no JSON: {error}; {_READS}"


def callers(events: list[TraceEvent], waits: list[TraceWait]) -> list[TraceWait]:
    """The waits, with those of threads that only waited as the caller's: Python waits on a thread that helps it, so that
    Ctrl-C is heard."""
    busy = {e.thread for e in events} | {e.pusher for e in events}
    helps = {w.thread for w in waits if w.thread.startswith("caller ")} - busy
    return [w._replace(thread="caller") if w.thread in helps else w for w in waits]


class _Reader:
    """Reads one file, and names the event that is wrong."""

    def __init__(self, name: str) -> None:
        self.name = name

    def trace(self, other: dict[str, Any], records: list[Any]) -> TraceData:
        threads: dict[Any, str] = {}
        slices = []
        for i, record in enumerate(records):
            try:
                if record["ph"] == "M" and record["name"] == "thread_name":
                    threads[record["tid"]] = _text(record["args"]["name"])
                elif record["ph"] == "X":
                    slices.append((i, record))
            except (KeyError, TypeError, ValueError) as error:
                raise self.wrong(i, error) from None
        events, waits = [], []
        for i, record in slices:
            try:
                thread = threads[record["tid"]].partition(" +")[0]
                if record.get("cat") == "wait":
                    waits.append(self.wait(record, thread))
                else:
                    events.append(self.event(record, thread))
            except (KeyError, TypeError, ValueError) as error:
                raise self.wrong(i, error) from None
        events.sort(key=lambda e: e.op)
        if [e.op for e in events] != list(range(len(events))):
            raise UsageError(
                f"{self.name}: its ops are not numbered from 0 on without gaps, so events are missing; trace again"
            )
        for e in events:
            if any(not 0 <= before < e.op for before in e.after):
                raise UsageError(
                    f"{self.name}: op {e.op} ('{e.name}') comes behind an op that does not come before it; "
                    "trace again"
                )
        try:
            length = _micros(other["length"])
            counts = [int(other[key]) for key in ("pending", "left_out")]
            workers = [_text(thread) for thread in other["threads"]]
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{self.name}: its 'otherData' is wrong: {error!r}; trace again") from None
        return TraceData(self.name, events, callers(events, waits), workers, length, *counts)

    def wrong(self, index: int, error: Exception) -> UsageError:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        return UsageError(f"{self.name}: event {index} is malformed: {what}; trace again")

    @staticmethod
    def event(record: dict[str, Any], thread: str) -> TraceEvent:
        args, begin = record["args"], _micros(record["ts"])
        uses = tuple((_text(mode), int(var), _text(name)) for mode, var, name in args["uses"])
        return TraceEvent(
            name=_text(record["name"]), thread=thread, begin=begin, end=begin + _length(record["dur"]), op=_number(args["op"]),
            skipped=bool(args["skipped"]), pushed=_micros(args["pushed"]) if "pushed" in args else None,
            ready=_micros(args["ready"]), settled=_micros(args["settled"]) if "settled" in args else None,
            pusher=_text(args.get("pusher", "")), plan=_text(args["plan"]) if "plan" in args else None,
            run=_number(args.get("run", 0)), site=_text(args.get("site", "")),
            after=tuple(_number(n) for n in args["after"]), uses=uses)  # fmt: skip

    @staticmethod
    def wait(record: dict[str, Any], thread: str) -> TraceWait:
        cause, begin = record["args"]["cause"], _micros(record["ts"])
        if cause not in CAUSES:
            raise ValueError(f"{cause!r} is no cause of a wait")
        return TraceWait(cause, _text(record["args"]["for"]), thread, begin, begin + _length(record["dur"]))


def _micros(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no time")
    return value / 1e6


def _length(value: Any) -> float:
    if _micros(value) < 0:
        raise ValueError(f"it ends before it begins (dur {value!r})")
    return _micros(value)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no number of an op")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value
