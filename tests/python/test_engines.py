"""Engines: several at once, their options, their end."""

import gc
import os
import re
import threading
import weakref

import pytest

import engine
from conftest import PATIENCE


def where(eng, **options):
    seen = []
    eng.push(lambda: seen.append(threading.get_ident()), **options)
    eng.wait_all()
    return seen[0]


def test_several_engines_coexist():
    with engine.Engine(workers=1) as a, engine.Engine(workers=1) as b:
        assert a != b and where(a) != where(b)


def test_io_and_pools_have_threads_of_their_own(gate):
    with engine.Engine(workers=1, pools={"disk": 1, "net": {"threads": 2}}) as eng:
        eng.push(gate)  # holds the only worker
        gate.wait_until_entered()
        ran = threading.Semaphore(0)
        for place in (engine.io(), "io", eng.pool("disk"), "net", engine.copy_in(), engine.copy_out()):
            eng.push(ran.release, place=place)
            assert ran.acquire(timeout=PATIENCE)
        gate.open()


def test_hooks_run_on_each_worker():
    started, ended = [], []
    with engine.Engine(workers=2, on_start=started.append, on_end=ended.append) as eng:
        eng.wait_all()
    assert sorted(started) == sorted(ended) == [0, 1]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_workers_stay_on_their_cpus():
    cpu = min(os.sched_getaffinity(0))
    with engine.Engine(workers=1, cpus=[cpu]) as eng:
        seen = []
        eng.push(lambda: seen.append(os.sched_getaffinity(0)))
        eng.wait_all()
    assert seen == [{cpu}]


def test_stop_and_start():
    with engine.Engine(workers=1) as eng:
        v, ran = engine.Var("v", eng), []
        for _ in range(2):
            eng.stop()
            eng.push(lambda: ran.append(1), updates=[v])
            assert not v.wait(0.01)
            eng.start()
            assert v.wait(PATIENCE)
        assert ran == [1, 1]


def test_shutdown_finishes_what_is_pending_and_refuses_more():
    ran = []
    with engine.Engine(workers=1) as eng:
        v = engine.Var("v", eng)
        for i in range(1000):
            eng.push(lambda i=i: ran.append(i), updates=[v])
    assert ran == list(range(1000))
    with pytest.raises(engine.UsageError):
        eng.push(lambda: None)
    assert v.wait()
    eng.shutdown()


def test_shutdown_on_a_worker_is_refused():
    with engine.Engine(workers=1) as eng:
        v = engine.Var("v", eng)
        eng.push(eng.shutdown, writes=[v])
        with pytest.raises(engine.UsageError):
            v.wait()


def test_errors_nobody_saw_go_to_on_unobserved():
    seen = []
    with engine.Engine(workers=1, on_unobserved=seen.append) as eng:
        eng.push(lambda: 1 / 0, name="lost")
    assert [type(error) for error in seen] == [ZeroDivisionError]
    assert "'lost'" in seen[0].__notes__[0]


def test_an_engine_that_is_dropped_drains():
    ran = []
    eng = engine.Engine(workers=1)
    eng.push(lambda: ran.append(1))
    gone = weakref.ref(eng)
    del eng
    gc.collect()
    assert gone() is None and ran == [1]


def test_a_var_does_not_keep_its_engine():
    eng = engine.Engine(workers=1)
    v = engine.Var("v", eng)
    del eng
    gc.collect()
    with pytest.raises(engine.ShutdownError, match="'v' is gone"):
        v.wait()


def test_an_engine_dropped_by_its_own_op_ends(gate):
    eng = engine.Engine(workers=1)
    done = threading.Event()
    eng.push(gate)
    eng.push(lambda held=eng: done.set())
    del eng
    gate.open()
    assert done.wait(PATIENCE)


def test_stats_count():
    with engine.Engine(workers=1) as eng:
        before = eng.stats()
        for _ in range(10):
            eng.push(lambda: None)
        eng.wait_all()
        after = eng.stats()
    assert after["pushed"] - before["pushed"] == 10
    assert after["completed"] - before["completed"] == 10
    assert "dispatches" in after


def test_what_is_pending_can_be_described(gate):
    v = engine.Var("stuck")
    engine.push(gate, writes=[v], name="holder")
    engine.push(lambda: None, reads=[v], name="waiter")
    gate.wait_until_entered()
    text = engine.describe_pending()
    assert "stuck" in text and "holder" in text and "waiter" in text and "test_engines.py" in text


def test_a_held_op_that_nobody_releases_is_described_as_such():
    v = engine.Var("v")
    held = engine.push_held(lambda: None, writes=[v], name="H")
    engine.push(lambda: None, reads=[v], name="reader")
    assert re.search(r"'H' \(.*test_engines.py:\d+, pushed by PushHeld: it waits for its HeldOp's release, or for its Vars\)", engine.describe_pending())
    held.release()


def test_a_push_behind_a_shutdown_is_refused_with_its_op_and_line():
    eng = engine.Engine(workers=1)
    op = engine.op(lambda x: x, name="late")
    eng.shutdown()
    with pytest.raises(engine.UsageError, match=r"push after shutdown: op 'late' pushed at .*test_engines.py:\d+, and the engine takes no more"):
        eng.push(lambda: None, name="late")
    with pytest.raises(engine.UsageError, match="Var 'v' is made"):
        engine.Var("v", eng)
    assert op(1).get() == 1  # the default engine


@pytest.mark.parametrize("pools, said", [
    ({"a": 0}, "pool 'a' has 0 threads; allowed: 1 to 4096"),
    ({"a": {"threads": 5000}}, "pool 'a' has 5000 threads; allowed: 1 to 4096"),
    ({"io": 1}, "a pool named 'io', as one of the engine's own; give it another name"),
    ({"cpu": 1}, "a pool named 'cpu', as one of the engine's own"),
])  # fmt: skip
def test_pools_that_cannot_be_are_refused_by_name(pools, said):
    with pytest.raises(engine.UsageError, match=said):
        engine.Engine(workers=1, pools=pools)


def test_a_stall_is_reported(gate):
    reports = []
    said = threading.Event()
    options = {"stall_timeout": 0.05, "on_stall": lambda text: (reports.append(text), said.set())}
    with engine.Engine(workers=1, **options) as eng:
        kept = []
        v = engine.Var("stuck", eng)
        eng.push_async(kept.append, writes=[v], name="never")
        assert said.wait(PATIENCE)
        eng.push(lambda: kept[0]())
    assert "never" in reports[0]


def test_many_engines_come_and_go():
    for workers in (0, 1, 2, 4):
        for _ in range(5):
            with engine.Engine(workers=workers) as eng:
                ran = []
                eng.push(lambda: ran.append(1))
            assert ran == [1]
