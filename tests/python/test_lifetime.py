"""References die when they should, on threads that may drop them, and thread states stay."""

import gc
import threading
import time
import weakref

import pytest

import engine
from conftest import PATIENCE


class Thing:
    pass


def collected(ref):
    """True once ``ref`` is dead; what died on a worker is dropped by the next push or wait."""
    for _ in range(100):
        engine.push(lambda: None)
        try:
            engine.wait_all()
        except Exception:
            pass  # what the test made fail on purpose
        gc.collect()
        if ref() is None:
            return True
    return False


def test_a_callable_is_dropped_before_its_op_ends():
    v, thing = engine.Var("v"), Thing()
    gone = weakref.ref(thing)
    engine.push(lambda held=thing: None, writes=[v])
    del thing
    v.wait()
    assert gone() is None


def test_a_skipped_callable_is_dropped():
    v, thing = engine.Var("v"), Thing()
    gone = weakref.ref(thing)
    engine.push(lambda: 1 / 0, writes=[v])
    engine.push(lambda held=thing: None, reads=[v])
    del thing
    engine.push(lambda: None, writes=[v])
    assert collected(gone)


def test_an_exception_is_dropped_when_its_var_is_cleared():
    class Mine(Exception):
        pass

    v, seen = engine.Var("v"), []

    def body():
        error = Mine()
        seen.append(weakref.ref(error))
        raise error

    engine.push(body, writes=[v])
    try:
        v.wait()
    except Mine:
        pass
    engine.push(lambda: None, writes=[v])
    assert collected(seen[0])


def test_a_destructor_may_use_the_engine():
    class Pushes:
        def __del__(self):
            engine.push(dropped.set)

    dropped, v = threading.Event(), engine.Var("v")
    engine.push(lambda held=Pushes(): None, writes=[v])
    assert v.wait() and dropped.wait(PATIENCE)
    dropped.clear()
    engine.push(lambda: 1 / 0, writes=[v])
    engine.push(lambda held=Pushes(): None, reads=[v])
    engine.push(lambda: None, writes=[v])
    v.wait()
    engine.push(lambda: None)
    assert dropped.wait(PATIENCE)


def test_thread_local_data_lasts_from_op_to_op():
    local, seen = threading.local(), []

    def body():
        local.count = getattr(local, "count", 0) + 1
        seen.append(local.count)

    with engine.Engine(workers=1) as one:
        for _ in range(10):
            one.push(body)
        one.wait_all()
    assert seen == list(range(1, 11))


def test_thread_local_data_dies_with_the_worker():
    local, thing = threading.local(), Thing()
    gone = weakref.ref(thing)
    holder = [thing]
    del thing
    with engine.Engine(workers=1) as one:
        one.push(lambda: setattr(local, "thing", holder.pop()))
        one.wait_all()
        assert gone() is not None
    gc.collect()
    assert gone() is None


def test_vars_may_die_on_any_thread_with_ops_pending(gate):
    v = engine.Var("v")
    engine.push(gate, writes=[v])
    engine.push(lambda: None, updates=[v])
    del v
    gate.open()
    threads = [threading.Thread(target=lambda: [engine.Var(str(i)) for i in range(100)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
    assert engine.wait_all()


def test_memory_does_not_grow_with_the_number_of_ops():
    v = engine.Var("v")

    def many():
        """All pending at once, but fewer than max_pending: how far pushes are ahead of workers is no chance."""
        gate = threading.Event()
        engine.push(lambda: gate.wait(PATIENCE), writes=[v])
        for _ in range(5000):
            engine.push(int, updates=[v])
        gate.set()
        v.wait()

    many()
    before = engine.stats()["slab_bytes"]
    for _ in range(5):
        many()
    assert engine.stats()["slab_bytes"] <= before + (1 << 20)


def test_a_value_with_the_var_of_a_run_keeps_the_run():
    step = engine.hybridize(engine.op(lambda x: x + 1))
    plan = step.record(1)
    run = plan.start((1,))
    gone = weakref.ref(run)
    value = engine.Value(0, run.var)
    var = run.var
    del run
    # Runs that come later would get the frame, and with it the Var, if nobody kept it.
    later = [plan.start((1,)) for _ in range(3)]
    engine.wait_all()
    assert value.var == var and value.var.version == 1 and all(value.var != one.var for one in later)
    del var
    gc.collect()
    assert gone() is not None
    of_value = value.var
    del value
    gc.collect()
    assert gone() is not None, "the Var of the Value keeps the run as well"
    del of_value
    assert collected(gone)


@pytest.mark.parametrize("kept", ["called", "in its object", "recorded", "with a function for bytes"])
def test_an_op_is_freed_with_what_its_function_holds(kept):
    class Model:
        def step(self, x):
            return x

    model = Model()
    gone = weakref.ref(model)
    if kept == "with a function for bytes":
        step = engine.op(bytes=lambda x, held=model: 1)(lambda x: x)
        model.op = step
    else:
        step = engine.op(model.step)
    assert step(1).get() == 1
    if kept == "in its object":
        model.op = step
    if kept == "recorded":
        recorded = engine.hybridize(lambda x: step(x))
        assert recorded(1).get() == 1
        del recorded
    del model, step
    assert collected(gone)


def test_references_that_die_on_workers_are_dropped_by_the_interpreter_each_time():
    # Nothing here calls the engine after the gate has opened, so only the call that the interpreter was asked for can drop them.
    for _ in range(3):
        v, thing, opened = engine.Var("v"), Thing(), threading.Event()
        gone = weakref.ref(thing)

        def fails(opened=opened):
            assert opened.wait(PATIENCE)
            raise ValueError("on purpose")

        engine.push(fails, writes=[v])
        engine.push(lambda held=thing: None, reads=[v])
        del thing
        opened.set()
        deadline = time.monotonic() + PATIENCE
        while gone() is not None and time.monotonic() < deadline:
            time.sleep(0)
        assert gone() is None
        engine.push(lambda: None, writes=[v])  # clears the error
        try:
            engine.wait_all()
        except ValueError:
            pass


def test_the_var_of_a_run_stays_its_own_and_keeps_the_run_and_nothing_longer(gate):
    thing = Thing()
    held = weakref.ref(thing)
    waits = engine.hybridize(engine.op(lambda x, wait: (gate() if wait is not None else None, x)[1]))
    quick, slow = waits.record(thing, None), waits.record(thing, 1)
    run = quick.start([thing, None])
    var = run.var
    del run, thing
    assert var.wait(PATIENCE) and var.version == 1
    runs = [quick.start([None, None]) for _ in range(100)]  # one of them would have got its frame
    for run in runs:
        run.var.wait(PATIENCE)
    blocked = slow.start([None, 1])
    gate.wait_until_entered()
    assert var.settled and var.version == 1 and not blocked.var.settled
    assert all(var != run.var for run in runs)
    gate.open()
    assert blocked.var.wait(PATIENCE)
    del runs, run, blocked
    assert held() is not None
    del var
    assert collected(held)
