"""An item of the loader on its way through a step: what the program has made of it, and what of that the step may still use.

Threads: the program runs with an item on a stage's thread, before the step gets it; from then on an item is its step's thread's. Another
thread may only set ``over``."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from . import staged
from .numerics import mode
from .unchanged import stageable, together

if TYPE_CHECKING:
    from .ahead import Program
    from .node import Node

_WHOLE = None  # instead of the structure of an item that is given to the step as it is
clock = time.thread_time


class Item:
    """One item on its way through a step. ``made``: by node, what the program made of it; None: nothing. ``staged``: by node, the
    same as Staged tensors, where the step before got them so. ``thread``: that of the step."""

    __slots__ = ("program", "leaves", "rest", "spec", "made", "staged", "versions", "used", "over", "counts", "mode", "times",
                 "lent", "thread", "settled", "last", "expected", "took", "cost", "given", "marks", "together", "seen")  # fmt: skip

    def __init__(self, program: Program, data: Any) -> None:
        flat, self.spec = pytree.tree_flatten(data) if staged.can_be_made_anew(data) else ([], _WHOLE)
        self.given = data  # by the loader
        self.program, self.leaves = program, stageable(flat)
        self.together = together(self.leaves)
        self.rest, self.made, self.versions = flat, [], {}  # type: ignore[var-annotated]
        self.staged: dict[int, Any] = {}
        self.used: set[int] = set()
        self.counts: list[int] = []  # the versions of the leaves before the program ran
        self.marks: list[Any] = []  # and those of what it made, behind it
        self.times: dict[Any, int] = {}  # by key: how often the step has got such a result
        self.last = -1  # the node whose call came last
        self.expected: list[Node] = []  # whose calls came as expected, and are not in ``times`` yet
        self.lent: set[int] = set()  # leaves whose memory the step can change unseen
        self.mode: Any = None  # in which the program ran; then that in which the step began
        self.thread = 0  # none yet
        self.settled = False  # whether the step gets plain tensors for what no node reads any more
        self.seen = False  # whether the step's calls are, up to one by which the item is over
        self.took: dict[int, float] | None = None  # seconds by node, where it is measured whether they pay
        self.cost = 0.0  # seconds in which the step has found what was made of it; while that is measured
        # The step has changed something of the item, or the item has another structure than the first.
        self.over = self.spec is _WHOLE or not program.fits(self.spec)

    def data(self) -> Any:
        """The item for the step, which runs on this thread: its tensors are Staged, but for those that no node reads."""
        begin, now = clock(), mode()
        self.thread, self.settled = threading.get_ident(), self.program.begin_step()
        self.over = self.over or bool(self.program.worth.lost) or (bool(self.made) and self.mode != now)
        self.mode, self.seen = now, not self.over
        if self.over:
            return self.given
        flat = [
            self.rest[i] if leaf is None or self.program.is_done(-1 - i, self) else staged.of(leaf, self, -1 - i, None)
            for i, leaf in enumerate(self.leaves)
        ]
        data = pytree.tree_unflatten(flat, self.spec)
        self.cost += clock() - begin
        return data

    def end(self) -> None:
        """The step is over: what it did not use is noted, and nothing of the item is kept."""
        if self.seen:
            begin = clock()
            self.program.ended(self)
            if self.took is not None and self.settled:
                self.program.judge(sum(self.took.get(at, 0.0) for at in self.used), self.cost + clock() - begin)
        self.over, self.made, self.staged, self.leaves, self.rest, self.given = True, [], {}, [], [], None
        self.versions, self.counts, self.times, self.expected = {}, [], {}, []
