"""Contract 4: an asynchronous op ends when its done is called, on any thread, before or after the body returns."""

import gc
import queue
import threading

import pytest

import engine
from conftest import PATIENCE


def test_done_may_be_called_inside_the_body():
    v = engine.Var("v")
    engine.push_async(lambda done: done(), writes=[v])
    assert v.wait(PATIENCE)


def test_done_may_be_called_later_by_another_thread():
    v, kept, ran = engine.Var("v"), queue.SimpleQueue(), []
    engine.push_async(kept.put, writes=[v])
    engine.push(lambda: ran.append(v.version), reads=[v])
    done = kept.get(timeout=PATIENCE)
    assert not v.wait(0) and not ran
    thread = threading.Thread(target=done)
    thread.start()
    assert v.wait(PATIENCE)
    thread.join(PATIENCE)
    engine.wait_all()
    assert ran == [1]


def test_fail_raises_the_exception_at_waits():
    v = engine.Var("v")
    engine.push_async(lambda done: done.fail(ConnectionError("lost")), writes=[v], name="fetch")
    with pytest.raises(ConnectionError, match="lost") as error:
        v.wait()
    assert "'fetch'" in error.value.__notes__[0]


@pytest.mark.parametrize("wrong", [ValueError, "lost", None])
def test_fail_wants_an_exception_object(wrong):
    v = engine.Var("v")
    engine.push_async(lambda done: done.fail(wrong), writes=[v], name="fetch")
    with pytest.raises(TypeError, match="done.fail of op 'fetch'"):
        v.wait()


def test_a_body_that_raises_before_done_fails_the_op():
    v = engine.Var("v")

    def body(done):
        raise ValueError("early")

    engine.push_async(body, writes=[v])
    with pytest.raises(ValueError, match="early"):
        v.wait()


def test_a_dropped_done_fails_the_op():
    v = engine.Var("v")
    engine.push_async(lambda done: None, writes=[v], name="forgot")
    with pytest.raises(engine.CompletionError, match="forgot") as error:
        v.wait()
    assert error.value.op == "forgot" and error.value.file.endswith("test_async_ops.py") and error.value.line > 0


def test_a_done_that_dies_with_a_cycle_fails_the_op():
    v = engine.Var("v")

    def body(done):
        cycle = [done]
        cycle.append(cycle)

    engine.push_async(body, writes=[v])
    with pytest.raises(engine.CompletionError):
        while not v.wait(0.01):
            gc.collect()


def test_a_second_done_is_an_error_and_changes_nothing():
    v, second = engine.Var("v"), []

    def body(done):
        done()
        for again in (done, lambda: done.fail(ValueError())):
            try:
                again()
            except engine.CompletionError as error:
                second.append(str(error))

    engine.push_async(body, writes=[v], name="twice")
    assert v.wait(PATIENCE)
    engine.wait_all()
    assert len(second) == 2 and all("'twice' was called twice" in text for text in second)


def test_done_may_outlive_the_engine():
    kept = queue.SimpleQueue()
    eng = engine.Engine(workers=1, drain_timeout=0, on_unobserved=lambda error: None)
    v = engine.Var("v", eng)
    eng.push_async(kept.put, writes=[v])
    done = kept.get(timeout=PATIENCE)
    eng.shutdown()
    with pytest.raises(engine.ShutdownError):
        v.wait()
    done()
