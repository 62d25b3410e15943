"""What a recording notes of the function's result, and how each call makes its own result of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .alias import apart, changeable
from .containers import Place, mapped
from .ops import Op
from .recorder import Recorder
from .refusals import refuse_hidden, refuse_iterator
from .traced import Traced
from .values import Value, roots_of

if TYPE_CHECKING:
    from .recording import Recording

_argument: Op[Any, Any] = Op(lambda given: given, (), 1, {"name": "argument", "alias": "order"})  # copies what is no Value's


class Sharing(NamedTuple):
    """What an output of each run shares memory with: Values from outside, arguments that are Values, and other outputs."""

    output: int
    state: list[Value[Any]]
    arguments: list[int]
    outputs: list[int]


class Raw:
    """An array or a container that no op made: each call gets a copy, as it gets a new one where nothing is recorded."""

    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        self.data = data


class Noted:
    """What a recorded function returned: the outputs of its graph, and what is to be done with them in each call."""

    def __init__(self, name: str, recorder: Recorder, inputs: list[Traced], indexes: list[int]) -> None:
        self._name = name
        self._recorder, self._outputs = recorder, dict[int, int]()  # output of each recorded value
        self._inputs = {id(one): place for place, one in enumerate(inputs)}
        self._unchanged = {one._index for one, index in zip(inputs, indexes) if one._index == index}
        self.returned: Any = None
        self.passed: dict[int, int] = {}
        self.shared: list[Sharing] = []

    def place(self, item: Any) -> Any:
        """The item, with each recorded value replaced by the number of its output."""
        if isinstance(item, Traced):
            return Place(self._output(item))
        if isinstance(item, Value):
            self._recorder.made.returned(item)
        refuse_iterator(item, self._name)
        refuse_hidden(item, f"the result of '{self._name}'")
        made = mapped(item, self.place)
        return Raw(item) if made is item and changeable(item) else made

    @property
    def one(self) -> bool:
        """Whether there is one output, which is all that a run makes."""
        return len(self._outputs) == 1 and not self.passed and not self.shared

    def _output(self, value: Traced) -> int:
        known = self._outputs.get(value._index)
        if known is not None:
            return known
        output = self._outputs[value._index] = len(self._outputs)
        made = value
        if value._brought:  # a Value that is given is returned itself; other data are copied, as they are the caller's
            made = self._recorder.call(_argument, (value,), {}, [value], [])[0]
            if value._index in self._unchanged:
                self.passed[output] = self._inputs[id(value)]
        self._recorder.graph.output(made._index)
        roots = value._shares or ()
        if roots:
            brought = [self._inputs[id(r)] for r in roots if isinstance(r, Traced) and r._brought]
            outputs = [self._output(r) for r in roots if isinstance(r, Traced) and not r._brought]
            for root in roots:
                self._recorder.made.returned(root)
            self.shared.append(Sharing(output, [r for r in roots if not isinstance(r, Traced)], brought, outputs))
        return output


def results_of(recording: Recording, outputs: tuple[Any, ...], given: list[Any]) -> Any:
    """What a call returns: what the function returned, with the outputs of the run. ``given``: the arguments of the call."""
    for sharing in recording.shared:
        arguments = [given[place] for place in sharing.arguments if isinstance(given[place], Value)]
        roots = roots_of([*sharing.state, *arguments, *(outputs[other] for other in sharing.outputs)])
        outputs[sharing.output]._shares = roots or None
    if recording.passed:
        passed = {output: given[place] for output, place in recording.passed.items() if isinstance(given[place], Value)}
        outputs = tuple(passed.get(number, output) for number, output in enumerate(outputs))
    return rebuilt(recording.returned, outputs)


def rebuilt(noted: Any, outputs: tuple[Any, ...]) -> Any:
    """What ``Noted.place`` returned, with an output in each Place."""
    if type(noted) is Place:
        return outputs[noted.place]
    if type(noted) is Raw:
        return apart(noted.data)
    return mapped(noted, lambda item: rebuilt(item, outputs))
