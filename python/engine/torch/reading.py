"""The loader of a stage: read ahead of the steps, or in turn with them, where both draw from one generator of random numbers.

At first each step is watched, and so is each read of the loader. If both change the state of one generator, which numbers
each of them gets depends on their order: then every item is read on the thread that runs the steps, just before its step."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
import warnings
from typing import Any, Callable, Iterator

from engine.errors import CancelledError
from engine.sources import data_of
from engine.torch_modes import Carrier

from .generators import Own, drawn_from, draws, states

LAZY = 2  # steps that are watched where none is profiled; fewer show nothing
_ENDED = "engine.torch.smart_stage: the stage has ended"
_AT_ONCE = 8  # ignored errors in a row without a pause, as of any stage
_PATIENCE = 0.5  # seconds that a stage which ends waits for the thread that reads its loader


class Slot:
    """An item that was read, or is when its step begins. ``error``: what the loader raised instead of it; an EndOfLoader at
    the end. ``left_out``: how many errors were ignored up to it. The engine sees the slot alone, so it does not look for the
    memory of each tensor in the item."""

    __slots__ = ("data", "error", "read", "left_out")

    def __init__(self, data: Any = None, read: bool = False, left_out: int = 0) -> None:
        self.data, self.error, self.read, self.left_out = data, None, read, left_out  # type: ignore[var-annotated]


class EndOfLoader(Exception):
    """The loader has no more items."""


def _data_of(item: Any) -> Any:
    try:
        return data_of(item)
    except RecursionError:  # it contains itself, so the step gets it as it is
        return item


class Reading:
    """Iterates over a loader for a stage. ``own``: generators of the program's that loader and step have in common. ``skip``: how
    many items are left out first, those whose errors are ignored among them. ``watched``: how many steps run in turn with the
    reads because the stage profiles them; 0: none, so the first items are given as slots, which the steps fill; below 0: nothing
    is watched. What a loader raises that is ``ignored`` is skipped by the stage, and by this class where it fills slots.

    Threads: one at a time iterates, and others may run steps. The loader is read by one at a time, without the lock, so that what
    a loader waits for may be the end of a step, or what the program does behind it.
    """

    def __init__(self, loader: Any, own: Own, skip: int, watched: int, closed: Any, ignored: Any, budget: int) -> None:
        self._loader, self._skip, self._closed, self._ignored, self._budget = loader, skip, closed, ignored, budget
        self._items: Iterator[Any] | None = None  # of the loader; None: none was asked for, or the stage has ended
        self._context: contextvars.Context | None = None  # in which the loader runs, on whichever thread; None: no step has begun
        self._modes = Carrier()  # PyTorch's, of the loader, likewise
        self._ended, self._process = False, os.getpid()
        self._own, self._told = own, False
        self._lock = threading.Condition()  # for the fields
        self._reader = 0  # the thread that reads the loader; 0: none
        self._waiting: list[Slot] = []
        self._left = max(0, watched) if watched else LAZY  # steps that are still watched
        self._lazy = watched == 0
        self._step: set[str] = set()  # generators that a step has drawn from
        self._body: set[str] = set()  # those whose states were others when the next step was asked for
        self._behind: tuple[Own, dict[str, Any]] | None = None  # the states behind a step that was watched
        self._source: set[str] = set()  # those that a read behind the first step has
        self.why = ""  # why items are read in turn with the steps
        self.items = 0  # how many were read
        self.missing = 0  # how many items that were to be left out the loader does not have
        self.left_out = 0  # how many errors of the loader were ignored here
        self.error: BaseException | None = None  # what the loader ended with

    def begin(self) -> None:
        """A step is asked for, on the thread that iterates. The loop begins with the first one."""
        if self._context is None:
            self._context, self._modes = contextvars.copy_context(), Carrier()
        behind, self._behind = self._behind, None
        if behind is not None:
            with self._lock:
                self._body |= drawn_from(behind[1], behind[0])
                self._judge()
        if self.why and not self._told:
            self._told = True  # before the warning, which may be an error
            warnings.warn(f"engine.torch.smart_stage: {self.why}", stacklevel=3)

    def end(self) -> None:
        """Lets the loader go, and what it holds, such as files and worker processes: at once, or when the thread that reads it comes back,
        which is waited for a while, because the program may use the same files now."""
        if os.getpid() != self._process:  # a fork's child, where no thread reads
            return
        with self._lock:
            self._ended = True
            self._lock.notify_all()  # who pauses behind an error
            if self._reader != threading.get_ident():
                self._lock.wait_for(lambda: not self._reader, _PATIENCE)
            let_go = self._left_behind()
        let_go()

    def _left_behind(self) -> Callable[[], None]:
        """What lets the loader go, if the stage has ended and no thread reads it. To be called without the lock, because it runs what the
        loader does at its end: in the loader's context, as its items."""
        left: list[Any] = []
        context, modes = self._context or contextvars.Context(), self._modes
        if self._ended and not self._reader:
            left += self._loader, self._items
            self._loader, self._items, self._context, self._own = None, None, None, {}

        def let_go() -> None:
            if left:
                with modes.here():
                    context.run(left.clear)

        return let_go

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> Slot:
        while True:
            with self._lock:
                if self._lazy and self.error is None:
                    self._waiting.append(Slot())
                    return self._waiting[-1]
            with self._alone():
                if self._waiting:
                    self._fill()
                elif isinstance(self.error, EndOfLoader):
                    raise StopIteration
                elif self.error is not None:
                    raise self.error
                elif self._ended:
                    raise CancelledError(_ENDED)
                elif not self._lazy:
                    return Slot(_data_of(self._read()), True, self.left_out)

    def given(self, slot: Slot) -> Any:
        """The item of a step that begins. It raises what the loader raised instead."""
        while not slot.read:
            with self._alone(slot):
                if not slot.read:
                    self._fill()
        if slot.error is not None:
            raise slot.error
        return slot.data

    @contextlib.contextmanager
    def _alone(self, wanted: Slot | None = None) -> Iterator[None]:
        """No other thread reads the loader inside, unless ``wanted`` has been read."""
        me = threading.get_ident()
        try:
            with self._lock:
                self._lock.wait_for(lambda: not self._reader or wanted is not None and wanted.read)
                if wanted is None or not wanted.read:
                    self._reader = me
            yield
        finally:
            with self._lock:
                if self._reader == me:
                    self._reader = 0
                    self._lock.notify_all()
                let_go = self._left_behind()
            let_go()

    def watched(self, step: Callable[[Any], Any], data: Any) -> Any:
        """Runs a step. Whether it draws random numbers is noted while steps are watched."""
        if not self._left:
            return step(data)
        drawn: set[str] = set()
        try:
            with draws(self._own) as drawn:
                return step(data)
        finally:
            with self._lock:
                self._step |= drawn
                self._left -= 1
                self._judge()
                self._behind = (self._own, states(self._own)) if self._left else None

    def _judge(self) -> None:
        both = sorted((self._step | self._body) & self._source)
        if both and not self.why:
            other = "step" if self._step.intersection(both) else "loop's body"
            self.why = (
                f"the loader and the {other} both draw from {' and '.join(both)}, so each item is read just before its "
                "step; give the loader a generator of its own and it is read ahead"
            )
        if both:
            self._lazy, self._left = True, 0
        elif not self._left:
            self._lazy = False

    def _fill(self) -> None:
        slot = self._waiting[0]
        try:
            if self.error is not None:
                raise self.error
            slot.data = _data_of(self._read_past_ignored())
        except BaseException as error:
            if not isinstance(error, (Exception, *self._closed)):  # Ctrl-C: the item is still to be read
                raise
            if self.error is None:
                self.error = EndOfLoader() if isinstance(error, (StopIteration, *self._closed)) else error
            slot.error = self.error
        with self._lock:
            self._waiting.pop(0)
            slot.left_out = self.left_out
            slot.read = True
            self._lock.notify_all()

    def _read_past_ignored(self) -> Any:
        """The next item behind errors that are ignored, up to the budget in a row, with a stage's pauses."""
        in_a_row = 0
        while not self._ended:
            try:
                return self._read()
            except self._ignored:
                in_a_row += 1
                if in_a_row > self._budget:
                    raise
                self.left_out += 1
            if in_a_row > _AT_ONCE:
                with self._lock:
                    self._lock.wait_for(lambda: self._ended, min(1.0, 1e-3 * 2 ** (in_a_row - _AT_ONCE - 1)))
        raise CancelledError(_ENDED)  # here, because it may be of the types that are ignored

    def _read(self) -> Any:
        """The next item, made in the loader's own context and modes: what it sets there does not get to the steps, nor stay on another
        thread."""
        assert self._context is not None
        with self._modes.here():
            return self._context.run(self._read_here)

    def _read_here(self) -> Any:
        if self._items is None:
            self._items = iter(self._loader)
        try:
            while self._skip:
                with contextlib.suppress(*self._ignored):
                    next(self._items)
                self._skip -= 1  # not before: Ctrl-C leaves the item unread
        except (StopIteration, *self._closed):
            self.missing = self._skip
            raise
        # What the first read draws comes before the first step, whichever way items are read.
        if not self._left or not self.items:
            data = next(self._items)
            self.items += 1
            return data
        with draws(self._own) as drawn:
            data = next(self._items)
        self.items += 1
        with self._lock:
            self._source |= drawn
            self._judge()
        return data
