"""Chains of pointwise operators of a served program, each of which becomes one node of the adapter (serve_nodes.h)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from .refusals import Unsupported
from .served_views import Affine, View, affines

if TYPE_CHECKING:
    from .served_lower import Lowering

aten = torch.ops.aten
MOVE, ADD, SUB, MUL, DIV, MAX, MIN, RELU, SIGMOID, TANH, EXP, SQRT, RSQRT, NEG, ABS, RECIPROCAL, NOT, AND, OR, EQUAL, NOT_EQUAL, \
    GREATER, GREATER_EQUAL, LESS, LESS_EQUAL, WHERE = range(26)  # serve_math.h  # fmt: skip
MOST_REGISTERS = 24  # of 2 KiB: they stay in the nearest cache

ARITHMETIC = {aten.mul.Tensor: MUL, aten.div.Tensor: DIV, aten.maximum.default: MAX, aten.minimum.default: MIN,
              aten.relu.default: RELU, aten.sigmoid.default: SIGMOID, aten.tanh.default: TANH, aten.exp.default: EXP,
              aten.sqrt.default: SQRT, aten.rsqrt.default: RSQRT, aten.neg.default: NEG, aten.abs.default: ABS,
              aten.reciprocal.default: RECIPROCAL, aten.mul.Scalar: MUL, aten.div.Scalar: DIV, aten.clamp_min.default: MAX,
              aten.clamp_max.default: MIN}  # fmt: skip
LOGIC = {aten.logical_not.default: NOT, aten.bitwise_not.default: NOT, aten.logical_and.default: AND, aten.bitwise_and.Tensor: AND,
         aten.logical_or.default: OR, aten.bitwise_or.Tensor: OR, aten.eq.Scalar: EQUAL, aten.ne.Scalar: NOT_EQUAL,
         aten.gt.Scalar: GREATER, aten.ge.Scalar: GREATER_EQUAL, aten.lt.Scalar: LESS, aten.le.Scalar: LESS_EQUAL,
         aten.eq.Tensor: EQUAL, aten.ne.Tensor: NOT_EQUAL, aten.gt.Tensor: GREATER, aten.ge.Tensor: GREATER_EQUAL,
         aten.lt.Tensor: LESS, aten.le.Tensor: LESS_EQUAL}  # fmt: skip
OPERATORS = ARITHMETIC | LOGIC  # with their arguments as operands
COMPARES_WITH_0 = {aten.eq.Scalar, aten.ne.Scalar}
ACTS = {aten.relu.default: RELU, aten.sigmoid.default: SIGMOID, aten.tanh.default: TANH}  # that a product may end with

BEFORE_STEP = object()  # an operand: what the step before has made
Steps = list[tuple[int, tuple[Any, ...]]]  # operator, operands: a node, a number or BEFORE_STEP


def steps_of(node: Node) -> Steps | None:
    """What the adapter does for the operator; None: torch does it."""
    value, args = node.meta.get("val"), node.args
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.bool) or value.layout != torch.strided:
        return None
    steps = _steps(node, args)
    if steps is None:
        return None
    logic = node.target in LOGIC
    if node.target is not aten.where.self and (value.dtype == torch.bool) != logic and node.target is not aten.clone.default:
        return None
    for _, operands in steps:
        for operand in operands:
            if isinstance(operand, Node):
                of = operand.meta.get("val")
                if of is not None and not isinstance(of, torch.Tensor):
                    return None
                if of is not None and of.dtype not in (torch.float32, torch.bool) and not (
                        of.dtype == torch.int64 and node.target in COMPARES_WITH_0 and args[1] == 0):  # fmt: skip
                    return None
                if of is not None and of.dtype != value.dtype and node.target is aten.where.self and operand is not args[0]:
                    return None
            elif operand is not BEFORE_STEP and not isinstance(operand, (int, float, bool)):
                return None
    return steps


def _steps(node: Node, args: tuple[Any, ...]) -> Steps | None:
    target, kwargs = node.target, node.kwargs
    if target in (aten.clone.default, aten._to_copy.default):
        return [(MOVE, args[:1])]
    if target in (aten.add.Tensor, aten.sub.Tensor):
        op = ADD if target is aten.add.Tensor else SUB
        alpha = kwargs.get("alpha", 1)
        return [(op, args[:2])] if alpha == 1 else None
    if target is aten.pow.Tensor_Scalar and args[1] in (2, 0.5):
        return [(MUL, (args[0], args[0]))] if args[1] == 2 else [(SQRT, args[:1])]
    if target is aten.hardtanh.default:
        least, most = [*args[1:], *(-1.0, 1.0)[len(args) - 1 :]]
        return None if kwargs else [(MAX, (args[0], least)), (MIN, (BEFORE_STEP, most))]
    if target in (aten.clamp.default, aten.clamp.Tensor):
        given = [*args[1:], None, None]
        least, most = kwargs.get("min", given[0]), kwargs.get("max", given[1])
        steps: Steps = [(MAX, (args[0], least))] if least is not None else []
        if most is not None:
            steps.append((MIN, (BEFORE_STEP if steps else args[0], most)))
        return steps or None
    if target is aten.where.self:
        return [(WHERE, args)]
    if target is aten.full.default and isinstance(args[1], (int, float, bool)):
        return [(MOVE, (args[1],))]
    return None if kwargs or target not in OPERATORS else [(OPERATORS[target], args)]  # type: ignore[index]


@dataclass(eq=False)
class Group:
    """Operators over tensors of equal sizes, in one node."""

    position: int
    sizes: tuple[Affine, ...]
    registers: dict[Any, int] = field(default_factory=dict)  # by node, view or number
    loads: list[tuple[int, View]] = field(default_factory=list)
    steps: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    numbers: list[tuple[int, float]] = field(default_factory=list)
    made: dict[Node, View] = field(default_factory=dict)
    inside: set[tuple[Node, Node]] = field(default_factory=set)  # (maker, user): read from a register

    def register(self, key: Any) -> int:
        return self.registers.setdefault(key, len(self.registers))

    def operand(self, lowering: Lowering, operand: Any, node: Node) -> int:
        if isinstance(operand, Node):
            if operand in self.made:
                self.inside.add((operand, node))
                return self.registers[operand]
            view = lowering.view(operand)
            known = view in self.registers
            register = self.register(view)
            if not known:
                self.loads.append((register, view))
            return register
        number = float(operand)
        known = ("number", number) in self.registers
        register = self.register(("number", number))
        if not known:
            self.numbers.append((register, number))
        return register

    def add(self, lowering: Lowering, node: Node, steps: Steps) -> None:
        before = -1
        for i, (op, operands) in enumerate(steps):
            given = [before if o is BEFORE_STEP else self.operand(lowering, o, node) for o in operands]
            before = self.register(node if i == len(steps) - 1 else ("step", node, i))
            self.steps.append((op, *[*given, -1, -1][:3], before))  # type: ignore[arg-type]
        self.made[node] = lowering.views[node] = lowering.memory.view(node.meta["val"], self.position)

    def stored(self) -> list[Node]:
        """What somebody reads from memory."""
        return [node for node in self.made if any((node, user) not in self.inside for user in node.users)]

    def told(self) -> tuple[Any, list[View], list[View]]:
        stores = [(self.registers[node], self.made[node]) for node in self.stored()]
        reads = [view for _, view in self.loads]
        what = ([(r, v.broadcast(self.sizes).told()) for r, v in self.loads], [(r, v.told()) for r, v in stores], self.steps,
                self.numbers, len(self.registers))  # fmt: skip
        return ("w", what), reads, [v for _, v in stores]


def pointwise(lowering: Lowering, node: Node, steps: Steps) -> None:
    """Joins the last chain that makes an operand, or the last node, if all else that the operator needs is there before that chain."""
    sizes = affines(node.meta["val"].shape)
    operands = [o for _, given in steps for o in given if isinstance(o, Node)]
    for view in (lowering.view(o) for o in operands):
        view.broadcast(sizes)  # refuses what is no broadcast
    groups = {g for o in operands if isinstance(g := lowering.maker.get(o), Group)}
    groups |= {g for g in lowering.nodes[-1:] if isinstance(g, Group)}  # beside it, it need not be read again
    for group in sorted(groups, key=lambda g: -g.position):
        if group.sizes == sizes and len(group.registers) + 2 + len(operands) <= MOST_REGISTERS \
                and all(o in group.made or lowering.view(o).made < group.position for o in operands):  # fmt: skip
            break
    else:
        group = Group(lowering.next(node), sizes)
        lowering.nodes.append(group)
        if not all(lowering.view(o).made < group.position for o in operands):
            raise Unsupported(f"{node.target} before what it reads")
    lowering.maker[node] = group
    group.add(lowering, node, steps)
