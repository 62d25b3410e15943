"""The loader of a stage: read ahead of the steps, or in turn with them, where both draw from one generator of random numbers.

At first each step is watched, and so is each read of the loader. If both change the state of one generator, which numbers
each of them gets depends on their order: then every item is read on the thread that runs the steps, just before its step."""

from __future__ import annotations

import random
import sys
import threading
import warnings
from typing import Any, Callable, Iterator

import torch

from engine.sources import data_of

_LAZY = 2  # steps that are watched where none is profiled


class Slot:
    """An item that was read, or is when its step begins. ``error``: what the loader raised instead of it; an EndOfLoader at
    the end. The engine sees the slot alone, so it doesn't look for the memory of each tensor in the item."""

    __slots__ = ("data", "error", "read")

    def __init__(self, data: Any = None, read: bool = False) -> None:
        self.data, self.error, self.read = data, None, read  # type: ignore[var-annotated]


class EndOfLoader(Exception):
    """The loader has no more items."""


class Reading:
    """Iterates over a loader for a stage. ``watched``: how many steps run in turn with the reads because the stage profiles
    them; 0: none, so the first items are given as slots, which the steps fill; below 0: nothing is watched.

    Threads: one at a time iterates, another one may run steps.
    """

    def __init__(self, loader: Iterator[Any], watched: int, closed: Any, ignored: Any, budget: int) -> None:
        self._loader, self._closed, self._ignored, self._budget = loader, closed, ignored, budget
        self._lock = threading.RLock()
        self._waiting: list[Slot] = []
        self._left = max(0, watched) if watched else _LAZY  # steps that are still watched
        self._lazy = watched == 0
        self._step: set[str] = set()  # generators that a step has drawn from
        self._source: set[str] = set()  # those that a read behind the first step has
        self.why = ""  # why items are read in turn with the steps
        self.items = 0  # how many were read
        self.error: BaseException | None = None  # what the loader ended with

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> Slot:
        with self._lock:
            if self._lazy and self.error is None:
                self._waiting.append(Slot())
                return self._waiting[-1]
            while self._waiting:
                self._fill()
            if isinstance(self.error, EndOfLoader):
                raise StopIteration
            if self.error is not None:
                raise self.error
            return Slot(data_of(self._read()), True)

    def given(self, slot: Slot) -> Any:
        """The item of a step that begins. It raises what the loader raised instead."""
        if not slot.read:
            with self._lock:
                while not slot.read:
                    self._fill()
        if slot.error is not None:
            raise slot.error
        return slot.data

    def watched(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Runs a step. Whether it draws random numbers is noted while steps are watched."""
        if not self._left:
            return step(data)
        before = states()
        try:
            return step(data)
        finally:
            with self._lock:
                self._step |= drawn_from(before)
                self._left -= 1
                self._judge()

    def _judge(self) -> None:
        both = sorted(self._step & self._source)
        if both and not self.why:
            self.why = (
                f"the loader and the step both draw from {' and '.join(both)}, so each item is read just before its "
                "step; give the loader a generator of its own and it is read ahead"
            )
            warnings.warn(f"engine.torch.smart_stage: {self.why}", stacklevel=2)
        if both:
            self._lazy, self._left = True, 0
        elif not self._left:
            self._lazy = False

    def _fill(self) -> None:
        slot = self._waiting.pop(0)
        try:
            if self.error is not None:
                raise self.error
            slot.data = data_of(self._read())
        except BaseException as error:
            if self.error is None:
                self.error = EndOfLoader() if isinstance(error, (StopIteration, *self._closed)) else error
            slot.error = self.error
        slot.read = True

    def _read(self) -> Any:
        # What the first read draws comes before the first step, whichever way items are read.
        before = states() if self._left and self.items else None
        while True:
            try:
                data = next(self._loader)
            except self._ignored:
                if not self._lazy or self._budget <= 0:
                    raise
                self._budget -= 1
                continue
            break
        self.items += 1
        if before is not None:
            self._source |= drawn_from(before)
            self._judge()
        return data


def states() -> dict[str, Any]:
    """The states of the global generators."""
    found: dict[str, Any] = {"torch's generator": torch.get_rng_state(), "Python's random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["NumPy's generator"] = numpy.random.get_state()
    if torch.cuda.is_initialized():
        found["torch's generator of the GPU"] = torch.cuda.get_rng_state()
    return found


def drawn_from(before: dict[str, Any]) -> set[str]:
    """The generators whose states are not as ``before``."""
    now = states()
    return {name for name, state in before.items() if not _equal(state, now[name])}


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, tuple):
        return all(map(_equal, a, b))
    return bool((a == b) if not hasattr(a, "tobytes") else a.tobytes() == b.tobytes())
