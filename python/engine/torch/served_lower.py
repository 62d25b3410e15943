"""Lowers an exported graph to what the adapter runs for a request (serve_program.h): nodes over views of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from . import adapter
from .calls import NOTHING, argument, call_of
from .lines import line_of
from .refusals import Unsupported
from .served_cats import cat
from .served_folds import Folds, is_constant, mark_constants
from .served_pointwise import ACTS, MOVE, Group, pointwise, steps_of
from .served_views import BEFORE, CALL, CONSTANT, INPUT, OUTPUT, Affine, Memory, View, affine, affines, at, contiguous, plus, times

aten = torch.ops.aten
CHECKED = {aten._assert_tensor_metadata.default, aten.sym_constrain_range.default}  # by torch.export
SHAPES = {aten.view.default, aten.squeeze.dims, aten.unsqueeze.default}
REDUCTIONS = {aten.sum.dim_IntList: 0, aten.mean.dim: 1, aten.linalg_vector_norm.default: 2, aten.amax.default: 3}
MOST_IN_PRODUCT = 4096  # columns of a that brgemm adds up at once


@dataclass(eq=False)
class Made:
    """A node of the adapter but pointwise ones: how it is told, once all views are where they stay."""

    kind: str
    tell: Callable[[], Any]
    reads: list[View]
    writes: list[View]
    act: int = MOVE  # of a product


@dataclass
class Constant:
    """What a program reads and no request changes. ``how``: "as it is", "rows": contiguous, "first": the first of equal
    matrices, in rows."""

    node: Node
    how: str
    strides: tuple[int, ...] | None = None  # as the program was made for


@dataclass
class Served:
    """A program as the adapter takes it, and what Python keeps of it."""

    inputs: list[tuple[str, Any]]
    storages: list[tuple[int, int]]
    blocks: list[Affine]
    outputs: list[Any]
    nodes: list[Any]
    names: list[str]
    calls: bool
    returned: list[Any]  # a number of an output, or ("constant", value)


class Lowering:
    def __init__(self, graph: Graph, sources: dict[str, torch.Tensor], names: dict[str, str], inputs: list[str]) -> None:
        """``sources``: parameters and buffers by placeholder; ``names``: theirs; ``inputs``: names of the arguments."""
        self.graph, self.sources, self.names, self.given = graph, sources, names, inputs
        self.memory = Memory()
        self.views: dict[Node, View] = {}
        self.maker: dict[Node, Any] = {}
        self.nodes: list[Group | Made] = []
        self.of: list[list[Node]] = []  # by node of the adapter: the graph's
        self.constants: list[Constant] = []
        self.constant_views: dict[tuple[Node, str], View] = {}
        self.known: dict[Node, torch.Tensor] = {}
        self.outputs: list[View] = []
        self.returned: list[Any] = []
        self.arguments: list[View] = []
        self.lookups: Made | None = None
        self.tables: list[tuple[Node, View, View, str]] = []
        self.products = adapter.load_serving().products()

    # --- the whole

    def run(self) -> Served:
        mark_constants(self.graph, set(self.sources))
        Folds(self.graph).run()
        self.graph.eliminate_dead_code()
        for node in self.graph.nodes:
            if node.op == "placeholder":
                if not is_constant(node):
                    self.placeholder(node)
            elif node.op == "output":
                self.output(node)
            elif node.op == "call_function":
                if not is_constant(node):
                    self.call(node)
            else:
                raise Unsupported(f"a node of kind {node.op}")
        return self.told()

    def told(self) -> Served:
        told, names = [], []
        calls = False
        for number, made in enumerate(self.nodes):
            if isinstance(made, Group):
                what, reads, writes = made.told()
                if not writes:  # all of it has become part of other nodes
                    raise Unsupported("a chain that nobody reads")
            else:
                what, reads, writes = (made.kind, made.tell()), made.reads, made.writes
                calls = calls or made.kind == "c"
            for view in (*reads, *writes):
                self.memory.used(view, number)
            told.append(what)
            names.append(self.name(number))
        self.memory.lay_out(len(self.nodes))
        return Served([(n, v.told()) for n, v in zip(self.given, self.arguments)],
                      [(s.kind, s.index) for s in self.memory.storages], self.memory.blocks, [v.told() for v in self.outputs],
                      told, names, calls, self.returned)  # fmt: skip

    def name(self, number: int) -> str:
        nodes = self.of[number]
        kinds = [str(n.target).removeprefix("aten.").partition(".")[0] for n in nodes]
        what = ", ".join(kinds[:6]) + (f" and {len(kinds) - 6} more" if len(kinds) > 6 else "")
        if all(k == "embedding" for k in kinds):
            what = f"{len(kinds)} look-ups" if len(kinds) > 1 else "a look-up"
        file, line, text = line_of(nodes[0])
        return f"{what} ({file.rpartition('/')[2]}:{line}: {text})" if file else what

    def next(self, node: Node) -> int:
        """The position of a new node of the adapter, for a call."""
        self.of.append([node])
        return len(self.nodes)

    def add(self, node: Node, kind: str, tell: Callable[[], Any], reads: list[View], out: View | list[View]) -> Made:
        self.next(node)
        made = Made(kind, tell, reads, out if isinstance(out, list) else [out])
        self.nodes.append(made)
        self.maker[node] = made
        return made

    def out(self, node: Node) -> View:
        """The view of what the next node makes."""
        self.views[node] = self.memory.view(node.meta["val"], len(self.nodes))
        return self.views[node]

    # --- values

    def view(self, node: Node) -> View:
        return self.constant(node) if is_constant(node) else self.views[node]

    def evaluated(self, node: Node) -> torch.Tensor:
        if node not in self.known:
            if node.op == "placeholder":
                self.known[node] = self.sources[node.name].detach()
            else:
                args = map_arg(node.args, self.evaluated)
                self.known[node] = node.target(*args, **map_arg(node.kwargs, self.evaluated))  # type: ignore[operator, misc]
        return self.known[node]

    def as_kept(self, constant: Constant) -> torch.Tensor:
        value = self.evaluated(constant.node)
        if constant.how == "first":
            value = value[0]
        if constant.how != "as it is":
            return value.contiguous()
        if constant.strides is None:
            constant.strides = value.stride()
        if value.stride() == constant.strides:
            return value
        return torch.empty_strided(value.shape, constant.strides, dtype=value.dtype).copy_(value)

    def constant(self, node: Node, how: str = "as it is") -> View:
        if (node, how) not in self.constant_views:
            self.constants.append(Constant(node, how))
            value = self.as_kept(self.constants[-1])
            storage = self.memory.add(CONSTANT, len(self.constants) - 1)
            self.constant_views[node, how] = View(storage, value.dtype, (0, 0), affines(value.shape), affines(value.stride()))
        return self.constant_views[node, how]

    def placeholder(self, node: Node) -> None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            if not node.users:
                return  # a number, which torch has taken for a constant
            raise Unsupported(f"the argument {node.name}, which is no tensor")
        sizes = affines(value.shape)
        storage = self.memory.add(INPUT, len(self.arguments))
        name = self.given[len(self.arguments)]
        self.views[node] = View(storage, value.dtype, (0, 0), sizes, contiguous(sizes), BEFORE, False, name)
        self.arguments.append(self.views[node])

    def output(self, node: Node) -> None:
        for value in node.args[0]:  # type: ignore[union-attr]
            if not isinstance(value, Node):
                self.returned.append(("constant", value))
                continue
            made = value.meta.get("val")
            if made is not None and not isinstance(made, torch.Tensor):
                raise Unsupported("the model returns a size")
            source = self.view(value)
            storage = self.memory.add(OUTPUT, len(self.outputs))
            out = View(storage, source.dtype, (0, 0), source.sizes, contiguous(source.sizes))
            self.copy(value, source, out)
            self.returned.append(len(self.outputs))
            self.outputs.append(out)

    def copy(self, node: Node, source: View, out: View) -> None:
        self.next(node)
        self.nodes.append(Made("y", lambda: (source.told(), out.told()), [source], [out]))

    # --- calls

    def call(self, node: Node) -> None:
        value = node.meta.get("val")
        if node.target in CHECKED or node in self.views:
            return
        if node.target is aten._assert_scalar.default:
            affine(node.args[0].meta["val"]) if isinstance(node.args[0], Node) else None  # refuses what depends on data
            return
        if node.target is aten._assert_async.msg:
            self.torch(node)
            return
        if not any(isinstance(v, torch.Tensor) for v in tree_leaves(value)):
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                raise Unsupported(f"{node.target} is no operator")
            return  # sizes
        if node.target is getitem:
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise Unsupported(f"{getattr(node.target, '__name__', node.target)} is no operator")
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            raise Unsupported(f"{node.target} draws random numbers")
        if node.target._schema.is_mutable:
            raise Unsupported(f"{node.target} changes its arguments")
        if any(isinstance(v, torch.Tensor) and v.device.type != "cpu" for v in tree_leaves(value)):
            raise Unsupported(f"{node.target} on {tree_leaves(value)[0].device}")
        for handler in (self.as_view, self.lookup, self.product, self.act, self.chain, self.cat, self.reduce, self.softmax, self.flip):
            if handler(node):
                return
        self.torch(node)

    def as_view(self, node: Node) -> bool:
        returns = node.target._schema.returns  # type: ignore[union-attr]
        if not returns or returns[0].alias_info is None:
            return False
        base = self.view(node.args[0])  # type: ignore[arg-type]
        base.owned = False
        if any(t.is_conj() or t.is_neg() for t in tree_leaves(node.meta["val"])):
            raise Unsupported(f"{node.target}, whose result torch negates when it is read")
        if node.target in NOTHING:
            self.views[node] = base
            return True
        source = base.source
        if node.target is aten.select.int and source:
            source = f"{source}[{', '.join([':'] * node.args[1] + [str(node.args[2])])}]"  # type: ignore[operator]
        parts = node.meta["val"]
        if isinstance(parts, torch.Tensor):
            self.views[node] = self.shown(parts, base, source, node)
            return True
        for user in node.users:
            self.views[user] = self.shown(parts[user.args[1]], base, source, node)
        return True

    def shown(self, value: torch.Tensor, base: View, source: str, node: Node) -> View:
        before = affine(node.args[0].meta["val"].storage_offset())  # type: ignore[union-attr]
        offset = plus(base.offset, plus(affine(value.storage_offset()), (-before[0], -before[1])))
        return View(base.storage, value.dtype, offset, affines(value.shape), affines(value.stride()), base.made, False, source)

    def lookup(self, node: Node) -> bool:
        if node.target is not aten.embedding.default:
            return False
        table, index = node.args[:2]
        if not is_constant(table) or not self.evaluated(table).is_contiguous():  # type: ignore[arg-type]
            return False
        if self.view(index).dtype not in (torch.int64, torch.int32):  # type: ignore[arg-type]
            return False
        where, rows = self.view(index), self.constant(table)  # type: ignore[arg-type]
        assert isinstance(table, Node)
        first = self.lookups is not None and where.made < self.nodes.index(self.lookups)
        out = self.out(node)
        name = self.names.get(table.name, table.name)
        if first:
            assert self.lookups is not None
            number = self.nodes.index(self.lookups)
            out.made = number
            self.of[number].append(node)
            self.maker[node] = self.lookups
        else:
            tables = self.tables = []
            self.lookups = self.add(node, "l", lambda: [(t.told(), i.told(), o.told(), n, i.source) for t, i, o, n in tables], [], [])
        self.tables.append((rows, where, out, name))  # type: ignore[arg-type]
        assert self.lookups is not None
        self.lookups.reads += [rows, where]
        self.lookups.writes.append(out)
        return True

    def product(self, node: Node) -> bool:
        if not self.products:
            return False
        how, row = "rows", None
        if node.target is aten.addmm.default and not node.kwargs:
            row, a, b = node.args
            if not is_constant(row):
                return False
        elif node.target is aten.mm.default:
            a, b = node.args
        elif node.target is aten.bmm.default:
            a, b = node.args
            if not is_constant(b) or (self.evaluated(b).stride(0) != 0 and self.evaluated(b).shape[0] != 1):  # type: ignore[arg-type]
                return False
            how = "first"
        else:
            return False
        if is_constant(a) or not is_constant(b) or node.meta["val"].dtype != torch.float32:
            return False
        if self.evaluated(b).shape[-2] > MOST_IN_PRODUCT or 0 in self.evaluated(b).shape:  # type: ignore[arg-type]
            return False
        if row is not None and tuple(self.evaluated(row).shape) != (self.evaluated(b).shape[-1],):  # type: ignore[arg-type]
            return False
        given = self.view(a)  # type: ignore[arg-type]
        repeated = any(stride == (0, 0) and size != (0, 1) for stride, size in zip(given.strides[:-1], given.sizes))
        if repeated or (given.strides[-1] != (0, 1) and given.sizes[-1] != (0, 1)):
            dense = self.memory.dense(given.sizes, given.dtype, len(self.nodes))
            self.copy(node, given, dense)
            given = dense
        weight = self.constant(b, how)  # type: ignore[arg-type]
        added = None if row is None else self.constant(row, "rows")  # type: ignore[arg-type]
        out = self.out(node)

        def tell() -> Any:
            return given.told(), weight.told(), added.told() if added else None, out.told(), made.act

        made = self.add(node, "p", tell, [given, weight, *([added] if added else [])], out)
        return True

    def act(self, node: Node) -> bool:
        """An activation of a product's result, and of nothing else's, is the end of the product."""
        if node.target not in ACTS:
            return False
        source = node.args[0]
        while isinstance(source, Node) and len(source.users) == 1 and source.target in SHAPES:
            source = source.args[0]
        made = self.maker.get(source)  # type: ignore[arg-type]
        if not isinstance(source, Node) or len(source.users) != 1 or not isinstance(made, Made) or made.kind != "p" or made.act != MOVE:
            return False
        out, value = made.writes[0], node.meta["val"]
        sizes = affines(value.shape)
        if not out.dense or affines(value.stride()) != contiguous(sizes):
            return False
        made.act = ACTS[node.target]  # type: ignore[index]
        number = self.nodes.index(made)
        self.of[number].append(node)
        out.owned = True
        self.views[node] = out if out.sizes == sizes else View(out.storage, out.dtype, out.offset, sizes, contiguous(sizes), number)
        self.maker[node] = made
        return True

    def chain(self, node: Node) -> bool:
        steps = steps_of(node)
        if steps is None:
            return False
        number = len(self.nodes)
        pointwise(self, node, steps)
        if len(self.nodes) == number:
            self.of[self.maker[node].position].append(node)
        return True

    def cat(self, node: Node) -> bool:
        return cat(self, node)

    def reduce(self, node: Node) -> bool:
        kind = REDUCTIONS.get(node.target)  # type: ignore[arg-type]
        x = node.args[0]
        if kind is None or node.meta["val"].dtype != torch.float32 or self.view(x).dtype != torch.float32:  # type: ignore[arg-type]
            return False
        args = list(node.args[1:])
        if kind == 2 and args and args.pop(0) not in (2, 2.0):
            return False
        source = self.view(x)  # type: ignore[arg-type]
        dims = args[0] if args and args[0] else list(range(len(source.sizes)))
        dims = {d % len(source.sizes) for d in ([dims] if isinstance(dims, int) else dims)}  # type: ignore[union-attr, operator]
        keep = bool(args[1]) if len(args) > 1 else False
        if node.kwargs.get("dtype") is not None or any(at(source.sizes[d]) == 0 for d in dims):
            return False
        out = self.out(node)

        def tell() -> Any:
            strides, kept = [], iter(out.strides)
            for d in range(len(source.sizes)):
                stride = next(kept) if keep or d not in dims else (0, 0)
                strides.append((0, 0) if d in dims else stride)
            return source.told(), (out.storage, out.dtype, out.offset, source.sizes, tuple(strides)), kind

        self.add(node, "r", tell, [source], out)
        return True

    def softmax(self, node: Node) -> bool:
        if node.target is not aten._softmax.default or node.args[2]:
            return False
        source = self.view(node.args[0])  # type: ignore[arg-type]
        if source.dtype != torch.float32 or not source.sizes or node.args[1] % len(source.sizes) != len(source.sizes) - 1 \
                or source.strides[-1] != (0, 1) or affine(node.meta["val"].stride(-1)) != (0, 1):  # type: ignore[operator]  # fmt: skip
            return False
        out = self.out(node)
        self.add(node, "s", lambda: (source.told(), out.told()), [source], out)
        return True

    def flip(self, node: Node) -> bool:
        if node.target is not aten.flip.default:
            return False
        source, out = self.view(node.args[0]), self.out(node)  # type: ignore[arg-type]
        strides, offset = list(source.strides), source.offset
        for dim in node.args[1]:  # type: ignore[union-attr]
            d = dim % len(strides)  # type: ignore[operator]
            offset = plus(offset, times(plus(source.sizes[d], (0, -1)), strides[d]))
            strides[d] = (-strides[d][0], -strides[d][1])
        self.add(node, "y", lambda: ((source.storage, source.dtype, offset, source.sizes, tuple(strides)), out.told()), [source], out)
        return True

    def torch(self, node: Node) -> None:
        """A call of torch's own operator."""
        call = call_of(node)
        op = node.target
        slots: dict[Node, int] = {}
        inputs: list[tuple[int, View]] = []
        sizes: list[tuple[int, Affine]] = []

        def slot(of: Node) -> int:
            if of not in slots:
                slots[of] = len(slots)
                value = of.meta.get("val")
                if is_constant(of) or isinstance(value, torch.Tensor):
                    inputs.append((slots[of], self.view(of)))
                elif isinstance(value, (int, torch.SymInt)):
                    sizes.append((slots[of], affine(value)))
                else:
                    raise Unsupported(f"{op} of a value of type {type(value).__name__}")
            return slots[of]

        args = [argument(v, a.type, slot) for a, v in zip(op._schema.arguments, call.args)]  # type: ignore[union-attr]
        value = node.meta.get("val")  # None: it is a check
        made: list[tuple[int, View]] = []
        if value is None:
            outs = []
        elif isinstance(value, torch.Tensor):
            outs = [len(slots)]
            made = [(outs[0], self.memory.view(value, len(self.nodes), CALL))]
            self.views[node] = made[0][1]
        else:
            outs = [-1] * len(value)
            for user in node.users:
                index = user.args[1]
                outs[index] = len(slots) + len(made)  # type: ignore[index]
                made.append((outs[index], self.memory.view(value[index], len(self.nodes), CALL)))  # type: ignore[index]
                self.views[user] = made[-1][1]
        name = (op._schema.name, op._schema.overload_name)  # type: ignore[union-attr]
        changes, update, product = False, None, None
        spec = (name, args, outs, call.from_list, call.takes_gil, call.grad_mode, changes, update, product)  # MakeCall in make.h
        self.add(node, "c", lambda: (spec, [(s, v.told()) for s, v in inputs], sizes, [(s, v.told()) for s, v in made],
                                     len(slots) + len(made)), [v for _, v in inputs], [v for _, v in made])  # fmt: skip
