"""The state of a step: the parameters and buffers of its modules and what its optimizers keep; found, checked, swapped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from . import adapter, glance
from .glance import Glance
from .optimizers import RATES, hooks_of, noted, rule_of, settings, steps_of
from .overlaps import Memory
from .refusals import Unsupported
from .stand_ins import Attributes
from .surroundings import Surroundings


_MOST_NOTES = 8  # of what is looked at: a program that puts equal objects in the place of others may do so before each run
FAST = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)  # in evaluation mode they ask for plain tensors
_OF_PROCESSES = {"DistributedDataParallel", "FullyShardedDataParallel"}  # what torch wraps a module in to train it by several


class State:
    """Every tensor that lasts from step to step, once, with the place that it is found in."""

    def __init__(self, step: Any, modules: list[nn.Module], optimizers: list[Optimizer], arguments: Iterable[Any] = ()) -> None:
        self.modules, self.optimizers = modules, optimizers
        self.rules = [rule_of(o) for o in optimizers]
        self.tensors: list[torch.Tensor] = []
        self.number: dict[int, int] = {}  # id of a tensor -> its number
        self.places: list[tuple[Any, Any, torch.Tensor]] = []  # (dict, key, tensor)
        self.parts = list({id(m): m for module in modules for m in module.modules()}.values())
        for part in self.parts:
            if isinstance(part, torch.jit.ScriptModule):
                raise Unsupported("a module of torch.jit, whose calls cannot be seen")
            if isinstance(part, FAST) and not part.training and torch.backends.mha.get_fastpath_enabled():
                raise Unsupported(f"a {type(part).__name__} in evaluation mode, for which torch takes a way that no capture sees; switch that off "
                                  "by torch.backends.mha.set_fastpath_enabled(False)")  # fmt: skip
            if not _OF_PROCESSES.isdisjoint(kind.__name__ for kind in type(part).__mro__):
                raise Unsupported(f"{type(part).__name__}, whose sums over processes no run would make; average the gradients outside of "
                                  "the step, or compile the module inside of it (torch.compile)")  # fmt: skip
            for held in (part._parameters, part._buffers):
                for name, tensor in held.items():
                    if tensor is not None:
                        self._add(held, name, tensor)
        of_modules = len(self.places)
        self.kept: list[tuple[Optimizer, Any, Any]] = []  # what each optimizer keeps of each parameter: a dict, or None
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in self.number:
                        raise Unsupported("an optimizer has a parameter of no module that the step reaches; "
                                          "name the modules: compile_step(step, modules=[...])")  # fmt: skip
                    kept = optimizer.state.get(parameter)
                    self.kept.append((optimizer, parameter, kept))
                    for name, tensor in (kept or {}).items():
                        if isinstance(tensor, torch.Tensor):
                            self._add(kept, name, tensor)
        self.steps = list(map(steps_of, optimizers))
        self.kept_places = self.places[of_modules:]
        self.settings = list(map(settings, optimizers))
        self._refuse_hooks()
        self.memory: Memory | None = None  # once the step is captured
        self.looked, self.layout = self._look(), self._layout()
        self.surroundings = Surroundings(step, modules, optimizers, arguments)
        for item in self.surroundings.kept:
            if isinstance(item, (list, tuple, dict, set, frozenset)) and any(type(part) is int and part in self.number for part in item):
                raise Unsupported(f"a {type(item).__name__} with the id of a parameter, which what stands for it in a capture has not; "
                                  "keep parameters themselves in a set or a dict")  # fmt: skip
        named = [item for item in self.surroundings.kept if isinstance(item, torch.Tensor) and id(item) not in self.number]
        self.attributes = Attributes([*self.tensors, *{id(t): t for t in named}.values()])
        self.noted = 0
        self._note()

    def _add(self, held: Any, name: Any, tensor: torch.Tensor) -> None:
        if type(tensor) not in (torch.Tensor, nn.Parameter):
            raise Unsupported(f"a parameter or buffer of the class {type(tensor).__qualname__}, which a capture cannot stand in for")
        self.places.append((held, name, tensor))
        if id(tensor) not in self.number:
            self.number[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)

    def find(self, tensors: list[torch.Tensor]) -> None:
        """Adds what the step uses besides. Such a tensor may be an argument, too, so it is in no place and has no number."""
        if tensors:
            self.tensors += tensors
            self.looked, self.layout = self._look(), self._layout()

    @contextlib.contextmanager
    def watched(self, real: Callable[[Any], Any]) -> Iterator[None]:
        """Around a capture: puts back what the step reads, and the attributes of tensors. Unsupported if it has changed any."""
        changed = False
        try:
            with self.surroundings.watched(real):
                yield
        finally:
            changed = self.attributes.changed()
            self.attributes.put_back()
        if changed:
            raise Unsupported("it changes an attribute of a tensor, which a run of its plan would not")

    def counts(self) -> dict[tuple[int, int], float]:
        """By the ids of an optimizer that counts and of a parameter: how often it has updated that. Not while tensors are swapped."""
        return {(id(optimizer), id(p)): float(kept["step"]) for optimizer, p, kept in self.kept if kept and "step" in kept}

    def _refuse_hooks(self) -> None:
        """Hooks of modules are part of what is captured; those of parameters and optimizers run in no plan."""
        if self._hooked():
            raise Unsupported("hooks of a parameter (register_hook, register_post_accumulate_grad_hook)")

    def _hooked(self) -> bool:
        return any(t._backward_hooks or t._post_accumulate_grad_hooks for t in self.tensors)

    def _note(self) -> None:
        self.noted += 1
        self.glance = Glance([*self.surroundings.parts.noted(), *self.surroundings.noted(), *self.attributes.noted(), *self._of_optimizers()])

    def _of_optimizers(self) -> Iterator[glance.Place]:
        """Their settings, and what they keep of each parameter."""
        for optimizer in self.optimizers:
            own = vars(optimizer)
            yield from noted(optimizer)
            yield from glance.held_by(own, "state")
            yield glance.ITEM, own, "param_groups", optimizer.param_groups
            yield glance.elements(optimizer.param_groups)
            for group in optimizer.param_groups:
                yield from glance.settings(group, RATES)
                yield glance.elements(group["params"])
        yield from ((glance.ITEM, held, name, tensor) for held, name, tensor in self.kept_places)

    def changed(self) -> str:
        """What is no longer as when the step was captured; '' if nothing."""
        if self.glance.same() and not self.surroundings.guarded() and self._look() == self.looked:
            return ""
        asked = len(self.surroundings.unseen)
        why = self._changed()
        self.noted -= len(self.surroundings.unseen) > asked  # a guard that is asked from now on spoils no further glance
        if not why and self.noted < _MOST_NOTES:
            self._note()
        return why

    def _changed(self) -> str:
        if why := self.surroundings.parts.changed():
            return why
        for optimizer, parameter, kept in self.kept:
            if optimizer.state.get(parameter) is not kept:
                return "an optimizer's state that was replaced"
        for held, name, tensor in self.kept_places:
            if held.get(name) is not tensor:
                return f"another tensor as '{name}'"
        if list(map(settings, self.optimizers)) != self.settings:
            return "an optimizer's settings"
        if self._look() != self.looked and (why := self._moved()):
            return why
        if self.attributes.changed():
            return "an attribute of a tensor"
        if any(map(hooks_of, self.optimizers)):
            return "hooks"
        if list(map(steps_of, self.optimizers)) != self.steps:
            return "the step of an optimizer"
        return self.surroundings.changed()

    def _look(self) -> Any:
        native = adapter.load()
        return native and native.looks(self.tensors)

    def _layout(self) -> list[Any]:
        return [(t.dtype, t.shape, t.layout is torch.strided and t.stride(), t.requires_grad) for t in self.tensors]

    def _moved(self) -> str:
        """Hooks, or another tensor as the .data of one: what it is, and what it shares memory with, must be as before."""
        if self._hooked():
            return "hooks"
        for before, now in zip(self.layout, self._layout()):
            if before != now:
                return "which tensors require gradients" if before[:3] == now[:3] else "the type or the shape of a parameter"
        assert self.memory
        groups = self.memory.groups
        self.memory.refresh()
        if self.memory.groups != groups:
            return "what shares memory with a parameter"
        self.looked = self._look()
        return ""

    @contextlib.contextmanager
    def swapped(self, tensors: list[torch.Tensor]) -> Iterator[None]:
        """While it lasts, modules and optimizers hold these tensors instead. Unsupported if what happens inside puts others in
        their place, or gives them other data: a run would change none of that."""
        before = [(owner, held, dict(held)) for owner, held in self._holders()]
        given = {key: tensors[number] for key, number in self.number.items()}
        needed = [t.requires_grad for t in tensors]
        data = [t.untyped_storage() if t.layout is torch.strided else None for t in tensors]
        try:
            for held, name, tensor in self.places:
                held[name] = given[id(tensor)]
            yield
            for owner, held, was in before:
                for name in {**was, **held}:
                    if held.get(name) is not given.get(id(was.get(name)), was.get(name)):
                        raise Unsupported(f"it gives {owner} another '{name}', which a run of its plan would not; change that tensor "
                                          "in place, as by copy_()")  # fmt: skip
            if any(t.requires_grad is not was and t.grad_fn is None for t, was in zip(tensors, needed)):
                raise Unsupported("it changes which parameters require gradients, which a run of its plan would not")
            for tensor, storage in zip(tensors, data):
                if storage is not None and tensor.untyped_storage()._cdata != storage._cdata:
                    raise Unsupported("it gives a parameter or buffer other data (p.data = ...), which a run of its plan would not; "
                                      "change that in place, as by p.data.copy_()")  # fmt: skip
        finally:
            for _, held, was in before:
                held.clear()
                held.update(was)

    def _holders(self) -> Iterator[tuple[str, dict[Any, Any]]]:
        """Whatever holds tensors of the state, and whose it is."""
        for part in self.parts:
            yield from ((type(part).__name__, held) for held in (part._parameters, part._buffers))
        for optimizer, _, kept in self.kept:
            if kept is not None:
                yield type(optimizer).__name__, kept
