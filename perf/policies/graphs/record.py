#!/usr/bin/env python3
"""Records training steps of PyTorch models as graphs of costs and edges: forward, backward and SGD in one graph.

    record.py [--out FOLDER] [--rounds N] [MODEL ...]

Needs torch 2.13.0 (the CPU build) and transformers, in an environment of their own; README.md says what is in the
files. Run it on a machine that does nothing else: each cost is the median of the node's times over the rounds."""

import argparse
import statistics
import time
from pathlib import Path

import torch
from models import MODELS, Step
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

LEARNING_RATE = 1e-6
WIDE_FROM = 50_000  # nanoseconds: shorter nodes are not measured with two threads
WIDE_GAIN = 0.8  # a node is wide if two threads take less than this share of one thread's time


def capture(step: Step) -> tuple[torch.fx.GraphModule, list]:
    """The whole step as one graph of ATen calls over the parameters and the inputs."""
    model, inputs, loss_of = step
    names = [name for name, _ in model.named_parameters()]
    parameters = [p.detach().clone().requires_grad_() for _, p in model.named_parameters()]
    buffers = dict(model.named_buffers())

    def whole(parameters, inputs):
        out = torch.func.functional_call(model, dict(zip(names, parameters, strict=True)) | buffers, inputs)
        loss = loss_of(out)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=LEARNING_RATE)
        return loss

    graph = make_fx(whole)(parameters, inputs)
    return graph, tree_leaves((parameters, inputs))


class Walk:
    """One pass over the graph, node by node."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: list):
        self.graph = graph
        self.inputs = [t.detach() if isinstance(t, torch.Tensor) else t for t in inputs]
        self.calls = [n for n in graph.graph.nodes if n.op == "call_function"]

    def run(self, seen, clock=time.thread_time_ns) -> None:
        """Calls seen(node, args, kwargs, result, nanoseconds) for each call."""
        values: dict = {}
        inputs = iter(self.inputs)
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif node.op == "get_attr":
                values[node] = getattr(self.graph, node.target)
            elif node.op == "call_function":
                args = torch.fx.map_arg(node.args, values.__getitem__)
                kwargs = torch.fx.map_arg(node.kwargs, values.__getitem__)
                begin = clock()
                result = node.target(*args, **kwargs)
                took = clock() - begin
                values[node] = result
                seen(node, args, kwargs, result, took)


def storages(values) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in values if isinstance(t, torch.Tensor)}


def mutated(node: torch.fx.Node, args: tuple) -> set[int]:
    """The storages that the call changes, as its operator's schema says."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return set()
    changed = [v for a, v in zip(schema.arguments, args, strict=False) if a.alias_info and a.alias_info.is_write]
    return storages(tree_leaves(changed))


def edges(walk: Walk) -> tuple[dict, dict]:
    """By node: the nodes before it; and for what only looks at its input in another way, None. Everything that a node
    reads must come after its last writer; everything that it writes, after all that used it before."""
    writer: dict[int, torch.fx.Node] = {}
    readers: dict[int, set] = {}
    before: dict[torch.fx.Node, set | None] = {}
    views: dict[torch.fx.Node, list] = {}  # by node that is kept: the views that are merged into it
    looked: dict[torch.fx.Node, list] = {}  # by view: what it costs its first user
    alive = []  # so that no address is used twice

    def seen(node, args, kwargs, result, _):
        alive.append(result)
        inputs, outputs = storages(tree_leaves((args, kwargs))), storages(tree_leaves(result))
        changed = mutated(node, args)
        if not changed and outputs <= inputs:
            before[node] = None
            looked[node] = [node, *(v for a in node.all_input_nodes for v in looked.pop(a, []))]
            return
        after = {writer[s] for s in inputs if s in writer}
        written = changed | (outputs - inputs)
        for s in written:
            after |= readers.get(s, set()) | ({writer[s]} if s in writer else set())
        for s in inputs - written:
            readers.setdefault(s, set()).add(node)
        for s in written:
            writer[s] = node
            readers[s] = set()
        before[node] = after - {node}
        views[node] = [v for a in node.all_input_nodes for v in looked.pop(a, [])]

    walk.run(seen)
    return before, views


def call_cost(clock) -> int:
    """What Python and the clock add to a call: the median time of a call that does nothing."""
    x = torch.randn(4)
    times = []
    for _ in range(2000):
        begin = clock()
        torch.ops.aten.detach.default(x)
        times.append(clock() - begin)
    return int(statistics.median(times))


def costs(walk: Walk, threads: int, rounds: int) -> dict:
    torch.set_num_threads(threads)
    # Of one thread its processor time, so that preemptions do not count; several threads' time passes.
    clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    times: dict[torch.fx.Node, list[int]] = {n: [] for n in walk.calls}
    for i in range(rounds + 3):
        counts = i >= 3  # the first rounds warm up

        def seen(node, _args, _kwargs, _result, took, counts=counts):
            if counts:
                times[node].append(took)

        walk.run(seen, clock)
    overhead = call_cost(clock)
    torch.set_num_threads(1)
    return {n: max(100, int(statistics.median(t)) - overhead) for n, t in times.items()}


def reduced(before: dict[int, set[int]]) -> dict[int, list[int]]:
    """Without the edges that follow from others."""
    reach: list[int] = []  # by node: a set of bits, itself and all before it
    out = {}
    for n in sorted(before):
        direct = sorted(before[n], reverse=True)
        keep, covered = [], 0
        for p in direct:
            if not covered >> p & 1:
                keep.append(p)
                covered |= reach[p]
        out[n] = sorted(keep)
        reach.append(covered | 1 << n)
    return out


def record(name: str, rounds: int) -> str:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.no_grad():
        torch.ones(4).sum()
    graph, inputs = capture(MODELS[name]())
    walk = Walk(graph, inputs)
    with torch.no_grad():
        before, views = edges(walk)
        one, two = costs(walk, 1, rounds), costs(walk, 2, rounds)
    kept = [n for n in walk.calls if before[n] is not None]
    number = {n: i for i, n in enumerate(kept)}
    after = reduced({number[n]: {number[p] for p in before[n]} for n in kept})
    lines = ["engine-graph 1", f"# {name}: one training step of a model in models.py, torch {torch.__version__}"]
    for n in kept:
        merged = sum(one[v] for v in views[n])
        cost = str(one[n] + merged)
        if one[n] >= WIDE_FROM and two[n] < WIDE_GAIN * one[n]:
            cost += f"/{two[n] + merged}"
        lines.append(" ".join([cost, *map(str, after[number[n]])]))
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = ", ".join(MODELS)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], metavar="MODEL", help=f"default: all of {known}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--rounds", type=int, default=25)
    args = parser.parse_args()
    for name in args.models or MODELS:
        text = record(name, args.rounds if "1000" not in name else max(5, args.rounds // 3))
        (args.out / f"{name}.graph").write_text(text)
        nodes = [line.split() for line in text.splitlines()[2:]]
        total = sum(int(n[0].partition("/")[0]) for n in nodes) / 1e6
        print(f"{name}: {len(nodes)} nodes, {total:.2f} ms, {sum('/' in n[0] for n in nodes)} wide", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
