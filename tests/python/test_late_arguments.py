"""A call of a hybridized function starts each of its nodes when the node's own arguments and state are there."""

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
