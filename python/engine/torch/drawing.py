"""Random numbers and clocks while a step is captured.

What draws twice, as torch.utils.checkpoint does, reads the state of torch's generator and sets it again. Here both are operators, so
they have their place in the graph among those that draw. Numbers of Python's and NumPy's modules, and those that come from
a seed which the step sets, would be the same in each run, so a step with these is refused. So is one that reads a clock."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .named import installed
from .refusals import Unsupported
from .replaced import Stand, caller, replacing

_lock = threading.RLock()  # one capture at a time replaces functions
_here = threading.local()  # depth: captures at work in this thread
_BYTES = torch.default_generator.get_state().numel()
_SEEDS = ("manual_seed", "seed", "initial_seed")
_CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")  # each with another in nanoseconds
_HARMLESS = {"getstate", "setstate", "get_state", "set_state", "get_bit_generator"}  # torch.compile keeps states by these
# Bound to the real functions before any capture replaces them.
_get, _set = torch.random.get_rng_state, torch.random.set_rng_state


@torch.library.custom_op("engine_torch::generator_state", mutates_args=(), tags=torch.Tag.nondeterministic_seeded)
def _state() -> Tensor:
    return _get()


@torch.library.custom_op("engine_torch::set_generator_state", mutates_args=(), tags=torch.Tag.nondeterministic_seeded)
def _set_state(state: Tensor) -> None:
    _set(state)


@_state.register_fake
def _any_state() -> Tensor:
    return torch.empty(_BYTES, dtype=torch.uint8)


@_set_state.register_fake
def _nothing(state: Tensor) -> None:
    pass


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        if caller() == "torch.distributed._meta_registrations":  # it draws a name for what it stands in for
            raise Unsupported("it calls a collective of torch.distributed that changes a tensor in place (all_reduce, broadcast, ...), which no "
                              "run of a plan would make; average the gradients outside of the step")  # fmt: skip
        raise Unsupported(f"it calls {name}, whose numbers would be the same in each run; draw them with torch, or give them as an "
                          "argument")  # fmt: skip

    return refuse


def _seeded(default_rng: Callable[..., Any], seed: Any = None) -> Any:
    """A generator with a seed gives the same numbers in each call of the step, too."""
    return _refused("numpy.random.default_rng without a seed")() if seed is None else default_rng(seed)


def _drawn(urandom: Callable[[int], bytes], size: int) -> bytes:
    if not installed(sys._getframe(2).f_globals.get("__name__")):
        _refused("os.urandom")()
    return urandom(size)


def _read(clock: Callable[[], Any]) -> Any:
    """Libraries may read it: what they do with it is not the step's result."""
    caller = sys._getframe(2)  # behind what stands for the clock
    if not installed(caller.f_globals.get("__name__")):
        _refused(f"time.{clock.__name__}")()
    return clock()


class _Forbidden:
    """Instead of a generator, while a step is captured: other threads find the generator behind it."""

    def __init__(self, generator: Any, name: str) -> None:
        self.__dict__.update(generator=generator, named=name)

    def __getattr__(self, name: str) -> Any:
        if getattr(_here, "depth", 0):
            _refused(f"{self.named}.{name}")()
        return getattr(self.generator, name)


def _generators() -> Iterator[tuple[Any, str, Any]]:
    for module in (torch, torch.random):
        yield module, "default_generator", _Forbidden(torch.default_generator, "torch.default_generator")
    mtrand = getattr(sys.modules.get("numpy.random"), "mtrand", None)
    if hasattr(mtrand, "_rand"):
        yield mtrand, "_rand", _Forbidden(mtrand._rand, "numpy.random.mtrand._rand")


def _instead() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """What is replaced: module, name, what is called instead."""
    for module in (torch, torch.random):
        yield module, "get_rng_state", _state
        yield module, "set_rng_state", _set_state
        for name in _SEEDS:
            yield module, name, _refused(f"torch.{name}")
    numpy = sys.modules.get("numpy.random")
    for name in (name + unit for name in _CLOCKS for unit in ("", "_ns")):
        yield time, name, functools.partial(_read, getattr(time, name))
    yield os, "urandom", functools.partial(_drawn, os.urandom)
    yield random, "_urandom", _refused("random.SystemRandom")
    if numpy is not None:
        yield numpy, "default_rng", functools.partial(_seeded, numpy.default_rng)
    for module, where, drawn in ((random, "random", random._inst), (numpy, "numpy.random", getattr(numpy, "mtrand", None))):  # type: ignore[attr-defined]
        owner = getattr(drawn, "_rand", drawn)
        for name, function in list(vars(module).items()) if module else ():
            if name not in _HARMLESS and owner is not None and getattr(function, "__self__", None) is owner:
                yield module, name, _refused(f"{where}.{name}")


def _in_captures(original: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (instead if getattr(_here, "depth", 0) else original)(*args, **kwargs)

    return call


def _stands() -> Iterator[Stand]:
    for module, name, instead in _instead():
        yield module, name, functools.partial(_in_captures, instead=instead)
    for module, name, forbidden in _generators():
        yield module, name, functools.partial(_given, forbidden)


def _given(instead: Any, _: Any) -> Any:
    return instead


@contextlib.contextmanager
def ordered_draws() -> Iterator[None]:
    """Around a capture. Other threads find the functions as they were."""
    with _lock:
        _here.depth = getattr(_here, "depth", 0) + 1
        try:
            with replacing(list(_stands()) if _here.depth == 1 else ()):
                yield
        finally:
            _here.depth -= 1
