"""A program in plain Python: the meaning that the engine has to have."""

from __future__ import annotations

import numpy as np

from .programs import Program, Recorded, Step


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
    return x[::-1]


def two(x, y):
    return x, x[::-1]


def update(w, x, number):
    if (x[0] + number) % 7 == 0:
        raise Failed(int(x[0]))
    w *= number
    w += x
    w %= 1009


FUNCTIONS = {"add": add, "mul": mul, "maybe": maybe, "whole": whole, "back": back, "same": same, "nested": nested}


class Cell:
    """A value: its data, and whether it has failed. A failed one may still have data, which clear shows again."""

    def __init__(self, data: np.ndarray | None, failed: bool = False, root: Cell | None = None, brought: bool = False) -> None:
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


def _call(function: Recorded, given: list[Cell], values: list[Cell]) -> list[Cell]:
    local = [*given, *(values[state] for state in function.states)]
    for step in function.steps:
        if step.do == "update":
            _update(local[step.args[0]], local[step.args[1]], step.number)
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
    for step in program.steps:
        _step(program, step, values)
    return values


def _step(program: Program, step: Step, values: list[Cell]) -> None:
    if step.do.startswith("call"):
        function = program.functions[step.args[0]]
        given = [values[a] for a in step.args[1:]]
        if step.do == "call":
            given = [Cell(np.arange(4) + a, brought=True) for a in step.args[1:]]
        values += _call(function, given, values)
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
