"""Programs: made from a number, the same each time."""

from __future__ import annotations

import random
from typing import NamedTuple

OPS = ("add", "mul", "maybe", "whole", "back", "same", "nested")  # of one or two arrays; see plain.FUNCTIONS
PLACES = ("host", "host", "host", "io", "disk", "gpu 0", "gpu 1")  # of ops, where the engine has devices and a pool
POLICIES = ("threaded", "threaded", "inline", "naive", "cost_model")
KINDS = ("list", "dict", "bytearray", "floats")  # of boxes; see plain.box_of
# Of a box and a value, or of a box and another one; see plain.py. The second number of "overwrite box" says the kind.
BOX_STEPS = ("put", "change", "join", "take", "pop", "look box", "view box", "overwrite box", "clear box")
BOX_SHARES = (4, 3, 2, 2, 2, 1, 1, 1, 1)


class Step(NamedTuple):
    """``do``: what; ``args``: numbers of values, or of locals in a recorded function; ``number``: a constant."""

    do: str
    args: tuple[int, ...]
    number: int = 0
    place: str = "host"


class Recorded(NamedTuple):
    """A recorded function: its first ``arguments`` locals are its arguments, then come ``states``, numbers of values."""

    arguments: int
    states: tuple[int, ...]
    steps: tuple[Step, ...]
    returned: tuple[int, ...]


class Program(NamedTuple):
    seed: int
    policy: str
    bulk: int
    start: tuple[tuple[int, ...], ...]  # the values that are there at the beginning
    boxes: tuple[str, ...]  # the kinds of those that are there at the beginning
    functions: tuple[Recorded, ...]
    steps: tuple[Step, ...]


def _function(rng: random.Random, values: int, boxes: int) -> Recorded:
    arguments = rng.randint(1, 2)
    states = tuple(rng.sample(range(values), rng.randint(0, min(2, values))))
    locals_, steps, made = arguments + len(states), [], []
    fixed = set(range(arguments))  # arguments and views of them, which may be another value in each call
    for _ in range(rng.randint(1, 6)):
        if rng.random() < 0.2:
            base = rng.randrange(locals_)
            steps.append(Step("view", (base,)))
            made.append(locals_)
            fixed |= {locals_} if base in fixed else set()
            locals_ += 1
            continue
        if rng.random() < 0.12:
            steps.append(Step("put", (rng.randrange(boxes), rng.randrange(locals_)), rng.randint(0, 4), rng.choice(PLACES)))
            continue
        if (made or states) and rng.random() < 0.25:
            target = rng.choice([*made, *range(arguments, arguments + len(states))])
            if target in fixed:
                continue
            steps.append(Step("update", (target, rng.randrange(locals_)), rng.randint(1, 3), rng.choice(PLACES)))
            continue
        do = rng.choice(OPS)
        steps.append(Step(do, (rng.randrange(locals_), rng.randrange(locals_)), rng.randint(1, 5), rng.choice(PLACES)))
        made.append(locals_)
        locals_ += 1
    if all(step.do in ("update", "put") for step in steps):
        steps.append(Step("add", (0, 0), 1))
        made.append(locals_)
    results = [*made, *range(arguments)] if rng.random() < 0.3 else made
    returned = tuple(rng.sample(results, rng.randint(1, min(3, len(results)))))
    return Recorded(arguments, states, tuple(steps), returned)


def _box_step(rng: random.Random, value: int, boxes: int, first: int) -> Step:
    do = rng.choices(BOX_STEPS, BOX_SHARES)[0]
    box = rng.randrange(first if do == "clear box" else boxes)
    return Step(do, (box, value if do == "put" else rng.randrange(boxes)), rng.randint(0, 4), rng.choice(PLACES))


def make(seed: int) -> Program:
    rng = random.Random(seed)
    values = rng.randint(2, 4)
    start = tuple(tuple(rng.randint(0, 9) for _ in range(4)) for _ in range(values))
    boxes = tuple(rng.choice(KINDS) for _ in range(rng.randint(1, 3)))
    functions = tuple(_function(rng, values, len(boxes)) for _ in range(rng.randint(0, 2)))
    steps, count, held = [], values, len(boxes)
    for _ in range(rng.randint(3, 14)):
        pick = rng.random()
        a, b = rng.randrange(count), rng.randrange(count)
        if rng.random() < 0.25:
            steps.append(_box_step(rng, a, held, len(boxes)))
            count += steps[-1].do in ("take", "pop")
            held += steps[-1].do in ("look box", "view box")
            continue
        if rng.random() < 0.12:
            steps.append(Step("view", (a,)))
            count += 1
            continue
        if functions and pick < 0.3:
            which = rng.randrange(len(functions))
            args = tuple(rng.randrange(count) for _ in range(functions[which].arguments))
            steps.append(Step("call" if rng.random() < 0.6 else "call with values", (which, *args)))
            count += len(functions[which].returned)
        elif pick < 0.45:
            steps.append(Step("update", (a, b), rng.randint(1, 3), rng.choice(PLACES)))
        elif pick < 0.5:
            steps.append(Step("overwrite", (a,), rng.randint(0, 9)))
        elif pick < 0.54:
            steps.append(Step("look", (a,)))
            count += 1
        elif pick < 0.58:
            steps.append(Step("clear", (rng.randrange(values),)))
        elif pick < 0.68:
            steps.append(Step("two", (a, b)))
            count += 2
        elif pick < 0.7:
            steps.append(Step("stage", (a, rng.randint(1, 3), rng.randint(1, 3)), rng.randint(1, 5)))
            count += 1
        elif pick < 0.71:
            steps.append(Step("reduce", (a, b)))
            count += 1
        else:
            steps.append(Step(rng.choice(OPS), (a, b), rng.randint(1, 5), rng.choice(PLACES)))
            count += 1
    return Program(seed, rng.choice(POLICIES), rng.choice((0, 0, 4)), start, boxes, functions, tuple(steps))
