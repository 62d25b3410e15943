"""Pending calls of ops are bounded in bytes too: a pipeline of large arrays does not fill the memory."""

import os
import threading

import numpy as np
import pytest

import engine
from conftest import PATIENCE
from test_processes import CHILD, held

MIB = 1 << 20


@pytest.fixture
def eng():
    with engine.Engine(workers=2) as made:
        yield made


def test_a_pipeline_of_large_arrays_stays_within_the_bound(eng):
    eng.max_pending_bytes = 8 * MIB
    most, alive, lock = [0], [0], threading.Lock()

    class Counted(np.ndarray):
        def __array_finalize__(self, other):
            with lock:
                alive[0] += 1
                most[0] = max(most[0], alive[0])

        def __del__(self):
            with lock:
                alive[0] -= 1

    @engine.op
    def load(number, start):
        return np.full(MIB // 8, float(number)).view(Counted)

    @engine.op
    def first(array):
        return float(array[0])

    start = engine.value(0, engine=eng)
    sums = [first(load(i, start)) for i in range(60)]
    assert [s.get() for s in sums] == list(range(60))
    assert most[0] <= 16  # without the bound some fifty are there at once
    assert eng.pending_bytes == 0


def test_a_call_waits_until_there_is_room(eng, gate):
    eng.max_pending_bytes = 1000
    big = engine.op(lambda x: gate(), bytes=600)
    x, pushed = engine.value(0, engine=eng), threading.Event()
    big(x)
    gate.wait_until_entered()
    assert eng.pending_bytes == 600

    def push():
        big(x)
        pushed.set()

    pusher = threading.Thread(target=push)
    pusher.start()
    small = engine.op(lambda x: None, bytes=lambda x: 400)
    small(x)  # there is room for this one
    assert not pushed.is_set()
    gate.open()
    assert pushed.wait(PATIENCE)
    pusher.join()
    eng.wait_all()
    assert eng.pending_bytes == 0


def test_a_call_that_waited_goes_on_when_half_of_the_bound_is_free():
    with engine.Engine(workers=1) as eng:
        eng.max_pending_bytes = 64
        x, began, go = engine.value(np.zeros(1), engine=eng), threading.Semaphore(0), threading.Semaphore(0)

        @engine.op(bytes=1, updates="x")
        def step(x):
            began.release()
            assert go.acquire(timeout=PATIENCE)

        def call(count):
            for _ in range(count):
                step(x)

        call(64)
        pusher = threading.Thread(target=call, args=(64,))
        pusher.start()
        left = []
        for _ in range(32):
            assert began.acquire(timeout=PATIENCE)
            left.append(eng.pending_bytes)
            go.release()
        assert began.acquire(timeout=PATIENCE)  # 32 have ended
        go.release(96)
        pusher.join(PATIENCE)
        eng.wait_all()
        assert left == list(range(64, 32, -1))  # so it slept once for 32 calls
        assert eng.pending_bytes == 0


def test_a_call_that_is_larger_than_the_bound_goes_alone(eng):
    eng.max_pending_bytes = 10
    assert engine.op(lambda x: x.sum(), bytes=None)(engine.value(np.ones(1000), engine=eng)).get() == 1000


def test_arguments_and_the_last_result_count(eng, gate):
    eng.max_pending_bytes = 100 * MIB

    @engine.op
    def grown(x, more):
        gate()
        return np.zeros(300, np.uint8)

    x = engine.value(np.zeros(20, np.uint8), engine=eng)
    gate.open()
    grown(x, np.zeros(1, np.uint8)).get()
    again = engine.op(lambda x: held.wait(PATIENCE))
    held = threading.Event()
    again(x)
    before = eng.pending_bytes
    y = grown(x, np.zeros(1, np.uint8))  # 20 + 1, and 300 that are expected
    y.get()
    held.set()
    eng.wait_all()
    assert before == 20 + 100 * MIB // 8  # a result that is not known yet counts as an eighth of the bound
    assert y.get().nbytes == 300


def test_calls_inside_ops_and_failures_do_not_hang(eng):
    eng.max_pending_bytes = 10
    x = engine.value(0, engine=eng)
    inner = engine.op(lambda x: 1, bytes=100)
    outer = engine.op(lambda x: [inner(x) for _ in range(3)][-1], bytes=100)
    assert outer(x).get().get() == 1
    bad = engine.op(lambda x: 1 / 0, bytes=100)(x)
    after = engine.op(lambda x: x, bytes=100)(bad)
    with pytest.raises(ZeroDivisionError):
        after.get()
    eng.wait_all()
    assert eng.pending_bytes == 0


def test_calls_that_wait_for_the_caller_itself_do_not_hang(eng):
    eng.max_pending_bytes = 10
    v = engine.value(0, engine=eng)
    held = eng.push_held(lambda: None, updates=[v])
    took = engine.op(lambda x: x, bytes=100)
    values = [took(v), took(v)]  # only the release below lets them run
    held.release()
    assert [value.get() for value in values] == [0, 0]


@pytest.mark.parametrize("bytes", [-1, 1.5, "many", True])
def test_what_is_no_count_of_bytes_is_refused(bytes):
    with pytest.raises(engine.UsageError, match="a count of bytes"):
        engine.op(lambda x: x, bytes=bytes)


def test_a_function_that_gives_no_count_is_told(eng):
    eng.max_pending_bytes = 10
    with pytest.raises(engine.UsageError, match="op 'add': bytes is -5"):
        engine.op(lambda x: x, bytes=lambda x: -5, name="add")(engine.value(0, engine=eng))


def test_it_is_an_option_of_an_engine(run_python):
    with engine.Engine(workers=1, max_pending_bytes=MIB) as own:
        assert own.max_pending_bytes == MIB
    with engine.Engine(workers=1) as own:
        assert own.max_pending_bytes == 0
    with pytest.raises(engine.UsageError, match="max_pending_bytes is -1; at least 0"):
        engine.Engine(max_pending_bytes=-1)
    with pytest.raises(TypeError, match="max_pending_bytes is a float"):
        engine.Engine(max_pending_bytes=1.5)
    ended = run_python("engine.init(max_pending_bytes=4096); print(engine.default().max_pending_bytes)")
    assert ended.out == "4096\n", ended


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_what_the_parent_has_pending_does_not_count_in_a_child(run_python):
    held(run_python(CHILD + """
engine.init(workers=1, max_pending_bytes=3000)  # room for the three ops, and for no fourth one
entered, go = threading.Event(), threading.Event()
slow = engine.op(lambda: (entered.set(), go.wait(20)), bytes=900)
pending = [slow() for _ in range(3)]
entered.wait(20)

def counts_anew():
    eng = engine.default()
    assert (eng.pending_bytes, eng.max_pending_bytes) == (0, 3000)
    quick = engine.op(lambda: 1, bytes=900)
    assert [quick().get() for _ in range(3)] == [1, 1, 1] and eng.pending_bytes == 0

assert child(counts_anew) == 0

go.set()
engine.wait_all(20)
assert engine.default().pending_bytes == 0
print("ok")
"""))


def test_values_of_a_list_that_is_emptied_while_its_call_waits_live_as_long_as_the_call(run_python):
    ended = run_python("""
import threading, time
import numpy as np
import engine
eng = engine.Engine(workers=1)
eng.max_pending_bytes = 1000
gate, calls = threading.Event(), []
engine.op(lambda x: gate.wait(20) and None, bytes=900)(engine.value(np.zeros(1), engine=eng))
counted = engine.op(lambda items: len(items), bytes=900)
box = [engine.value(np.zeros(2), engine=eng)]
thread = threading.Thread(target=lambda: calls.append(counted(box)))
thread.start()
time.sleep(0.3)  # it waits for room
box.clear()
gate.set()
thread.join(20)
print(calls[0].get(20), "ok")
""", PYTHONMALLOC="debug")
    assert ended.code == 0 and ended.out.endswith("ok\n"), ended
