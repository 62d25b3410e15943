"""What decides about the results of a call apart from its arguments."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import get_default_dtype
from torch._C import (
    _get_cudnn_sdp_enabled, _get_deterministic_algorithms, _get_flash_sdp_enabled, _get_fp32_precision_getter, _get_math_sdp_enabled,
    _get_mem_efficient_sdp_enabled, _get_mkldnn_enabled,
)  # fmt: skip
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from . import adapter

_TINY, _ONE = 1e-310, 1.0  # their product is 0 on a thread that flushes denormal numbers


def mode() -> tuple[Any, ...]:
    """Whether this thread flushes denormal numbers; the process's default dtype; its settings by which torch chooses kernels; and the
    precision of products. A stage asks for it in each call of a step, so precisions that hardly any program sets alone are not among them."""
    return (_TINY * _ONE == 0, get_default_dtype(), _get_deterministic_algorithms(), _get_mkldnn_enabled(), _get_flash_sdp_enabled(),
            _get_math_sdp_enabled(), _get_mem_efficient_sdp_enabled(), _get_cudnn_sdp_enabled(),
            _get_fp32_precision_getter("mkldnn", "matmul"))  # fmt: skip


def precisions() -> tuple[str, str, str]:
    """With how many bits torch's kernels may multiply float32 numbers on the CPU: in products, convolutions and recurrent layers. Whichever
    way the program has said it: torch.get_float32_matmul_precision() raises where the backends were told."""
    asked = _get_fp32_precision_getter
    return asked("mkldnn", "matmul"), asked("mkldnn", "conv"), asked("mkldnn", "rnn")


def around() -> Hashable:
    """What a program sets around a call, and a step may ask for or depend on. None where something sees, or changes, each call of torch that
    is made inside, as nothing in a run of a plan would let it: a mode other than a default device, hooks of saved tensors, a transform
    of torch.func, inference mode, a search for errors."""
    native = adapter.load()
    usual = native and native.around()
    if usual is not None:
        return usual
    return None if _intercepted() else _around()  # there is a default device, or no adapter


def _around() -> tuple[Any, ...]:
    """As adapter/around.h tells it."""
    kernels = mode()[1:]  # whether a thread flushes denormal numbers is its own affair: workers run a plan, too
    return (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), *precisions(), *kernels,
            *(context.device for context in _get_current_function_mode_stack()))  # fmt: skip


def _intercepted() -> bool:
    return (torch.is_anomaly_enabled() or torch.is_inference_mode_enabled() or torch._C._len_torch_dispatch_stack() > 0
            or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
            or torch._C._functorch.peek_interpreter_stack() is not None
            or torch._C._len_torch_function_stack() > 0 and any(type(m) is not DeviceContext for m in _get_current_function_mode_stack()))  # fmt: skip
