"""What optimizers do while a step is captured: their updates become calls of the graph."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from .finish import Numbers
from .groups import Groups, led
from .optimizers import UpdatedTogether
from .refusals import NotYet, Unsupported
from .stand_ins import Found, Made
from .state import State


class _Kept(dict[str, Any]):
    """What an optimizer keeps of a parameter, while its step is captured."""

    def __missing__(self, name: str) -> Any:
        raise NotYet(f"an optimizer keeps no '{name}' of a parameter yet")


class Tracing:
    """What optimizers do while a step is captured."""

    def __init__(self, state: State, tensors: list[torch.Tensor], counts: dict[tuple[int, int], float], made: Made) -> None:
        self.state, self.tensors, self.made = state, tensors, made
        self.numbers_of = {id(t): i for i, t in enumerate(tensors)}
        self.found = Found()
        self.counts = counts  # by ids of an optimizer and a parameter: how often the one had updated the other before
        self.done: Counter[tuple[int, int]] = Counter()  # likewise: in this step
        self.updated: set[int] = set()  # ids of parameters
        self.marks = Numbers()
        self.numbers: list[tuple[UpdatedTogether, list[str]]] = []
        self.rates: list[tuple[Any, int, dict[str, Any]]] = []
        self.left: list[torch.Tensor] = []  # parameters whose gradients the step leaves in .grad
        self.cleared: list[torch.Tensor] = []  # and those of which it leaves none, or only one that it has updated with
        self.groups = 0

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.tensors[self.state.number[id(tensor)]]

    def real(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of the state that another stands for, or itself."""
        number = self.numbers_of.get(id(tensor))
        if number is not None:
            return self.state.tensors[number]
        return next((t for t, fake in zip(self.found.tensors, self.found.fakes) if fake is tensor), tensor)

    def gradients_left(self, before: list[Any], without: set[int]) -> list[torch.Tensor]:
        """The gradients that the step leaves of parameters which it does not update, as where their optimizer steps elsewhere. Unsupported
        where the next step would add to one, as a plan would not."""
        left = []
        for number, (tensor, gradient) in enumerate(zip(self.tensors, before)):
            if tensor.grad is gradient and gradient is not None:
                continue
            real = self.state.tensors[number]
            if tensor.grad is None or id(real) in self.updated and number not in without:
                self.cleared += [real] if tensor.requires_grad or gradient is not None else []
                continue
            if number in without:
                raise Unsupported("gradients that are added up over several steps: it leaves some in .grad, and does not clear them "
                                  "before it goes backward")  # fmt: skip
            if tensor.grad.requires_grad or tensor.grad.layout is not torch.strided:
                raise Unsupported("it leaves a gradient in .grad that is sparse, or has a graph of its own (create_graph=True)")
            self.left.append(real)
            left.append(tensor.grad)
        return left

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        optimizers = self.state.optimizers
        own = [{n: o.__dict__[n] for n in ("step", "zero_grad") if n in o.__dict__} for o in optimizers]  # of a scheduler
        every = {id(optimizer): Groups(optimizer) for optimizer in optimizers}
        steps = {id(optimizer): self.stepper(optimizer, every[id(optimizer)]) for optimizer in optimizers}
        try:
            for optimizer in optimizers:
                optimizer.step = steps[id(optimizer)]  # type: ignore[method-assign]
                optimizer.zero_grad = self.zeroer(optimizer)  # type: ignore[method-assign]
            with led(steps):
                yield
            for groups in every.values():
                groups.check_all()
                self.rates += groups.fixed()
        finally:
            for groups in every.values():
                groups.restore()
            for optimizer, before in zip(optimizers, own):
                for name in ("step", "zero_grad"):
                    optimizer.__dict__.pop(name, None)
                optimizer.__dict__.update(before)

    def zeroer(self, optimizer: Any) -> Callable[..., None]:
        def zero_grad(set_to_none: bool = True) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if set_to_none or self.of(parameter).grad is None:
                        self.of(parameter).grad = None
                    else:
                        gradient = self.of(parameter).grad
                        gradient.detach_() if gradient.grad_fn is not None else gradient.requires_grad_(False)
                        gradient.zero_()

        return zero_grad

    def stepper(self, optimizer: Any, groups: Groups) -> Callable[..., None]:
        rule = self.state.rules[self.state.optimizers.index(optimizer)]

        @torch.no_grad()
        def step(closure: Any = None) -> None:
            if closure is not None:
                raise Unsupported("an optimizer that is given a closure")
            groups.check()
            for number, stand_in in enumerate(groups.stand_ins):
                group = dict(dict.items(stand_in))  # reading it is not the step's
                updated = [p for p in group["params"] if self.of(p).grad is not None]
                parts: dict[Any, list[Any]] = {}  # by how often they have been updated, on which numbers of the run depend
                for p in updated:
                    both = id(optimizer), id(p)
                    parts.setdefault((self.counts.get(both), self.done[both]) if rule.counts else (None, 0), []).append(p)
                for (_, done), part in parts.items():
                    self.update(UpdatedTogether(optimizer, rule, number, part, done, bool(group.get("momentum"))), group)

        return step

    def update(self, part: UpdatedTogether, group: dict[str, Any]) -> None:
        optimizer, rule = part.optimizer, part.rule
        names: dict[str, float] = {}

        def number(name: str) -> float:
            if name not in names:
                names[name] = self.marks.mark()
            return names[name]

        for p in part.updated:
            self.done[id(optimizer), id(p)] += 1
            self.updated.add(id(p))
            with self.grouped():
                gradient = self.of(p).grad
                if gradient.is_sparse not in rule.sparse:
                    kind = "sparse" if gradient.is_sparse else "dense"
                    raise Unsupported(f"{type(optimizer).__name__} with {kind} gradients")
                kept = {name: value for name, value in dict.items(optimizer.state.get(p, {})) if value is not None}
                rule.update(self.of(p), gradient, _Kept(kept), group, number)
        self.numbers.append((part, list(names)))

    @contextlib.contextmanager
    def grouped(self) -> Iterator[None]:
        """The calls made inside become one node of the plan."""
        mode = get_proxy_mode()
        assert mode is not None
        graph = mode.tracer.graph
        last = graph._root.prev
        yield
        self.groups += 1
        for node in behind(last, graph):
            node.meta["engine_group"] = self.groups


def behind(last: Node, graph: Graph) -> Iterator[Node]:
    """The calls that the graph has got since this one was its last."""
    node = last.next
    while node is not graph._root:
        yield node
        node = node.next
