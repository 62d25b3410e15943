"""Results of runs are Values of their own: ops change them, other runs take them, and each has its own error."""

import gc
import threading

import numpy as np
import pytest

import engine


@engine.op
def dense(x, w):
    return x @ w


@engine.op(updates="x")
def scale(x, by):
    x *= by


@engine.op(outputs=2)
def parts(x):
    return x + 1, x * 2


@pytest.fixture(params=["threaded", "inline", "naive", "cost_model"])
def policy(request):
    with engine.policy(request.param):
        yield request.param


def test_a_result_of_a_run_can_be_updated(policy):
    step = engine.hybridize(lambda x: dense(x, x))
    for _ in range(20):
        y = step(np.eye(2))
        scale(y, 10)
        z = dense(y, y)
        scale(y, 2)
        assert z.get().tolist() == [[100, 0], [0, 100]] and y.get().tolist() == [[20, 0], [0, 20]]


def test_a_result_can_be_overwritten(policy):
    y = engine.hybridize(lambda x: dense(x, x))(np.eye(2))
    z = dense(y, y)
    y.overwrite(np.zeros((2, 2)))
    assert z.get().tolist() == [[1, 0], [0, 1]] and y.get().tolist() == [[0, 0], [0, 0]]


def test_a_result_feeds_another_run_each_time(policy):
    first, second = engine.hybridize(lambda x: dense(x, x)), engine.hybridize(lambda y: parts(y)[0])
    for i in range(1, 10):
        y = first(i * np.eye(2))
        z = second(y)
        scale(y, 0)  # behind the second run
        assert z.get().tolist() == [[i * i + 1, 1], [1, i * i + 1]] and not y.get().any()
    assert second(np.eye(2)).get().tolist() == [[2, 1], [1, 2]]


def test_a_result_is_there_before_the_run_has_ended(gate):
    slow = engine.op(lambda x: (gate(), x + 1)[1], place=engine.io())
    both = engine.hybridize(lambda x: (parts(x)[0], slow(x)))
    soon, late = both(np.ones(2))
    assert soon.get(10).tolist() == [2, 2] and not late.done()
    scale(soon, 3)
    assert soon.get(10).tolist() == [6, 6]
    gate.open()
    assert late.get(10).tolist() == [2, 2]


def test_a_failing_node_fails_its_output_and_no_other(policy):
    @engine.op
    def bad(x):
        raise KeyError("bad")

    @engine.op
    def worse(x):
        raise ValueError("worse")

    both = engine.hybridize(lambda x: (parts(x)[0], bad(x), worse(x), parts(bad(x))[1]))
    for _ in range(5):
        good, key, value, behind = both(np.ones(2))
        assert good.get().tolist() == [2, 2]
        for failed, kind in ((key, KeyError), (value, ValueError), (behind, KeyError)):
            with pytest.raises(kind):
                failed.get()


def test_an_error_of_an_argument_skips_what_uses_it():
    @engine.op
    def bad(x):
        raise KeyError("bad")

    both = engine.hybridize(lambda x, y: (parts(x)[0], parts(y)[0]))
    first, second = both(engine.value(np.ones(1)), engine.value(np.ones(1)))
    assert first.get() == second.get() == 2
    first, second = both(bad(1), engine.value(np.ones(1)))
    with pytest.raises(KeyError):
        first.get()
    assert second.get().tolist() == [2]


def test_a_step_of_a_smart_stage_gives_values_that_ops_may_change():
    for y in engine.data.smart_stage(lambda x: parts(x)[1], iter([np.ones(2) for _ in range(40)]), profile_steps=2, guard_steps=2):
        scale(y, 10)
        assert y.get().tolist() == [20, 20]


def test_data_of_results_go_when_the_last_value_goes():
    class Thing:
        alive = 0

        def __init__(self):
            Thing.alive += 1

        def __del__(self):
            Thing.alive -= 1

    step = engine.hybridize(lambda x: engine.op(lambda _: Thing())(x))
    values = [step(1) for _ in range(10)]
    engine.wait_all()
    del values
    step(2).get()
    engine.wait_all()
    gc.collect()
    assert Thing.alive <= 1


def test_runs_of_many_threads_have_results_of_their_own():
    step, wrong = engine.hybridize(lambda x: dense(x, x)), []
    step.record(np.eye(2))

    def client(i):
        for _ in range(50):
            y = step(i * np.eye(2))
            scale(y, 2)
            if y.get()[0, 0] != 2 * i * i:
                wrong.append(i)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_what_no_op_made_is_another_one_in_each_call():
    same = engine.op(lambda x: x)
    step = engine.hybridize(lambda x: (same(x), np.zeros(2), [1], {"k": {2}}, bytearray(2)))
    _, array, items, table, data = step(1)
    array += 1
    items.append("x")
    table["k"].add(3)
    data[0] = 1
    for _ in range(2):
        again = step(2)
        assert again[0].get() == 2 and np.array_equal(again[1], [0, 0])
        assert again[2:] == ([1], {"k": {2}}, bytearray(2))
