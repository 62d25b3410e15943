"""The backend of torch.compile."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from .options import options_of
from .program import WORKERS, Program


def backend(module: GraphModule, inputs: list[Any], options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """``torch.compile(model, backend="engine", options={...})``: the graph's nodes run on the engine.

    ``options``: policy, workers, intra_op_threads, partition, capture_step (docs/torch.md); engine.UsageError for others.
    """
    chosen = options_of(options)
    made: dict[str, Program] = {}

    def compiler(kind: str) -> Callable[..., Any]:
        def compile(graph: GraphModule, _: list[Any]) -> Callable[..., Any]:
            with torch.utils._python_dispatch._disable_current_modes():
                program = made[kind] = Program(graph, chosen, kind)

            def call(args: list[Any]) -> list[Any]:
                return program.run(args, WORKERS)

            call._boxed_call = True  # type: ignore[attr-defined]
            return call

        return compile

    partition = default_partition if chosen.partition == "default" else min_cut_rematerialization_partition
    return aot_autograd(fw_compiler=compiler("forward"), bw_compiler=compiler("backward"), partition_fn=partition,
                        inference_compiler=compiler("inference"), keep_inference_input_mutations=True)(module, inputs)  # fmt: skip
