"""A program through the engine."""

from __future__ import annotations

from typing import Any

import numpy as np

import engine

from . import plain
from .programs import Program, Recorded, Step

OPS = {name: engine.op(fn) for name, fn in plain.FUNCTIONS.items()}
TWO = engine.op(plain.two, outputs=2)
VIEW = engine.op(plain.turned, alias="order")


@engine.op(updates="w")
def update(w, x, number):
    plain.update(w, x.copy() if x is w else x, number)


def _recorded(function: Recorded, values: list[engine.Value], on: engine.Engine) -> Any:
    states = [values[state] for state in function.states]

    def body(*given: Any) -> list[Any]:
        local = [*given, *states]
        for step in function.steps:
            first, second = (local[number] for number in step.args)
            if step.do == "update":
                update(first, second, step.number)
            else:
                local.append(OPS[step.do](first, second, step.number))
        return [local[number] for number in function.returned]

    hybrid = engine.hybridize(body)
    hybrid._engine = on  # else it follows from the arguments that are Values, of which there may be none
    return hybrid


def run(program: Program, on: engine.Engine) -> list[engine.Value]:
    with on.policy_block(program.policy), engine.bulk(program.bulk, on):
        values = [engine.value(np.array(data), engine=on) for data in program.start]
        functions = [_recorded(function, values, on) for function in program.functions]
        for step in program.steps:
            _step(step, values, functions)
        return values


def _step(step: Step, values: list[engine.Value], functions: list[Any]) -> None:
    if step.do.startswith("call"):
        given: list[Any] = [values[a] for a in step.args[1:]]
        if step.do == "call":
            given = [np.arange(4) + a for a in step.args[1:]]
        values += functions[step.args[0]](*given)
    elif step.do == "update":
        update(values[step.args[0]], values[step.args[1]], step.number)
    elif step.do == "overwrite":
        values[step.args[0]].overwrite(np.full(4, step.number))
    elif step.do == "clear":
        values[step.args[0]].var.engine.clear_error(values[step.args[0]])
    elif step.do == "look":
        values[step.args[0]].exception()
    elif step.do == "view":
        values.append(VIEW(values[step.args[0]]))
    elif step.do == "two":
        values += TWO(values[step.args[0]], values[step.args[1]])
    else:
        values.append(OPS[step.do](values[step.args[0]], values[step.args[1]], step.number))


def differs(program: Program, on: engine.Engine) -> str | None:
    """What the engine did otherwise than plain Python; None: nothing."""
    return compared(plain.run(program), run(program, on))


def compared(wanted: list[plain.Cell], given: list[engine.Value]) -> str | None:
    for number, (cell, value) in enumerate(zip(wanted, given)):
        error = value.exception(60)
        if error is not None and not isinstance(error, plain.Failed):
            return f"value {number}: {error!r}"
        if (error is not None) != cell.failed:
            return f"value {number}: failed is {error is not None}, {cell.failed} is right"
        if error is None and not np.array_equal(value.get(), cell.data):
            return f"value {number}: {value.get()}, {cell.data} is right"
    return None
