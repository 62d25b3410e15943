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


def test_a_write_of_a_view_leaves_the_error_of_what_it_is_a_view_of():
    x, y = viewed()
    broken(x)
    ran = []
    engine.push(lambda: ran.append(1), writes=[y])
    for value in (x, y):
        with pytest.raises(KeyError, match="broken"):
            value.get()
    assert ran == []  # a part is no more good than the whole
    x.overwrite(data())
    engine.push(lambda: ran.append(2), writes=[y])
    assert x.exception() is None and y.exception() is None and ran == [2]


def test_a_write_of_a_view_is_ordered_with_what_it_is_a_view_of(gate):
    x, y = viewed()
    late(x, gate)
    gate.wait_until_entered()
    seen = []
    engine.push(lambda: seen.append(x._data.tolist()), writes=[y])
    assert seen == []
    gate.open()
    x.get()
    assert seen == [[9, 9, 9, 9]]


def test_views_of_views_name_one_var_more_and_no_others():
    x = engine.value(np.zeros(100))
    y = x
    for _ in range(50):
        y = tail(y)
    assert set(vars_of(y)) == {y.var, x.var}


def by_state(body):
    """The function with the Value as state, the same with it as an argument, and with data that each call makes."""
    x = engine.value(data())
    return {"state": lambda: engine.hybridize(lambda: body(x))(), "argument": lambda: engine.hybridize(body)(x), "eager": lambda: body(x)}


def slow_total(gate):
    @engine.op
    def slow(y):
        gate()
        return float(y.sum())

    return slow


@pytest.mark.parametrize("policy", ["threaded", "inline", "naive", "cost_model"])
@pytest.mark.parametrize("how", ["state", "argument", "eager"])
def test_a_recorded_update_waits_for_those_that_read_a_view(how, policy, gate):
    gate.open()
    with engine.policy(policy):
        slow = slow_total(gate)

        def body(x):
            y = tail(x)
            before = slow(y)
            fill(x, 9.0)
            after = total(y)
            fill(y, 1.0)
            return before, after, total(x), y

        call = by_state(body)[how]
        assert [one.get() if i < 3 else one.get().tolist() for i, one in enumerate(call())] == [6, 27, 12, [1, 1, 1]]
        assert [one.get() for one in call()[:3]] == [1 + 1 + 1, 27, 12]


@pytest.mark.parametrize("how", ["state", "argument", "eager"])
def test_a_recorded_update_really_waits(how, gate):
    slow = slow_total(gate)

    def body(x):
        y = tail(x)
        before = slow(y)
        fill(x, 9.0)
        return before

    before = by_state(body)[how]()
    gate.wait_until_entered()
    gate.open()
    assert before.get() == 6


@pytest.mark.parametrize("how", ["state", "argument", "eager"])
def test_a_view_that_a_recorded_function_returns_is_ordered_with_what_it_is_of(how, gate):
    x = engine.value(data())
    step = {"state": engine.hybridize(lambda _: tail(x)), "argument": engine.hybridize(tail), "eager": tail}[how]
    for given in (x, engine.value(data()), x):
        if how == "state":
            given = x
        y = step(given)
        late(given, gate)
        after = read(y)
        assert given.var in set(vars_of(y)) and not y.done()
        gate.open()
        assert after.get().tolist() == [9, 9, 9] == y.get().tolist()
        fill(y, 3.0)
        assert given.get()[1:].tolist() == [3, 3, 3]


def test_views_of_what_only_the_function_has():
    plus = engine.op(lambda x: x + 1)

    @engine.hybridize
    def step(x):
        made = plus(x)
        one, other = tail(made), tail(tail(made))
        fill(one, 5.0)
        return one, other, total(made)

    for _ in range(2):
        one, other, summed = step(data())
        assert (one.get().tolist(), other.get().tolist(), summed.get()) == ([5, 5, 5], [5, 5], 16)
        fill(one, 7.0)
        assert other.get().tolist() == [7, 7]  # one memory, so their ops are ordered

    @engine.hybridize
    def failing(x):
        made = plus(x)
        view = tail(made)
        broken(made)
        return view, total(view)

    for one in failing(data()):
        assert isinstance(one.exception(), KeyError)


def test_a_view_of_an_argument_that_is_no_value_is_a_copy():
    given = data()
    for call in (tail, engine.hybridize(tail)):
        for _ in range(2):
            y = call(given)
            fill(y, 9.0)
            assert y.get().tolist() == [9, 9, 9] and given.tolist() == [0, 1, 2, 3]


def test_views_of_such_a_copy_are_ordered_with_it():
    @engine.hybridize
    def step(x):
        copy = tail(x)
        return copy, tail(copy)

    for given in (data(), engine.value(data()), data()):
        copy, view = step(given)
        fill(copy, 9.0)
        assert set(vars_of(copy)) & set(vars_of(view)) and view.get().tolist() == [9, 9]


def test_a_view_of_an_argument_that_is_another_value_each_time_cannot_be_changed():
    @engine.hybridize
    def step(x):
        fill(tail(x), 9.0)
        return total(x)

    assert step(engine.value(data())).get() == 27
    with pytest.raises(engine.UsageError, match="argument 0 of 'step' is not the Value"):
        step(engine.value(data()))
