"""Generators of random numbers: which ones a function draws from, and which ones two parts of a program have in common."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import random
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .named import installed, names_of
from .reach import held_by, is_there
from .replaced import Stand, caller, replacing

_MOST_LOOKS = 16_384  # at objects that may be generators, or hold some
_WITHOUT_PARTS = (int, float, complex, str, bytes, type(None), types.ModuleType, types.CodeType, torch.Tensor)
_COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch")  # keep the states of generators from what they do themselves
Own = dict[str, Any]  # generators of the program's own by name


def states(own: Own | None = None) -> dict[str, Any]:
    """The states of the global generators, and of others."""
    found: dict[str, Any] = {"torch's generator": torch.get_rng_state(), "Python's random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["NumPy's generator"] = numpy.random.get_state()
    if torch.cuda.is_initialized():
        found["torch's generator of the GPU"] = torch.cuda.get_rng_state()
    return found | {name: state_of(generator) for name, generator in (own or {}).items()}


def drawn_from(before: dict[str, Any], own: Own | None = None) -> set[str]:
    """The generators whose states are not as ``before``."""
    now = states(own)
    return {name for name, state in before.items() if not _equal(state, now[name])}


@contextlib.contextmanager
def draws(own: Own) -> Iterator[set[str]]:
    """Takes the names of the generators that this thread draws from inside: those whose state is another one behind it, and those whose
    state was set meanwhile. What draws and puts the state back disturbs whoever else draws at that time."""
    drawn: set[str] = set()
    before = states(own)
    try:
        with replacing(list(_noting_setters(threading.get_ident(), drawn))):
            yield drawn
    finally:
        drawn |= drawn_from(before, own)


def _noting_setters(thread: int, drawn: set[str]) -> Iterator[Stand]:
    for module in (torch, torch.random):
        yield module, "set_rng_state", _noting("torch's generator", thread, drawn)
    yield random, "setstate", _noting("Python's random", thread, drawn)
    if "numpy.random" in sys.modules:
        yield sys.modules["numpy.random"], "set_state", _noting("NumPy's generator", thread, drawn)


def _noting(which: str, thread: int, drawn: set[str]) -> Callable[[Any], Any]:
    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def instead(*args: Any, **kwargs: Any) -> Any:
            if thread == threading.get_ident() and not caller().startswith(_COMPILERS):
                drawn.add(which)
            return function(*args, **kwargs)

        return instead

    return noting


def in_common(step: Callable[..., Any], loader: Any) -> Own:
    """The program's own generators that both reach."""
    there = _reached(loader)
    shared = [generator for key, generator in _reached(step).items() if key in there] if there else []
    kinds = [f"{type(g).__module__.partition('.')[0]}'s {type(g).__name__}" for g in shared]
    return {f"{kind} number {i} of those that they have in common": g for i, (kind, g) in enumerate(zip(kinds, shared), 1)}


def _reached(start: Any) -> dict[int, Any]:
    """The generators that an object reaches, also through attributes, slots, iterators, containers of any kind, and the variables of generator
    functions. By id; those of NumPy are told apart by what they draw from."""
    numpy = sys.modules.get("numpy.random")
    everybodys = (torch.default_generator, random._inst, getattr(getattr(numpy, "mtrand", None), "_rand", None))  # type: ignore[attr-defined]
    found = [item for item in _near(start) if is_generator(item)]
    return {id(_source(generator)): generator for generator in found if all(generator is not one for one in everybodys)}


def _near(start: Any) -> Iterator[Any]:
    """The objects that one reaches, each once. A part of each is looked at in turn, so that a long list hides nothing beside it."""
    left, seen = collections.deque([iter((start,))]), {}
    for _ in range(_MOST_LOOKS):
        if not left:
            return
        parts = left.popleft()
        for item in parts:
            left.append(parts)
            if not issubclass(type(item), _WITHOUT_PARTS) and id(item) not in seen and is_there(item):
                seen[id(item)] = item  # which keeps its id taken
                yield item
                left.append(iter(_held_by(item)))
            break


def _held_by(item: Any) -> Iterable[Any]:
    if is_generator(item) or isinstance(item, (type, types.FunctionType)) and _installed(item):
        return ()
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, type):
        return [*vars(item).values(), *item.__mro__]
    if isinstance(item, types.BuiltinMethodType):
        return (item.__self__,)
    if isinstance(item, (types.FunctionType, types.MethodType, functools.partial)):
        return held_by(item)
    if isinstance(item, types.GeneratorType):
        frame = item.gi_frame
        return [item.gi_yieldfrom, *frame.f_locals.values(), *map(frame.f_globals.get, names_of(item.gi_code))] if frame else ()
    return gc.get_referents(item)  # attributes, slots, what a container has, and the class


def _installed(item: Any) -> bool:
    return installed(item.__module__)


def is_generator(item: Any) -> bool:
    """Whether it is a generator of random numbers, of torch, Python or NumPy, that has a state."""
    numpy = sys.modules.get("numpy.random")
    kinds = (torch.Generator, random.Random, *((numpy.Generator, numpy.RandomState) if numpy else ()))
    return isinstance(item, kinds) and not isinstance(item, random.SystemRandom)


def _source(generator: Any) -> Any:
    """What a generator of NumPy draws from, which several may have in common; any other draws from itself."""
    return getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator)


def state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state(False) if hasattr(generator, "get_state") else generator.bit_generator.state


def set_state(generator: Any, state: Any) -> None:
    """Sets what state_of() gave."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (tuple, dict)):
        return all(map(_equal, a.values(), b.values()) if isinstance(a, dict) else map(_equal, a, b))
    return bool((a == b) if not hasattr(a, "tobytes") else a.tobytes() == b.tobytes())
