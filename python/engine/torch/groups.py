"""What a step does with its optimizers by itself, while it is captured: it may read and set learning rates, read how often a
parameter was updated, and step an optimizer past what stands for its `step`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .optimizers import RATES, Leading
from .refusals import Unsupported
from .surroundings import same


class _Watched(dict[str, Any]):
    """Stands for a dict of an optimizer. ``noted()`` is called where the step reads what is there by some of its names."""

    names: tuple[str, ...]

    def noted(self) -> None:
        raise NotImplementedError

    def __getitem__(self, name: str) -> Any:
        if name in self.names:
            self.noted()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self.names:
            self.noted()
        return super().get(name, default)


def _reads(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def read(self: _Watched, *args: Any, **kwargs: Any) -> Any:
        self.noted()
        return method(self, *args, **kwargs)

    return read


for _name in ("items", "values", "copy", "pop", "popitem", "setdefault", "__iter__", "__eq__", "__ne__", "__or__", "__ror__", "__repr__",
              "__reduce_ex__"):  # fmt: skip
    setattr(_Watched, _name, _reads(_name))


class _Group(_Watched):
    """A group. Knows whether the step has read its learning rate, or another number that schedulers change."""

    names = RATES
    read = False

    def noted(self) -> None:
        self.read = True


class _Counting(_Watched):
    """What an optimizer keeps of a parameter, where its count is a number of Python's, which a run would have as it was captured."""

    names = ("step",)

    def noted(self) -> None:
        raise Unsupported("it reads how often an optimizer has updated a parameter, which that counts in Python ('step' of its state); "
                          "count in a buffer of a module")  # fmt: skip


def _as_now(rate: Any) -> Any:
    return list(rate) if type(rate) is list else rate  # which may be changed in place


class Groups:
    """The groups of an optimizer, with others in their place until ``restore()``; likewise what it keeps if it counts in Python."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.list, self.groups = optimizer.param_groups, list(optimizer.param_groups)
        self.rates = [{name: _as_now(group[name]) for name in RATES if name in group} for group in self.groups]
        self.stand_ins = [_Group(group) for group in self.groups]
        self.list[:] = self.stand_ins
        self.state = optimizer.state
        self.kept = {p: kept for p, kept in self.state.items() if isinstance(kept, dict) and type(kept.get("step")) is int}
        self.state.update({p: _Counting(kept) for p, kept in self.kept.items()})

    def check(self) -> None:
        """Unsupported if the step has set such a number, or given the optimizer other groups."""
        name = type(self.optimizer).__name__
        now = self.optimizer.param_groups
        if now is not self.list or len(now) != len(self.stand_ins) or any(a is not b for a, b in zip(now, self.stand_ins)):
            raise Unsupported(f"it gives {name} other groups, which a run of its plan would not")
        for group, stand_in, rates in zip(self.groups, self.stand_ins, self.rates):
            for held in (group, stand_in):
                for rate in RATES:
                    if not same(rates.get(rate), dict.get(held, rate)):
                        raise Unsupported(f"it changes '{rate}' of a group of {name}, which a run of its plan would not; set it between steps")

    def check_all(self) -> None:
        """Likewise, and of every setting: once the step is over."""
        self.check()
        for group, stand_in in zip(self.groups, self.stand_ins):
            differ = [n for n in {**group, **dict(dict.items(stand_in))} if dict.get(stand_in, n, Groups) is not group.get(n, Groups)]
            if differ:
                raise Unsupported(f"it changes '{differ[0]}' of a group of {type(self.optimizer).__name__}, which a run of its plan would not")

        for p, kept in self.kept.items():
            now = self.state.get(p)
            if type(now) is not _Counting or len(now) != len(kept) or any(dict.get(now, n, Groups) is not v for n, v in kept.items()):
                raise Unsupported(f"it changes what {type(self.optimizer).__name__} keeps of a parameter, which a run of its plan would not")

    def fixed(self) -> Iterator[tuple[Optimizer, int, dict[str, Any]]]:
        """The learning rates, momentum and betas that the step reads, with the numbers of their groups."""
        return ((self.optimizer, i, rates) for i, (group, rates) in enumerate(zip(self.stand_ins, self.rates)) if group.read)

    def restore(self) -> None:
        self.optimizer.param_groups = self.list
        self.list[:] = self.groups
        self.state.update(self.kept)


@contextlib.contextmanager
def led(steps: Mapping[int, Callable[..., None]]) -> Iterator[None]:
    """Calls of a class's `step`, as of a bound method that the program has kept, go to these, which are found by the id of their
    optimizer. Unsupported for other optimizers."""

    def lead(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if id(optimizer) not in steps:
            raise Unsupported(f"it steps an optimizer, {type(optimizer).__name__}, that is none of those which it reaches; name them all: "
                              "compile_step(step, optimizers=[...])")  # fmt: skip
        steps[id(optimizer)](*args[1:], **kwargs)
        nothing = object.__new__(type(optimizer))
        vars(nothing).update(vars(optimizer), param_groups=[])
        return (nothing,), {}

    handle = register_optimizer_step_pre_hook(Leading(lead))
    try:
        yield
    finally:
        handle.remove()
