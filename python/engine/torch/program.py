"""A program: a captured graph, ready to run: on the engine where there is an adapter, else as Python calls."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule

import engine

from .. import _core
from . import adapter
from .calls import asks_for_grad_mode
from .lines import line_of
from .lower import Lowered, let_views_copy, lower
from .memory import keep_freed_memory
from .modes import IN_ORDER, IN_TURN, INDUCTOR, WORKERS
from .options import Options
from .refusals import Unsupported

if TYPE_CHECKING:
    from .fused import Fused

MOST_SHARING = 255  # threads of one node: NodeDesc::threads
WINDOW = {"start_step": 2, "stop_step": 10}  # runs that cost_model measures


class NodeTime(ctypes.Structure):
    """engine::NodeTime."""

    _fields_ = [("begin", ctypes.c_int64), ("end", ctypes.c_int64), ("worker", ctypes.c_int), ("busy", ctypes.c_int64),
                ("bytes", ctypes.c_uint64)]  # fmt: skip


@functools.cache
def engine_for(workers: int) -> engine.Engine:
    """The engine of all programs with so many threads. It makes no thread before the first run with workers."""
    return engine.Engine(workers=workers, thread_name="torch", policy="cost_model", **WINDOW)


@contextlib.contextmanager
def _below_autograd() -> Iterator[None]:
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


class Program:
    """``run(inputs, mode)`` runs the graph and returns its outputs. ``why_not``: why it runs as Python calls; else ''."""

    def __init__(self, module: GraphModule, options: Options, name: str) -> None:
        let_views_copy(module)
        self.module, self.options, self.name = module, options, name
        self.why_not = ""
        self.lowered: Lowered | None = None
        self.fused: Fused | None = None
        self.times: Any = None
        self.timed = 0  # runs with workers that have been timed, for explain
        self.pid = os.getpid()
        self.grad_mode = any(map(asks_for_grad_mode, module.graph.nodes))
        native = adapter.load()
        if native is None:
            self.why_not = "there is no adapter"
            return
        try:
            self.lowered = lower(module, options)
            self.native = native.program(self.lowered.description())
        except (Unsupported, TypeError, RuntimeError) as error:  # the latter two: what the adapter does not know
            self.why_not, self.lowered = str(error).split("\n")[0], None
            return
        if options.keep_freed_memory:
            keep_freed_memory()
        self._run = native.run
        self._compile(native.node_function())

    def _compile(self, function: int) -> None:
        assert self.lowered
        graph = _core.Graph()
        frame = graph.input("frame")
        shared = self.lowered.shared()
        for i in range(len(self.lowered.steps)):
            file, line, _ = line_of(self.lowered.main(i).node)
            threads = min(self.options.team, MOST_SHARING) if i in shared else 1
            _core.add_native(graph, function, i, frame, self.lowered.name(i), file, line, threads)
        for before, after in self.lowered.edges():
            graph.order(before, after)
        self.engine = engine_for(self.options.team)
        self.plan = graph.compile(self.engine, name=self.name)
        self._address = _core.plan_address(self.plan)

    @property
    def steps(self) -> int:
        return len(self.lowered.steps) if self.lowered else 0

    def settled(self) -> bool:
        """Whether cost_model has measured the nodes and decided on a schedule."""
        return not self.steps or self.options.policy != "cost_model" or \
            self.plan.explain()["state"] in ("scheduled", "went back")  # fmt: skip

    def run(self, inputs: list[Any], mode: str, times: Any = None) -> list[Any]:
        """Empties ``inputs``. Raises what the call that failed raised, with the model's line. ``times``: an array of a
        NodeTime for each node, which the run fills; in runs of the engine's nodes only."""
        if self.lowered is None:
            given, inputs[:] = list(inputs), []
            with _below_autograd() if self.grad_mode else torch.no_grad():
                result = self.module(*given)
            return list(result) if isinstance(result, (list, tuple)) else [result]
        if mode == INDUCTOR and self.fused and os.getpid() == self.pid:  # OpenMP's threads stayed in the parent, too
            return self.fused.run(inputs)
        try:
            return self._run(self.native, inputs, self.way(mode, times))
        except Exception as error:
            raise self.told(error) from None

    def way(self, mode: str, times: Any = None) -> tuple[int, str, int, int, Any]:
        """For the adapter: the address of a plan, or 0 for the order of the graph; its policy; threads of the caller's kernels, or 0
        for as many as there are; the address of ``times``, or 0; and ``times``, which another thread's run may replace here."""
        policy, threads, plan = "inline", 0, self._address
        if mode == WORKERS:
            policy, threads = self.options.policy, 1
        elif mode in (IN_TURN, IN_ORDER, INDUCTOR):
            threads = 1
        elif self.options.intra_op_threads:
            threads = self.options.intra_op_threads
        if not self.steps or mode == IN_ORDER or os.getpid() != self.pid:
            plan = 0  # in the order of the graph; the engine's threads stayed in the parent
        if times is None and mode == WORKERS and plan and self.timed < 2:  # the second one counts: the first one warms up
            self.timed += 1
            times = self.times = (NodeTime * self.steps)()
        return plan, policy, threads, ctypes.addressof(times) if times else 0, times

    def told(self, error: Exception) -> Exception:
        """What a run raised, with the model's line."""
        call, changed = getattr(error, "engine_torch_failed", (None, 0))
        if call is None:
            return error
        assert self.lowered
        failed = self.lowered.calls[call]
        file, line, text = line_of(failed.node)
        where = f"at {file}:{line}: {text}" if file else "at a line that is not known"
        state = ""
        if changed:
            state = f"; {changed} of {len(self.lowered.state)} changes of parameters and buffers had been made"
        elif self.lowered.state:
            state = "; parameters and buffers are those before the call"
        note = f"\nengine.torch: in {failed.name}, {where}{state}"
        if error.args and isinstance(error.args[0], str):
            error.args = (error.args[0] + note, *error.args[1:])
        elif hasattr(error, "add_note"):
            error.add_note(note.strip())
        return error
