"""Graphs whose calls need nothing of AOTAutograd's own wrapper, so that the adapter calls them and makes their backward passes.

The wrapper is Python for every call and every backward pass. It does what a graph may need besides its two programs: outputs that are
views of inputs, inputs that change, tensor subclasses, sizes that vary, effects. Most graphs need none of that."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo import compiled_autograd
from torch._functorch._aot_autograd.schemas import InputAliasInfo, MutationType, OutputType, PlainTensorMeta, ViewAndMutationMeta
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import adapter
from .program import Program

_OF_THEIR_OWN = {OutputType.non_alias, OutputType.unsafe_view_alias}
_SHARES = "outputs that share memory with something"


def not_tensors(module: GraphModule, inputs: list[Any]) -> str:
    """What a graph of Dynamo's takes or returns besides plain tensors; '' for nothing."""
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    given = [node.meta.get("example_value") for node in output.all_input_nodes]
    if any(map(is_traceable_wrapper_subclass, [*inputs, *given])):
        return "tensor subclasses"
    return "" if all(isinstance(i, torch.Tensor) for i in inputs) else "sizes that vary"


def shared_outputs(meta: ViewAndMutationMeta | None, forward: GraphModule) -> str:
    """Whether outputs of the traced forward pass share memory with inputs: as a need of the wrapper; '' if not. AOTAutograd does not
    tell it of a view that comes with others, as of ``chunk``."""
    if meta is None:
        return "a compiler that tells nothing of the graph"
    nodes = forward.graph.find_nodes(op="placeholder"), forward.graph.output_node().args[0][: len(meta.output_info)]  # type: ignore[index]
    inputs, outputs = ({value.untyped_storage()._cdata for value in (node.meta.get("val") for node in of if isinstance(node, Node))
                        if isinstance(value, torch.Tensor) and torch._C._has_storage(value)} for of in nodes)  # fmt: skip
    return _SHARES if inputs & outputs else ""


def needs_wrapper(meta: ViewAndMutationMeta) -> str:
    """What a graph needs of the wrapper; '' for nothing."""
    needs = {
        _SHARES: any(o.output_type not in _OF_THEIR_OWN or o.requires_grad != o.requires_grad_for_backward for o in meta.output_info),
        "sizes that vary": any(o.dynamic_dims for o in meta.output_info) or meta.num_symints_saved_for_bw,
        "inputs that change unseen or have a history": any(map(_changes_behind_it, meta.input_info)),
        "inputs that are awaited": meta.act_input_indices,
        "effects": meta.tokens or meta.num_backward_tokens or meta.num_opaque_objects_saved_for_bw,
        "random numbers": meta.is_rng_op_functionalized or meta.num_graphsafe_rng_states,
        "another grad mode behind it": meta.grad_enabled_mutation is not None,
        "inputs that change in the backward pass": meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw,
    }
    return next((what for what, needed in needs.items() if needed), "")


def _changes_behind_it(info: InputAliasInfo) -> bool:
    """Whether an input changes, and in another way than by a call of the forward program that autograd may see."""
    if info.mutation_type is MutationType.NOT_MUTATED:
        return False
    return info.mutation_type is MutationType.MUTATED_OUT_GRAPH or info.requires_grad or info.mutations_hidden_from_autograd \
        or info.mutates_metadata or info.mutation_inductor_storage_resize  # fmt: skip


def _laid(meta: PlainTensorMeta) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The sizes and strides for which a backward pass was compiled; None where they vary."""
    laid = meta.memory_format
    if laid is None or laid.size is None or laid.stride is None:
        return None
    sizes, strides = tuple(laid.size), tuple(laid.stride)
    return (sizes, strides) if {*map(type, sizes), *map(type, strides)} <= {int} else None


def trained_graph(meta: ViewAndMutationMeta, forward: Program, backward: Program, inputs: int) -> tuple[Any, str]:
    """A graph that takes so many inputs, for ``adapter.train``; or None, and why the wrapper has to call it."""
    if not forward.lowered or not backward.lowered or forward.grad_mode or backward.grad_mode:
        return None, "calls from Python"
    if why := needs_wrapper(meta):
        return None, why
    if backward.lowered.state:
        return None, "inputs that change in the backward pass"
    gradients = [_laid(m) for m in meta.subclass_tangent_meta]
    if None in gradients:
        return None, "sizes that vary"
    if not len(meta.input_info) == len(forward.lowered.inputs) == inputs:
        return None, "inputs that are one thing"
    outputs = [issubclass(o.raw_type, torch.Tensor) and o.requires_grad for o in meta.output_info]
    kept = len(forward.lowered.outputs) - len(outputs)
    checked = kept - (meta.num_tensors_saved_with_no_vc_check or 0)
    takes = [output != ("c", None) for output in backward.lowered.outputs]
    native = adapter.load()
    assert native is not None  # else the programs were not lowered
    try:
        return native.trained_graph((forward.native, backward.native), takes, outputs, (checked, kept), gradients, backward.way,
                                    backward.told), ""  # fmt: skip
    except TypeError as error:  # they do not fit together as thought here
        return None, str(error)


def is_around() -> bool:
    """Whether something is around the call that only the wrapper knows of. Without grad mode it is a graph that was traced so, with
    parts that switch it on."""
    return not torch.is_grad_enabled() or forward_ad._current_level >= 0 or compiled_autograd.compiled_autograd_enabled or \
        torch._C._functorch.peek_interpreter_stack() is not None  # fmt: skip
