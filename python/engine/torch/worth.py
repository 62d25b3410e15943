"""Whether what runs ahead of a step saves more than it costs.

To find in the step what was made ahead of it takes Python code for each call, on the thread that trains. To make it takes the stage's thread
as much again, with the interpreter's lock, which the step needs, too; and a call takes longer there, where memory is cold. So short calls are
made faster where they stand. While the first items run ahead, it is measured what their calls take on the stage's thread, and
what the step takes to find their results. If that is too much beside them, only the loader runs ahead from there on.

Times are those of the processor, because a thread that waits for the interpreter's lock is not slower by itself."""

from __future__ import annotations

import statistics

ITEMS = 8  # that are measured
PAYS = 3  # times as long as to find their results calls must take


class Worth:
    """``measures``: whether items are measured now. ``lost``: what was found, if to run calls ahead does not pay; else ''.

    Threads: an item's numbers come from the thread that runs its step, which is one at a time."""

    def __init__(self, asked: bool) -> None:
        self.measures, self.lost = asked, ""
        self._saved: list[float] = []
        self._cost: list[float] = []

    def add(self, saved: float, cost: float, moves: bool) -> None:
        """An item whose calls took ``saved`` seconds ahead of its step, and whose step took ``cost`` to find their results.
        ``moves``: some of them copy to a device, which a stage hides however short its calls are."""
        if not self.measures:
            return
        self._saved.append(saved)
        self._cost.append(cost)
        if len(self._saved) < ITEMS:
            return
        self.measures = False
        saved, cost = statistics.median(self._saved), statistics.median(self._cost)
        if saved < PAYS * cost and not moves:
            self.lost = f"its calls take {saved * 1e3:.3f} ms, and to find their results takes the step {cost * 1e3:.3f} ms"
