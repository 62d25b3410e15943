"""PyTorch's modes of a thread, as they go to other threads: with bodies, by the extension (python/src/torch_modes.cc), and with
what stops in the middle of a ``with``, by a Carrier.

Imported once the program has imported PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Iterator, NamedTuple

import torch


class Modes(NamedTuple):
    grad: bool = True
    inference: bool = False
    autocast: tuple[tuple[str, Any, bool], ...] = ()  # device, type and whether casts are cached, of each where it is on


@functools.cache
def _devices() -> tuple[str, ...]:
    """Those that autocast knows: the CPU, CUDA, which may be asked for where it is not there, and others that are there."""
    known = ["cpu", "cuda"]
    for device in ("xpu", "mps", "hpu", "mtia", "xla", torch._C._get_privateuse1_backend_name()):
        with contextlib.suppress(RuntimeError, ValueError, AttributeError):
            torch.is_autocast_enabled(device)
            if getattr(torch, device).is_available():
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


class Carrier:
    """The modes of what goes on on several threads, such as a generator: at first those of the thread that makes this object. A
    generator may stop inside of a ``with torch.autocast(...)``, and leave it on another thread. So modes are set and noted by value."""

    def __init__(self) -> None:
        self._note()

    def _note(self) -> None:
        self._grad, self._inference, self._autocast = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), _autocast()

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """The block has the carried modes, and what it leaves on is carried on. Behind it this thread has its own again."""
        before = _autocast()
        with torch.inference_mode(self._inference):  # its end sets what grad and inference mode were, whatever the block has left on
            try:
                torch.set_grad_enabled(self._grad)
                _set_autocast(self._autocast, before)
                yield
            finally:
                self._note()
                _set_autocast(before, self._autocast)


class _Autocast(NamedTuple):
    depth: int  # in how many blocks the thread is; the last one to end clears the casts that are cached
    cached: bool
    devices: tuple[tuple[str, bool, Any], ...]  # whether it is on there, and its type


def _autocast() -> _Autocast:
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    devices = tuple((device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _devices())
    return _Autocast(depth, torch.is_autocast_cache_enabled(), devices)


def _set_autocast(wanted: _Autocast, now: _Autocast) -> None:
    if now == wanted:
        return
    for device, on, dtype in set(wanted.devices) - set(now.devices):
        torch.set_autocast_enabled(device, on)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(wanted.cached)
    for _ in range(wanted.depth - now.depth):
        torch.autocast_increment_nesting()
    for _ in range(now.depth - wanted.depth):
        torch.autocast_decrement_nesting()
