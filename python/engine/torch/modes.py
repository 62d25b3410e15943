"""Chooses how a program runs, by measurement: node by node, alone on the caller's thread, with workers, or eagerly.

The first of the candidates holds from the start, and another mode takes its place only with evidence. Modes are compared
in blocks of calls: some in the mode that holds, some in the other, and again some in the mode that holds. The other wins a
comparison if it was faster than the blocks before it and behind it, so a machine that is slow for a moment lets no mode
win. A mode that has won often enough takes over; one lost comparison takes back one that was won. After the trial the same
comparisons go on for ever, on a share of the calls that is told below, because machines and data change.

Every call does its work whichever way it goes, so a comparison costs nothing but the slower calls. Pure: it gets durations
and reads no clock. Threads: next() and add() may be called by several; what they measure then is each other."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

EAGER, IN_TURN, CALLER, WORKERS, INDUCTOR = "eager", "in turn", "caller", "workers", "inductor"
IN_ORDER = "in order"  # no candidate: node by node as the program goes, whatever shares memory
UNCOUNTED = 2  # first calls of a block: OpenMP's threads spin for a while after a call that used them
COUNTED = 3  # calls of a block behind these
TRIAL = 100  # calls, besides those in which a mode is prepared; the last comparison may need a few more
MOST = 200  # calls of a trial at whose end a mode has won more often than it has lost, and not often enough
SHARE = 0.02  # of the calls, and of the time: what comparisons after the trial may use
MARGIN = 0.99  # who takes more than this share of the time of the mode that holds does not win
ENOUGH = 5  # points to take over; a comparison gives one, or two if every call of the one mode was faster
LOST = -3  # points at which a mode is not tried again in the trial
HOPELESS = 2.0  # times as long as the mode that holds: compared seldom after the trial
SELDOM = 8  # turns of the others to one of those
KEPT = 24  # durations of each mode that are kept, for the medians that are told
PREPARING = 90  # calls after which a mode that is warmed counts as ready

Calls = Generator["tuple[str, bool]", float, None]  # asks for calls: (mode, whether its duration is wanted)


def ways(first: list[str], kernel_threads: int, has_workers: bool) -> list[str]:
    """``first``, and those with several threads where there are some."""
    return [*first, *[CALLER] * (kernel_threads > 1), *[WORKERS] * has_workers]


@dataclass
class Choice:
    """``next()`` is the mode of the next call, and whether ``add()`` must be told what it cost. ``candidates``: the first
    is the one to beat. ``warm``: a mode that needs calls which do not count, until ``prepared()`` says that it is ready; left aside
    if it is no candidate."""

    candidates: list[str]
    warm: str | None = None
    times: dict[str, deque[float]] = field(default_factory=dict)
    holds: str = ""
    decided: str | None = None  # the mode that holds, once the trial is over
    calls: int = 0
    tries: int = 0  # calls after the trial that were spent on comparisons
    taken_over: list[str] = field(default_factory=list)  # the modes that took over, in order
    because: str = ""  # why a mode holds that was not chosen by measurement

    def __post_init__(self) -> None:
        self.holds = self.candidates[0]
        self.warm = self.warm if self.warm in self.candidates else None
        self._warmed = 0  # calls that were made only for that
        self.points = dict.fromkeys(self.candidates, 0)
        self.ratios = dict.fromkeys(self.candidates, 1.0)  # of the last comparison: its time to that of who held
        self._lock = threading.Lock()
        self._quiet = 0  # calls until the next comparison
        self.trial_calls = 0
        self._course = self._all()
        self._asked = self._course.send(None)  # type: ignore[arg-type]

    def next(self) -> tuple[str, bool]:
        with self._lock:
            self.calls += 1
            if self._quiet:
                self._quiet -= 1
                return self.holds, False
            return self._asked

    def add(self, mode: str, seconds: float) -> None:
        """What a call cost whose duration was wanted. One of another mode than the last asked for is left aside."""
        with self._lock:
            if not self._quiet and self._asked == (mode, True):
                self._asked = self._course.send(seconds)

    def warmed(self, ready: Callable[[], bool]) -> None:
        """After a call that was made only to warm a mode. ``ready``: whether it is ready."""
        self._warmed += 1
        if self._warmed >= PREPARING or ready():
            self.prepared()

    def prepared(self) -> None:
        """The mode that is warmed is ready."""
        with self._lock:
            self.warm = None
            if self._asked[1] is False and not self._quiet:
                self._asked = self._course.send(0.0)

    @property
    def preparing(self) -> bool:
        """Whether calls are made now only to warm a mode."""
        return self.warm is not None and self._asked == (self.warm, False)

    def hold(self, mode: str, because: str = "") -> None:
        """From now on all calls run in this mode, and nothing is measured. ``because``: why, if measurement did not say so."""
        with self._lock:
            self.holds = self.decided = mode
            self.because = because
            self.warm, self._quiet, self._asked = None, 0, (mode, False)

    def medians(self) -> dict[str, float]:
        """Seconds, by mode, of the last calls that were measured."""
        return {m: statistics.median(self.times[m]) for m in self.candidates if self.times.get(m)}

    @property
    def why(self) -> str:
        if self.because:
            return self.because
        if len(self.candidates) == 1:
            return "there is no other way"
        told = "medians in ms: " + ", ".join(f"{m} {t * 1e3:.3f}" for m, t in self.medians().items())
        return told + f"; {self.tries} of {self.calls} calls tried other modes again" * bool(self.tries)

    def _all(self) -> Calls:
        others = self.candidates[1:]
        if others:
            yield from self._trial(others)
        self.decided = self.holds
        yield from self._for_ever()

    def _block(self, mode: str, uncounted: int = UNCOUNTED) -> Generator[tuple[str, bool], float, list[float]]:
        seconds = []
        for i in range(uncounted + COUNTED):
            took = yield mode, True
            if i >= uncounted:
                seconds.append(took)
        self.times.setdefault(mode, deque(maxlen=KEPT)).extend(seconds)
        return seconds

    def _compare(self, other: str, before: list[float]) -> Generator[tuple[str, bool], float, list[float]]:
        """Adds the points of a comparison, and maybe changes who holds. Gives the calls of the mode that holds now."""
        theirs = yield from self._block(other)
        after = yield from self._block(self.holds)
        mine = [statistics.median(before), statistics.median(after)]
        took = statistics.median(theirs)
        self.ratios[other] = 2 * took / (sum(mine) or 1e-9)
        if took < MARGIN * min(mine):
            points = 2 if max(theirs) < min(before + after) else 1
        else:
            points = -2 if min(theirs) > max(before + after) else -1
        self.points[other] += points
        if self.points[other] < ENOUGH:
            return after
        self.holds = other
        self.taken_over.append(other)
        self.points = dict.fromkeys(self.candidates, 0)
        return theirs

    def _trial(self, others: list[str]) -> Calls:
        cost = 2 * (UNCOUNTED + COUNTED)  # of a comparison
        before = yield from self._block(self.holds)
        used = UNCOUNTED + COUNTED
        for other in others:
            before = yield from self._compare(other, before)
            used += cost
        if self.warm and self.ratios[self.warm] <= HOPELESS:
            self.points[self.warm] = 0
            while self.warm:
                yield self.warm, False
            before = yield from self._block(self.holds)
        self.warm = None
        while used + cost <= MOST:
            left = [m for m in self.candidates if m != self.holds and self.points[m] > LOST and self.ratios[m] <= HOPELESS]
            if used + cost > TRIAL:
                left = [m for m in left if self.points[m] > 0]
            if not left:
                break
            other = max(left, key=lambda m: (self.points[m] >= 0, -self.ratios[m]))
            before = yield from self._compare(other, before)
            used += cost
        self.trial_calls = self.calls

    def _for_ever(self) -> Calls:
        turn = 0
        while True:
            self.points = {m: max(0, p) for m, p in self.points.items()}
            others = [m for m in self.candidates if m != self.holds]
            while not others:
                yield self.holds, False
            other = max(others, key=lambda m: self.points[m])
            if not self.points[other]:
                turn += 1
                near = [m for m in others if self.ratios[m] <= HOPELESS]
                far = [m for m in others if m not in near]
                other = far[turn // SELDOM % len(far)] if far and (not near or not turn % SELDOM) else near[turn % len(near)]
            tries = 2 * UNCOUNTED + COUNTED  # also the first calls when the other mode is over
            in_calls = UNCOUNTED + (UNCOUNTED + COUNTED) * max(1.0, self.ratios[other])
            self._quiet = int(in_calls / SHARE)
            before = yield from self._block(self.holds, 0)
            self.tries += tries
            yield from self._compare(other, before)
            self.decided = self.holds
