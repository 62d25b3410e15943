"""What users of concurrent.futures expect of Values, and the executor."""

import asyncio
import concurrent.futures
import contextlib
import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest

import engine
from conftest import PATIENCE
from engine import _core


@engine.op
def double(x):
    return x * 2


@engine.op
def bad(x):
    raise KeyError(x)


def test_done_and_exception(gate):
    slow = engine.op(lambda: (gate(), 3)[1])
    v = slow()
    assert not v.done() and "pending" in repr(v)
    with pytest.raises(TimeoutError):
        v.exception(0.01)
    gate.open()
    assert v.exception(PATIENCE) is None and v.done() and v.result() == 3 and repr(v).endswith(": 3>")
    failed = bad(1)
    error = failed.exception(PATIENCE)
    assert isinstance(error, KeyError) and error.__notes__ and failed.done() and "failed, KeyError" in repr(failed)


def test_done_callbacks_come_after_the_op_also_if_it_fails():
    seen = []
    for v in (double(2), bad(1)):
        v.add_done_callback(lambda v: seen.append((v.done(), v.exception() is None)))
    try:
        engine.wait_all()
    except KeyError:
        pass
    engine.wait_all()
    assert sorted(seen) == [(True, False), (True, True)]


def test_what_a_done_callback_raises_is_logged_and_goes_nowhere_else(caplog):
    def broken(v):
        raise KeyError("in the callback")

    v = double(2)
    v.add_done_callback(broken)
    assert v.get() == 4 and engine.wait_all(PATIENCE)
    (record,) = [r for r in caplog.records if r.name == "engine"]
    assert record.levelname == "ERROR" and record.exc_info[0] is KeyError


def test_as_completed_gives_what_is_there_first(gate):
    slow, soon = engine.op(lambda: (gate(), "slow")[1])(), engine.op(lambda: "soon")()
    values = engine.as_completed([slow, soon], timeout=PATIENCE)
    assert next(values).get() == "soon"
    gate.open()
    assert next(values).get() == "slow" and list(values) == []
    failed = bad(1)
    assert list(engine.as_completed([failed])) == [failed]
    never = engine.op(lambda: threading.Event().wait(0.3))()
    with pytest.raises(TimeoutError, match="1 of 1"):
        list(engine.as_completed([never], timeout=0.01))


def test_as_completed_refuses_what_is_no_value():
    for given, kind in (([3], "an int"), ([engine.op(lambda: (1, 2), outputs=2)()], "a tuple")):
        with pytest.raises(TypeError, match=f"one of the values is {kind}; Values are expected"):
            engine.as_completed(given)


def test_map_keeps_the_order_and_bounds_what_runs_ahead():
    begun = []

    def work(x):
        begun.append(x)
        return x * x

    results = engine.map(work, range(100), ahead=5)
    assert next(results) == 0
    engine.wait_all()
    assert len(begun) <= 7
    assert list(results) == [x * x for x in range(1, 100)]
    assert list(engine.map(lambda a, b: a + b, [1, 2], [3, 4])) == [4, 6]
    with pytest.raises(KeyError):
        list(engine.map(bad, [1]))


def test_map_takes_values_and_an_engine():
    with engine.Engine(workers=1) as eng:
        there = [engine.value(n, engine=eng) for n in range(3)]
        assert list(engine.map(lambda x: x * 2, there, engine=eng)) == [0, 2, 4]
        assert list(engine.map(lambda x, y: x + y, there, range(3), engine=eng)) == [0, 2, 4]
        assert list(engine.map(lambda x: threading.current_thread().name, range(3), engine=eng)) != []
        before = eng.stats()["pushed"]
        assert list(engine.map(double, range(5), engine=eng)) == [0, 2, 4, 6, 8] and eng.stats()["pushed"] == before + 5


def test_map_gives_its_options_to_each_call():
    with engine.Engine(workers=1) as eng:
        with engine.trace(engine=eng) as trace:
            for target in (eng, None):
                items = range(3) if target else [engine.value(n, engine=eng) for n in range(3)]
                assert list(engine.map(lambda x: (x, -x), items, engine=target, outputs=2, name="halves", place="io")) == [
                    (0, 0), (1, -1), (2, -2)]  # fmt: skip
            eng.wait_all()
        found = [event for event in trace.events if event.name == "halves"]
        assert len(found) == 6 and all("io" in event.thread for event in found)


def test_map_waits_until_its_time_is_over(gate):
    def work(x):
        if x:
            gate()
        return x

    results = engine.map(work, [0, 1], timeout=PATIENCE)
    assert next(results) == 0
    gate.wait_until_entered()
    late = engine.map(work, [0, 1], timeout=-1)
    with pytest.raises(TimeoutError, match="map: a result of 'work' was not there -1 s after"):
        list(late)
    pairs = engine.map(work, [1], timeout=0, outputs=2)
    with pytest.raises(TimeoutError, match="map: a result"):
        next(pairs)
    gate.open()
    assert list(results) == [1] and list(engine.map(double, [1], timeout=1e99)) == [2]
    engine.wait_all()


def test_map_refuses_options_that_nothing_would_use_and_ops_without_results():
    with pytest.raises(TypeError, match="map: 'chunksize' is unknown; engine, ahead, timeout, updates, .*bytes are allowed"):
        engine.map(len, [], chunksize=3)
    for wrong, error, text in ((0, engine.UsageError, "ahead is 0; at least 1"), (1.5, TypeError, "ahead is a float; an int is expected")):
        with pytest.raises(error, match=f"map: {text}"):
            engine.map(len, [], ahead=wrong)
    with pytest.raises(engine.UsageError, match="map: timeout is not a number"):
        engine.map(len, [], timeout=float("nan"))
    with pytest.raises(engine.UsageError, match="leave priority out"):
        engine.map(double, [1], priority=1)
    with pytest.raises(engine.UsageError, match="no outputs"):
        engine.map(engine.op(lambda x: None, updates="x"), [engine.value(1)])


def test_the_executor():
    with engine.Executor() as pool:
        assert isinstance(pool, concurrent.futures.Executor)
        assert pool.submit(pow, 2, 10).result(PATIENCE) == 1024
        assert list(pool.map(lambda x: x + 1, range(5))) == [1, 2, 3, 4, 5]
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result(PATIENCE)
    with pytest.raises(RuntimeError):
        pool.submit(print)


def test_a_future_that_is_cancelled_never_runs(gate):
    with engine.Engine(workers=1) as eng:
        pool, ran = engine.Executor(eng), []
        pool.submit(gate)
        gate.wait_until_entered()
        future = pool.submit(ran.append, 1)
        assert future.cancel()
        gate.open()
        pool.shutdown()
    assert ran == []


class Argument:
    """Something that a weak reference finds."""


def in_time(wait, *args, **kwargs):
    """Whether the call ends; it would hang this thread if it did not."""
    thread = threading.Thread(target=wait, args=args, kwargs=kwargs, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


def test_a_submit_that_the_engine_refuses_leaves_nothing_to_wait_for():
    eng = engine.Engine(workers=1)
    pool, argument = engine.Executor(eng), Argument()
    eng.shutdown()
    gone = weakref.ref(argument)
    with pytest.raises(engine.errors.Error):
        pool.submit(print, argument)
    assert in_time(pool.shutdown)
    del argument
    gc.collect()
    assert gone() is None


def test_a_call_that_its_scope_skips_has_a_cancelled_future(gate):
    with engine.Engine(workers=1) as eng:
        pool, ran = engine.Executor(eng), []
        pool.submit(gate)
        gate.wait_until_entered()
        with engine.CancelScope() as scope:
            future = pool.submit(ran.append, 1)
        scope.cancel()
        gate.open()
        assert in_time(concurrent.futures.wait, [future]) and future.cancelled()
        assert in_time(pool.shutdown)
    assert ran == []


def test_a_shutdown_that_cancels_does_not_wait_for_the_turn_of_what_it_cancelled(gate):
    with engine.Engine(workers=1) as eng:
        busy, pool = engine.Executor(eng), engine.Executor(eng)
        busy.submit(gate)
        gate.wait_until_entered()
        future = pool.submit(print, "never")
        assert in_time(pool.shutdown, cancel_futures=True) and future.cancelled()
        gate.open()


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_has_let_its_arguments_go_when_its_result_is_there(fails):
    argument, seen = Argument(), []
    gone = weakref.ref(argument)

    def work(given):
        if fails:
            raise KeyError("no")

    with engine.Executor() as pool:
        future = pool.submit(work, argument)
        del argument
        future.add_done_callback(lambda _: seen.append(gone() is None))
        assert isinstance(future.exception(PATIENCE), KeyError) == fails
        gc.collect()
        assert gone() is None
    assert seen == [True] or fails  # an exception's own frames may go a moment later


def test_a_call_that_was_cancelled_lets_its_arguments_go_before_its_turn(gate):
    with engine.Engine(workers=1) as eng:
        pool, argument = engine.Executor(eng), Argument()
        pool.submit(gate)
        gate.wait_until_entered()
        gone, future = weakref.ref(argument), pool.submit(print, argument)
        del argument
        assert gone() is not None and future.cancel()
        gc.collect()
        assert gone() is None
        gate.open()
        pool.shutdown()


def test_asyncio_takes_the_executor():
    async def main():
        return await asyncio.get_running_loop().run_in_executor(engine.Executor(), pow, 2, 3)

    assert asyncio.run(main()) == 8


def test_operators_indexing_and_ufuncs_are_ops():
    x = engine.value(np.arange(4.0))
    assert (1 + x * 2 - x / 2)[1].get() == 2.5
    assert (-x)[-1].get() == -3 and abs(-x).get().tolist() == [0, 1, 2, 3]
    assert (x @ x).get() == 14 and (np.ones(4) * x).get().tolist() == [0, 1, 2, 3]
    assert isinstance(np.sqrt(x), engine.Value) and np.sqrt(x).get()[1] == 1
    assert np.add.reduce(x).get() == 6
    assert (x < 2).get().tolist() == (1 >= x).get().tolist() == [True, True, False, False]
    with pytest.raises(TypeError):
        list(x)


def test_what_asks_a_value_for_a_number_or_an_order_waits_for_its_data(gate):
    read = engine.op(lambda number: (gate(), number)[1])
    values = [read(number) for number in (3, 1, 2)]
    gate.open()
    assert [v.get() for v in sorted(values)] == [1, 2, 3] and max(values) is values[0]
    assert "abcd"[values[0]] == "d" and list(range(values[1])) == [0] and complex(values[2]) == 2
    assert values[0] in {values[0]} and values[0] != 3  # `==` asks which Value it is, as a dict does
    with pytest.raises(TypeError):
        "abcd"[engine.value(1.5)]


def test_ufuncs_of_one_name_are_ops_of_their_own():
    more, twice = np.frompyfunc(lambda a: a + 1, 1, 1), np.frompyfunc(lambda a: a * 2, 1, 1)
    v = engine.value(5)
    assert (more(v).get(), twice(v).get(), more(v).get()) == (6, 10, 6)


@pytest.mark.parametrize("recorded", [False, True])
def test_what_a_ufunc_changes_in_place_is_an_update(gate, recorded):
    v = engine.value(np.zeros(2))
    read = engine.op(lambda x: (gate(), x.copy())[1])

    def step(at):
        assert np.add.at(v, at, 5) is None
        return v + 0

    before = read(v)
    after = (engine.hybridize(step) if recorded else step)([0, 0])
    gate.open()
    assert before.get().tolist() == [0, 0] and after.get().tolist() == [10, 0]
    with pytest.raises(TypeError, match="'add.at': it updates 'a', which is an ndarray; a Value is expected"):
        np.add.at(np.zeros(2), [0], v)


def test_functions_of_numpy_that_are_no_ufuncs_take_the_data():
    v = engine.value(np.array([1.0, 2.0, 6.0]))
    assert np.var(v) == np.var(v.get()) and np.var(a=v, ddof=1) == np.var(v.get(), ddof=1) and np.std(v) == np.std(v.get())
    assert np.mean(v) == 3 and np.concatenate([v, v]).shape == (6,) and np.where(v, v, 0).tolist() == v.get().tolist()
    assert np.array_equal(v, v.get()) and isinstance(np.sum(v), engine.Value) and np.sum(v).get() == 9


def test_dlpack_goes_both_ways():
    x = engine.value(np.arange(4.0))
    assert np.from_dlpack(x).tolist() == [0, 1, 2, 3]
    torch = pytest.importorskip("torch")
    assert torch.from_dlpack(x).tolist() == torch.as_tensor(x).tolist() == [0, 1, 2, 3]


def test_wait_to_write_waits_for_readers(gate):
    x, seen = engine.value(np.ones(1)), []
    engine.op(lambda x: (gate(), seen.append(x[0])) and None)(x)
    gate.wait_until_entered()
    assert x.wait(0)  # no op changes it
    gate.open()
    x.wait_to_write()
    assert seen == [1]


def test_copies_and_pickles():
    v = double(np.ones(1))
    assert copy.copy(v).get().tolist() == [2]
    deep = copy.deepcopy(v)
    assert deep.get().tolist() == [2] and deep.get() is not v.get()
    with pytest.raises(TypeError, match="pickle its data"):
        pickle.dumps(v)


def test_an_op_that_always_runs_gets_missing_for_what_failed():
    see = engine.op(lambda x, y: (x is engine.MISSING, y), run_always=True)
    assert see(bad(1), double(2)).get() == (True, 4)
    assert not engine.MISSING


@pytest.mark.parametrize("static_alloc", [False, True])
@pytest.mark.parametrize("policy", ["threaded", "cost_model", "inline", "naive"])
def test_a_recorded_op_that_always_runs_gets_missing_too(policy, static_alloc):
    @engine.op
    def refuses_one(x):
        if x == 1:
            raise KeyError("one")
        return x

    @engine.op(run_always=True)
    def or_none(x, held):
        return None if x is engine.MISSING else x, [part is engine.MISSING for part in held]

    def step(x):
        made = refuses_one(x)
        return or_none(made, [made, 1])

    with engine.policy(policy):
        recorded = engine.hybridize(step, static_alloc=static_alloc)
        given = [fn(x).get() for fn in (step, recorded) for x in range(4)]
    assert given == [(0, [False, False]), (None, [True, False]), (2, [False, False]), (3, [False, False])] * 2


@pytest.mark.parametrize("static_alloc", [False, True])
def test_what_was_never_made_is_not_updated_unseen(static_alloc):
    """The op runs, and what needs its result fails, eagerly and in a run."""
    seen, used = [], []

    @engine.op(run_always=True, updates="v")
    def update(v):
        seen.append(v is engine.MISSING)

    use = engine.op(used.append)

    def step(x):
        v = bad(x)
        update(v)
        return use(v), v

    for fn in (step, engine.hybridize(step, static_alloc=static_alloc)):
        seen.clear()
        for result in fn(0):
            with pytest.raises(Exception):
                result.get()
        with contextlib.suppress(KeyError):  # in a run that is an error of its own
            engine.wait_all(20)
        assert seen == [True] and not used


def test_overwrite_is_ordered_and_clears_errors():
    v = bad(1)
    with pytest.raises(KeyError):
        v.get()
    v.overwrite(3)
    assert double(v).get() == 6
    with pytest.raises(TypeError):
        v.overwrite(v)


def test_as_completed_inside_an_op_waits_as_get_does():
    with engine.Engine(workers=1) as eng, eng.policy_block("threaded"):
        inner = engine.op(lambda i: i)

        def outer(_):
            return sorted(v.get() for v in engine.as_completed([_core._call_on(inner, eng, (i,)) for i in (1, 2)]))

        assert _core._call_on(engine.op(outer), eng, (0,)).get(20) == [1, 2]


def test_a_value_on_the_right_of_an_operator_that_changes_an_array_is_refused():
    total = np.zeros(2)
    with pytest.raises(TypeError, match="engine.op.updates"):
        total += engine.value(np.ones(2))
