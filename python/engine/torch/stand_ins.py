"""What stands for tensors while a step is captured: they have shapes and no data, and must not be told from the tensors themselves.

A stand-in is found in sets and dicts where its tensor is, and has the attributes that the program gave its tensor. What the
program asks of a tensor that a stand-in cannot say makes the step run eagerly, as does a stand-in that the program keeps."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, track_tensor_tree
from torch.utils._pytree import tree_leaves

from . import glance
from .lines import is_torch
from .refusals import Unsupported

# What of a tensor's a stand-in cannot say: by the function that asks for it, what a refusal says.
_SAID = {Tensor.__repr__: "it makes text of a tensor, as print() and str() do", Tensor.__format__: "it makes text of a tensor, as f\"{loss}\" does"}  # fmt: skip
_ASKED = {Tensor.data_ptr: "it reads the address of a tensor's data (data_ptr())",
          Tensor.storage_offset: "it reads where a tensor begins in its memory (storage_offset())",
          Tensor._version.__get__: "it reads how often a tensor was changed (_version)"}  # type: ignore[attr-defined]  # fmt: skip
_ASKED |= dict.fromkeys((Tensor._nnz, Tensor._indices, Tensor._values, Tensor.indices, Tensor.values),
                        "it looks into a sparse tensor (values(), indices())")  # fmt: skip


def refuse_what_has_no_answer(func: Any) -> None:
    """Unsupported where the program asks what differs from run to run. torch's own code may ask."""
    why = _SAID.get(func)
    if why is None and (why := _ASKED.get(func)) is not None and is_torch(sys._getframe(2).f_code.co_filename):
        return
    if why is not None:
        raise Unsupported(f"{why}, which is not known before it runs; do that outside of the step")


class Found:
    """The tensors that a step uses and that are neither state nor arguments, such as a variable of its closure. Each becomes an
    input of the graph, so that a run has its data as they are then, and a capture leaves them as they are."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.fakes: list[FakeTensor] = []
        self.number: dict[int, int] = {}  # id of a tensor -> its number

    def stood_in(self, tensor: Tensor, fake_mode: Any, tracer: Any) -> Tensor:
        number = self.number.get(id(tensor))
        if number is None:
            if type(tensor) not in (Tensor, nn.Parameter):
                return tensor
            with disable_proxy_modes_tracing():
                fake = fake_mode.from_tensor(tensor)
            graph = tracer.graph
            with graph.inserting_after(_inputs(graph)[-1]):
                proxy = tracer.create_proxy("placeholder", f"found_{len(self.tensors)}", (), {})
            track_tensor_tree(fake, proxy, constant=None, tracer=tracer)
            number = self.number[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
            self.fakes.append(fake)
        return self.fakes[number]

    def behind(self, graph: Graph, count: int) -> None:
        """Moves their inputs behind the first ``count``."""
        inputs = _inputs(graph)
        before = inputs[count - 1]
        for node in inputs[len(inputs) - len(self.tensors) :]:
            before.append(node)
            before = node


def _inputs(graph: Graph) -> list[Any]:
    return list(graph.find_nodes(op="placeholder"))


def has_stand_in(value: Any) -> bool:
    return any(isinstance(part, FakeTensor) for part in tree_leaves(value))


def is_another(tensor: Any) -> bool:
    """Whether a tensor has data, so that it was there before the capture, or comes from where the capture does not look."""
    return not isinstance(tensor, FakeTensor) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


@contextlib.contextmanager
def alike(tensors: list[Tensor], fakes: list[Tensor]) -> Iterator[None]:
    """While it lasts, the stand-ins are found where their tensors are, and have their attributes. Unsupported if these change."""
    hashes = {id(fake): id(tensor) for tensor, fake in zip(tensors, fakes)}
    own = [dict.fromkeys(fake.__dict__) for fake in fakes]
    FakeTensor.__hash__ = lambda self: hashes.get(id(self), id(self))  # type: ignore[method-assign]
    for tensor, fake, names in zip(tensors, fakes, own):
        fake.__dict__.update({n: v for n, v in tensor.__dict__.items() if n not in names})
    try:
        yield
    finally:
        del FakeTensor.__hash__
    for tensor, fake, names in zip(tensors, fakes, own):
        for name in {**tensor.__dict__, **fake.__dict__}:
            if name not in names and fake.__dict__.get(name, names) is not tensor.__dict__.get(name, names):
                raise Unsupported(f"it changes '{name}' of a parameter or buffer, which a run of its plan would not")


class Attributes:
    """What the program has given tensors as attributes. ``changed()`` before each run."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        held = [t.__dict__ for t in tensors]
        self.none = [attributes for attributes in held if not attributes]
        self.some = [(attributes, dict(attributes)) for attributes in held if attributes]

    def changed(self) -> bool:
        return any(self.none) or any(
            len(now) != len(before) or any(now.get(n, self) is not v for n, v in before.items()) for now, before in self.some)  # fmt: skip

    def noted(self) -> Iterator[glance.Place]:
        """All that changed() looks at."""
        for attributes, _ in [*((attributes, {}) for attributes in self.none), *self.some]:
            yield glance.items(attributes)

    def put_back(self) -> None:
        for now, before in [*((attributes, {}) for attributes in self.none), *self.some]:
            if now != before:
                now.clear()
                now.update(before)


class Made:
    """The stand-ins that a capture makes. None may outlive it. What was there before is set aside meanwhile, unless somebody already has
    set some aside: looking through all that torch has imported takes longer than most captures."""

    def __init__(self) -> None:
        self.refs: list[weakref.ref[Any]] = []
        self.set_aside = gc.get_freeze_count() == 0
        if self.set_aside:
            gc.freeze()

    def note(self, result: Any) -> None:
        if type(result) is FakeTensor:
            self.refs.append(weakref.ref(result))
        elif isinstance(result, (tuple, list)):
            self.refs += [weakref.ref(leaf) for leaf in tree_leaves(result) if type(leaf) is FakeTensor]

    def outlive(self, error: BaseException | None = None) -> bool:
        """Whether some do, behind a capture. Caches that hold some are emptied. Called once."""
        try:
            while error is not None:
                traceback.clear_frames(error.__traceback__)
                error = error.__cause__ or error.__context__
            if not self._alive():
                return False
            gc.collect()
        finally:
            if self.set_aside:
                gc.unfreeze()
        alive = self._alive()
        if alive:
            gc.collect()  # a cycle may have gone through what was set aside
            alive = self._alive()
        if alive:
            _let_go(alive)
        return bool(alive)

    def _alive(self) -> list[Any]:
        return [held for ref in self.refs if (held := ref()) is not None]


def _let_go(fakes: list[Any]) -> None:
    """Takes stand-ins out of what keeps them: a cache of functools is emptied, a dict loses the items."""
    ids, reached = set(map(id, fakes)), fakes
    for _ in range(3):  # a cache without a limit keeps results in a dict; results may be tuples
        mine = {id(fakes), id(reached)}
        holders = [holder for holder in gc.get_referrers(*reached) if id(holder) not in mine]
        for holder in holders:
            if isinstance(holder, dict):
                for name in [n for n, v in list(holder.items()) if id(v) in ids]:
                    del holder[name]
            elif callable(clear := getattr(type(holder), "cache_clear", None)):
                clear(holder)
        reached = [holder for holder in holders if isinstance(holder, (tuple, list, dict))]
        if not reached:
            return
