"""Generators of random numbers: which ones a function draws from, and which ones two parts of a program have in common."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import random
import sys
import threading
import types
from typing import Any, Callable, Iterator

import torch

from .named import installed, names_of
from .state import used_by

_MOST_OBJECTS, _MOST_PARTS = 4096, 64  # that are looked at for generators; of each container
_COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch")  # keep the states of generators from what they do themselves
Own = dict[str, Any]  # generators of the program's own by name

_lock = threading.Lock()  # for what follows
_watchers: list[tuple[int, set[str]]] = []  # the thread of each, and the generators whose states it has set
_replaced: list[tuple[Any, str, Any, Any]] = []  # module, name, the function, what is there instead


def states(own: Own | None = None) -> dict[str, Any]:
    """The states of the global generators, and of others."""
    found: dict[str, Any] = {"torch's generator": torch.get_rng_state(), "Python's random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["NumPy's generator"] = numpy.random.get_state()
    if torch.cuda.is_initialized():
        found["torch's generator of the GPU"] = torch.cuda.get_rng_state()
    return found | {name: _state(generator) for name, generator in (own or {}).items()}


def drawn_from(before: dict[str, Any], own: Own | None = None) -> set[str]:
    """The generators whose states are not as ``before``."""
    now = states(own)
    return {name for name, state in before.items() if not _equal(state, now[name])}


@contextlib.contextmanager
def draws(own: Own) -> Iterator[set[str]]:
    """Takes the names of the generators that this thread draws from inside: those whose state is another one behind it, and those whose
    state was set meanwhile. What draws and puts the state back disturbs whoever else draws at that time."""
    drawn: set[str] = set()
    watcher = threading.get_ident(), drawn
    before = states(own)
    with _lock:
        _watchers.append(watcher)
        if len(_watchers) == 1:
            _replaced[:] = [(module, name, vars(module)[name], _noting(vars(module)[name], which)) for module, name, which in _setters()]
            for module, name, _, instead in _replaced:
                setattr(module, name, instead)
    try:
        yield drawn
    finally:
        with _lock:
            _watchers[:] = [other for other in _watchers if other is not watcher]
            for module, name, function, instead in () if _watchers else _replaced:
                if vars(module)[name] is instead:
                    setattr(module, name, function)
        drawn |= drawn_from(before, own)


def _setters() -> Iterator[tuple[Any, str, str]]:
    for module in (torch, torch.random):
        yield module, "set_rng_state", "torch's generator"
    yield random, "setstate", "Python's random"
    if "numpy.random" in sys.modules:
        yield sys.modules["numpy.random"], "set_state", "NumPy's generator"


def _noting(function: Callable[..., Any], which: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def instead(*args: Any, **kwargs: Any) -> Any:
        if not str(sys._getframe(1).f_globals.get("__name__")).startswith(_COMPILERS):
            for thread, drawn in list(_watchers):
                if thread == threading.get_ident():
                    drawn.add(which)
        return function(*args, **kwargs)

    return instead


def in_common(step: Callable[..., Any], loader: Any) -> Own:
    """The program's own generators that both reach."""
    there = _reached(loader)
    shared = [generator for key, generator in _reached(step).items() if key in there] if there else []
    kinds = [f"{type(g).__module__.partition('.')[0]}'s {type(g).__name__}" for g in shared]
    return {f"{kind} number {i} of those that they have in common": g for i, (kind, g) in enumerate(zip(kinds, shared), 1)}


def _reached(start: Any) -> dict[int, Any]:
    """The generators that an object reaches: through closures, attributes, containers, iterators, and the variables of generator functions.
    By id; those of NumPy are told apart by what they draw from."""
    numpy = sys.modules.get("numpy.random")
    kinds = (torch.Generator, random.Random, *((numpy.Generator, numpy.RandomState) if numpy else ()))
    found: dict[int, Any] = {}
    everybodys = (torch.default_generator, random._inst, getattr(getattr(numpy, "mtrand", None), "_rand", None))
    left, seen = [start], set(map(id, everybodys))
    while left and len(seen) < _MOST_OBJECTS:
        item = left.pop()
        if id(item) in seen or isinstance(item, (types.ModuleType, torch.Tensor)):
            continue
        seen.add(id(item))
        if isinstance(item, kinds):
            if not isinstance(item, random.SystemRandom):  # which has no state
                found[id(_source(item))] = item
        elif isinstance(item, (list, tuple, set)):
            left += itertools.islice(item, _MOST_PARTS)
        elif isinstance(item, dict):
            left += itertools.islice(item.values(), _MOST_PARTS)
        elif isinstance(item, types.FunctionType):
            left += () if _installed(item) else used_by(item)
        elif isinstance(item, (types.MethodType, types.BuiltinMethodType)):
            left += [item.__self__, getattr(item, "__func__", None)]
        elif isinstance(item, functools.partial):
            left += [item.func, *item.args, item.keywords]
        elif isinstance(item, types.GeneratorType):
            left += [item.gi_yieldfrom, *(item.gi_frame.f_locals.values() if item.gi_frame else ())]
            left += [item.gi_frame.f_globals.get(name) for name in names_of(item.gi_code)] if item.gi_frame else []
        elif type(item).__module__ in ("builtins", "itertools") and hasattr(item, "__next__"):
            left += gc.get_referents(item)
        elif not isinstance(item, type):
            left += getattr(item, "__dict__", {}).values()
            left += [held for kind in type(item).__mro__ if not _installed(kind) for held in vars(kind).values()]
    return found


def _installed(item: Any) -> bool:
    return installed((item.__module__ or "").partition(".")[0])


def _source(generator: Any) -> Any:
    """What a generator of NumPy draws from, which several may have in common; any other draws from itself."""
    return getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return generator.getstate() if isinstance(generator, random.Random) else _source(generator).state


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (tuple, dict)):
        return all(map(_equal, a.values(), b.values()) if isinstance(a, dict) else map(_equal, a, b))
    return bool((a == b) if not hasattr(a, "tobytes") else a.tobytes() == b.tobytes())
