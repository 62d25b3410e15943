"""The executor, as_completed and map beside those of concurrent.futures: what has ended, no workers, forks, misuse."""

import concurrent.futures
import os
import time
import traceback

import pytest

import engine
from conftest import PATIENCE


@engine.op
def double(x):
    return x * 2


def test_as_completed_gives_what_has_ended_before_it_looks_at_the_time(gate):
    ended = [double(i) for i in range(5)]
    engine.wait(*ended)
    assert {v.get() for v in engine.as_completed(ended, timeout=0)} == {0, 2, 4, 6, 8}
    late = engine.op(lambda: (gate(), 7)[1])()
    seen = []
    with pytest.raises(TimeoutError, match="1 of 6 values"):
        for v in engine.as_completed([late, *ended, *ended], timeout=0):
            seen.append(v)
    assert seen == ended
    gate.open()
    assert [v.get() for v in engine.as_completed([late], timeout=PATIENCE)] == [7]


def test_without_workers_whoever_waits_runs_the_ops(run_python):
    ended = run_python(
        """
    eng = engine.Engine(workers=0)
    double = engine.op(lambda x: x * 2)
    values = [double(engine.value(i, engine=eng)) for i in range(4)]
    print(sorted(v.get() for v in engine.as_completed(values)))
    print(sorted(v.get() for v in engine.as_completed([double(engine.value(4, engine=eng))], timeout=30)))
    with engine.Executor(eng) as pool:
        futures = [pool.submit(pow, 2, i) for i in range(3)]
        print(pool.submit(pow, 2, 3).result(), list(pool.map(abs, [-1, -2])), type(pool.submit(int, "x").exception()).__name__)
    print([f.result() for f in futures])
    """
    )
    assert ended.out == "[0, 2, 4, 6]\n[8]\n8 [1, 2] ValueError\n[1, 2, 4]\n", ended


def test_a_time_out_without_workers():
    with engine.Engine(workers=0) as eng:
        gate = engine.Var("gate", eng)
        held = eng.push_held(lambda: None, writes=[gate])
        late = engine.Value(0, gate)
        with pytest.raises(TimeoutError, match="1 of 1 values"):
            list(engine.as_completed([late], timeout=0.01))
        held.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_pool_in_the_child_of_a_fork_waits_for_nothing_of_the_parent(run_python):
    ended = run_python(
        """
    engine.init(workers=1)
    gate = threading.Event()
    pool = engine.Executor()
    running = pool.submit(gate.wait)
    while not running.running():
        pass
    waiting = pool.submit(pow, 2, 3)
    told = threading.Event()
    waiting.add_done_callback(lambda f: (print("told", os.getpid() == parent, flush=True), told.set()))
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        print(running.cancelled(), waiting.cancelled(), flush=True)
        print(pool.submit(pow, 2, 4).result(timeout=30), flush=True)
        pool.shutdown()
        os._exit(0)
    os.waitpid(child, 0)
    gate.set()
    print(waiting.result(), told.wait(30))
    pool.shutdown()
    """
    )
    assert ended.out == "True True\n16\ntold True\n8 True\n", ended


def test_a_call_that_would_wait_for_itself_is_refused():
    pool = engine.Executor()
    with pytest.raises(RuntimeError, match="its own end; give wait=False"):
        pool.submit(pool.shutdown).result(PATIENCE)
    assert pool.submit(pow, 2, 3).result(PATIENCE) == 8  # nothing was changed
    pool.submit(pool.shutdown, wait=False).result(PATIENCE)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(pow, 2, 3)


def test_a_call_may_shut_another_pool_down():
    inner = engine.Executor()
    with engine.Executor() as pool:
        future = inner.submit(pow, 2, 3)
        pool.submit(inner.shutdown).result(PATIENCE)
        assert future.result() == 8


def test_an_executor_is_told_what_its_first_argument_is():
    with pytest.raises(TypeError, match="engine is an int; an Engine is expected"):
        engine.Executor(4)
    for option in ("max_workers", "thread_name_prefix"):
        with pytest.raises(TypeError, match=rf"Executor: '{option}' is unknown; engine, place, priority are allowed.*engine.init\(workers="):
            engine.Executor(**{option: 4})


def test_an_exception_of_a_future_is_a_copy_that_has_the_lines_and_no_locals():
    raised = KeyError("x")

    def fails():
        raise raised

    with engine.Executor() as pool:
        error = pool.submit(fails).exception(PATIENCE)
    assert error is not raised and error.args == ("x",)
    frames = traceback.walk_tb(error.__traceback__)
    assert [(f.f_code.co_name, dict(f.f_locals)) for f, _ in frames][-1] == ("fails", {})


def test_errors_of_calls_that_ran_ahead_of_a_loop_that_was_left_are_not_raised_later():
    def inverse(x):
        return 1 / x

    numbers = engine.map(inverse, [1, 0, 0, 0, 0])
    assert next(numbers) == 1
    time.sleep(0.05)  # the others run ahead
    numbers.close()
    assert engine.wait_all(PATIENCE)
    with pytest.raises(ZeroDivisionError):
        list(engine.map(inverse, [1, 0, 0, 0]))
    assert engine.wait_all(PATIENCE)


def test_what_the_iterables_of_a_map_raise_comes_behind_the_results():
    def rows():
        yield from range(4)
        raise ValueError("broken row 4")

    results, seen = engine.map(double, rows(), ahead=8), []
    with pytest.raises(ValueError, match="broken row 4"):
        for result in results:
            seen.append(result)
    assert seen == [0, 2, 4, 6] and next(results, None) is None
    rest = iter(range(10))
    assert list(engine.map(lambda a, b: a + b, rest, [1, 2], ahead=8)) == [1, 3]
    assert next(rest) == 3  # as behind Python's map: one was taken when the list had ended


def test_a_future_hears_of_an_error_that_cannot_be_copied():
    class Odd(Exception):
        @property
        def __cause__(self):
            raise RuntimeError("no cause")

    def fail():
        raise Odd

    with engine.Executor() as pool:
        assert isinstance(pool.submit(fail).exception(PATIENCE), Odd)


@pytest.mark.parametrize("timeout", [float("inf"), 1e12])
def test_as_completed_waits_for_ever_if_it_is_told_to(timeout):
    slow = engine.op(lambda: (time.sleep(0.05), 1)[1])
    assert [value.get() for value in engine.as_completed([slow()], timeout=timeout)] == [1]


def test_as_completed_refuses_a_time_that_is_no_number():
    with pytest.raises(engine.UsageError, match="not a number"):
        engine.as_completed([], timeout=float("nan"))
