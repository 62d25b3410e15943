"""What decides about the results of a call apart from its arguments."""

from __future__ import annotations

from typing import Any

from torch import get_default_dtype
from torch._C import (
    _get_cudnn_sdp_enabled, _get_deterministic_algorithms, _get_flash_sdp_enabled, _get_math_sdp_enabled, _get_mem_efficient_sdp_enabled,
    _get_mkldnn_enabled,
)  # fmt: skip

_TINY, _ONE = 1e-310, 1.0  # their product is 0 on a thread that flushes denormal numbers


def mode() -> tuple[Any, ...]:
    """Whether this thread flushes denormal numbers; the process's default dtype; and its settings by which torch chooses kernels. A
    stage asks for it in each call of a step, so those that take long to read, such as the precision of products, are not among them."""
    return (_TINY * _ONE == 0, get_default_dtype(), _get_deterministic_algorithms(), _get_mkldnn_enabled(), _get_flash_sdp_enabled(),
            _get_math_sdp_enabled(), _get_mem_efficient_sdp_enabled(), _get_cudnn_sdp_enabled())  # fmt: skip
