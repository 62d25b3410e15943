"""A call of a hybridized function starts each of its nodes when the node's own arguments and state are there."""

import asyncio
import sys
import threading

import numpy as np
import pytest

import engine


@engine.op
def plus(x, y):
    return x + y


@engine.op(updates="x")
def add_to(x, y):
    x += y


def held(gate, data, eng=engine):
    """A Value that comes when the gate is opened."""
    waits = engine.op(lambda: (gate(), data)[1], place=engine.io())
    value = waits()
    gate.wait_until_entered()
    return value


def test_a_node_starts_while_an_argument_of_another_is_late(gate):
    both = engine.hybridize(lambda x, y: (plus(x, 1), plus(y, 1)))
    both(np.ones(2), np.ones(2))[1].get()
    soon, late = both(np.ones(2), held(gate, np.ones(2)))
    assert soon.get(10).tolist() == [2, 2] and not late.done()
    gate.open()
    assert late.get(10).tolist() == [2, 2]


def test_a_chain_runs_up_to_the_node_that_needs_the_late_argument(gate):
    ran = threading.Event()

    @engine.op
    def first(x):
        ran.set()
        return x * 2

    chain = engine.hybridize(lambda x, y: plus(first(x), y))
    assert chain(1, 2).get() == 4
    ran.clear()
    result = chain(3, held(gate, 5))
    assert ran.wait(10) and not result.done()
    gate.open()
    assert result.get(10) == 11


def test_a_node_starts_while_the_state_of_another_is_late(gate):
    total, other = engine.value(np.zeros(2)), engine.value(np.zeros(2))

    @engine.hybridize
    def step(x):
        add_to(total, x)
        add_to(other, x)
        return plus(x, 1)

    step(np.ones(2)).get()
    engine.wait_all()
    engine.push(gate, updates=[total], place=engine.io())
    gate.wait_until_entered()
    assert step(np.ones(2)).get(10).tolist() == [2, 2]
    assert other.get(10).tolist() == [2, 2]
    second = step(np.ones(2))
    assert second.get(10).tolist() == [2, 2] and other.get(10).tolist() == [3, 3]
    gate.open()
    assert total.get(10).tolist() == [3, 3]


@pytest.mark.parametrize("policy", ["threaded", "inline", "naive", "cost_model"])
def test_the_results_are_those_of_every_policy(policy):
    with engine.policy(policy):
        state = engine.value(np.zeros(1))

        @engine.hybridize
        def step(x, y):
            add_to(state, x)
            z = plus(x, y)
            add_to(state, z)
            return z

        result = 0.0
        for i in range(50):
            result = step(float(i), result if i % 2 else plus(result, 1.0))
        assert result.get() == sum(range(50)) + 25
        total, z = 0.0, 0.0
        for i in range(50):
            z = i + z + (i % 2 == 0)
            total += i + z
        assert state.get()[0] == total


def test_a_late_argument_that_fails_skips_what_takes_it(gate):
    @engine.op(place=engine.io())
    def bad():
        gate()
        raise KeyError("bad")

    both = engine.hybridize(lambda x, y: (plus(x, 1), plus(y, 1)))
    both(1, 1)[1].get()
    soon, late = both(1, bad())
    gate.wait_until_entered()
    assert soon.get(10) == 2
    gate.open()
    with pytest.raises(KeyError):
        late.get(10)


def test_a_change_behind_the_call_waits_for_the_nodes_that_take_the_argument(gate):
    x, seen = engine.value(np.ones(2)), []
    looks = engine.op(lambda a, b: seen.append(a.tolist()))
    both = engine.hybridize(lambda a, b: looks(a, b))
    both(np.ones(2), 1).get()
    both(x, held(gate, 1))
    add_to(x, 10)
    gate.open()
    assert x.get(10).tolist() == [11, 11]
    assert seen == [[1, 1], [1, 1]]


def test_calls_that_feed_each_other_mean_what_they_say(rng):
    total, sum_of_all = engine.value(np.zeros(1)), 0.0

    @engine.hybridize
    def step(x, y):
        add_to(total, x)
        return plus(x, y)

    made = [(1.0, 1.0)]
    for i in range(300):
        (a, x), (b, y) = rng.choice(made), rng.choice(made)
        if rng.random() < 0.5:
            made.append((step(a, b), x + y))
            sum_of_all += x
        else:
            made.append((plus(a, b / 2), x + y / 2))
        made = [(value, expected) for value, expected in made if expected < 1e6][-20:] or [(1.0, 1.0)]
    for value, expected in made:
        assert (value if isinstance(value, float) else value.get(10)) == expected
    assert total.get()[0] == sum_of_all


def frames_of(call):
    """How many functions of Python a call enters, beside the recorded ones, which run on workers."""
    entered = []

    def note(frame, event, arg):
        if event == "call":
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return result.get(), entered


def test_a_call_like_the_one_before_takes_the_short_way():
    double = engine.op(lambda x: 2 * x)
    made = double(3)
    twice = engine.hybridize(lambda x: double(double(x)))
    for argument in (1, made):
        assert twice(argument).get() == twice(argument).get()
    for argument, expected in ((5, 20), (made, 24)):
        result, entered = frames_of(lambda: twice(argument))
        assert result == expected
        assert [name for name in entered if name not in ("<lambda>", "get")] == ["__call__", "rebuilt"]


def test_a_call_that_may_be_for_another_recording_takes_the_long_way():
    add = engine.op(lambda x, y: x if y is None else x + y)
    both = engine.hybridize(lambda x, y: add(x, y))
    assert both(1, 2).get() == both(3, 4).get() - 4 == 3
    assert both(1, None).get() == 1 and both(2, 3).get() == 5
    with pytest.raises(engine.UsageError, match="was an int when it was recorded, and is a str now"):
        both("a", 2)
    with pytest.raises(engine.UsageError, match="recorded with 2 arguments"):
        both(1)
    assert both(2, [engine.op(lambda: 1)()][0]).get() == 3


def test_the_short_way_sees_that_a_name_stands_for_something_else():
    holder = type("Holder", (), {})()
    same = engine.op(lambda x: x)
    holder.state = same(1)
    read = engine.op(lambda x, state: x + state)
    step = engine.hybridize(lambda x: read(x, holder.state))
    assert step(1).get() == step(1).get() == 2
    holder.state = same(2)
    with pytest.raises(engine.UsageError, match="stood for"):
        step(1)


def test_the_short_way_inside_another_recording_runs_nothing():
    inner = engine.hybridize(lambda x: engine.op(lambda y: y + 1)(x))
    assert inner(1).get() == inner(1).get() == 2
    outer = engine.hybridize(lambda x: inner(inner(x)))
    assert outer(1).get() == outer(1).get() == 3
    assert outer.plan is not inner.plan


@pytest.mark.parametrize("policy", ["threaded", "inline", "naive"])
@pytest.mark.parametrize("beside_loop", [False, True])
def test_an_argument_that_fails_fails_nothing_that_does_not_take_it(policy, beside_loop):
    plus = engine.op(lambda x: x + 1)
    bad = engine.op(lambda: 1 / 0)
    step = engine.hybridize(lambda x, y: (plus(y), plus(x))[1])
    step(engine.value(1), engine.value(2)).get()

    async def started(x, y):
        with engine.policy(policy):
            return await step(x, y)

    def call(x, y):
        if beside_loop:
            return asyncio.run(started(x, y))
        with engine.policy(policy):
            return step(x, y).get()

    for _ in range(3):
        assert call(engine.value(1), bad()) == 2
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            call(bad(), engine.value(1))
        assert call(engine.value(4), engine.value(1)) == 5


def test_an_op_called_behind_a_run_beside_a_loop_waits_for_it(gate):
    x = engine.value([1])
    held = engine.hybridize(lambda x: engine.op(lambda x: (gate(), list(x))[1])(x))

    async def main():
        with engine.policy("inline"):
            waiting = [held(engine.value([0])), held(x)][1]
        engine.op(lambda x: x.append(2), updates="x")(x)
        gate.open()
        return await waiting

    assert asyncio.run(main()) == [1] and x.get() == [1, 2]
