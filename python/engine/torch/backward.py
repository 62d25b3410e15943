"""Graphs whose calls need nothing of AOTAutograd's own wrapper, so that the adapter calls them and makes their backward passes.

The wrapper is Python for every call and every backward pass. It does what a graph may need besides its two programs: outputs that are
views of inputs, inputs that change, tensor subclasses, sizes that vary, effects. Most graphs need none of that."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo import compiled_autograd
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta, ViewAndMutationMeta
from torch.autograd import forward_ad

from . import adapter
from .program import Program

_OF_THEIR_OWN = {OutputType.non_alias, OutputType.unsafe_view_alias}


def needs_wrapper(meta: ViewAndMutationMeta) -> str:
    """What the graph needs of the wrapper; '' for nothing."""
    metas = [*meta.subclass_inp_meta, *meta.subclass_fw_graph_out_meta, *meta.subclass_tangent_meta]
    needs = {
        "outputs that share memory with something": any(o.output_type not in _OF_THEIR_OWN for o in meta.output_info),
        "sizes that vary": any(o.dynamic_dims for o in meta.output_info) or meta.num_symints_saved_for_bw,
        "inputs that change": any(i.mutates_data or i.mutates_metadata for i in meta.input_info),
        "tensor subclasses": any(type(m) is not PlainTensorMeta for m in metas),
        "effects": meta.tokens or meta.num_backward_tokens or meta.num_opaque_objects_saved_for_bw,
        "random numbers": meta.is_rng_op_functionalized or meta.num_graphsafe_rng_states,
        "another grad mode behind it": meta.grad_enabled_mutation is not None,
        "inputs that change in the backward pass": meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw,
    }
    return next((what for what, needed in needs.items() if needed), "")


def _laid(meta: PlainTensorMeta) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The sizes and strides for which a backward pass was compiled; None where they vary."""
    laid = meta.memory_format
    if laid is None or laid.size is None or laid.stride is None:
        return None
    sizes, strides = tuple(laid.size), tuple(laid.stride)
    return (sizes, strides) if {*map(type, sizes), *map(type, strides)} <= {int} else None


def trained_graph(meta: ViewAndMutationMeta | None, forward: Program, backward: Program, inputs: int) -> tuple[Any, str]:
    """A graph that takes so many inputs, for ``adapter.train``; or None, and why the wrapper has to call it."""
    if not forward.lowered or not backward.lowered or forward.grad_mode or backward.grad_mode:
        return None, "calls from Python"
    if meta is None:
        return None, "a compiler that tells nothing of the graph"
    if why := needs_wrapper(meta):
        return None, why
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
    """Whether something is around the call that only the wrapper knows of."""
    return forward_ad._current_level >= 0 or compiled_autograd.compiled_autograd_enabled or \
        torch._C._functorch.peek_interpreter_stack() is not None  # fmt: skip
