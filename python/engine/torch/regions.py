"""The backend of torch.compile."""

from __future__ import annotations

import copy
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._guards import TracingContext
from torch.autograd import grad_mode
from torch.fx import GraphModule

import engine

from . import adapter
from .backward import is_around, not_tensors, shared_outputs, trained_graph
from .measured import Measured
from .modes import EAGER, IN_TURN, Choice, ways
from .options import Options, options_of
from .program import Program
from .staged import Staged, plain

WATCHED = ("hooks of saved tensors are around it, as of torch.utils.checkpoint, which makes it run twice and asks that both runs save the "
           "same tensors")  # fmt: skip
TOGETHER = "it has collectives, which all processes must make in one order; eagerly a backward pass may have another one"
_numbers = itertools.count()
compiled: weakref.WeakSet[Region] = weakref.WeakSet()  # for explain


class _Here(threading.local):
    """Of a thread that calls a graph: the way that its last call runs, backward too, and what is measured of it."""

    mode = IN_TURN
    pending: Measured | None = None


class Region:
    """What Dynamo gave as one graph: eager, or as programs of the engine, whichever measures faster."""

    def __init__(self, module: GraphModule, inputs: list[Any], options: Options) -> None:
        self.eager = _restoring(module)
        self.options = options
        self.programs: dict[str, Program] = {}  # "forward" and "backward", or "inference"
        self.number = next(_numbers)
        self.called = False
        self.trained: Any = None  # for calls without AOTAutograd's wrapper
        self.needs_wrapper = ""  # why, where these cannot be made
        self._meta: Any = None  # AOTAutograd's, of the graph, until the backward pass is compiled
        self._inputs, self._not_tensors = len(inputs), not_tensors(module, inputs)
        # Those that the first call was given, by id: as a set they would be compared by their numbers.
        self.parameters: weakref.WeakValueDictionary[int, torch.nn.Parameter] = weakref.WeakValueDictionary()
        self.here = _Here()
        partition = default_partition if options.partition == "default" else min_cut_rematerialization_partition
        with torch._functorch.config.patch(donated_buffer=False):  # else a graph could not go backward twice
            self.compiled = aot_autograd(fw_compiler=self._compiler("forward"), bw_compiler=self._compiler("backward"),
                                         inference_compiler=self._compiler("inference"), partition_fn=partition,
                                         keep_inference_input_mutations=True)(module, inputs)  # fmt: skip
        self.choice = Choice(self._candidates(), warm=options.warm)
        self._hold_together()
        self._find_trained()
        compiled.add(self)

    def _compiler(self, kind: str) -> Callable[..., Any]:
        def compile(graph: GraphModule, _: list[Any]) -> Callable[..., Any]:
            # Constants that are made now must be tensors, not the fakes that the compiler works with.
            if kind == "forward":
                context = TracingContext.try_get()
                self._meta = context and context.fw_metadata
                self.needs_wrapper = self._not_tensors or shared_outputs(self._meta, graph)
            with torch.utils._python_dispatch._disable_current_modes():
                program = self.programs[kind] = Program(graph, self.options, kind)
                if hasattr(self, "choice"):  # a backward pass that is compiled late
                    self._hold_together()
                    self._find_trained()

            def call(args: list[Any]) -> list[Any]:
                return program.run(args, self.here.mode)

            call._boxed_call = True  # type: ignore[attr-defined]
            return call

        return compile

    def _hold_together(self) -> None:
        if any(p.lowered and p.lowered.has_collectives for p in self.programs.values()):
            self.choice.hold(IN_TURN, TOGETHER)

    def _find_trained(self) -> None:
        if "backward" not in self.programs or self.needs_wrapper:
            return
        meta, self._meta = self._meta, None
        if meta is not None:  # else another thread's backward pass has been compiled before
            self.trained, self.needs_wrapper = trained_graph(meta, self.programs["forward"], self.programs["backward"], self._inputs)

    def _call(self, *args: Any) -> Any:
        """As programs of the engine."""
        if self.trained is None or is_around():
            return self.compiled(*args)
        forward, mode = self.programs["forward"], self.here.mode
        try:
            return adapter.load().train(self.trained, args, mode, forward.way(mode))  # type: ignore[union-attr]
        except Exception as error:
            raise forward.told(error) from None

    def _candidates(self) -> list[str]:
        if not any(p.lowered for p in self.programs.values()):
            return [EAGER, IN_TURN]
        # The first is the one to beat. Training must not be slower than eagerly, so that takes evidence. Requests are mostly short, and
        # clients disturb each other's measurements, so what takes evidence there is to be eager.
        first = [IN_TURN, EAGER] if "inference" in self.programs else [EAGER, IN_TURN]
        return ways(first, self.options.kernel_threads, self.options.has_workers)

    def __call__(self, *args: Any) -> Any:
        if Staged in map(type, args):  # of a smart stage: torch's own checks of a first call refuse the class
            args = tuple([plain(a) if type(a) is Staged else a for a in args])
        here = self.here
        if here.pending is not None:
            if not here.pending.backward:
                here.pending.tell()
            here.pending = None
        elif not self.called:
            self.called = True
            self.parameters.update({id(a): a for a in args if isinstance(a, torch.nn.Parameter)})
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None and self.choice.because != WATCHED:
            self.choice.hold(EAGER, WATCHED)
        mode, measured = self.choice.next()
        call = self.eager if mode == EAGER else self._call
        here.mode = mode if mode != EAGER else IN_TURN
        if measured:
            here.pending = Measured(self.choice, mode)
            try:
                return here.pending.forward(call, args)
            except BaseException:
                here.pending = None  # what it cost tells nothing
                raise
        if self.choice.preparing:
            self.choice.warmed(lambda: all(p.settled() for p in self.programs.values()))
        return call(*args)


_OF_MODES = {"_set_grad_enabled", "_enter_autocast", "_enter_inference_mode"}  # calls in a graph that end with another call


class _Inside(threading.local):
    def __init__(self) -> None:
        self.inference: list[Any] = []  # of each inference mode that graphs on this thread are inside of: what ends it


_inside = _Inside()


def _enter_inference_mode(on: bool) -> Any:
    _inside.inference.append(grad_mode._enter_inference_mode(on))
    return _inside.inference[-1]


def _exit_inference_mode(mode: Any) -> None:
    _inside.inference.remove(mode)
    grad_mode._exit_inference_mode(mode)


_NOTED = {grad_mode._enter_inference_mode: _enter_inference_mode, grad_mode._exit_inference_mode: _exit_inference_mode}


def _noting(module: GraphModule) -> Callable[..., Any]:
    """The graph, which notes its inference modes. Torch ends one when the object dies that stands for it: behind an error that is when
    the graph's frame dies, which lives as long as the exception, and then nested ones end in the wrong order."""
    graph = copy.deepcopy(module.graph)
    for node in graph.nodes:
        node.target = _NOTED.get(node.target, node.target)
    return GraphModule(module, graph).forward


def _restoring(module: GraphModule) -> Callable[..., Any]:
    """Runs the graph eagerly. An error inside of ``no_grad``, ``autocast`` or ``inference_mode`` leaves these as they were before."""
    forward = module.forward  # the module's own call would look for hooks first
    names = {getattr(node.target, "__name__", "") for node in module.graph.nodes}
    if names.isdisjoint(_OF_MODES):
        return forward
    if "_enter_inference_mode" in names:
        forward = _noting(module)

    def run(*args: Any) -> Any:
        grad, kinds = torch.is_grad_enabled(), ("cpu", "cuda")
        before = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]
        cached, nesting, entered = torch.is_autocast_cache_enabled(), _autocast_nesting(), len(_inside.inference)
        try:
            return forward(*args)
        except BaseException:
            while len(_inside.inference) > entered:
                _exit_inference_mode(_inside.inference[-1])
            torch._C._set_grad_enabled(grad)
            for kind, enabled, dtype in before:
                torch.set_autocast_enabled(kind, enabled)
                torch.set_autocast_dtype(kind, dtype)
            torch.set_autocast_cache_enabled(cached)
            while _autocast_nesting() > nesting:
                if torch.autocast_decrement_nesting() == 0:
                    torch.clear_autocast_cache()
            raise

    return run


def _autocast_nesting() -> int:
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting


def backend(module: GraphModule, inputs: list[Any], options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """``torch.compile(model, backend="engine", options={...})``: the graph's nodes run on the engine.

    ``options``: policy, workers, intra_op_threads, partition, products, weights, keep_freed_memory, capture_step
    (docs/torch.md); engine.UsageError for others.
    """
    chosen = options_of(options, capture_step=False)
    if chosen.capture_step:
        raise engine.errors.UsageError("torch.compile sees the forward pass only, so it captures no step; "
                                "use engine.torch.compile_step(step)")  # fmt: skip
    if chosen.partition == "inductor":
        raise engine.errors.UsageError("engine.torch: partition 'inductor' is for compile_step; "
                                "torch.compile has the backend \"inductor\"")  # fmt: skip
    region = Region(module, inputs, chosen)

    def call(*args: Any) -> Any:
        return region(*args)

    call.engine_region = region  # type: ignore[attr-defined]
    return call


def regions_of(function: Any) -> set[Region]:
    """The graphs that Dynamo has made of a function's own code, and of what is behind its graph breaks."""
    found: set[Region] = set()
    code, held = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    for entry in _debug_get_cache_entry_list(code) if code else ():
        for name in entry.code.co_names:
            called = held.get(name)
            if name.startswith("__compiled_fn_"):
                region = getattr(getattr(called, "_torchdynamo_orig_callable", called), "engine_region", None)
                found |= {region} - {None}
            elif name.startswith("__resume_at_"):
                found |= regions_of(called)
    return found
