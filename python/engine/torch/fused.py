"""A whole captured step compiled by Inductor, as one more mode of running it (options={"partition": "inductor"}).

Inductor fuses what the engine runs node by node, so it wins where a graph is a chain, with nothing to run side by side. Its
sums differ from eager's in the last bits. A step that draws random numbers is refused: Inductor would draw others, or, told
to draw eager's, uses the result of bernoulli_ before it is drawn (torch 2.13.0)."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx
from torch.fx import Graph, GraphModule, Node

from .calls import RANDOM
from .lower import Lowered
from .refusals import Unsupported

aten = torch.ops.aten
# Calls with a number that add it times something, by operator: what makes that something, and of which arguments.
_AS_SUM = {
    aten.addcdiv_.default: (aten.div.Tensor, (1, 2)),
    aten.addcmul_.default: (aten.mul.Tensor, (1, 2)),
    aten.lerp_.Scalar: (aten.sub.Tensor, (1, 0)),
}


class Fused:
    """``run(inputs)`` does what the graph of a program does, and empties ``inputs``: the state's tensors, those of the
    arguments, and ``numbers`` numbers. Compiles at once, which takes seconds to minutes; raises what Inductor raises."""

    def __init__(self, module: GraphModule, lowered: Lowered, inputs: list[torch.Tensor], numbers: int) -> None:
        if any(RANDOM in call.writes for call in lowered.calls):
            raise Unsupported("the step draws random numbers")
        # To Inductor a number is a constant, but these change from run to run.
        self.numbers = [torch.zeros((), dtype=torch.float64) for _ in range(numbers)]
        graph = Graph()
        graph.output(graph.graph_copy(module.graph, {}))
        placeholders = graph.find_nodes(op="placeholder")
        _numbers_as_tensors(graph, placeholders[len(placeholders) - numbers :])
        _without_alpha(graph)
        # Its own kernels use one thread: what they throw inside an OpenMP region, for an index out of range, ends the process.
        with torch.no_grad(), torch._C._DisableAutocast(), config.patch({"cpp.threads": 1}):
            self._run = compile_fx(GraphModule(module, graph), [*inputs, *self.numbers])  # type: ignore[arg-type]

    def run(self, inputs: list[Any]) -> list[Any]:
        tensors = inputs[: len(inputs) - len(self.numbers)]
        for tensor, number in zip(self.numbers, inputs[len(tensors) :]):
            tensor.fill_(number)
        inputs.clear()
        with torch.no_grad(), torch._C._DisableAutocast():
            return list(self._run(*tensors, *self.numbers))


def _numbers_as_tensors(graph: Graph, numbers: list[Node]) -> None:
    """Calls that need a number are replaced by calls that take a tensor without dimensions."""
    fake_mode = next(n.meta["val"] for n in graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)).fake_mode
    for node in numbers:
        node.meta["val"] = fake_mode.from_tensor(torch.zeros((), dtype=torch.float64))
        for user in list(node.users):
            if user.target in _AS_SUM and node is (user.args[2] if user.target is aten.lerp_.Scalar else user.kwargs.get("value")):
                operator, of = _AS_SUM[user.target]
                with graph.inserting_before(user):
                    times = graph.call_function(operator, tuple(user.args[i] for i in of))
                user.target, user.args, user.kwargs = aten.add_.Tensor, (user.args[0], times), {"alpha": node}
            elif user.kwargs.get("alpha") is not node and user.target not in (aten.mul_.Tensor, aten.div_.Tensor):
                raise Unsupported(f"{user.target} with a number that changes")


def _without_alpha(graph: Graph) -> None:
    """add(x, y, alpha=a) becomes add(x, y * a): Inductor makes a sum with a product of matrices one call, and loses alpha."""
    for node in graph.nodes:
        if node.target in (aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor) and "alpha" in node.kwargs:
            with graph.inserting_before(node):
                scaled = graph.call_function(aten.mul.Tensor, (node.args[1], node.kwargs["alpha"]))
            node.args, node.kwargs = (node.args[0], scaled), {}
