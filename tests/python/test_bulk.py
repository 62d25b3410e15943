"""Bulk: one dispatch for many pushes to a device, and nobody can tell otherwise; ops for the host pass it by."""

import asyncio
import threading

import pytest

import engine


def dispatches(eng):
    return eng.stats()["dispatches"]


@pytest.fixture
def eng():
    with engine.Engine(workers=2, devices=["software"]) as eng:
        yield eng


GPU = engine.gpu(0)


def test_a_block_on_a_device_is_one_dispatch_and_runs_in_order(eng):
    v, seen = engine.Var("v", eng), []
    blocker = threading.Event()
    eng.push(blocker.wait, writes=[v])  # whatever the clock releases meanwhile has to wait
    with engine.bulk(100, eng):
        for i in range(50):
            eng.push(lambda i=i: seen.append(i), updates=[v], place=GPU)
    blocker.set()
    v.wait()
    assert seen == list(range(50))
    assert dispatches(eng) < 51


def test_ops_for_the_host_start_at_once(eng):
    v, ran = engine.Var("v", eng), threading.Event()
    with engine.bulk(1000, eng):
        for _ in range(9):
            eng.push(lambda: None, updates=[v])
        eng.push(ran.set, updates=[v])
        assert ran.wait(20)
    eng.wait_all()
    assert dispatches(eng) == 10


def test_an_op_for_the_host_sees_what_the_device_made_before_it(eng):
    v, seen = engine.Var("v", eng), []
    with engine.bulk(1000, eng):
        eng.push(lambda: seen.append("device"), updates=[v], place=GPU)
        eng.push(lambda: seen.append("host"), updates=[v])
        eng.push(lambda: seen.append("device again"), updates=[v], place=GPU)
        v.wait()
    assert seen == ["device", "host", "device again"]


def test_returns_the_size_before_and_is_of_one_thread():
    assert engine.set_bulk_size(15) == 0
    assert engine.set_bulk_size(4) == 15
    others = []
    thread = threading.Thread(target=lambda: others.append(engine.set_bulk_size(3)))
    thread.start()
    thread.join()
    assert others == [0]
    with engine.bulk(7):
        assert engine.set_bulk_size(7) == 7
    assert engine.set_bulk_size(0) == 4


@pytest.mark.parametrize("size, error", [(-1, engine.UsageError), (2**21, engine.UsageError), (2**80, engine.UsageError),
                                         ("15", TypeError), (1.5, TypeError), (None, TypeError), (True, TypeError)])  # fmt: skip
def test_sizes_that_make_no_sense_are_refused(size, error):
    with pytest.raises(error, match="set_bulk_size: size is"):
        engine.set_bulk_size(size)
    with pytest.raises(error, match="bulk: size is"):
        engine.bulk(size)  # where it is written, and not where the block begins
    assert engine.set_bulk_size(0) == 0


def test_ops_and_values_are_bulked_and_read_as_ever():
    @engine.op
    def add(a, b):
        return a + b

    with engine.bulk(15):
        total = engine.value(0)
        for i in range(100):
            total = add(total, i)
        assert total.get() == sum(range(100))


def test_other_threads_see_everything(eng):
    v, seen = engine.Var("v", eng), []
    with engine.bulk(1000, eng):
        eng.push(lambda: seen.append(1), writes=[v], place=GPU)
        waiter = threading.Thread(target=v.wait)
        waiter.start()
        waiter.join()
        assert seen == [1]


def test_an_exception_skips_only_what_depends_on_it(eng):
    a, b, c, ran = engine.Var("a", eng), engine.Var("b", eng), engine.Var("c", eng), []

    def bad():
        raise ValueError("planted")

    with engine.bulk(15, eng):
        eng.push(bad, writes=[a], place=GPU)
        eng.push(lambda: ran.append("b"), reads=[a], writes=[b], place=GPU)
        eng.push(lambda: ran.append("c"), writes=[c], place=GPU)
    c.wait()
    assert ran == ["c"]
    with pytest.raises(ValueError, match="planted"):
        b.wait()


def test_async_ops_end_the_bulk_and_complete(eng):
    v, order = engine.Var("v", eng), []

    def later(done):
        order.append(2)
        done()

    with engine.bulk(15, eng):
        eng.push(lambda: order.append(1), updates=[v], place=GPU)
        eng.push_async(later, updates=[v], place=GPU)
        eng.push(lambda: order.append(3), updates=[v], place=GPU)
    v.wait()
    assert order == [1, 2, 3]


def test_an_exception_in_the_block_ends_the_bulk(eng):
    v, ran = engine.Var("v", eng), []
    with pytest.raises(KeyError):
        with engine.bulk(15, eng):
            eng.push(lambda: ran.append(1), writes=[v], place=GPU)
            raise KeyError("mine")
    assert eng.set_bulk_size(0) == 0
    v.wait()
    assert ran == [1]


def test_blocks_of_coroutines_may_end_in_any_order():
    @engine.op
    def double(x):
        return 2 * x

    async def one(n, entered, may_leave):
        with engine.bulk(4):
            value = double(engine.value(n))
            entered.set()
            await may_leave.wait()
            return await value

    async def both():
        e1, e2, l1, l2 = (asyncio.Event() for _ in range(4))
        first = asyncio.ensure_future(one(1, e1, l1))
        await e1.wait()
        second = asyncio.ensure_future(one(2, e2, l2))
        await e2.wait()
        l1.set()  # the one that was entered first is left first
        results = [await first]
        l2.set()
        return results + [await second]

    assert asyncio.run(both()) == [2, 4]
    engine.set_bulk_size(0)


def test_a_block_left_on_another_thread_is_refused():
    block = engine.bulk(15)
    block.__enter__()
    raised = []

    def leave():
        try:
            block.__exit__(None, None, None)
        except engine.UsageError as error:
            raised.append(str(error))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert len(raised) == 1 and "another thread" in raised[0]
    block.__exit__(None, None, None)  # which is still open
    assert engine.set_bulk_size(0) == 0


def test_a_full_queue_waits_without_the_gil():
    with engine.Engine(workers=1, max_pending=4, devices=["software"]) as eng:
        v, seen = engine.Var("v", eng), []
        with engine.bulk(64, eng):
            for i in range(500):
                eng.push(lambda i=i: seen.append(i), updates=[v], place=GPU)
        v.wait()
        assert seen == list(range(500))


def test_naive_runs_each_op_for_the_host_inside_its_push():
    v, ran = engine.Var("v"), []
    try:
        with engine.policy("naive"), engine.bulk(15):
            engine.push(lambda: ran.append(1), writes=[v])
            assert ran == [1]
    finally:
        engine.set_policy("threaded")


def test_a_thread_that_ends_releases_its_bulk(eng):
    v, ran = engine.Var("v", eng), threading.Event()

    def main():
        eng.set_bulk_size(1000)
        eng.push(ran.set, writes=[v], place=GPU)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    assert ran.wait(20)


def test_the_clock_releases_a_bulk_whose_owner_is_silent(eng):
    ran = threading.Event()
    with engine.bulk(1000, eng):
        eng.push(ran.set, place=GPU)
        assert ran.wait(20)  # nobody waits for the op itself


def test_exit_with_an_open_bulk_runs_what_is_held(run_python):
    ended = run_python("""
        eng = engine.init(workers=1, devices=["software"])
        engine.set_bulk_size(1000)
        for i in range(10):
            engine.push(lambda i=i: print(i, flush=True), place=engine.gpu(0))
        """)
    assert ended.code == 0 and sorted(ended.out.split()) == [str(i) for i in range(10)], ended
