"""Stages: order, ends, errors, time-outs, clients, restarts, positions and counters."""

import os
import signal
import sysconfig
import threading
import time
import traceback

import pytest

import engine
from conftest import PATIENCE


def counting(n, then=None):
    yield from range(n)
    if then is not None:
        raise then


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_many_threads_make_what_one_would_make(threads):
    stage = engine.data.staged(lambda x: x * x, feed_dict={"x": counting(200)}, capacity=3, num_threads=threads)
    assert list(stage) == [x * x for x in range(200)]
    assert next(stage, "end") == next(stage, "end") == "end"
    assert stage.position == 200


def test_unordered_loses_and_repeats_nothing():
    stage = engine.data.staged(lambda x: x, feed_dict={"x": counting(200)}, capacity=3, num_threads=4, ordered=False)
    assert sorted(stage) == list(range(200))


def test_nothing_is_read_before_the_first_take():
    read = []
    stage = engine.data.staged(lambda: read.append(1) or len(read))
    assert read == []
    assert next(stage) == 1


def test_the_prefetch_hook_cancels_smart_stages_too():
    steps = engine.data.smart_stage(lambda x: engine.op(lambda x: x)(x), iter(range(100)), profile_steps=0, guard_steps=0)
    with engine.data.make_prefetch_hook():
        assert next(steps).get() == 0
    with pytest.raises(engine.CancelledError):
        list(steps)


def test_in_the_block_of_a_prefetch_hook_a_forgotten_stage_ends():
    closed = threading.Event()

    def source():
        try:
            yield from iter(int, 1)
        finally:
            closed.set()

    stage = engine.data.staged(source())
    with engine.data.make_prefetch_hook():
        next(stage)
        del stage
        assert closed.wait(PATIENCE)


def test_the_prefetch_hook_cancels_the_stages_behind_one_that_cannot_be(monkeypatch):
    stages = [engine.data.staged(iter(range(9)), name=name) for name in "abc"]
    monkeypatch.setattr(stages[1], "cancel", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError), engine.data.make_prefetch_hook():
        pass
    for stage in stages[0], stages[2]:
        with pytest.raises(engine.CancelledError):
            list(stage)


def test_start_and_the_prefetch_hook_read_ahead(gate):
    stage = engine.data.staged(lambda: gate())
    with engine.data.make_prefetch_hook():
        gate.wait_until_entered()
        gate.open()
    with pytest.raises(engine.CancelledError):
        list(stage)


def test_an_error_comes_as_itself_after_the_items_before_it_and_stays():
    class Broken(Exception):
        pass

    error = Broken("row 5", {"detail": 1})
    stage = engine.data.staged(counting(5, then=error), capacity=2, name="rows")
    assert [next(stage) for _ in range(5)] == list(range(5))
    for _ in range(2):
        with pytest.raises(Broken) as raised:
            next(stage)
        assert raised.value.args == ("row 5", {"detail": 1})
        assert "counting" in "".join(traceback.format_tb(raised.value.__traceback__))
        assert any("stage 'rows'" in note for note in raised.value.__notes__)
    assert stage.position == 5


def test_an_error_in_a_parallel_part_comes_in_its_place():
    def work(x):
        if x == 7:
            raise LookupError(x)
        return x

    stage = engine.data.staged(work, feed_dict={"x": counting(100)}, capacity=4, num_threads=4)
    assert [next(stage) for _ in range(7)] == list(range(7))
    with pytest.raises(LookupError):
        next(stage)


def test_stop_iteration_that_is_no_end_does_not_look_like_one():
    def work(x):
        raise StopIteration

    stage = engine.data.staged(work, feed_dict={"x": counting(3)}, closed_exception_types=(EOFError,))
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(stage)


def test_the_end_passes_through_a_generator_and_a_source_that_takes():
    stage = engine.data.staged(range(2))

    def taken():
        while True:
            yield stage.take()

    items = taken()
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(engine.EndOfData, match="no more data"):
        next(items)
    inner = engine.data.staged(range(3))
    assert list(engine.data.staged(inner.take)) == [0, 1, 2]


def test_closed_and_ignored_exceptions():
    def work(x):
        if x == 30:
            raise EOFError
        if x % 3 == 0:
            raise KeyError(x)
        return x

    stage = engine.data.staged(
        work, {"x": counting(100)}, closed_exception_types=EOFError, ignored_exception_types=(KeyError, OSError)
    )
    assert list(stage) == [x for x in range(30) if x % 3]
    assert stage.stats()["skipped"] == 10


def test_a_persistent_ignored_error_ends_as_itself():
    calls = []

    def work():
        calls.append(1)
        raise KeyError(len(calls))

    stage = engine.data.staged(work, ignored_exception_types=KeyError, ignored_budget=3)
    with pytest.raises(KeyError, match="4"):
        next(stage)


def test_each_item_goes_to_one_client_and_all_see_the_end():
    stage, got = engine.data.staged(counting(300), capacity=2, num_client=3), [[], [], []]
    threads = [threading.Thread(target=lambda mine=mine: mine.extend(stage)) for mine in got]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
    assert all(mine == sorted(mine) for mine in got)
    assert sorted(sum(got, [])) == list(range(300))


def test_more_clients_than_said_are_refused(gate):
    stage, refused, taken = engine.data.staged(lambda: gate(), name="rows"), [], []

    def consume():
        try:
            taken.append(next(stage))
        except engine.UsageError as error:
            refused.append(str(error))
            gate.open()

    threads = [threading.Thread(target=consume) for _ in range(2)]  # whoever comes second is refused
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert taken == [None] and len(refused) == 1
    assert refused[0].startswith("stage 'rows': more than num_clients (1)")


def test_cancel_wakes_a_consumer_while_the_source_blocks(gate):
    stage, seen = engine.data.staged(lambda: gate(), name="slow"), []

    def consume():
        try:
            next(stage)
        except engine.CancelledError as error:
            seen.append(str(error))

    thread = threading.Thread(target=consume)
    thread.start()
    gate.wait_until_entered()
    stage.cancel()
    stage.cancel()
    thread.join(PATIENCE)
    assert seen == ["stage 'slow': it was cancelled"]
    assert not stage.join(0)
    gate.open()
    assert stage.join(PATIENCE)


def test_close_delivers_what_was_begun_and_then_ends():
    begun = threading.Semaphore(0)

    def source():
        for i in range(100):
            begun.release()
            yield i

    stage = engine.data.staged(source())
    stage.start()
    for _ in range(2):
        assert begun.acquire(timeout=PATIENCE)
    stage.close()
    stage.close()
    assert list(stage) == [0, 1]


def test_a_restart_shows_nothing_of_the_run_before():
    stage = engine.data.staged(range(10), capacity=4, num_threads=2)
    for _ in range(3):
        assert [next(stage) for _ in range(3)] == [0, 1, 2]
        stage.restart()
    stage.restart(iter("ab"))
    assert list(stage) == ["a", "b"]
    with pytest.raises(engine.UsageError, match="features is a str_.*iterator, which cannot begin again"):
        stage.restart()


def test_a_restart_takes_a_new_feed():
    """What a stage has read ahead of an iterator is lost with a restart, so it is not read on."""
    parse = lambda line: line * 10  # noqa: E731
    stage = engine.data.staged(parse, {"line": iter(range(5))}, capacity=3)
    assert next(stage) == 0
    for features in None, lambda line: line + 1:
        with pytest.raises(engine.UsageError, match=r"feed_dict\['line'\] is a range_iterator, which cannot begin again"):
            stage.restart(features)
    stage.restart(feed_dict={"line": iter("ab")})
    assert list(stage) == ["a" * 10, "b" * 10]
    stage.restart(lambda line: line + 1, {"line": iter(range(3))})
    assert list(stage) == [1, 2, 3]
    mixed = engine.data.staged([iter("ab"), lambda x: x], {"x": 1})
    with pytest.raises(engine.UsageError, match=r"features\[0\] is a str_.*iterator"):
        mixed.restart(feed_dict={"x": 2})


def test_no_room_in_time_is_an_error_that_names_the_stage():
    stage = engine.data.staged(counting(100), timeout=0.001, name="rows")
    stage.start()
    assert stage.join(PATIENCE)
    assert next(stage) == 0
    with pytest.raises(engine.StageTimeoutError, match="stage 'rows': item 1 waited 1 ms for room") as raised:
        next(stage)
    assert isinstance(raised.value, TimeoutError)


def test_a_consumer_that_pauses_for_longer_than_any_time_out_goes_on():
    paused = engine.data.staged(iter(range(4)), capacity=1, name="paused")
    clock = engine.data.staged(counting(100), timeout=0.2, name="clock")  # ends when it found no room for that long
    assert next(paused) == 0
    clock.start()
    assert clock.join(PATIENCE)  # the pause
    assert list(paused) == [1, 2, 3]


def test_no_room_in_time_may_drop():
    stage = engine.data.staged(counting(50), timeout=0, on_timeout="drop")
    stage.start()
    assert stage.join(PATIENCE)
    assert list(stage) == [0]
    assert stage.stats()["drops"] == 49


def test_a_source_that_blocks_for_ever_is_named(gate):
    stage = engine.data.staged(lambda: gate(), take_timeout=0.07, name="reader")
    with pytest.raises(
        engine.StageTimeoutError, match="stage 'reader': no item within 70 ms: the source has not returned"
    ):
        next(stage)
    with pytest.raises(TimeoutError, match="reader"):
        stage.take(timeout=0.01)
    gate.open()
    assert stage.take(PATIENCE) is None


def test_bytes_bound_what_is_buffered():
    made = threading.Semaphore(0)

    def source():
        for _ in range(100):
            made.release()
            yield {"x": bytes(1000)}

    stage = engine.data.staged(source(), capacity=50, capacity_bytes=2500)
    stage.start()
    for _ in range(3):
        assert made.acquire(timeout=PATIENCE)
    while not stage.stats()["waiting"]:  # of which nothing else tells
        time.sleep(0)
    assert stage.stats()["fill"] == 2 and stage.stats()["fill_bytes"] == 2000
    assert len(list(stage)) == 100


def test_an_item_that_holds_itself_has_a_size():
    item = [b"0123456789"]
    item.append(item)
    stage = engine.data.staged(iter([item]), capacity_bytes=100)
    assert next(stage) is item


def test_resuming_from_the_position_repeats_and_loses_nothing(rng):
    rows, got, position, ended = list(range(100)), [], 0, False
    while not ended:
        with engine.data.staged(lambda x: x, {"x": iter(rows[position:])}, capacity=3, num_threads=3) as stage:
            for _ in range(rng.randrange(1, 20)):
                item = next(stage, None)
                if item is None:
                    ended = True
                    break
                got.append(item)
            position += stage.position
    assert got == rows


def test_pools_bound_how_many_run_at_once():
    pool = engine.data.stage_pool("two-of-python", inter_op_threads_num=2, intra_op_threads_num=3)
    assert engine.data.stage_pools()[pool] == {
        "global_name": "two-of-python", "inter_op_threads_num": 2, "intra_op_threads_num": 3
    }  # fmt: skip
    with pytest.raises(engine.UsageError, match="the name is taken"):
        engine.data.stage_pool("two-of-python")
    running, most, lock = [0], [0], threading.Lock()

    def work(x):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0)
        with lock:
            running[0] -= 1
        return x

    options = {"use_stage_subgraph_thread_pool": True, "stage_subgraph_thread_pool_id": pool, "num_threads": 3}
    a = engine.data.staged(work, {"x": counting(100)}, capacity=4, **options)
    b = engine.data.staged(work, {"x": a}, capacity=4, **options)
    assert list(b) == list(range(100))
    assert 1 <= most[0] <= 2


def test_ctrl_c_ends_a_take_and_the_stage_goes_on(gate):
    stage = engine.data.staged(lambda: gate())
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(stage)
    engine.value(1).wait()  # the program has heard of it, once
    gate.open()
    assert stage.take(PATIENCE) is None


def test_a_stage_that_is_forgotten_ends_its_producers():
    for _ in range(3):
        stage = engine.data.staged(lambda: 1, num_threads=2)
        next(stage)
        threads = [thread for thread in threading.enumerate() if thread.name == f"stage {stage.name}"]
        assert len(threads) == 2
        del stage
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)


def test_items_that_nobody_takes_are_freed():
    import gc
    import weakref

    class Item:
        pass

    refs, made = [], threading.Semaphore(0)

    def source():
        while True:
            item = Item()
            refs.append(weakref.ref(item))
            made.release()
            yield item
            del item

    stage = engine.data.staged(source(), capacity=5)
    next(stage)
    for _ in range(4):  # one was taken; while the fourth is made, two are there
        assert made.acquire(timeout=PATIENCE)
    assert stage.stats()["fill"] >= 2
    stage.cancel()
    assert stage.join(PATIENCE)
    del stage
    for _ in range(100):
        gc.collect()
        if not [r for r in refs if r() is not None]:
            break
    assert len(refs) >= 2 and not [r for r in refs if r() is not None]


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="a free-threaded Python frees another thread's object later"
)
@pytest.mark.parametrize("serial", [True, False])
def test_a_producer_does_not_keep_an_item_that_waited_for_room_alive(serial, gate):
    import weakref

    class Item:
        pass

    refs = []

    def make():
        if len(refs) == 2:
            gate()
        item = Item()
        refs.append(weakref.ref(item))
        return item

    stage = engine.data.staged(iter(make, None) if serial else make)
    while stage.stats()["waiting"] == 0:  # the first is buffered, the second waits for room
        stage.start()
    next(stage)
    gate.wait_until_entered()  # the second has found room
    next(stage)
    assert [ref() for ref in refs] == [None, None]
    gate.open()
