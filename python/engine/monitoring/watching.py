"""A table that shows how a long run goes: in the program's own terminal (``engine.live``) or in another one (``top``)."""

from __future__ import annotations

import contextlib
import re
import threading
from typing import Any, Callable, NamedTuple

from .. import _core
from ..errors import UsageError
from .. import tracing
from .counters import clock, metrics, read


class Sample(NamedTuple):
    """One look. ``stages``: by name; ``ops``: by name, how many ended in how many seconds of a short trace, and busy."""

    time: float
    counters: dict[str, float]
    stages: dict[str, dict[str, float]]
    ops: dict[str, tuple[float, float]] = {}


def sample(engine: _core.Engine, ops: float = 0.0, stop: threading.Event | None = None) -> Sample:
    """Looks at an engine of this process. ``ops``: also traces for so many seconds, unless the program traces itself, or begins to
    meanwhile.
    """
    rates: dict[str, tuple[float, float]] = {}
    trace = tracing.Sample(engine=engine)
    if ops and not tracing.traced(engine):
        with contextlib.suppress(UsageError), trace:  # the program may have begun a trace just now, or its engine is gone
            (stop or threading.Event()).wait(ops)
        for event in trace.events if trace.whole else ():
            count, busy = rates.get(event.name, (0.0, 0.0))
            rates[event.name] = (count + 1 / ops, busy + event.seconds / ops)
    now = metrics(engine)
    stages = now.pop("stages")
    now.pop("devices")
    return Sample(clock(), now, stages, rates)


def sample_of(text: str) -> Sample:
    """The same from what an endpoint says."""
    counters: dict[str, float] = {}
    stages: dict[str, dict[str, float]] = {}
    for name, number in read(text).items():
        plain = re.sub(r"(_seconds)?_total", "", name.split("{")[0])
        label = re.search(r'\{stage="((?:[^"\\]|\\.)*)"\}', name)
        if label:
            stages.setdefault(re.sub(r"\\(.)", r"\1", label[1]), {})[plain.removeprefix("engine_stage_")] = number
        elif not plain.startswith("engine_device_"):
            counters[plain.removeprefix("engine_")] = number
    return Sample(clock(), counters, stages)


def tables(before: Sample, now: Sample, stalled: float) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, heads, rows) of each table. ``stalled``: for how long nothing has ended although ops are pending."""
    seconds = max(1e-9, now.time - before.time)

    def rate(name: str) -> float:
        return (now.counters.get(name, 0) - before.counters.get(name, 0)) / seconds

    pending = int(now.counters.get("pending", 0))
    state = (
        f"STALLED for {stalled:.0f} s: engine.describe_pending() says why"
        if stalled >= 5
        else "running" if pending else "idle"
    )
    engine = [[f"{rate('completed'):,.0f}/s", f"{rate('pushed'):,.0f}/s", f"{pending:,}", f"{rate('skipped'):,.0f}/s",
               f"{now.counters.get('backpressure_waits', 0):,.0f}", f"{now.counters.get('unseen_errors', 0):,.0f}", state]]  # fmt: skip
    out = [("engine", ["ended", "pushed", "pending", "skipped", "waits for room", "errors unseen", "state"], engine)]
    if now.ops:
        rows = sorted(now.ops.items(), key=lambda item: -item[1][1])[:15]
        out.append(
            (
                "ops",
                ["op", "rate", "workers busy"],
                [[name, f"{n:,.0f}/s", f"{busy:.2f}"] for name, (n, busy) in rows],
            )
        )
    if now.stages:
        rows_of_stages = []
        for name, told in now.stages.items():
            last = before.stages.get(name, told)
            taken = (told["delivered"] - last["delivered"]) / seconds
            full, empty = ((told[key] - last[key]) / seconds for key in ("producer_wait", "consumer_wait"))
            rows_of_stages.append([name, f"{taken:,.1f}/s", f"{told['fill']:.0f} of {told['capacity']:.0f}", f"{told['threads']:.0f}",
                                   f"{min(full, 9.99):.0%}", f"{min(empty, 9.99):.0%}"])  # fmt: skip
        out.append(("stages", ["stage", "taken", "filled", "producers", "full", "empty"], rows_of_stages))
    return out


class _Screen:
    """Draws the tables with rich."""

    def __init__(self) -> None:
        try:
            import rich.console
            import rich.live
            import rich.table
        except ImportError:
            raise UsageError("the live table needs the package rich: pip install rich; "
                             "without it, engine.metrics() has the same numbers") from None  # fmt: skip
        self._table, self._group = rich.table.Table, rich.console.Group
        self._live = rich.live.Live(auto_refresh=False, console=rich.console.Console(stderr=True))

    def __enter__(self) -> _Screen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, found: list[tuple[str, list[str], list[list[str]]]]) -> None:
        drawn = []
        for title, heads, rows in found:
            table = self._table(title=title, title_justify="left", expand=False)
            for i, head in enumerate(heads):
                table.add_column(head, justify="left" if i == 0 and title != "engine" else "right")
            for row in rows:
                table.add_row(*row)
            drawn.append(table)
        self._live.update(self._group(*drawn), refresh=True)


class _Watch:
    """Compares looks, and notices when nothing goes on."""

    def __init__(self) -> None:
        self._before: Sample | None = None
        self._moved = clock()

    def look(self, now: Sample) -> list[tuple[str, list[str], list[list[str]]]]:
        before, self._before = self._before or now, now
        if before is now or now.counters["completed"] != before.counters["completed"] or not now.counters["pending"]:
            self._moved = now.time
        return tables(before, now, now.time - self._moved)


class Live:
    """``with engine.live():`` shows a table on the terminal (stderr) while the block runs, from a thread of its own."""

    def __init__(self, interval: float = 1.0, ops: bool = True, engine: _core.Engine | None = None) -> None:
        if not interval > 0:
            raise UsageError(f"live: interval is {interval}; more than 0 seconds are expected")
        self._engine, self._interval, self._ops = engine, interval, ops
        self._stop = threading.Event()
        self._screen = _Screen()
        self.looks = 0

    def __enter__(self) -> Live:
        self._engine = self._engine or _core.default()
        self._stop.clear()
        self._screen.__enter__()
        self._thread = threading.Thread(target=self._run, args=(self._engine,), name="engine-live", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._screen.__exit__()

    def _run(self, engine: _core.Engine) -> None:
        watch = _Watch()
        length = min(0.2, self._interval / 4) if self._ops else 0.0
        while True:
            self._screen.show(watch.look(sample(engine, length, self._stop)))
            self.looks += 1
            if self._stop.wait(self._interval - length):
                return


def live(interval: float = 1.0, ops: bool = True, engine: _core.Engine | None = None) -> Live:
    """``with engine.live():`` shows a table on the terminal (stderr) while the block runs.

    Each ``interval`` seconds: ops ended and pushed a second, how many are pending, whether nothing has ended for long
    (a stall), what each stage delivers, and how full it is. ``ops``: also the rate of each op, from a trace of a fifth
    of a second each time; not while the program traces itself. Needs the package rich: UsageError without it.
    """
    return Live(interval, ops, engine)


def watch(
    address: str, interval: float = 1.0, rounds: int | None = None, show: Callable[..., Any] | None = None
) -> None:
    """What ``python -m engine top`` does: the table of a program that called ``engine.metrics.serve()``, until it ends."""
    import http.client
    import urllib.request  # here, because it takes long to import

    if not re.match(r"https?://", address):
        raise UsageError(
            f"{address!r} is no address; what engine.metrics.serve().url says is expected: http://127.0.0.1:PORT"
        )
    if not interval > 0:
        raise UsageError(f"--interval is {interval}; more than 0 seconds are expected")
    looks, wait, seen = _Watch(), threading.Event(), 0
    with _Screen() as screen:
        while rounds is None or seen < rounds:
            if seen:
                wait.wait(interval)
            try:
                with urllib.request.urlopen(address.rstrip("/") + "/metrics", timeout=10) as answer:
                    text = answer.read().decode()
            except (OSError, http.client.HTTPException, ValueError) as error:
                if seen:
                    return  # the program has ended
                raise UsageError(
                    f"nobody answers at {address}: {error}; the program calls engine.metrics.serve()"
                ) from None
            (show or screen.show)(looks.look(sample_of(text)))
            seen += 1
