"""Rewrites of an exported graph before it is lowered: batch norms become part of the products beside them."""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
BATCH_NORM = aten._native_batch_norm_legit_no_training.default


def is_constant(node: Any) -> bool:
    return not isinstance(node, Node) or bool(node.meta.get("constant"))


def mark_constants(graph: Graph, sources: set[str]) -> None:
    """Marks what depends on parameters and buffers only, and not on the request."""
    for node in graph.nodes:
        if node.op == "placeholder":
            node.meta["constant"] = node.name in sources
        elif node.op == "call_function":
            value = node.meta.get("val")
            node.meta["constant"] = (isinstance(node.target, torch._ops.OpOverload) and isinstance(value, torch.Tensor)
                                     and torch.Tag.nondeterministic_seeded not in node.target.tags
                                     and all(type(s) is int for s in value.shape)
                                     and all(n.meta.get("constant") for n in node.all_input_nodes))  # fmt: skip


class Folds:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def constant(self, target: Any, *args: Any) -> Node:
        node = self.graph.call_function(target, args)
        node.meta["constant"] = True
        return node

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.target is BATCH_NORM and self.ready(node):
                (made,) = node.users
                self.batch_norm(node, made)

    def ready(self, node: Node) -> bool:
        x, *numbers = node.args
        if x.meta["val"].dim() != 2 or x.meta["val"].dtype != torch.float32 or not all(map(is_constant, numbers)):  # type: ignore[union-attr]
            return False
        return [(user.target, user.args[1]) for user in node.users] == [(getitem, 0)]

    def batch_norm(self, node: Node, made: Node) -> None:
        x, weight, bias, mean, variance, _, eps = node.args
        with self.graph.inserting_before(node):
            scale = self.constant(aten.rsqrt.default, self.constant(aten.add.Tensor, variance, eps))
            if weight is not None:
                scale = self.constant(aten.mul.Tensor, scale, weight)
            shift = self.constant(aten.neg.default, self.constant(aten.mul.Tensor, mean, scale))
            if bias is not None:
                shift = self.constant(aten.add.Tensor, shift, bias)
            assert isinstance(x, Node)
            if _product(x) and len(x.users) == 1:
                self.behind(x, made, scale, shift)
                return
            products = self.reached(made, 0)
            if products is not None:
                made.replace_all_uses_with(x)
                for product, offset in products:
                    self.before(product, offset, int(x.meta["val"].shape[1]), scale, shift)
                return
            scaled = self.graph.call_function(aten.mul.Tensor, (x, scale))
            shifted = self.graph.call_function(aten.add.Tensor, (scaled, shift))
        for new in (scaled, shifted):
            new.meta.update(made.meta)
            new.meta["constant"] = False
        made.replace_all_uses_with(shifted)

    def behind(self, product: Node, made: Node, scale: Node, shift: Node) -> None:
        """(row + a @ b) * scale + shift"""
        row, a, b = _parts(product)
        row = shift if row is None else self.constant(aten.add.Tensor, self.constant(aten.mul.Tensor, row, scale), shift)
        new = self.graph.call_function(aten.addmm.default, (row, a, self.constant(aten.mul.Tensor, b, scale)))
        new.meta.update(made.meta)
        new.meta["constant"] = False
        made.replace_all_uses_with(new)

    def before(self, product: Node, offset: int, known: int, scale: Node, shift: Node) -> None:
        """row + (a * scale + shift) @ b, where scale and shift are of some columns of a."""
        row, a, b = _parts(product)
        with self.graph.inserting_before(product):
            width = int(product.args[-2].meta["val"].shape[1])  # type: ignore[union-attr]
            padding = [offset, width - offset - known]
            all_shift = self.constant(aten.constant_pad_nd.default, shift, padding)
            all_scale = self.constant(aten.constant_pad_nd.default, scale, padding, 1.0)
            added = self.constant(aten.mv.default, self.constant(aten.t.default, b), all_shift)
            row = added if row is None else self.constant(aten.add.Tensor, row, added)
            scaled = self.constant(aten.mul.Tensor, b, self.constant(aten.unsqueeze.default, all_scale, 1))
        product.target, product.args = aten.addmm.default, (row, a, scaled)

    def reached(self, made: Node, offset: int) -> list[tuple[Node, int]] | None:
        """The products that take it, each with the first of its columns there; None: something else takes it, too."""
        found: list[tuple[Node, int]] = []
        for user in made.users:
            if _product(user) and user.args[-2] is made:
                found.append((user, offset))
            elif user.target is aten.cat.default and user.meta["val"].dim() == 2 and user.args[1:] in ((1,), (-1,)):
                parts = user.args[0]
                if [p is made for p in parts].count(True) != 1:  # type: ignore[union-attr]
                    return None
                before = sum(int(p.meta["val"].shape[1]) for p in parts[: parts.index(made)])  # type: ignore[union-attr, index]
                more = self.reached(user, offset + before)
                if more is None:
                    return None
                found += more
            else:
                return None
        return found


def _parts(product: Node) -> tuple[Any, Any, Any]:
    return (None, *product.args) if product.target is aten.mm.default else product.args  # type: ignore[return-value]


def _product(node: Node) -> bool:
    """Whether it is row + a @ b with a weight b, as a linear layer is."""
    if node.target is aten.mm.default:
        return is_constant(node.args[1]) and not is_constant(node.args[0])
    return (node.target is aten.addmm.default and not node.kwargs and is_constant(node.args[0]) and is_constant(node.args[2])
            and not is_constant(node.args[1]))  # type: ignore[union-attr]  # fmt: skip
