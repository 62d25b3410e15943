"""From a captured graph to a program: slots, calls, nodes and their order."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from .calls import COLLECTIVE, NOTHING, RANDOM, Call, argument, call_of, storages
from .failures import raised_by
from .options import Options
from .products import can_be_shared, kernel_of, product_of, work_of
from .refusals import Unsupported
from .updates import Update, native_of, updates_of

# A stand-in may lie otherwise in memory than the tensor that its operator makes, as behind a batch norm of a tensor that was turned.
_aten = torch.ops.aten
_COPYING = {_aten.view.default: _aten.reshape.default, _aten._unsafe_view.default: _aten.reshape.default}
_IN_ROWS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default, _aten.embedding.default}  # whatever they are given
_BY_STRIDES = {_aten.as_strided.default, _aten._reshape_alias.default}


def let_views_copy(module: GraphModule) -> None:
    """What is a view of a stand-in may need a copy of the tensor, which reshape makes where it must, as it does eagerly."""
    for node in module.graph.nodes:
        if node.target in _COPYING:
            node.target = _COPYING[node.target]
    module.recompile()


@dataclass
class Step:
    """What the engine orders: one call, or those of one parameter's update, and the views of what they make."""

    calls: list[int] = field(default_factory=list)
    reads: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)


@dataclass
class Lowered:
    """A program for the adapter. Slots, calls and steps are numbers."""

    calls: list[Call]
    specs: list[tuple[Any, ...]]  # by call: for the adapter
    steps: list[Step]
    prologue: list[int]
    inputs: list[int]
    outputs: list[tuple[str, Any]]
    constants: list[tuple[int, Any]]
    readers: list[int]
    state: list[int]  # calls that change an input

    def description(self) -> tuple[Any, ...]:
        nodes = [(step.calls, sorted(step.reads), f"engine: {self.name(i)}") for i, step in enumerate(self.steps)]
        return (self.readers, self.inputs, self.outputs, self.constants, self.specs, nodes, self.prologue)

    def name(self, step: int) -> str:
        return self.main(step).name

    def main(self, step: int) -> Call:
        return self.calls[self.steps[step].calls[0]]

    def by(self, step: int) -> str:
        """Who makes the step's product of matrices, if it is not torch."""
        return next(filter(None, (kernel_of(self.specs[c][-1]) for c in self.steps[step].calls)), "")

    def shared(self) -> set[int]:
        """The steps of which idle threads of a run may take a part: large products beside which there is less to do than they are
        themselves. Where there is more, a thread that takes all of another step has not to be waited for."""
        behind = [0] * len(self.steps)  # by step: those that come behind it, as bits
        before = [0] * len(self.steps)
        for i, step in enumerate(self.steps):  # they stand in an order in which they can run
            for at in step.before:
                before[i] |= before[at] | 1 << at
        for i in reversed(range(len(self.steps))):
            for at in self.steps[i].before:
                behind[at] |= behind[i] | 1 << i
        work = {i: sum(work_of(self.specs[c][-1]) for c in step.calls) for i, step in enumerate(self.steps)}
        products = [i for i, size in work.items() if size]
        large = [i for i in products if any(can_be_shared(self.specs[c][-1]) for c in self.steps[i].calls)]
        of_products = sum(1 << i for i in products)
        return {i for i in large if work[i] > sum(work[at] for at in _numbers(of_products & ~(before[i] | behind[i] | 1 << i)))}

    @property
    def has_collectives(self) -> bool:
        return any(COLLECTIVE in call.writes for call in self.calls)

    def edges(self) -> list[tuple[int, int]]:
        return [(before, i) for i, step in enumerate(self.steps) for before in sorted(step.before)]


class Lowering:
    def __init__(self, module: GraphModule, options: Options) -> None:
        self.module, self.options = module, options
        self.slots: dict[Node, int] = {}
        self.made_in: dict[int, int | None] = {}  # slot -> step that makes it; None: before the run
        self.readers: list[int] = []
        self.steps: list[Step] = []
        self.calls: list[Call] = []
        self.specs: list[tuple[Any, ...]] = []
        self.prologue: list[int] = []
        self.constants: list[tuple[int, Any]] = []
        self.inputs: list[int] = []
        self.outputs: list[tuple[str, Any]] = []
        self.writer: dict[Any, int] = {}
        self.maker: dict[Any, int] = {}  # the first that has written it
        self.users: dict[Any, set[int]] = defaultdict(set)
        self.groups: dict[int, int] = {}
        self.given: set[Any] = set()  # storages of the inputs
        self.one: dict[Any, Any] = module.meta.get("engine_one_thing", {})  # storages of the same memory (overlaps.py)
        self.state: list[int] = []
        self.updates: dict[Node, Update] = updates_of(module.graph)
        self.left_out = {node for update in self.updates.values() for node in update.instead}

    def run(self) -> Lowered:
        graph: Graph = self.module.graph
        for node in graph.nodes:
            if node.op == "placeholder":
                self.placeholder(node)
            elif node.op == "get_attr":
                self.constant(node)
            elif node.op == "call_function":
                self.call(node)
            elif node.op == "output":
                self.output(node)
            else:
                raise Unsupported(f"a node of kind {node.op}")
        self.count()
        return Lowered(self.calls, self.specs, self.steps, self.prologue, self.inputs, self.outputs, self.constants,
                       self.readers, self.state)  # fmt: skip

    def slot(self, made_in: int | None) -> int:
        self.readers.append(0)
        self.made_in[len(self.readers) - 1] = made_in
        return len(self.readers) - 1

    def placeholder(self, node: Node) -> None:
        self.given |= self.things(storages(node.meta.get("val")))
        if node.users:
            self.slots[node] = self.slot(None)
        self.inputs.append(self.slots.get(node, -1))

    def things(self, touched: Iterable[Any]) -> set[Any]:
        return {self.one.get(thing, thing) for thing in touched}

    def constant(self, node: Node) -> None:
        value = operator.attrgetter(str(node.target))(self.module)
        if isinstance(value, torch.nn.Module):
            return  # a branch of torch.cond, say: the call that it belongs to says what is not supported
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"the constant '{node.target}' of type {type(value).__name__}")
        self.slots[node] = self.slot(None)
        self.constants.append((self.slots[node], value))

    def call(self, node: Node) -> None:
        if node in self.left_out:
            return
        if node in self.updates:
            self.update(self.updates[node])
            return
        if node.target is operator.getitem and isinstance(node.args[0], Node) and node in self.slots:
            return  # an output of a call
        outputs_graph = any(user.op == "output" for user in node.users)
        if node.target in NOTHING and not outputs_graph:
            self.slots[node] = self.slots[node.args[0]]  # type: ignore[index]
            return
        call = call_of(node)
        if node.target in _BY_STRIDES:
            self.refuse_if_unsure(call)
        if raised_by(node):
            call.reads.add(RANDOM)  # so that its error finds as many random numbers drawn as eagerly
        number = len(self.calls)
        reads = sorted({self.slots[n] for n in node.all_input_nodes})
        producers = {self.made_in[s] for s in reads} - {None}
        step: int | None
        if call.looks_only and not producers:
            step = None
            self.prologue.append(number)
        elif call.looks_only and len(producers) == 1 and not (call.may_copy and self.rewritten(call, producers)):
            step = producers.pop()
        else:
            step = self.step_of(node)
            self.order(call, step, producers)  # type: ignore[arg-type]
        if step is not None:
            self.steps[step].calls.append(number)
            self.steps[step].reads |= set(reads)
        changes = bool(self.things(call.writes) & self.given)
        if changes:
            self.state.append(number)
        self.calls.append(call)
        self.specs.append(self.spec(call, step, changes))

    def refuse_if_unsure(self, call: Call) -> None:
        """Unsupported for a view by the strides of a stand-in where those of the tensor may be others: where what it was made of is not
        contiguous, or it is not itself. What has one dimension is, as is what was asked for as such."""
        for made in {self.calls[self.steps[self.maker[thing]].calls[0]].node for thing in call.reads if thing in self.maker}:
            sure = made.target in _IN_ROWS or made.kwargs.get("memory_format") is torch.contiguous_format
            of = [] if sure else made.all_input_nodes
            tensors = [t for n in (made, *of) for t in tree_leaves(n.meta.get("val")) if isinstance(t, torch.Tensor) and t.layout is torch.strided]
            if any(t.dim() > 1 for t in tensors[:1]) and not all(t.is_contiguous() for t in tensors):
                raise Unsupported(f"{call.name}, whose strides may be others than in the capture")

    def rewritten(self, call: Call, producers: set[Any]) -> bool:
        """Whether others have changed what a call reads since it was made, so that a copy at that place would be too early."""
        return any(self.writer.get(thing) not in producers for thing in self.things(call.reads))

    def update(self, update: Update) -> None:
        """Several calls of the graph as one, which updates rows of a table."""
        call = Call(update.node, update.node.target, title=update.name)
        call.reads = {thing for node in update.given for thing in storages(node.meta.get("val"))}
        call.writes = {thing for node in update.changed for thing in storages(node.meta.get("val"))}
        reads = {self.slots[node] for node in update.given}
        step = self.step_of(update.node)
        self.order(call, step, {made for slot in reads if (made := self.made_in[slot]) is not None})
        self.steps[step].calls.append(len(self.calls))
        self.steps[step].reads |= reads
        self.state.append(len(self.calls))
        self.calls.append(call)
        schema = update.node.target._schema  # type: ignore[union-attr]
        self.specs.append(((schema.name, schema.overload_name), [("s", self.slots[node]) for node in update.given], [],
                           False, False, False, True, update.spec(), None))  # fmt: skip

    def step_of(self, node: Node) -> int:
        """A new step, or that of the call's group: calls that capture made one after the other (capture.py)."""
        group = node.meta.get("engine_group")
        if group in self.groups:
            return self.groups[group]
        self.steps.append(Step())
        if group is not None:
            self.groups[group] = len(self.steps) - 1
        return len(self.steps) - 1

    def order(self, call: Call, step: int, producers: set[int]) -> None:
        before, reads, writes = set(producers), self.things(call.reads), self.things(call.writes)
        for thing in reads | writes:
            if thing in self.writer:
                before.add(self.writer[thing])
        for thing in writes:
            before |= self.users.pop(thing, set())
            self.writer[thing] = step
            self.maker.setdefault(thing, step)
        for thing in reads - writes:
            self.users[thing].add(step)
        self.steps[step].before |= before - {step}

    def spec(self, call: Call, step: int | None, changes: bool) -> tuple[Any, ...]:
        outs = self.outs(call, step)
        if isinstance(call.target, torch._ops.OpOverload):
            schema = call.target._schema
            args = [argument(v, a.type, self.slots.__getitem__) for a, v in zip(schema.arguments, call.args)]
            native = native_of(call)
            return ((schema.name, schema.overload_name), args, outs, call.from_list, call.takes_gil and native is None,
                    call.grad_mode, changes, native, product_of(call, self.options))  # fmt: skip
        nodes = list(call.node.all_input_nodes)
        return (_closure(call.node, nodes), [("s", self.slots[n]) for n in nodes], outs, False, True, False, changes, None, None)

    def outs(self, call: Call, step: int | None) -> list[int]:
        """The slots of the outputs. A call with several has a getitem for each that is needed."""
        node = call.node
        value = node.meta.get("val")
        if isinstance(value, (list, tuple)):
            outs = [-1] * len(value)
            for user in node.users:
                if user.target is not operator.getitem:
                    raise Unsupported(f"{call.name} gives several values to {user.target}")
                if user not in self.slots:
                    index = user.args[1]
                    if outs[index] < 0:
                        outs[index] = self.slot(step)
                    self.slots[user] = outs[index]
            return outs
        if not node.users:
            return []
        self.slots[node] = self.slot(step)
        return [self.slots[node]]

    def output(self, node: Node) -> None:
        returned = node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
        for value in returned:
            if isinstance(value, Node):
                self.outputs.append(("s", self.slots[value]))
            else:
                self.outputs.append(("c", value))

    def count(self) -> None:
        """How many steps release each slot. What the caller needs at the end is one more."""
        for step in self.steps:
            for slot in step.reads:
                self.readers[slot] += 1
        for _, slot in (o for o in self.outputs if o[0] == "s"):
            self.readers[slot] += 1
        for slot, _ in self.constants:
            self.readers[slot] = -1
        for slot, count in enumerate(self.readers):
            made = self.made_in[slot]
            if count == 0 and made is not None:  # made beside what is needed
                self.readers[slot] = 1
                self.steps[made].reads.add(slot)


def _numbers(bits: int) -> Iterable[int]:
    """Which bits are set."""
    while bits:
        yield (lowest := bits & -bits).bit_length() - 1
        bits ^= lowest


def _closure(node: Node, nodes: list[Node]) -> Any:
    """The call of a function that is no operator, as a function of the values of its nodes."""
    target, args, kwargs = node.target, node.args, node.kwargs
    place = {n: i for i, n in enumerate(nodes)}

    def call(*given: Any) -> Any:
        return target(*map_arg(args, lambda n: given[place[n]]), **map_arg(kwargs, lambda n: given[place[n]]))  # type: ignore[operator]

    return call


def lower(module: GraphModule, options: Options) -> Lowered:
    """Unsupported: the graph holds something that no program can do."""
    return Lowering(module, options).run()
