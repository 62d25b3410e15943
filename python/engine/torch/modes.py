"""Chooses how a program runs, by measurement: with workers, alone on the caller's thread, node by node, or eagerly.

Every call does its work whichever way it goes, so measuring costs nothing but the slower calls. Modes are tried in blocks,
because OpenMP's threads spin for a while after a call that used them. Pure: it gets durations and reads no clock."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

EAGER, IN_TURN, CALLER, WORKERS = "eager", "in turn", "caller", "workers"
BLOCK = 5  # calls in a row in one mode; the first does not count
ROUNDS = 3  # blocks of each mode
HOPELESS = 2.0  # times as long as the best, by the shortest calls of the first round: not tried again
MARGIN = 0.99  # a mode replaces the one before it in the list only if it takes less than this share of its time


@dataclass
class Choice:
    """``next()`` is the mode of the next call; ``add()`` takes what it cost in seconds. ``candidates``: the calmest first."""

    candidates: list[str]
    times: dict[str, list[float]] = field(default_factory=dict)
    decided: str | None = None
    why: str = ""
    warm: str | None = None  # a mode that first gets calls that do not count, until settled() is called
    _at: int = 0
    _round: int = 0
    _left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._left = list(self.candidates)
        if len(self.candidates) == 1:
            self.decided, self.why = self.candidates[0], "there is no other way"

    def next(self) -> str:
        if self.decided:
            return self.decided
        if self.warm and self._round == 1:
            return self.warm
        return self._left[self._at // BLOCK]

    def settled(self) -> None:
        """The mode that is warmed has been prepared, or is out of the race."""
        self.warm = None

    def add(self, mode: str, seconds: float) -> None:
        if self.decided or mode != self.next() or (self.warm and self._round == 1):
            return
        if self._at % BLOCK:
            self.times.setdefault(mode, []).append(seconds)
        self._at += 1
        if self._at == BLOCK * len(self._left):
            self._end_round()

    def _end_round(self) -> None:
        self._at, self._round = 0, self._round + 1
        if self._round == 1:
            least = {m: min(t) for m, t in self.times.items()}
            self._left = [m for m in self._left if least[m] <= HOPELESS * min(least.values())]
            if self.warm in self._left:
                self.times.pop(self.warm)  # before it was prepared
            else:
                self.warm = None
        if self._round == ROUNDS or len(self._left) == 1:
            self._decide()

    def medians(self) -> dict[str, float]:
        return {m: statistics.median(t) for m, t in self.times.items() if t}

    def _decide(self) -> None:
        medians = self.medians()
        best = self._left[0]
        for mode in self._left[1:]:
            if medians.get(mode, float("inf")) < MARGIN * medians.get(best, float("inf")):
                best = mode
        self.decided = best
        told = ", ".join(f"{m} {medians[m] * 1e3:.3f}" for m in self.candidates if m in medians)
        self.why = f"medians in ms: {told}"


