"""SmartStage over a PyTorch step: what the step computes from its item alone runs ahead, if that is faster."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

import engine
from engine.data import SmartStageOptions
from engine.errors import CancelledError, an
from engine.extents import memory_of
from engine.smart import smart_options
from engine.stages import check_int, check_type, exception_types, note

from . import ahead, memory
from .generators import in_common
from .item import Item
from .moving import Mover
from .named import installed
from .reach import held_by, reached, walk
from .reading import LAZY, EndOfLoader, Reading, Slot
from .staged import plain
from .state import FAST
from .team import Team, set_intra_op_threads

_MOST_OBJECTS = 4096  # that are looked at for modules
_LEARNING = 2  # steps from whose calls the program is learned before it counts


class _Ready:
    """An item on its way to the step. item: None if the step gets it as the loader gave it. late: it was not read ahead."""

    __slots__ = ("slot", "item", "event", "late")

    def __init__(self, slot: Slot, item: Item | None = None, event: Any = None, late: bool = False) -> None:
        self.slot, self.item, self.event, self.late = slot, item, event, late

    @property
    def nbytes(self) -> int:
        """Bytes of the item's arrays and tensors, and of those that were made of it. The stage asks where they are bounded."""
        made = self.item.made if self.item else []
        return sum(high - low for space, low, high in {*memory_of([self.slot.data, made])} if space != "id")


class _Making:
    """What the stage does with an item: on its own threads, or on that of a step which runs whole. The stage keeps this object where
    Python's collector does not look, so nothing here may lead back to the SmartStage."""

    def __init__(self, alone: str, options: SmartStageOptions) -> None:
        self.alone = alone  # why the loader alone runs ahead, whatever the steps call; '': it need not
        self.program = ahead.Program(judges=options.guard_steps > 0)
        self.mover = Mover(options.stage_subgraph_stream_id)
        self.here = threading.local()  # in threads that run steps: calls is True
        self._on_cpu = options.stage_subgraph_on_cpu
        inter_op, self._intra_op = _threads_of(options)
        # Nodes on a GPU all go to one stream, so threads would bring nothing there.
        self._team = Team(inter_op, self._intra_op, options.num_threads) if inter_op > 1 and not torch.cuda.is_available() else None
        self._items = 0
        self._profiled = 0 if options.do_smart_stage is False else max(_LEARNING, options.profile_steps)

    def made(self, slot: Slot) -> _Ready:
        whole = getattr(self.here, "calls", False)
        if not whole:
            set_intra_op_threads(self._intra_op)
        self._items += 1
        if not slot.read or slot.error is not None:
            return _Ready(slot, late=True)
        if self.alone or self.program.worth.lost or (whole and self._items > self._profiled):
            return _Ready(slot)  # steps that run whole run as the program was written
        item = self.item(slot.data)
        if item is None:
            return _Ready(slot)
        with self.mover.stream(not whole):
            team, behind = (None, None) if whole else (self._team, self.mover.behind)
            self.program.run(item, self.mover.packed if self._on_cpu else None, team, behind)
            return _Ready(slot, item, self.mover.mark(not whole))


    def item(self, data: Any) -> Item | None:
        try:
            return Item(self.program, data)
        except RecursionError:  # it contains itself: no structure in which calls could be found again
            return None


class SmartStage:
    """Runs a step with each item of a loader; iterate over it. Made by ``engine.torch.smart_stage``.

    Steps run on the thread that iterates, in the order of the items, and give what the step function returns. What the
    loader raised is raised after the steps before it; what a step raised is raised by that step alone, and the next one
    goes on. ``with steps:`` cancels the stage at the end of the block.
    """

    def __init__(self, step: Callable[[Any], Any], loader: Any, skip: int, keep_freed_memory: bool,
                 options: SmartStageOptions) -> None:  # fmt: skip
        if keep_freed_memory:
            memory.keep_freed_memory()
        self._step, self._skip = step, skip
        self._making = _Making(_alone(step), options)
        self.program = self._making.program
        if options.profile_steps == 1:
            options = dataclasses.replace(options, profile_steps=LAZY)
        options = dataclasses.replace(options, stage_subgraph_on_cpu=False, graph=None)  # moved by _Making
        self._engine = options.engine or engine.default()
        run_ahead = engine.op(name="what depends on the item alone")(self._making.made)
        closed, ignored = (exception_types(name, getattr(options, name)) for name in ("closed_exception_types", "ignored_exception_types"))
        judged = bool(ignored) or closed != SmartStageOptions.closed_exception_types  # then no step is profiled
        # Without a stage items are read in turn anyway.
        watched = -1 if options.do_smart_stage is False else 0 if judged else options.profile_steps
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(f"engine.torch.smart_stage: {an(type(loader))} is no loader; something that can be iterated is expected")
        self._reading = Reading(loader, in_common(step, loader), skip, watched, closed, ignored, options.ignored_budget)
        self._steps = engine.data.SmartStage(lambda item: run_ahead(item), self._reading, options)
        self._turns = _Turns(options.num_clients)
        self._left_out = 0  # errors of the loader that were ignored up to the last step, where the stage does not see them
        self._interrupted: _Ready | None = None  # whose item could not be read because of Ctrl-C

    def _rest(self, ready: _Ready) -> Any:
        try:
            data = self._reading.given(ready.slot)
            self._left_out = ready.slot.left_out
            # Nothing of an item that is read late could run ahead, but what can is learned.
            if ready.late and not self._making.alone and not self.program.worth.lost and not self._reading.why:
                ready.item = self._making.item(data)
            if ready.item is None:
                return self._reading.watched(self._step, data)
            self._making.mover.wait(ready.event, ready.item.made)
            return plain(self._reading.watched(self._step, ready.item.data()))
        finally:
            self._interrupted = None if ready.slot.read else ready
            if ready.item:
                ready.item.end()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._reading.begin()
        self._making.here.calls = True
        with self._turns:
            self._making.mover.step()
            ready = self._interrupted
            if ready is None:
                with self._engine.policy_block("inline"):  # what is not run ahead runs here, not on a worker
                    ready = next(self._steps).get()
            try:
                return self._rest(ready)
            except EndOfLoader:
                raise StopIteration from None
            except StopIteration as error:  # it would end the loop
                raise RuntimeError("engine.torch.smart_stage: the step raised StopIteration") from error
            except TypeError as error:
                if "_AnalyzeCustomOpInputOutputMode" not in str(error):
                    raise
                raise engine.errors.UsageError(  # of torch's, which takes no tensors of other classes
                    "engine.torch.smart_stage: the step calls a model under torch.compile with tensors of the item, which backends "
                    "other than engine.torch.backend refuse; call it with engine.torch.plain(tensor)"
                ).with_traceback(error.__traceback__) from None

    @property
    def name(self) -> str:
        """The name that errors and the names of its threads use."""
        return self._steps.name

    @property
    def position(self) -> int:
        """How many items of the loader are done with, those that were skipped or ignored among them; a program that resumes
        passes it as ``skip``."""
        return self._skip - self._reading.missing + self._done(self._steps.position)

    def _done(self, position: int) -> int:
        """Items that are read in turn with the steps are asked for before it is known whether the loader has them."""
        position -= self._interrupted is not None
        return (position if self._reading.error is None else min(position, self._reading.items)) + self._left_out

    @property
    def report(self) -> dict[str, Any]:
        """As ``engine.data.SmartStage.report``; ``in_turn``: why there is no stage although one was asked for, or ''."""
        return {**self._steps.report, "in_turn": self._reading.why}

    def stats(self) -> dict[str, Any]:
        """As ``engine.data.SmartStage.stats``; ``position`` counts the items after those of ``skip``."""
        stats = self._steps.stats()
        return {**stats, "position": self._done(stats["position"]), "skipped": stats["skipped"] + self._reading.left_out}

    def explain(self) -> str:
        """Which calls run ahead of the step, why others do not, and what was decided, as text."""
        in_turn = f"no stage: {self._reading.why}\n" if self._reading.why else ""
        calls = f"{self._making.alone}, so only the loader runs ahead\n" if self._making.alone else self.program.explained()
        return in_turn + self._steps.explain() + calls

    def cancel(self) -> None:
        """Ends now; items that were read ahead are dropped, and the loader is let go. Waits half a second for the thread that reads the
        loader, and no longer, because the loader may wait for the program. May be repeated."""
        self._steps.cancel()
        self._turns.end()
        self._reading.end()

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "_reading"):
            self._reading.end()

    def __enter__(self) -> SmartStage:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


def _alone(step: Callable[[Any], Any]) -> str:
    """Why no call of the step can run ahead; '' if calls can."""
    if hasattr(step, "_torchdynamo_orig_callable") or type(step).__module__.startswith("engine.torch"):
        return "the step is compiled: no call inside it can be seen"
    fast = next((part for part in _modules(step) if isinstance(part, FAST)), None)
    if fast is not None and torch.backends.mha.get_fastpath_enabled():
        return f"the step has a {type(fast).__name__}, which in evaluation mode works otherwise with tensors that are not torch's own"
    return ""


def _modules(step: Callable[[Any], Any]) -> Iterator[torch.nn.Module]:
    """Those that the step reaches, also by way of the program's objects."""

    def inside(item: Any) -> Iterable[Any]:
        if isinstance(item, torch.nn.Module):
            return ()
        if (held := held_by(item)) or installed(type(item).__module__) and not isinstance(item, types.SimpleNamespace):
            return held
        return [*getattr(item, "__dict__", {}).values(), *([type(item).__call__] if callable(item) else [])]

    for item in walk([step, *reached(step, torch.nn.Module)], inside, _MOST_OBJECTS):
        if isinstance(item, torch.nn.Module):
            yield from item.modules()


class _Turns:
    """Lets threads run steps in turn, in the order of their items. More than ``most`` at once are refused."""

    def __init__(self, most: int) -> None:
        self._most, self._free, self._process = most, threading.Semaphore(most), os.getpid()
        self._changed = threading.Condition()  # for what follows
        self._owner, self._depth, self._ended = 0, 0, False  # of the turn: a thread, 0 for none; how often it has it

    def __enter__(self) -> None:
        if os.getpid() != self._process:  # a fork's child, where a thread of the parent may have the turn; the stage refuses it
            return
        if not self._free.acquire(blocking=False):
            raise engine.UsageError(
                f"engine.torch.smart_stage: more than num_clients ({self._most}) threads ask for steps at once; raise num_clients"
            )
        me = threading.get_ident()
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._owner in (0, me) or self._ended)
                if self._owner not in (0, me):
                    raise CancelledError("engine.torch.smart_stage: the stage has been cancelled")
                self._owner, self._depth = me, self._depth + 1
        except BaseException:  # Ctrl-C, too
            self._free.release()
            raise

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._process:
            return
        with self._changed:
            self._depth -= 1
            if self._depth == 0:
                self._owner = 0
                self._changed.notify()
        self._free.release()

    def end(self) -> None:
        """Who waits for a turn, behind a step that may never end, waits no longer."""
        if os.getpid() == self._process:
            with self._changed:
                self._ended = True
                self._changed.notify_all()


def _threads_of(options: SmartStageOptions) -> tuple[int, int]:
    """How many threads run the calls of one item side by side, and how many each call may use. Without a pool one; with
    one its intra_op_threads_num, and what its inter_op_threads_num leaves to each producer."""
    if not options.use_stage_subgraph_thread_pool:
        return 1, 1
    pools, number = engine.data.stage_pools(), options.stage_subgraph_thread_pool_id
    if not 0 <= number < len(pools):
        return 1, 1  # engine.data.smart_stage refuses it, and says which pools there are
    pool = pools[number]
    return max(1, pool["inter_op_threads_num"] // max(1, options.num_threads)), int(pool["intra_op_threads_num"])


def smart_stage(step: Callable[[Any], Any], loader: Any, options: SmartStageOptions | None = None, *, skip: int = 0,
                keep_freed_memory: bool = True, **fields: Any) -> SmartStage:  # fmt: skip
    """Runs ``step`` with each item of ``loader``; what does not depend on the model runs ahead if that is faster.

    ``for loss in engine.torch.smart_stage(step, loader, capacity=4): ...``. ``step``: a function of one item that trains,
    as it is written without a stage. ``loader``: a DataLoader, or anything that can be iterated; reading it runs ahead
    too. ``skip``: how many items are left out first, for a program that resumes at ``position``. ``keep_freed_memory``:
    False: malloc is not told to keep what tensors free, which would hold for the whole process. ``options``, ``fields``:
    engine.data.SmartStageOptions, but for ``input_state``; ``max_levels`` may be given, but there is one level. With
    ``stage_subgraph_on_cpu`` calls that move tensors to a device are made for all of an item's tensors at once, from one pinned
    buffer, and nothing behind them runs ahead. Calls that are too short to pay do
    not run ahead, unless ``guard_steps`` is 0. With a stage pool, as many
    threads as its inter_op_threads_num says run calls of one item side by side which do not need each other, and each call
    may use its intra_op_threads_num; without a pool both are one.
    """
    options = smart_options(options, fields, ("skip", "keep_freed_memory"))
    if not callable(step):
        raise TypeError(f"smart_stage: {an(type(step))} is no function")
    if options.graph is not None and options.graph is not step:
        raise engine.UsageError("smart_stage: its option graph is another function than its step; leave graph out")
    if not isinstance(options.input_state, (tuple, list)) or options.input_state:
        raise engine.UsageError("smart_stage: input_state is for ops of the engine's; a call of PyTorch that changes a tensor stays in the step")
    check_int("skip", skip, 0, 2**63 - 1, "smart_stage")
    check_type("keep_freed_memory", keep_freed_memory, bool, "True or False", "smart_stage")
    made = SmartStage(step, loader, skip, keep_freed_memory, options)
    note(made)
    return made
