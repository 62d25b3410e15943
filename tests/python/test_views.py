"""Values that share memory with others and stay so: waits, errors, overwriting and recorded functions know of it."""

import asyncio
import threading

import numpy as np
import pytest

import engine
from engine.values import vars_of

tail = engine.op(lambda x: x[1:], alias="order")
total = engine.op(lambda x: float(x.sum()))
read = engine.op(lambda x: x.copy())


@engine.op(updates="x")
def fill(x, by):
    x[:] = by


@engine.op(updates="x")
def late(x, gate):
    gate()
    x[:] = 9


@engine.op(updates="x")
def broken(x):
    raise KeyError("broken")


def data():
    return np.arange(4.0)


def viewed():
    x = engine.value(data())
    return x, tail(x)


def joined():
    """A Value that lies in the memory of another, which has another Var, and in that of a third."""
    memory = np.zeros(4)
    first, second = engine.value(memory[:2]), engine.value(memory[2:])
    return second, engine.value(memory)


MADE = {"a view": viewed, "a view of a view": lambda: (lambda x, y: (x, tail(y)))(*viewed()), "joined": joined}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("how", ["get", "wait", "exception", "array", "engine.wait", "wait_to_write", "await", "callback", "completed"])
def test_a_wait_is_for_what_changes_the_memory(made, how, gate):
    x, y = MADE[made]()
    y.get()
    late(x, gate)
    gate.wait_until_entered()
    assert not y.done() and "pending" in repr(y)
    assert not y.wait(0) and not engine.wait(y, timeout=0)
    with pytest.raises(TimeoutError):
        y.get(0)
    called = threading.Event()
    if how == "callback":
        y.add_done_callback(lambda y: called.set())
    opener = threading.Timer(0.0, gate.open)
    opener.start()
    if how == "await":
        assert asyncio.run(wait_for(y)) is y.get()
    elif how == "callback":
        assert called.wait(20)
    elif how == "completed":
        assert list(engine.as_completed([y])) == [y]
    else:
        {"get": y.get, "wait": y.wait, "exception": y.exception, "array": lambda: np.asarray(y), "engine.wait": lambda: engine.wait(y),
         "wait_to_write": y.wait_to_write}[how]()  # fmt: skip
    assert y._data[-1] == 9 and x.done()
    opener.join()


async def wait_for(value):
    return await value


@pytest.mark.parametrize("made", MADE)
def test_an_error_of_what_it_lies_in_is_its_error(made):
    x, y = MADE[made]()
    y.get()
    broken(x)
    assert isinstance(y.exception(), KeyError) and "failed" in repr(y)
    for wait in (y.get, y.wait, lambda: engine.wait(y), lambda: asyncio.run(wait_for(y))):
        with pytest.raises(KeyError):
            wait()
    assert isinstance(total(y).exception(), KeyError)  # as an op's


def test_overwriting_a_view_leaves_what_it_was_a_view_of(gate):
    x = engine.op(lambda: 1 / 0)()
    y = tail(x)
    y.overwrite(np.zeros(2))
    assert y.get().tolist() == [0, 0] and isinstance(x.exception(), ZeroDivisionError)
    x, y = viewed()
    z = tail(y)
    late(x, gate)
    before = read(y)  # reads the old memory, behind the late op
    y.overwrite(np.zeros(2))
    assert set(vars_of(y)) == {y.var} and x.var in set(vars_of(z))
    gate.wait_until_entered()
    after = total(x)
    gate.open()
    assert (y.get().tolist(), before.get().tolist(), z.get().tolist(), after.get()) == ([0, 0], [9, 9, 9], [9, 9], 36)
    fill(y, 5.0)
    assert x.get().tolist() == [9] * 4 and y.get().tolist() == [5, 5]


def test_views_of_views_name_one_var_more_and_no_others():
    x = engine.value(np.zeros(100))
    y = x
    for _ in range(50):
        y = tail(y)
    assert set(vars_of(y)) == {y.var, x.var}
