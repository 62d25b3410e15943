"""compile_step: a whole training step as one plan."""

from __future__ import annotations

import functools
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.optim import Optimizer

import engine

from .arguments import Spec, flat, kinds_of, signatures, taken_apart
from .calls import storages
from .capture import Captured, capture
from .lines import is_torch
from .modes import EAGER, IN_TURN, INDUCTOR, Choice, ways
from .numerics import around
from .options import Options, options_of
from .program import Program
from .reach import reached
from .refusals import NotYet, SetBack, Unsupported, capturing
from .state import State
from .surroundings import Wrapper

MOST_CAPTURES = 8  # of different shapes; as torch's recompile limit
MOST_SET_BACK = 2  # calls, one after the other, that find modules in evaluation although the step lets them train
clock = time.perf_counter


class Ready:
    """A captured step for one signature of arguments."""

    def __init__(self, captured: Captured, leaves: list[Any], options: Options, name: str) -> None:
        self.captured = captured
        self.program = Program(captured.module, options, name)
        if self.program.why_not:
            raise Unsupported(self.program.why_not)
        given = captured.module.graph.find_nodes(op="placeholder")[len(captured.state.tensors) :][: len(captured.tensors)]
        arguments = {s for n in given for s in storages(n.meta.get("val"))}
        captured.writes = any(call.writes & arguments for call in self.program.lowered.calls)  # type: ignore[union-attr]
        candidates = ways([IN_TURN, EAGER], options.kernel_threads, options.has_workers)  # the first is the one to beat
        if options.partition == "inductor" and self._fuse(leaves):
            candidates.append(INDUCTOR)
        self.choice = Choice(candidates, warm=options.warm)

    def _fuse(self, leaves: list[Any]) -> bool:
        captured, program = self.captured, self.program
        assert program.lowered
        numbers = sum(len(names) for _, names in captured.numbers)
        inputs = [*captured.state.tensors, *(leaves[i] for i in captured.tensors)]
        from .fused import Fused  # imports Inductor, which takes a second

        try:
            if captured.writes:
                raise Unsupported("the step changes its arguments")  # which may share memory with each other next time
            program.fused = Fused(captured.module, program.lowered, inputs, numbers)
        except Exception as error:  # whatever Inductor raises
            _warn(f"engine.torch: the step '{program.name}' runs without Inductor: {_reason(error, '')}")
        return program.fused is not None

    def run(self, leaves: list[Any], mode: str, times: Any = None) -> Any:
        """``times``: as Program.run takes them."""
        captured = self.captured
        inputs: list[Any] = list(captured.state.tensors)
        inputs += [leaves[i] for i in captured.tensors]
        for part, names in captured.numbers:
            now = part.numbers()
            inputs += [now[name] for name in names]
        outputs = self.program.run(inputs, mode, times)
        for act in captured.afterwards:
            act()
        captured.clear()
        for tensor, gradient in zip(captured.left, outputs[len(captured.constants) :]):
            tensor.grad = gradient
        returned = [o if c is None else c for o, c in zip(outputs, captured.constants)]
        assert captured.returned is not None
        return captured.returned.closed(returned)


class CompiledStep(Wrapper):
    """A function that does what its step does, as one plan where that can be captured and is faster."""

    def __init__(self, step: Callable[..., Any], options: Options, modules: list[nn.Module] | None,
                 optimizers: list[Optimizer] | None) -> None:  # fmt: skip
        functools.update_wrapper(self, step)
        self.step, self.options = step, options
        self.name = getattr(step, "__name__", type(step).__name__)
        self._modules, self._optimizers = modules, optimizers
        self._lock = threading.RLock()  # a step may call itself
        self.ready: dict[Any, Ready] = {}
        self.captures = 0
        self.recaptured = ""  # why it was last captured again
        self.failed = ""  # why this call could not be captured, where the same error may come from the step itself
        self.begun = False  # whether a call has returned, and made what optimizers and lazy modules make late
        self.set_back: dict[Any, str] = {}  # by kind of arguments and which modules trained: that the step sets these otherwise
        self.in_a_row = 0  # calls that found modules so, one after the other
        self.told_full = False  # that arguments of other kinds than the captured ones run eagerly
        self.why_eager = "" if options.capture_step else "capture_step is False"
        self.last: Ready | None = None  # that of the last call
        self.attribute = self.owner = ""  # of a class whose method it is, and the class: a method may call the one that it overrides
        self.ours = frozenset(vars(self).keys() - getattr(step, "__dict__", {}).keys())

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute, self.owner = name, f"{owner.__module__}.{owner.__qualname__}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Of a method in a class: the compiled step of each object, which is kept there."""
        if instance is None:
            return self
        held = getattr(instance, "__dict__", None)
        if held is None:
            raise engine.errors.UsageError(f"engine.torch: an object of {type(instance).__name__} has no __dict__ to keep a compiled step in")
        key = f"_engine_step_{self.owner}.{self.attribute}"
        bound = held.get(key)
        if bound is None or bound.step.__self__ is not instance or bound.step.__func__ is not self.step:  # that of what was copied
            bound = CompiledStep(types.MethodType(self.step, instance), self.options, self._modules, self._optimizers)
            bound.attribute, bound.owner = self.attribute, self.owner
            if isinstance(instance, type):  # of a classmethod; a class's __dict__ cannot be written
                setattr(instance, key, bound)
            else:
                held[key] = bound
        return bound

    def __reduce__(self) -> Any:
        """A function is copied as itself, a method with its object."""
        if isinstance(self.step, types.FunctionType):
            return self.__qualname__  # type: ignore[attr-defined]
        if self.attribute and isinstance(self.step, types.MethodType):
            return getattr, (self.step.__self__, self.attribute)
        return CompiledStep, (self.step, self.options, self._modules, self._optimizers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step and returns what the step returns, with tensors detached. Waits for the whole step."""
        if capturing():  # as a part of another one
            return self._eager(args, kwargs)
        with self._lock:
            return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.why_eager or not self.begun or (settings := around()) is None:
            result = self._eager(args, kwargs)
            self.begun = True
            return result
        found = self._ready_for(args, kwargs, settings)
        if found is None:
            return self._instead(args, kwargs)
        ready, leaves = found
        self.last, self.in_a_row = ready, 0
        if forced := ready.captured.mode_for(leaves):
            return self._run(ready, forced, leaves, args, kwargs)
        choice = ready.choice
        mode, measured = choice.next()
        begin = clock() if measured else 0.0
        result = self._run(ready, mode, leaves, args, kwargs)
        if measured:
            choice.add(mode, clock() - begin)
        elif choice.preparing:
            choice.warmed(ready.program.settled)
        return result

    def _ready_for(self, args: tuple[Any, ...], kwargs: dict[str, Any], settings: Hashable) -> tuple[Ready, list[Any]] | None:
        """What is captured for a call with such arguments and ``settings`` around it, now if need be, and the arguments' leaves. None: it runs
        eagerly."""
        try:
            leaves, spec, structure = taken_apart(args, kwargs)
            key = (structure, settings, *signatures(leaves))
        except Unsupported as unseen:
            self._eagerly(str(unseen))
            return None
        before, ready = self.ready, self.ready.get(key)
        if ready is not None and (why := ready.captured.state.changed()):
            if told := self.set_back.get((key, ready.captured.state.surroundings.parts.trains())):
                self._set_back(told)
                return None
            self.ready = {}
            ready = self.last = None
            self.recaptured = why
        if ready is not None and (why := ready.captured.changed()):
            del self.ready[key]
            ready = None
            self.recaptured = why
        ready = ready or self._capture(key, leaves, spec, before)
        return (ready, leaves) if ready else None

    def _instead(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An eager call, where none could be captured. If it raises, as for a batch of a wrong shape, that says nothing of other calls."""
        failed, self.failed = self.failed, ""
        try:
            result = self._eager(args, kwargs)
        except Exception:
            self.captures -= bool(failed)
            raise
        if failed and not self.why_eager:  # a step that calls itself has said so already
            self._eagerly(failed)
        return result

    def _eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self.step(*args, **kwargs)
        try:
            leaves, spec = flat(result)
        except Unsupported:
            return result
        if not any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            return result  # the step's own object, which it may keep
        return spec.closed([leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])

    def _run(self, ready: Ready, mode: str, leaves: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if mode != EAGER:
            return ready.run(leaves, mode)
        result = self._eager(args, kwargs)
        ready.captured.clear()  # so that the gradients are left that a run leaves
        return result

    def _set_back(self, why: str) -> None:
        """Before an eager call, behind which modules train as the captures need it. If several calls in a row find them otherwise, they
        never are, and the step is left to eager."""
        self.in_a_row += 1
        if self.in_a_row > MOST_SET_BACK:
            self._eagerly(why)

    def _capture(self, key: Any, leaves: list[Any], spec: Spec, before: dict[Any, Ready]) -> Ready | None:
        """``before``: what was captured, for which modules may only train otherwise."""
        if self.captures >= 4 * MOST_CAPTURES:
            why = f"; the last was {self.recaptured}" if self.recaptured else ""
            self._eagerly(f"it was captured {self.captures} times, for arguments or state that keep changing{why}")
            return None
        if len(self.ready) >= MOST_CAPTURES:
            if not self.told_full:
                _warn(f"engine.torch: the step '{self.name}' was captured for {MOST_CAPTURES} kinds of arguments (shapes, types, values that "
                      "are no tensors); calls with others run eagerly")  # fmt: skip
            self.told_full = True
            return None
        self.captures += 1
        try:
            of_arguments = [*(leaf for leaf in leaves if isinstance(leaf, (nn.Module, type))), *kinds_of(spec)]
            state = State(self.step, self._modules or self._reached(nn.Module, leaves),
                          self._optimizers or self._reached(Optimizer, leaves), of_arguments)  # fmt: skip
            if not state.optimizers:
                raise Unsupported("it reaches no optimizer; name them: compile_step(step, modules=[...], optimizers=[...])")
            captured = capture(self.step, state, leaves, spec)
            ready = Ready(captured, leaves, self.options, self.name)
        except SetBack as error:
            self.set_back[key, state.surroundings.parts.trains()] = str(error)
            self.ready = before
            self._set_back(str(error))
            return None
        except NotYet:  # this call runs eagerly, and the next one tries again
            return None
        except Unsupported as error:
            self._eagerly(_reason(error))
            return None
        except Exception as error:  # whatever torch raises while it traces, or the step does
            self.failed = _reason(error)
            return None
        self.ready[key] = ready
        return ready

    def _reached(self, kind: type, leaves: list[Any]) -> list[Any]:
        found = [*reached(self.step, kind), *(leaf for leaf in leaves if isinstance(leaf, kind))]
        return list({id(f): f for f in found}.values())

    def _eagerly(self, why: str) -> None:
        self.why_eager, self.last = why, None
        self.ready.clear()  # which keep the tensors that they were captured with
        _warn(f"engine.torch: the step '{self.name}' runs eagerly: {why}")

    def __repr__(self) -> str:
        return f"<engine.torch.compile_step {self.name}{', eager' if self.why_eager else ''}>"


def _warn(text: str) -> None:
    """Of the program's line that has called the step."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and is_torch(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


_NUMBER = "it reads a number out of a tensor, as .item(), float(), `if tensor:` and torch.equal() do"
_SAID = {GuardOnDataDependentSymNode: _NUMBER, DataDependentOutputException: _NUMBER,
         DynamicOutputShapeException: "it makes a tensor whose size only the data say"}  # fmt: skip


def _reason(error: Exception, by_torch: str = "torch cannot trace it: ") -> str:
    """Why a step that runs eagerly could not be captured, with the program's line if it is torch's own error."""
    text = str(error).strip().split("\n")[0] or type(error).__name__
    if isinstance(error, Unsupported):
        return text
    lines = [f"{t.filename}:{t.lineno}: {t.line}" for t in traceback.extract_tb(error.__traceback__) if not is_torch(t.filename)]
    said = _SAID.get(type(error), f"{by_torch}{type(error).__name__}: {text}")
    return said + (f" (at {lines[-1]})" if lines else "")


def compile_step(step: Callable[..., Any] | None = None, *, modules: Iterable[nn.Module] | None = None,
                 optimizers: Iterable[Optimizer] | None = None, options: Mapping[str, Any] | None = None) -> Any:  # fmt: skip
    """A training step as one plan: forward, backward and optimizers. Also as a decorator.

    ``step``: a function of a batch that clears gradients, computes a loss, calls backward() and steps its optimizers
    (SGD, Adam, AdamW, Adagrad, SparseAdam). ``modules``, ``optimizers``: those whose state it changes; None: those that it reaches
    through its closure, its globals or its object. The first call runs eagerly, the second captures, the next ones
    measure. Afterwards gradients are not left in ``.grad``, and what is returned is detached. ``options``: as for
    torch.compile. engine.UsageError for an unknown option.
    """
    chosen = options_of(options)
    if chosen.weights == "fixed":
        raise engine.errors.UsageError("engine.torch: weights 'fixed' is for torch.compile; a step changes its weights")
    if step is None:
        return functools.partial(compile_step, modules=modules, optimizers=optimizers, options=options)
    return CompiledStep(step, chosen, None if modules is None else list(modules),
                        None if optimizers is None else list(optimizers))  # fmt: skip
