"""What a captured graph calls, and what each call touches.

Everything is derived: what an operator changes from its schema, which tensors share memory from the storages of the fake
tensors that the capture left in ``meta["val"]``, random numbers from the operator's tags. What schemas do not say is known by
name: ``_UNSAID``, ``asks_for_grad_mode``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from .lines import line_of
from .refusals import Unsupported

OWN_NAMESPACES = {"aten", "prims", "prim", "quantized", "mkldnn", "mkl", "onednn", "sparse", "_c10d_functional"}
SIZES = {"aten::sym_size", "aten::sym_stride", "aten::sym_numel", "aten::sym_storage_offset", "aten::sym_is_contiguous"}
NOTHING = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}  # below autograd they are their input
RANDOM = ("random numbers", "default")
OUTSIDE = ("what custom operators touch",)
COLLECTIVE = ("what processes do together",)  # all must do it in one order, which is the graph's
_OF_PROCESSES = {"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "_dtensor", "symm_mem"}


@dataclass
class Call:
    """One call of the graph. ``reads`` and ``writes``: the storages, and the other things that order it."""

    node: Node
    target: Any
    args: tuple[Any, ...] = ()
    reads: set[Any] = field(default_factory=set)
    writes: set[Any] = field(default_factory=set)
    looks_only: bool = False  # a view, or a size: it touches no data
    may_copy: bool = False  # a view, or a copy where none is possible
    takes_gil: bool = False
    grad_mode: bool = False  # below autograd, too, the kernel asks for it
    from_list: bool = False
    title: str = ""  # where it is no operator, but does the work of several

    @property
    def name(self) -> str:
        return self.title or (str(self.target) if isinstance(self.target, torch._ops.OpOverload) else self.node.name)


def storages(value: Any) -> Iterator[Any]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is torch.sparse_coo:
                yield from (part.untyped_storage()._cdata for part in (leaf._indices(), leaf._values()))
            elif leaf.layout is torch.strided:
                yield leaf.untyped_storage()._cdata
            else:
                raise Unsupported(f"a tensor of layout {leaf.layout}")


# What changes arguments although its schema does not say so; by name: these arguments, and which other one must be true.
_UNSAID = ({f"aten::{name}": ("running_mean", "running_var", "training") for name in
            ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")} |
           {f"aten::{name}": ("running_mean", "running_var", "running_mean") for name in
            ("batch_norm_update_stats", "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")})  # fmt: skip


def changed(schema: Any, args: Sequence[Any]) -> Iterator[Any]:
    """The arguments that a call changes. ``args``: in the order of the schema."""
    given = dict(zip((argument.name for argument in schema.arguments), args))
    *unsaid, asked = _UNSAID.get(schema.name, ("",))
    for argument, value in zip(schema.arguments, args):
        said = argument.alias_info is not None and argument.alias_info.is_write
        if said or (argument.name in unsaid and given.get(asked) is not False):
            yield value


def touched(argument: Any) -> set[Any]:
    """The storages of what the nodes in an argument stand for. A constant that nothing stands for is a thing of its own."""
    found: set[Any] = set()
    for leaf in tree_leaves(argument):
        if isinstance(leaf, Node):
            value = leaf.meta.get("val")
            found |= {("constant", leaf.target)} if leaf.op == "get_attr" and value is None else set(storages(value))
    return found


def bound(node: Node, schema: Any) -> tuple[Any, ...]:
    """The call's arguments by the order of the schema, with defaults."""
    out = []
    for i, argument in enumerate(schema.arguments):
        if i < len(node.args) and not argument.kwarg_only:
            out.append(node.args[i])
        elif argument.name in node.kwargs:
            out.append(node.kwargs[argument.name])
        elif argument.has_default_value():
            out.append(argument.default_value)
        else:
            raise Unsupported(f"{node.target} without its argument '{argument.name}'")
    return tuple(out)


def call_of(node: Node) -> Call:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return _operator(node, target)
    module = getattr(target, "__module__", "") or ""
    if module in ("_operator", "operator", "math", "builtins") or module.startswith(("torch.fx.experimental", "torch.sym")) \
            or target in (torch.sym_int, torch.sym_float, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sum):  # fmt: skip
        if any(isinstance(v, torch.Tensor) for v in tree_leaves(node.meta.get("val"))):
            raise Unsupported(f"{target} on tensors")
        return Call(node, target, looks_only=True, takes_gil=True)
    raise Unsupported(f"{getattr(target, '__name__', target)} is no operator")


def asks_for_grad_mode(node: Node) -> bool:
    """Whether the kernel keeps what its backward needs only in grad mode, and the graph needs that."""
    workspace = 3  # among its outputs
    return node.target is torch.ops.aten.mkldnn_rnn_layer.default and any(u.args[1] == workspace and u.users for u in node.users)


def _operator(node: Node, op: torch._ops.OpOverload) -> Call:
    schema = op._schema
    args = bound(node, schema)
    if torch.Tag.inplace_view in op.tags or op.namespace == "aten" and schema.name in ("aten::set_", "aten::resize_"):
        file, line, text = line_of(node)
        raise Unsupported(f"{op} changes what a tensor is a view of, at {file}:{line}: {text}")
    call = Call(node, op, args)
    for value in args:
        call.reads |= touched(value)
    for value in changed(schema, args):
        call.writes |= touched(value)
    results = node.meta.get("val")
    made = set(storages(results)) - call.reads
    is_tensor = any(isinstance(v, torch.Tensor) for v in tree_leaves(results))
    call.looks_only = schema.name in SIZES or (is_tensor and not made and not call.writes)
    call.may_copy = op is torch.ops.aten.reshape.default
    call.writes |= made
    if torch.Tag.nondeterministic_seeded in op.tags:
        call.writes.add(RANDOM)
        call.looks_only = False
    if op.namespace not in OWN_NAMESPACES:
        if op.namespace != "engine_torch":
            call.writes |= {RANDOM, OUTSIDE}  # nobody says what it does besides
        call.takes_gil, call.looks_only = True, False
    if op.namespace in _OF_PROCESSES:
        call.writes.add(COLLECTIVE)
        call.looks_only = False  # to wait for one gives its own argument
    call.grad_mode = asks_for_grad_mode(node)
    returns = schema.returns
    call.from_list = len(returns) == 1 and returns[0].type.kind() == "ListType"
    return call


KIND_OF_LIST = {"TensorType": "T", "IntType": "i", "SymIntType": "i", "FloatType": "f", "BoolType": "b", "NumberType": "n"}


def argument(value: Any, kind: Any, slot: Any) -> tuple[str, Any]:
    """An argument for the adapter (make.h). ``kind``: its type in the schema. ``slot``: the slot of a node."""
    while kind.kind() == "OptionalType":
        if value is None:
            return ("c", None)
        kind = kind.getElementType()
    name = kind.kind()
    if isinstance(value, Node):
        return ({"TensorType": "w", "FloatType": "d"}.get(name, "s"), slot(value))
    if name == "ListType":
        element, optional = kind.getElementType(), False
        while element.kind() == "OptionalType":
            element, optional = element.getElementType(), True
        code = "O" if optional and element.kind() == "TensorType" else KIND_OF_LIST.get(element.kind())
        if code is None:
            raise Unsupported(f"an argument of type {kind}")
        items = value if isinstance(value, (list, tuple)) else [value] * getattr(kind, "size", 1)
        return (code, [argument(item, kind.getElementType(), slot) for item in items])
    if name == "TensorType" and isinstance(value, (bool, int, float, complex)):
        return ("W", value)
    if name == "FloatType" and isinstance(value, (int, float)):
        return ("c", float(value))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise Unsupported(f"the symbolic number {value} as a constant")
    if isinstance(value, torch.Generator):
        raise Unsupported("a random generator of the program's own")
    return ("c", value)


