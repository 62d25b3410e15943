"""Recording: what a function's ops become while it is recorded (``hybridize``, ``smart_stage``)."""

from __future__ import annotations

from typing import Any

from . import _core
from .containers import Place, found_in, mapped
from .once import MadeOnce
from .refusals import refuse_hidden
from .traced import Made, Traced, standing_for, where
from .values import Value, roots_of


class Recorder:
    """The graph that this thread is recording a function into."""

    def __init__(self, engine: _core.Engine) -> None:
        self.engine, self.graph = engine, _core.Graph()
        self.readers: dict[int, list[int]] = {}  # value -> nodes that read it
        self.states: dict[int, Value[Any]] = {}  # Values from outside that the function uses, kept alive
        self.makers: dict[int, int] = {}  # value -> node that makes it
        self.overwritten: set[int] = set()  # inputs and other values that an op changes in place
        self.changed: set[int] = set()  # ids of the states that an op changes in place
        self.results: set[int] = set()  # inputs that are another Value in each call
        self.owner: object = None
        self.owner_input = -1
        self.targets: set[int] = set()  # nodes that mark_target_node marked
        self.refused: tuple[Any, ...] = ()  # what the first Unreadable said
        self.calls: set[int] = set()  # nodes that are calls of ops; the others are pushes
        self.made = MadeOnce()

    @staticmethod
    def current() -> Recorder | None:
        recorder: Recorder | None = _core.recorder()
        return recorder

    def block(self) -> _core.RecordingBlock:
        """For ``with``: what this thread pushes and calls in the block is recorded here."""
        return _core.RecordingBlock(self, self.graph)

    def owned(self, owner: object) -> None:
        """Makes ``owner`` one more input of each run. The graph must not keep it: ``owner`` may keep the graph, and then
        neither would ever go."""
        self.owner, self.owner_input = owner, self.graph.input("self")

    def input(self, name: str, kind: type) -> Traced:
        """``kind``: the type of what the first call gives."""
        return standing_for(kind)(self.graph.input(name), name, brought=True)

    def call(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: list[Value[Any]],
             updated: list[Value[Any]]) -> list[Traced]:  # fmt: skip
        """Records one call of an op, whose arguments have the Values ``found``."""
        name, outputs = op._name, op._outputs
        refuse_hidden(op._fn, f"op '{name}'", levels=1)
        for part in (*args, *kwargs.values()):
            if part is not self.owner:
                refuse_hidden(part, f"a call of '{name}'")
        named, changing = _with_roots(found), _with_roots(updated)
        traced = list({v._index: v for v in named if isinstance(v, Traced)}.values())
        places = {v._index: i for i, v in enumerate(traced)}
        state = [v for v in named if not isinstance(v, Traced)]
        changed = [v for v in changing if isinstance(v, Traced)]
        for v in state:
            self.states[id(v)] = v
        self.changed.update(id(v) for v in changing if not isinstance(v, Traced))
        for v in changing:
            self.made.changed(v, f"op '{name}'")
        for v in changed:
            if v._index in self.results or v._brought and any(v is u for u in updated):
                raise NeedsState(v, f"op '{name}' at {where()}")
            self.overwritten.add(v._index)
        given = (*args, *kwargs.values())
        kinds = [_kind(arg, places) for arg in given]
        inputs = [v._index for v in traced]
        if self.owner_input >= 0 and any(arg is self.owner for arg in given):
            kinds = [len(inputs) if arg is self.owner else kind for arg, kind in zip(given, kinds)]
            given = tuple(None if arg is self.owner else arg for arg in given)
            inputs.append(self.owner_input)
        brought = [i for i, index in enumerate(inputs) if index == self.owner_input or i < len(traced) and traced[i]._brought]
        index, first = _core._add_op(
            self.graph, op, tuple(_placed(arg, places) if kind == -3 else arg for arg, kind in zip(given, kinds)),
            tuple(kwargs) or None, kinds, inputs, [places[v._index] for v in changed],
            [i for i, arg in enumerate(given) if any(arg is v for v in updated)],
            [v for v in state if not any(v is u for u in changing)],
            [v for v in changing if not isinstance(v, Traced)], self.engine, brought)  # fmt: skip
        self.calls.add(index)
        for v in traced:
            self.readers.setdefault(v._index, []).append(index)
        # A value that is changed in place becomes another value. Nodes that read the old one come before this node.
        for i, v in enumerate(changed):
            for reader in self.readers[v._index]:
                if reader != index:
                    self.graph.order(reader, index)
            v._index = first + outputs + i
        self.makers.update({value: index for value in range(first, first + outputs + len(changed))})
        made: list[Traced] = [Made(first + i, name) for i in range(outputs)]
        if op._ordered and found:
            # A view of an argument is a copy in a run that is given no Value for it, and then the root of its own views.
            copies = [v for v in found if any(isinstance(root, Traced) and root._brought for root in v._shares or ())]
            for one in made:
                one._shares = (*roots_of(found), *copies)
        return made


class NeedsState(BaseException):  # a function that goes on behind an error must not go on behind this
    """An op changes an argument in place that is raw data, or another Value in each call; it would have to be one Value.

    Its arguments: what stands for the argument, and which op changes it.
    """


def _with_roots(values: list[Value[Any]]) -> list[Value[Any]]:
    """These, and what they share memory with: a call names that, too, as ops that are not recorded do."""
    roots = [root for value in values for root in value._shares or ()]
    return list({id(value): value for value in (*values, *roots)}.values()) if roots else values


def _kind(arg: Any, places: dict[int, int]) -> int:
    """How a node gets an argument: the number of its input; -1: as it is; -2: a Value; -3: a container of these."""
    if isinstance(arg, Traced):
        return places[arg._index]
    if isinstance(arg, Value):
        return -2
    return -3 if found_in(arg) else -1


def _placed(arg: Any, places: dict[int, int]) -> Any:
    if isinstance(arg, Traced):
        return Place(places[arg._index])
    return mapped(arg, lambda item: _placed(item, places))
