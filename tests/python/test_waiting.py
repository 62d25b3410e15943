"""Contract 5: waits give the GIL up, answer to Ctrl-C, time out, and refuse what could never end."""

import os
import signal
import sys
import threading
import time

import pytest

import engine
from conftest import PATIENCE


def blocked(gate):
    v = engine.Var("v")
    engine.push(gate, writes=[v])
    gate.wait_until_entered()
    return v


@pytest.mark.parametrize(
    "wait",
    [lambda v: v.wait(), lambda v: v.wait_to_write(), lambda v: engine.wait_all(), lambda v: engine.stop()],
    ids=["wait", "wait_to_write", "wait_all", "stop"],
)
def test_a_blocking_call_lets_other_threads_run(gate, wait):
    v = blocked(gate)
    threading.Thread(target=gate.open).start()  # needs the GIL, as does the op
    wait(v)
    engine.start()
    assert v.wait(PATIENCE)


@pytest.mark.parametrize(
    "wait",
    [lambda v: v.wait(), lambda v: v.wait(60), lambda v: v.wait_to_write(), lambda v: engine.wait_all(),
     lambda v: engine.wait_all(60), lambda v: engine.stop()],
    ids=["wait", "wait-timeout", "wait_to_write", "wait_all", "wait_all-timeout", "stop"],
)  # fmt: skip
@pytest.mark.parametrize("when", ["early", "late"])
def test_ctrl_c_ends_a_wait_and_the_engine_goes_on(gate, wait, when):
    v = blocked(gate)
    begin = time.monotonic()
    timer = threading.Timer(0 if when == "early" else 0.12, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        wait(v)
        while time.monotonic() < begin + PATIENCE:  # the signal came before the wait and is about to be handled
            pass
    assert time.monotonic() - begin < 5
    gate.open()
    timer.join()
    assert v.wait(PATIENCE)
    for _ in range(2):
        engine.start()
    assert engine.wait_all(PATIENCE)


def test_a_signal_handler_that_returns_does_not_end_the_wait(gate):
    v, handled = blocked(gate), []
    previous = signal.signal(signal.SIGUSR1, lambda *_: (handled.append(1), gate.open()))
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert v.wait()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert handled == [1]


def test_an_error_that_an_interrupted_wait_all_meets_is_raised_by_the_next(gate):
    def body():
        gate()
        raise ValueError("late")

    engine.push(body)
    gate.wait_until_entered()
    threading.Timer(0.12, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        engine.wait_all()
    gate.open()
    with pytest.raises(ValueError, match="late"):
        engine.wait_all()
    engine.wait_all()  # once


def test_an_error_that_comes_while_a_signal_is_handled_is_raised_by_the_next_wait_all(gate):
    def body():
        gate()
        raise ValueError("late")

    def handler(*_):
        gate.open()
        time.sleep(0.1)  # meanwhile the wait ends, by this error; without this the next wait gets it from the engine
        raise KeyboardInterrupt

    engine.push(body)
    gate.wait_until_entered()
    previous = signal.signal(signal.SIGINT, handler)
    try:
        threading.Timer(0.12, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            engine.wait_all()
    finally:
        signal.signal(signal.SIGINT, previous)
    with pytest.raises(ValueError, match="late"):
        engine.wait_all()


@pytest.mark.parametrize("timeout", [0, 0.01, 0.12])
def test_a_timeout_says_so(gate, timeout):
    v = blocked(gate)
    assert v.wait(timeout) is False
    assert engine.wait(v, timeout=timeout) is False
    assert engine.wait_all(timeout) is False
    gate.open()
    assert v.wait(PATIENCE) and engine.wait_all(PATIENCE)


def test_a_thread_that_keeps_pushing_cannot_hold_up_a_wait(gate):
    with engine.Engine(workers=1, max_pending=128) as eng:  # about 130 ms of work are always pending
        v, stop, full = engine.Var("v", eng), threading.Event(), threading.Event()
        eng.push(gate, writes=[v])

        def pusher():
            for _ in range(100):
                eng.push(lambda: stop.wait(0.001), updates=[v])
            full.set()
            while not stop.is_set():
                eng.push(lambda: stop.wait(0.001), updates=[v])

        thread = threading.Thread(target=pusher)
        thread.start()
        try:
            assert full.wait(PATIENCE)
            gate.open()
            assert v.wait() and not stop.is_set()
            assert eng.wait_all() and not stop.is_set()
        finally:
            stop.set()
            thread.join(PATIENCE)


def test_waiting_inside_an_op_lends_the_worker():
    with engine.Engine(workers=1) as one:
        a, b = engine.Var("a", one), engine.Var("b", one)
        ready = threading.Event()

        def outer():
            one.push(ready.set, writes=[a])
            a.wait()
            assert ready.is_set()

        one.push(outer, writes=[b])
        assert b.wait(PATIENCE)


def test_waiting_for_a_var_of_the_op_itself_is_refused():
    v = engine.Var("own")
    engine.push(lambda: v.wait(), updates=[v], name="selfish")
    with pytest.raises(engine.UsageError, match="own"):
        v.wait()


def test_wait_all_inside_an_op_is_refused():
    v = engine.Var("v")
    engine.push(lambda: engine.wait_all(), writes=[v])
    with pytest.raises(engine.UsageError):
        v.wait()


def test_wait_to_write_waits_for_readers(gate):
    v = engine.Var("v")
    engine.push(gate, reads=[v])
    gate.wait_until_entered()
    assert v.wait(0)  # readers don't hold up readers
    threading.Thread(target=gate.open).start()
    v.wait_to_write()
    assert gate._open.is_set()


def test_with_no_workers_ops_run_inside_waits():
    with engine.Engine(workers=0) as none:
        v, where = engine.Var("v", none), []
        none.push(lambda: where.append(threading.get_ident()), writes=[v])
        assert where == []
        assert v.wait()
        assert len(where) == 1


def test_back_pressure_makes_pushes_wait_and_lets_other_threads_run(gate):
    with engine.Engine(workers=1, max_pending=4) as small:
        v, ran = engine.Var("v", small), []
        small.push(gate, writes=[v])
        gate.wait_until_entered()
        threading.Timer(0.02, gate.open).start()
        for i in range(100):
            small.push(lambda i=i: ran.append(i), updates=[v])
        assert small.wait_all(PATIENCE)
        assert ran == list(range(100))


def test_back_pressure_is_counted_on_threads_that_do_not_watch_for_signals(gate):
    with engine.Engine(workers=1, max_pending=4) as small:
        small.push(gate)
        gate.wait_until_entered()
        threading.Timer(0.02, gate.open).start()
        pusher = threading.Thread(target=lambda: [small.push(lambda: None) for _ in range(100)])
        pusher.start()
        pusher.join(PATIENCE)
        assert small.wait_all(PATIENCE) and small.stats()["backpressure_waits"] > 0


def test_the_hard_bound_refuses_pushes(gate):
    with engine.Engine(workers=1, max_pending=1, hard_max_pending=8) as small:
        v, refused = engine.Var("v", small), []

        def flood():
            try:
                for _ in range(100):
                    small.push(lambda: None, updates=[v], name="flood")
            except engine.BackPressureError as error:
                refused.append(error)

        small.push(flood, writes=[v])
        small.wait_all(PATIENCE)
        assert len(refused) == 1


def test_a_wait_for_what_is_not_ready_spins_without_the_gil():
    interval = sys.getswitchinterval()
    with engine.Engine(workers=1, spin=1.0) as eng:  # a wait that is not answered spins for a second
        sys.setswitchinterval(100)  # so only the wait itself gives the GIL up
        try:
            for _ in range(5):
                v = engine.Var("v", eng)
                eng.push(lambda: None, writes=[v])
                assert v.wait(0.9)
        finally:
            sys.setswitchinterval(interval)
