"""A program through the engine."""

from __future__ import annotations

import contextlib
import copy
import random
import threading
from typing import Any, Iterator

import numpy as np

import engine
from engine.comm import Collective, Communicator

from . import plain
from .programs import BOX_STEPS, KINDS, Program, Recorded, Step

HERE = {"host": None, "io": "io", "disk": "disk", "gpu 0": engine.gpu(0), "gpu 1": engine.gpu(1)}
OPS = {(name, at): engine.op(fn, place=place) for name, fn in plain.FUNCTIONS.items() for at, place in HERE.items()}
TWO = engine.op(plain.two, outputs=2)
VIEW = engine.op(plain.turned, alias="order")


def _changed(w, x, number):
    plain.update(w, x.copy() if x is w else x, number)


UPDATE = {at: engine.op(_changed, updates="w", place=place) for at, place in HERE.items()}
BOXES = {
    (fn.__name__, at): engine.op(fn, updates="box", outputs=int(fn is plain.pop), place=place)
    for fn in (plain.put, plain.join, plain.change, plain.pop)
    for at, place in HERE.items()
}
TAKE = engine.op(plain.take)


FILL = engine.op(lambda array, data: array.from_host(data), updates="array")
EQUAL = engine.op(lambda first, second: first.to_host() if (first.to_host() == second.to_host()).all() else None)


class Ground:
    """Where programs run: an engine, and two communicators if it has devices. A child of a fork has no devices."""

    def __init__(self, on: engine.Engine, comms: list[Communicator]) -> None:
        self.on, self.comms, self.turn = on, comms, threading.Lock()

    def place(self, step: Step) -> str:
        return step.place if self.comms else "host"


@contextlib.contextmanager
def ground(workers: int, devices: bool = True) -> Iterator[Ground]:
    options: dict[str, Any] = {"devices": ["software"] * 2, "pools": {"disk": 1}} if devices else {}
    with engine.Engine(workers=workers, on_unobserved=lambda error: None, **options) as on:
        yield Ground(on, engine.comm.communicators(range(2), name="oracle", engine=on) if devices else [])


def _recorded(function: Recorded, values: list[engine.Value], boxes: list[engine.Value], at: Ground) -> Any:
    states = [values[state] for state in function.states]

    def body(*given: Any) -> list[Any]:
        local = [*given, *states]
        for step in function.steps:
            if step.do == "put":
                BOXES["put", at.place(step)](boxes[step.args[0]], local[step.args[1]], step.number)
                continue
            first, second = local[step.args[0]], local[step.args[-1]]
            if step.do == "view":
                local.append(VIEW(first))
            elif step.do == "update":
                UPDATE[at.place(step)](first, second, step.number)
            else:
                local.append(OPS[step.do, at.place(step)](first, second, step.number))
        return [local[number] for number in function.returned]

    hybrid = engine.hybridize(body)
    hybrid._engine = at.on  # else it follows from the arguments that are Values, of which there may be none
    return hybrid


def run(program: Program, at: Ground) -> list[engine.Value]:
    with at.on.policy_block(program.policy), engine.bulk(program.bulk, at.on):
        values = [engine.value(np.array(data), engine=at.on) for data in program.start]
        boxes = [engine.value(plain.box_of(kind, number), engine=at.on) for number, kind in enumerate(program.boxes)]
        functions = [_recorded(function, values, boxes, at) for function in program.functions]
        for step in program.steps:
            if step.do in BOX_STEPS:
                _box_step(step, values, boxes, at)
            else:
                _step(step, values, functions, at)
        return values + boxes


def _box_step(step: Step, values: list[engine.Value], boxes: list[engine.Value], at: Ground) -> None:
    box = boxes[step.args[0]]
    if step.do in ("put", "join"):
        BOXES[step.do, at.place(step)](box, (values if step.do == "put" else boxes)[step.args[1]], step.number)
    elif step.do == "change":
        BOXES["change", at.place(step)](box, step.number)
    elif step.do == "pop":
        values.append(BOXES["pop", at.place(step)](box, step.number))
    elif step.do == "take":
        values.append(TAKE(box, step.number))
    elif step.do == "view box":
        boxes.append(VIEW(box))
    elif step.do == "look box":
        kept = [] if box.exception(60) is not None else copy.deepcopy(box.get())
        boxes.append(engine.value(kept, engine=at.on))
    elif step.do == "overwrite box":
        box.overwrite(plain.box_of(KINDS[step.args[1] % len(KINDS)], step.number))
    else:
        box.var.engine.clear_error(box)


def _step(step: Step, values: list[engine.Value], functions: list[Any], at: Ground) -> None:
    if step.do.startswith("call"):
        given: list[Any] = [values[a] for a in step.args[1:]]
        if step.do == "call":
            given = [np.arange(4) + a for a in step.args[1:]]
        values += functions[step.args[0]](*given)
    elif step.do == "update":
        UPDATE[at.place(step)](values[step.args[0]], values[step.args[1]], step.number)
    elif step.do == "overwrite":
        values[step.args[0]].overwrite(np.full(4, step.number))
    elif step.do == "clear":
        values[step.args[0]].var.engine.clear_error(values[step.args[0]])
    elif step.do == "look":
        looked = values[step.args[0]]
        kept = np.full(4, -1) if looked.exception(60) is not None else looked.get().copy()
        values.append(engine.value(kept, engine=at.on))
    elif step.do == "view":
        values.append(VIEW(values[step.args[0]]))
    elif step.do == "two":
        values += TWO(values[step.args[0]], values[step.args[1]])
    elif step.do == "stage":
        values.append(engine.value(_staged(values[step.args[0]], *step.args[1:], step.number, at), engine=at.on))
    elif step.do == "reduce":
        values.append(_reduced(values[step.args[0]], values[step.args[1]], at))
    else:
        values.append(OPS[step.do, at.place(step)](values[step.args[0]], values[step.args[1]], step.number))


def _staged(x: engine.Value, threads: int, capacity: int, number: int, at: Ground) -> np.ndarray:
    """Items that a stage's threads have ops make of ``x``; taken before ``x`` may change."""

    def made(item: int) -> np.ndarray:
        return OPS["maybe", "host"](x, np.arange(4) + item, number + item).get()

    total = np.zeros(4, int)
    stage = engine.data.staged(made, {"item": iter(range(plain.STAGED))}, num_threads=threads, capacity=capacity, engine=at.on)
    try:
        for item in stage:
            total = total + item
    except plain.Failed:
        return total + 1000
    return total


def _reduced(x: engine.Value, y: engine.Value, at: Ground) -> engine.Value:
    """Their sum, by two ranks; a rank whose array has failed would fail the communicator."""
    if x.exception() is not None or y.exception() is not None:
        return engine.value(np.zeros(4, int), engine=at.on)
    if not at.comms:
        return OPS["add", "host"](x, y, 0)
    sent = [engine.value(engine.DeviceArray(np.zeros(4, int), rank, at.on), engine=at.on) for rank in range(2)]
    for array, v in zip(sent, (x, y)):
        FILL(array, v)
    with at.turn:  # all ranks' collectives come in one order
        for comm, array in zip(at.comms, sent):
            comm.push(Collective.all_reduce(array))
    return EQUAL(*sent)


def differs(program: Program, at: Ground) -> str | None:
    """What the engine did otherwise than plain Python; None: nothing."""
    return compared(plain.run(program), run(program, at))


def alike(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and alike(list(one.values()), list(other.values()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def compared(wanted: list[plain.Cell], given: list[engine.Value]) -> str | None:
    order = list(range(len(wanted)))
    random.Random(len(wanted)).shuffle(order)  # a wait for a view is one for what it is a view of
    for number in order:
        cell, value = wanted[number], given[number]
        error = value.exception(60)
        if error is not None and not isinstance(error, plain.Failed):
            return f"value {number}: {error!r}"
        if (error is not None) != cell.blocked():
            return f"value {number}: failed is {error is not None}, {cell.blocked()} is right"
        if error is None and not alike(value.get(), cell.data):
            return f"value {number}: {value.get()}, {cell.data} is right"
    return None
