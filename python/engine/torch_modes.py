"""PyTorch's modes of a thread that are not just the grad mode, as the extension carries them to bodies (python/src/torch_modes.cc).

Imported once the program has imported PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NamedTuple

import torch


class Modes(NamedTuple):
    grad: bool = True
    inference: bool = False
    autocast: tuple[tuple[str, Any, bool], ...] = ()  # device, type and whether casts are cached, of each where it is on


@functools.cache
def _devices() -> tuple[str, ...]:
    known = []
    for device in ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla", torch._C._get_privateuse1_backend_name()):
        with contextlib.suppress(RuntimeError, ValueError):
            torch.is_autocast_enabled(device)
            known.append(device)
    return tuple(known)


def captured() -> Modes:
    """The modes of this thread."""
    cached = torch.is_autocast_cache_enabled()
    on = tuple((device, torch.get_autocast_dtype(device), cached) for device in _devices() if torch.is_autocast_enabled(device))
    return Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), on)


def entered(carried: Modes | bool | None) -> contextlib.ExitStack | None:
    """Sets the modes of this thread; ``close`` of the result sets those of before. None: they are the same.

    ``carried``: all modes; False: no grad mode, and else the defaults; None: the defaults.
    """
    wanted = carried if isinstance(carried, Modes) else Modes(grad=carried is None)
    now = captured()
    if now == wanted:
        return None
    stack = contextlib.ExitStack()
    if wanted.inference != now.inference:
        stack.enter_context(torch.inference_mode(wanted.inference))
    stack.enter_context(torch.set_grad_enabled(wanted.grad))
    for device, dtype, cached in set(wanted.autocast) - set(now.autocast):
        stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=cached))
    for device in {one[0] for one in now.autocast} - {one[0] for one in wanted.autocast}:
        stack.enter_context(torch.autocast(device, enabled=False))
    return stack
