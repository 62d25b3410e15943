"""A program in plain Python: the meaning that the engine has to have."""

from __future__ import annotations

import copy
from typing import Any, Callable

import numpy as np

from .programs import BOX_STEPS, KINDS, Program, Recorded, Step


class Failed(Exception):
    """What ops raise; ``args``: the array's first number, which says where it came from."""


def add(x, y, number):
    return x + y + number


def mul(x, y, number):
    return (x * y + number) % 1009


def maybe(x, y, number):
    if (x[0] + number) % 4 == 0:
        raise Failed(int(x[0]))
    return x - y


def whole(x, y, number):
    return x


def back(x, y, number):
    return x[::-1]


def same(x, y, number):
    return x.reshape(2, 2).T.reshape(-1) if number > 2 else np.frombuffer(memoryview(np.ascontiguousarray(x)), x.dtype)


def nested(x, y, number):
    return [x[:], {"y": y}][0]


def turned(x):
    return x[::-1] if isinstance(x, np.ndarray) else x


def two(x, y):
    return x, x[::-1]


def update(w, x, number):
    if (x[0] + number) % 7 == 0:
        raise Failed(int(x[0]))
    w *= number
    w += x
    w %= 1009


FUNCTIONS = {"add": add, "mul": mul, "maybe": maybe, "whole": whole, "back": back, "same": same, "nested": nested}


# Boxes: data of other kinds, into which ops put arrays.


def box_of(kind, number):
    return {"list": [number], "dict": {"start": number}, "bytearray": bytearray([number, 1]), "floats": np.full(4, number / 3)}[kind]


def arrays(thing):
    """The arrays in a box, however nested."""
    if isinstance(thing, np.ndarray):
        return [thing]
    parts = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
    return [array for part in parts for array in arrays(part)]


def put(box, x, number):
    """Puts an array into a box, or what it says. When it fails, it has done so."""
    if isinstance(box, list):
        if len(box) < 5:
            box.append(x)
        else:
            box[number] = [x[len(x) > 3 :], number]
    elif isinstance(box, dict):
        box[number] = (x[::-1], number) if number % 2 else {"x": x}
    elif isinstance(box, bytearray):
        box.append(int(x[0]) % 256)
    else:
        box *= 0.5
        box += x[:1]
    if (int(x[0]) + number) % 5 == 0:
        raise Failed(int(x[0]))


def change(box, number):
    """Changes the arrays in a box in place, and their order."""
    for array in arrays(box):
        array *= number
        array += 1
        array %= 1009
    if isinstance(box, (list, bytearray)):
        box.reverse()
    elif isinstance(box, dict) and len(box) > 3:
        del box[next(iter(box))]


def join(box, other, number):
    """Puts an array of another box into a box."""
    found = arrays(other)
    if found:
        put(box, found[-1], number)


def take(box, number):
    """An array that stays in the box, or what it says."""
    found = arrays(box)
    if not found and number == 0:
        raise Failed(len(box))
    last = found[-1] if found else np.full(4, len(box))
    return last if last.shape == (4,) and last.dtype == int else np.resize(last, 4).astype(int)


def pop(box, number):
    """An array that was in the box."""
    last = box[-1] if isinstance(box, list) and box else None
    return box.pop() if isinstance(last, np.ndarray) and last.shape == (4,) and last.dtype == int else np.full(4, number)


class Cell:
    """A value: its data, and whether it has failed. A failed one may still have data, which clear shows again."""

    def __init__(self, data: Any, failed: bool = False, root: Cell | None = None, brought: bool = False) -> None:
        self.data, self.failed = data, failed
        self.root = root  # whose memory it is a view of
        self.brought = brought  # it is no value, but what a call was given

    def blocked(self) -> bool:
        """Whether an op on it is skipped: one on a view names what it is a view of, too."""
        return self.failed or self.root is not None and self.root.failed

    def fail(self) -> None:
        self.failed = True
        if self.root is not None:
            self.root.failed = True

    def view(self) -> Cell:
        if self.blocked():
            return Cell(None, True, self.root or self)
        if self.brought:
            return Cell(np.array(turned(self.data)))
        return Cell(turned(self.data), False, self.root or self)

    def look(self) -> Cell:
        return Cell(np.full(4, -1) if self.blocked() else self.data.copy())


def _made(do: str, x: Cell, y: Cell, number: int) -> Cell:
    if x.blocked() or y.blocked():
        return Cell(None, True)
    try:
        return Cell(np.array(FUNCTIONS[do](x.data, y.data, number)))
    except Failed:
        return Cell(None, True)


def _update(w: Cell, x: Cell, number: int) -> None:
    if w.blocked() or x.blocked():
        w.fail()
        return
    try:
        update(w.data, x.data if x is not w else x.data.copy(), number)
    except Failed:
        w.fail()


def _changed(fn: Callable[..., Any], box: Cell, others: list[Cell], number: int) -> Cell:
    """An op that updates a box; what it returns."""
    if box.blocked() or any(other.blocked() for other in others):
        box.fail()
        return Cell(None, True)
    keeps = isinstance(box.data, (list, dict))  # what it is given, of which it has a copy unless that is its own
    given = [copy.deepcopy(other.data) if keeps and other.data is not box.data else other.data for other in others]
    try:
        made = fn(box.data, *given, number)
    except Failed:
        box.fail()
        return Cell(None, True)
    return Cell(np.array(made))


def _call(function: Recorded, given: list[Cell], values: list[Cell], boxes: list[Cell]) -> list[Cell]:
    local = [*given, *(values[state] for state in function.states)]
    for step in function.steps:
        if step.do == "update":
            _update(local[step.args[0]], local[step.args[1]], step.number)
        elif step.do == "put":
            _changed(put, boxes[step.args[0]], [local[step.args[1]]], step.number)
        elif step.do == "view":
            local.append(local[step.args[0]].view())
        else:
            local.append(_made(step.do, local[step.args[0]], local[step.args[1]], step.number))
    return [Cell(cell.data) if cell.brought else cell for cell in (local[number] for number in function.returned)]


STAGED = 5  # items that a stage makes


def _staged(x: Cell, number: int) -> Cell:
    """The sum of the items before the first that fails, which counts as a thousand."""
    total = np.zeros(4, int)
    for item in range(STAGED):
        made = _made("maybe", x, Cell(np.arange(4) + item), number + item)
        if made.failed:
            return Cell(total + 1000)
        total = total + made.data
    return Cell(total)


def run(program: Program) -> list[Cell]:
    values = [Cell(np.array(data)) for data in program.start]
    boxes = [Cell(box_of(kind, number)) for number, kind in enumerate(program.boxes)]
    for step in program.steps:
        if step.do in BOX_STEPS:
            _box_step(step, values, boxes)
        else:
            _step(program, step, values, boxes)
    return values + boxes


def _box_step(step: Step, values: list[Cell], boxes: list[Cell]) -> None:
    at, other = step.args
    box = boxes[at]
    if step.do == "put":
        _changed(put, box, [values[other]], step.number)
    elif step.do == "join":
        _changed(join, box, [boxes[other]], step.number)
    elif step.do == "change":
        _changed(change, box, [], step.number)
    elif step.do == "pop":
        values.append(_changed(pop, box, [], step.number))
    elif step.do == "take":
        values.append(_taken(box, step.number))
    elif step.do == "view box":
        boxes.append(box.view())
    elif step.do == "look box":
        boxes.append(Cell([] if box.blocked() else copy.deepcopy(box.data)))
    elif step.do == "overwrite box":
        box.data, box.failed, box.root = box_of(KINDS[other % len(KINDS)], step.number), False, None
    else:
        box.failed = box.data is None


def _taken(box: Cell, number: int) -> Cell:
    try:
        return Cell(None, True) if box.blocked() else Cell(np.array(take(box.data, number)))
    except Failed:
        return Cell(None, True)


def _step(program: Program, step: Step, values: list[Cell], boxes: list[Cell]) -> None:
    if step.do.startswith("call"):
        function = program.functions[step.args[0]]
        given = [values[a] for a in step.args[1:]]
        if step.do == "call":
            given = [Cell(np.arange(4) + a, brought=True) for a in step.args[1:]]
        values += _call(function, given, values, boxes)
    elif step.do == "update":
        _update(values[step.args[0]], values[step.args[1]], step.number)
    elif step.do == "overwrite":
        cell = values[step.args[0]]
        cell.data, cell.failed, cell.root = np.full(4, step.number), False, None
    elif step.do == "clear":
        values[step.args[0]].failed = values[step.args[0]].data is None
    elif step.do == "view":
        values.append(values[step.args[0]].view())
    elif step.do == "look":
        values.append(values[step.args[0]].look())
    elif step.do == "two":
        x, y = (values[a] for a in step.args)
        bad = x.blocked() or y.blocked()
        values += [Cell(None, True) if bad else Cell(np.array(part)) for part in (two(x.data, y.data) if not bad else (0, 0))]
    elif step.do == "stage":
        values.append(_staged(values[step.args[0]], step.number))
    elif step.do == "reduce":
        x, y = (values[a] for a in step.args)
        values.append(Cell(np.zeros(4, int) if x.blocked() or y.blocked() else x.data + y.data))
    else:
        values.append(_made(step.do, values[step.args[0]], values[step.args[1]], step.number))
