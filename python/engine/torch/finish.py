"""What becomes of the graph of a step once it is traced: old gradients leave its inputs, numbers that differ from run to run come in."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from .refusals import Unsupported

# The first mark, and how far apart they are: odd numbers, which nobody gives an optimizer as a setting, with many floats between two.
_FIRST, _APART = 3.0e-5, 1.1102230246251565e-13


class Numbers:
    """Stands for the numbers of a run while it is captured: each is a float of its own, which is found again in the
    graph."""

    def __init__(self) -> None:
        self.marks: dict[float, int] = {}

    def mark(self) -> float:
        value = _FIRST + (len(self.marks) + 1) * _APART
        self.marks[value] = len(self.marks)
        return value


class Taken(Unsupported):
    """The step adds to gradients that were there before, or updates a parameter with them."""

    def __init__(self, numbers: set[int]) -> None:
        super().__init__("gradients that are added up over several steps")
        self.numbers = numbers


def finish(module: GraphModule, kept: int, gradients: list[Any], marks: Numbers) -> None:
    """Takes the old gradients out of the graph's inputs, and puts the numbers in."""
    graph = module.graph
    _views(graph)
    placeholders = graph.find_nodes(op="placeholder")
    old = placeholders[kept:]
    taken = {i for i, node in enumerate(old) if any(user.target is not torch.ops.aten.detach.default or user.users for user in node.users)}
    if taken:
        assert len(old) == len(gradients)
        raise Taken(taken)
    for node in old:
        for user in list(node.users):
            graph.erase_node(user)
        graph.erase_node(node)
    with graph.inserting_after(placeholders[kept - 1]):
        numbers = [graph.placeholder(f"number_{i}") for i in reversed(range(len(marks.marks)))][::-1]  # each comes right behind the tensors
    for node in graph.nodes:
        if "engine_group" in node.meta:
            node.args = _marked(node.args, marks, numbers)
            node.kwargs = _marked(node.kwargs, marks, numbers)
    for node in numbers:
        node.meta["val"] = 1.0
    graph.lint()


IN_PLACE = {torch.ops.aten.transpose_.default: torch.ops.aten.transpose.int, torch.ops.aten.t_.default: torch.ops.aten.t.default,
            torch.ops.aten.unsqueeze_.default: torch.ops.aten.unsqueeze.default}  # fmt: skip


def _views(graph: Any) -> None:
    """Calls that change of what their tensor is a view become calls that make the view, as in the backward pass of a GRU.
    What comes behind such a call takes what it returns; of an input of the graph the caller would see the change."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in IN_PLACE and node.args[0].op == "call_function":
            if all(user is node or user < node for user in node.args[0].users):
                node.target = IN_PLACE[node.target]


def _marked(value: Any, marks: Numbers, numbers: list[Any]) -> Any:
    if type(value) is float and value in marks.marks:
        return numbers[marks.marks[value]]
    if isinstance(value, (tuple, list)):
        return type(value)(_marked(v, marks, numbers) for v in value)
    if isinstance(value, dict):
        return {k: _marked(v, marks, numbers) for k, v in value.items()}
    return value
