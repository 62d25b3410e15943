"""Captures a whole training step as one graph: forward, backward, and the optimizers' updates."""

from __future__ import annotations

import contextvars
import functools
import logging
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from .arguments import LEFT_OUT, Spec, Unseen, flat, returnable
from .calls import storages
from .drawing import ordered_draws
from .failures import look_at_classes, refuse_if_handled
from .finish import Taken, finish
from .lines import line_of, line_of_caller
from .modes import EAGER, IN_ORDER
from .optimizers import UpdatedTogether, counted
from .overlaps import Memory, one_thing
from .refusals import NotYet, SetBack, Unsupported, capturing, refusals_raised, refused
from .rows import opaque_rows
from .stand_ins import Made, alike, is_another, refuse_what_has_no_answer
from .state import State
from .surroundings import same
from .tracing import Tracing, behind


@dataclass
class Captured:
    """``module`` takes the state's tensors, the tensors among the arguments and the numbers, in this order."""

    module: GraphModule
    state: State
    tensors: list[int]  # which leaves of the arguments are tensors
    numbers: list[tuple[UpdatedTogether, list[str]]] = field(default_factory=list)  # what gives numbers to a run, and the names of these
    returned: Spec | None = None
    constants: list[Any] = field(default_factory=list)  # by output: what is no tensor, or None
    afterwards: list[Callable[[], None]] = field(default_factory=list)  # what Python has to do once a step has been done
    held: list[int | None] = field(default_factory=list)  # by tensor: which of the state's it is, or None
    needing: list[int] = field(default_factory=list)  # which leaves of the arguments require gradients
    writes: bool = False  # whether it changes its arguments
    without: list[torch.Tensor] = field(default_factory=list)  # that must have no gradient yet: the step would add to it
    rates: list[tuple[Any, int, dict[str, Any]]] = field(default_factory=list)  # that the step reads: optimizer, group, values
    left: list[torch.Tensor] = field(default_factory=list)  # of which a run leaves gradients: its outputs behind those of the step
    cleared: list[torch.Tensor] = field(default_factory=list)  # of which it leaves none

    def changed(self) -> str:
        """What is no longer as this one needs it, though others may; '' if nothing."""
        if any(len(part.counts()) > 1 for part, _ in self.numbers):
            return "how often an optimizer has updated each parameter"
        for part, _ in self.numbers:
            if why := part.switched():
                return why
        for optimizer, group, rates in self.rates:
            if not all(same(rate, optimizer.param_groups[group].get(name)) for name, rate in rates.items()):
                return "a learning rate or another number of an optimizer that it reads"
        return ""

    def clear(self) -> None:
        for tensor in self.cleared:
            tensor.grad = None

    def mode_for(self, leaves: list[Any]) -> str:
        """How a call must run whose arguments share memory that the plan takes for separate; '' if they do not."""
        tensors = [leaves[i] for i in self.tensors]
        if [self.state.number.get(id(t)) for t in tensors] != self.held:
            return EAGER
        if any(t.grad is not None for t in self.without) or has_gradient([leaves[i] for i in self.needing]):
            return EAGER
        memory = self.state.memory
        assert memory
        return IN_ORDER if memory.met(tensors, self.writes) else ""


_OTHER_GRADIENTS = {torch.prod, torch.cumprod, torch.Tensor.prod, torch.Tensor.cumprod}
_OTHER_GRADIENTS_OF_A_VALUE = {torch.masked_fill, torch.Tensor.masked_fill, torch.Tensor.masked_fill_}  # of their third argument
# torch logs, with tracebacks, what it cannot trace; the step says it in a line of its own.
logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda _: not capturing())
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class _Calls(TorchFunctionMode):
    """Sees each call of torch that the step makes. A tensor of the state that the program reached by another way than its
    module, as by a list of parameters or an optimizer's groups, is replaced by what stands for it. Notes, for each call that
    is captured, the program's line that it comes from."""

    def __init__(self, tracing: Tracing, outside: CodeType) -> None:
        """``outside``: the code of what calls the step."""
        super().__init__()
        self.tracing, self.outside = tracing, outside

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_what_has_no_answer(func)
        if func == _SET_DATA and id(args[0]) not in self.tracing.numbers_of and id(args[0]) not in self.tracing.state.number:
            raise Unsupported("it gives a tensor other data (x.data = ...), which a run of its plan would not; change that in place, as by "
                              "x.copy_()")  # fmt: skip
        if func is torch.Tensor.__eq__ and self.tracing.real(args[0]) is self.tracing.real(args[1]) and args[0] is not args[1]:
            return True  # a tensor and what stands for it, as where a set is asked for one
        foreign: list[torch.Tensor] = []
        args, kwargs = self.stood_in(args, foreign), self.stood_in(kwargs or {}, foreign)
        mode = get_proxy_mode()
        if mode is None:
            return func(*args, **kwargs)
        graph = mode.tracer.graph
        last = graph._root.prev
        try:
            if func is torch.nn.functional.one_hot:
                look_at_classes(*args, **kwargs)
            result = func(*args, **kwargs)
        except (TypeError, AttributeError):  # eager raises these, too
            raise
        except Exception as error:
            refused(f"it handles an error that a call of torch's raises in the capture, and need not raise in a run: {type(error).__name__}")
            raise
        value = kwargs.get("value", args[2:3]) if func in _OTHER_GRADIENTS_OF_A_VALUE else result if func in _OTHER_GRADIENTS else None
        if torch.is_grad_enabled() and any(isinstance(part, torch.Tensor) and part.requires_grad for part in tree_leaves(value)):
            raise Unsupported(f"a gradient through {func.__name__}, which torch computes in another way while it is captured")
        self.tracing.made.note(result)
        if foreign and any(isinstance(made, torch.Tensor) and made.requires_grad for made in tree_leaves(result)):
            raise Unsupported(f"a gradient of a tensor {tuple(foreign[0].shape)} that is no parameter of a module which the step "
                              "reaches; name the modules: compile_step(step, modules=[...])")  # fmt: skip
        if last.next is not graph._root:
            line, frame = line_of_caller(), sys._getframe(1)
            for node in behind(last, graph):
                node.meta.setdefault("engine_line", line)
                refuse_if_handled(node, frame, self.outside)
        return result

    def stood_in(self, value: Any, foreign: list[torch.Tensor]) -> Any:
        """``foreign`` gets the tensors with gradients of their own that nothing stands for."""
        if isinstance(value, torch.Tensor):
            number = self.tracing.state.number.get(id(value))
            if number is not None:
                return self.tracing.tensors[number]
            mode = get_proxy_mode()
            if mode is None or not is_another(value):
                return value
            if value.requires_grad:
                foreign.append(value)
            return self.tracing.found.stood_in(value, self.tracing.tensors[0].fake_mode, mode.tracer)
        if isinstance(value, dict):
            return {name: self.stood_in(v, foreign) for name, v in value.items()}
        if type(value) in (tuple, list):
            return type(value)([self.stood_in(v, foreign) for v in value])
        return value


def has_gradient(arguments: list[torch.Tensor]) -> bool:
    """Whether one that a step may send a gradient to comes with one, to which eager would add."""
    return any(t.requires_grad and t.is_leaf and t.grad is not None for t in arguments)


def capture(step: Callable[..., Any], state: State, leaves: list[Any], spec: Spec) -> Captured:
    """``leaves``, ``spec``: the arguments (arguments.py). Unsupported, or what torch raises, where the step cannot be captured.
    Runs nothing and changes nothing."""
    made, error = Made(), None
    try:
        return _captured(step, state, leaves, spec, made)
    except BaseException as raised:  # Ctrl-C, too
        error = raised
        raise
    finally:
        if made.outlive(error) and error is None:
            raise Unsupported("it keeps a tensor that it computed, as a function with functools.lru_cache does, where the capture does "
                              "not look; keep such tensors in buffers, or compute them before")  # fmt: skip


def _captured(step: Callable[..., Any], state: State, leaves: list[Any], spec: Spec, made: Made) -> Captured:
    """Captures as if each parameter had a gradient, to see which of these the step takes, and again without such ones."""
    there = [t.grad for t in state.tensors]
    lent = {i for i, t in enumerate(state.tensors) if t.grad is None and t.requires_grad and t.is_leaf}
    without: set[int] = set()
    while lent:
        gradients = [torch.empty_like(t) if i in lent else there[i] for i, t in enumerate(state.tensors)]
        try:
            return _in_a_context(_traced, step, state, leaves, spec, gradients, without, made)
        except Taken as taken:
            used = lent & taken.numbers
        except SetBack:
            raise
        except Exception:  # as where an optimizer would update what has no gradient
            used = lent
        without, lent = without | used, lent - used if used else set()
    return _in_a_context(_traced, step, state, leaves, spec, there, without, made)


def _in_a_context(traced: Callable[..., Captured], *args: Any) -> Captured:
    """In one of its own, so that context variables are afterwards what they were."""
    return contextvars.copy_context().run(traced, *args)


def _traced(step: Callable[..., Any], state: State, leaves: list[Any], spec: Spec, gradients: list[Any], without: set[int],
            made: Made) -> Captured:  # fmt: skip
    """``gradients``: of the state's tensors, before. ``without``: the numbers of those that must have none."""
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    count, told = len(state.tensors), {}
    there = [t.grad for t in state.tensors]

    def whole(given: list[torch.Tensor], inputs: list[torch.Tensor], before: list[torch.Tensor | None]) -> list[Any]:
        filled = [LEFT_OUT if type(leaf) is Unseen else leaf for leaf in leaves]
        for place, tensor in zip(places, inputs):
            filled[place] = tensor
        for tensor, gradient in zip(given, before):
            if gradient is not None:
                tensor.grad = gradient
        tracing = told["tracing"] = Tracing(state, given, counts, made)
        needed = [t.requires_grad for t in inputs]
        in_args, in_kwargs = spec.closed(filled)
        parts, structure = flat((in_args, in_kwargs))
        with state.swapped(given), alike(state.tensors, given), tracing.installed(), _Calls(tracing, whole.__code__):
            with refusals_raised():
                returned = step(*in_args, **in_kwargs)
            out, told["returned"] = flat(returned)
            results = [o.detach() if isinstance(o, torch.Tensor) else None for o in out]
        results += tracing.gradients_left(before, without)
        told["constants"] = [None if isinstance(o, torch.Tensor) else o for o in out]
        if any(a.grad is not None for a in inputs if a.requires_grad and a.is_leaf):
            raise Unsupported("it leaves a gradient of an argument in .grad; clear that at its end, or return it")
        if any(t.requires_grad is not before and t.grad_fn is None for t, before in zip(inputs, needed)):
            raise Unsupported("it changes which of its arguments require gradients, which a run of its plan would not")
        now, same = flat((in_args, in_kwargs))
        if same != structure or any(a is not b for a, b in zip(now, parts)):
            raise Unsupported("it changes what a list, a dict or another object among its arguments holds")
        return results

    # An object of its own for each: one that is also a constant, or given twice, would be taken for the same input.
    if has_gradient([leaves[i] for i in places]):
        raise NotYet("an argument that has a gradient already, to which a run would not add")
    counts = state.counts()
    inputs = [_of_its_own(leaves[i]) for i in places]
    for tensor in state.tensors:
        tensor.grad = None  # one that is there afterwards has come to a parameter past what stands for it
    try:
        with state.watched(lambda tensor: told["tracing"].real(tensor)), opaque_rows(), ordered_draws():
            module = make_fx(whole, tracing_mode="fake", _allow_non_fake_inputs=True)(list(state.tensors), inputs, gradients)
    finally:
        touched = any(t.grad is not None for t in state.tensors)
        for tensor, gradient in zip(state.tensors, there):
            tensor.grad = gradient
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten._local_scalar_dense.default):
        file, line, text = line_of(node)
        raise Unsupported(f"it reads a number out of a tensor, as .item() and float() do, at {file}:{line}: {text}")
    for value in told["constants"]:
        returnable(value)
    constants = {n: operator.attrgetter(str(n.target))(module) for n in module.graph.find_nodes(op="get_attr")}
    (output,) = module.graph.find_nodes(op="output")
    if any(isinstance(made, FakeTensor) for made in [*constants.values(), *tree_leaves(output.args)]):
        raise Unsupported("it computes with tensors on another thread, as of a pool, whose calls no capture sees; make these calls one after "
                          "the other")  # fmt: skip
    if touched or any(id(constant) in state.number for constant in constants.values()):
        raise Unsupported("a parameter that is neither found in its module nor given to a function of torch, such as one that "
                          "an autograd.Function is given")  # fmt: skip
    tracing = told["tracing"]
    tracing.found.behind(module.graph, count)
    finish(module, count + len(tracing.found.tensors) + len(inputs), gradients, tracing.marks)
    state.find(tracing.found.tensors)
    captured = Captured(module, state, places, without=[state.tensors[i] for i in sorted(without)])
    captured.numbers, captured.rates = tracing.numbers, tracing.rates
    captured.left, captured.cleared = tracing.left, tracing.cleared
    for part, _ in tracing.numbers:
        if any(isinstance(part.optimizer.state[p].get("step"), int) for p in part.updated if p in part.optimizer.state):
            captured.afterwards.append(functools.partial(counted, part.optimizer, part.updated))
    for optimizer in {id(part.optimizer): part.optimizer for part, _ in tracing.numbers}.values():
        if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            captured.afterwards.append(functools.partial(setattr, optimizer, "_opt_called", True))  # as a scheduler's wrapper does
    captured.returned, captured.constants = told["returned"], told["constants"]
    _share(captured, {n: c for n, c in constants.items() if isinstance(c, torch.Tensor)})
    captured.needing = [i for i in places if leaves[i].requires_grad]
    captured.held = [state.number.get(id(leaves[i])) for i in places]
    return captured


def _of_its_own(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.requires_grad:
        return tensor
    return torch.nn.Parameter(tensor.detach(), False) if type(tensor) is torch.nn.Parameter else tensor.detach()


def _share(captured: Captured, constants: dict[Node, torch.Tensor]) -> None:
    """Notes what shares memory among state and constants: for lower.py, and for the calls to come."""
    module, state = captured.module, captured.state
    given = module.graph.find_nodes(op="placeholder")[: len(state.tensors)]
    mode = next(n.meta["val"] for n in given).fake_mode
    for node, constant in constants.items():
        node.meta["val"] = mode.from_tensor(constant)  # that of the trace, so its views are known, too
    memory = state.memory = Memory([*state.tensors, *constants.values()])
    module.meta["engine_one_thing"] = one_thing([list(storages(n.meta["val"])) for n in (*given, *constants)], memory.groups)
