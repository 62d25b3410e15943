"""Awaiting Values and Vars."""

import asyncio
import contextlib
import gc
import queue
import sys
import threading
import time
import weakref

import pytest

import engine
from conftest import PATIENCE


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


def test_awaiting_gives_the_value_and_does_not_block_the_loop(gate):
    @engine.op
    def slow():
        gate()
        return 3

    async def main():
        v = slow()
        asyncio.get_running_loop().call_soon(gate.open)  # runs only if the loop is free
        return await v

    assert run(main()) == 3


def test_awaiting_raises_what_the_op_raised():
    @engine.op
    def bad():
        raise KeyError("k")

    async def main():
        with pytest.raises(KeyError) as error:
            await bad()
        assert "op 'bad' pushed at" in error.value.__notes__[0]
        with pytest.raises(engine.OpError):
            await stop()

    @engine.op
    def stop():
        raise StopIteration

    run(main())


def test_awaiting_takes_the_value_at_its_place_in_the_order(gate):
    counter = engine.value([0])

    @engine.op(updates="c")
    def bump(c):
        c[0] += 1

    @engine.op
    def snapshot(c):
        gate()
        return c[0]

    async def main():
        seen = snapshot(counter)
        bump(counter)
        gate.open()
        return await seen, (await counter)[0]

    assert run(main()) == (0, 1)


def test_awaiting_a_var():
    async def main():
        v = engine.Var("v")
        engine.push(lambda: None, writes=[v])
        await v
        return v.version

    assert run(main()) == 1


def test_awaiting_does_not_wait_for_busy_workers_that_have_nothing_to_do_with_it(gate):
    with engine.Engine(workers=1) as eng:

        async def main():
            kept, v = queue.SimpleQueue(), engine.Var("v", eng)
            eng.push_async(kept.put, writes=[v])  # ends on a thread of our own
            done = kept.get(timeout=PATIENCE)
            eng.push(gate)  # occupies the worker
            gate.wait_until_entered()
            asyncio.get_running_loop().call_later(0, done)
            await v
            gate.open()
            return "told"

        assert run(main()) == "told"


@pytest.mark.parametrize("given, ops", [((), 0), ((engine.value(1),), 1)])
def test_awaiting_is_one_op_and_none_for_a_call_that_nothing_can_skip(given, ops, gate):
    slow = engine.op(lambda *_: gate())

    async def main():
        v = slow(*given)
        before = engine.stats()["pushed"]
        asyncio.get_running_loop().call_soon(gate.open)
        await v
        return engine.stats()["pushed"] - before, v.done()

    assert run(main()) == (ops, True)


def awaited_by_two(value):
    async def one():
        return await value

    return asyncio.gather(one(), one(), return_exceptions=True)


@pytest.mark.parametrize("changes", ["op", "overwrite", "var"])
def test_what_changes_an_awaited_call_comes_behind_those_that_await_it(changes, gate):
    made = engine.op(lambda: (gate(), [1])[1])

    @engine.op(updates="x")
    def bump(x):
        x[0] += 1

    async def main():
        v = made()
        both = awaited_by_two(v)
        await asyncio.sleep(0)  # they await it before it is changed
        asyncio.get_running_loop().call_soon(gate.open)
        if changes == "op":
            both = asyncio.gather(both, asyncio.to_thread(lambda: None))
            seen = engine.op(list)(v)
            bump(v)
            (first, second), _ = await both
            assert first is second
            return (await seen), (await v)
        if changes == "overwrite":
            v.overwrite([2])
        else:
            engine.push(lambda: setattr(v, "_data", [2]), writes=[v.var])
        return (await both)[0][:1], (await v)

    assert run(main()) == ([1], [2])


def test_the_error_of_an_awaited_call_comes_also_if_it_is_overwritten(gate):
    @engine.op
    def bad():
        gate()
        raise KeyError("k")

    async def main():
        v = bad()
        both = awaited_by_two(v)
        await asyncio.sleep(0)
        v.overwrite(3)
        asyncio.get_running_loop().call_soon(gate.open)
        return await both, await v

    (first, second), value = run(main())
    assert type(first) is type(second) is KeyError and first is not second and value == 3
    assert "op 'bad' pushed at" in first.__notes__[0]


def test_one_of_several_outputs_is_awaited(gate):
    @engine.op(outputs=2)
    def two():
        gate()
        return 1, 2

    async def main():
        _, second = two()
        asyncio.get_running_loop().call_soon(gate.open)
        return await second

    assert run(main()) == 2


def test_awaiting_with_no_room_for_an_op_does_not_block_the_loop(gate):
    with engine.Engine(workers=1, max_pending=2) as eng:
        slow = engine.value([], engine=eng)

        async def main():
            while eng.try_push(gate, updates=[slow]):
                pass
            asyncio.get_running_loop().call_soon(gate.open)  # comes to it only if the loop is free
            return await slow

        assert run(main()) == []


def test_many_results_wake_the_loop_once(gate):
    @engine.op
    def number(i):
        gate()
        return i

    async def main():
        loop, wakeups = asyncio.get_running_loop(), []
        original = loop.call_soon_threadsafe
        tasks = [asyncio.ensure_future(awaited(number(i))) for i in range(200)]
        await asyncio.sleep(0)
        loop.call_soon_threadsafe = lambda *a, **k: (wakeups.append(1), original(*a, **k))[1]
        gate.open()
        done = threading.Event()
        engine.push(done.set)
        engine.wait_all(PATIENCE)  # the loop stands still while all of them finish
        results = await asyncio.gather(*tasks)
        return results, len(wakeups)

    async def awaited(v):
        return await v

    results, wakeups = run(main())
    assert results == list(range(200))
    assert wakeups == 1


def runs_that_end_one_by_one(results, look_every, monkeypatch):
    """Awaits many runs of a recorded function, of which one ends at first: how often has it woken the loop when
    `results(tasks, mailbox)` is over? And does each run have its own answer in the end?
    """
    monkeypatch.setattr(engine.aio, "LOOK_EVERY", look_every)
    turns = threading.Semaphore(0)
    many = 4 * (engine.Var().engine.workers + 1)

    @engine.op
    def number(i):
        assert turns.acquire(timeout=PATIENCE)
        return i

    step = engine.hybridize(lambda i: number(i))
    step.record(0)
    wakeups = []

    async def awaited(i):
        with engine.policy("inline"):
            answer = step(i)
        return await answer == i

    async def main():
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *a, **k: (wakeups.append(1), original(*a, **k))[1]
        tasks = [asyncio.ensure_future(awaited(i)) for i in range(many)]
        await asyncio.sleep(0)
        turns.release()
        await results(tasks, engine.aio._mailboxes[loop])
        woken = len(wakeups)
        turns.release(many - 1)
        return woken, all(await asyncio.gather(*tasks))

    return run(main())


def test_a_run_that_ends_before_many_others_does_not_wake_the_loop(monkeypatch):
    async def has_ended(_, mailbox):
        deadline = time.monotonic() + PATIENCE
        while not mailbox._finished and time.monotonic() < deadline:
            time.sleep(0)  # the loop stands still
        assert len(mailbox._finished) == 1

    # The loop would look by itself after half of PATIENCE. Before, it is woken because few runs are left.
    woken, right = runs_that_end_one_by_one(has_ended, PATIENCE / 2, monkeypatch)
    assert right and woken == 0


def test_the_loop_looks_by_itself_for_runs_that_did_not_wake_it(monkeypatch):
    async def has_its_result(tasks, _):
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    _, right = runs_that_end_one_by_one(has_its_result, 0.001, monkeypatch)
    assert right


def test_cancelling_an_await_leaves_the_op_alone(gate):
    @engine.op
    def slow():
        gate()
        return 3

    async def main():
        v = slow()

        async def awaited():
            return await v

        task = asyncio.ensure_future(awaited())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        return await v

    assert run(main()) == 3


def test_a_loop_that_closes_first_harms_nobody(gate):
    @engine.op
    def slow():
        gate()

    async def main():
        asyncio.ensure_future(awaited(slow()))
        await asyncio.sleep(0)

    async def awaited(v):
        await v

    asyncio.run(main())
    gate.open()
    assert engine.wait_all(PATIENCE) and engine.op(lambda: 1)().get() == 1


@pytest.mark.parametrize("policy", ["threaded", "naive"])
def test_an_async_op_completed_by_the_loop_itself(policy):
    async def main():
        v, loop = engine.Var("v"), asyncio.get_running_loop()
        with engine.policy(policy):
            engine.push_async(lambda done: loop.call_soon_threadsafe(done), writes=[v])
            await v
        return v.version

    assert run(main()) == 1


def test_awaiting_with_no_workers():
    async def main():
        with engine.Engine(workers=0) as none:
            return await engine.value(5, engine=none)

    assert run(main()) == 5


@pytest.mark.parametrize("policy", ["inline", "naive"])
def test_a_recorded_function_does_not_block_the_loop(policy, gate):
    slow = engine.op(lambda x: (gate(), x + 1)[1])
    step = engine.hybridize(lambda x: slow(x))
    step.record(1)

    async def main():
        with engine.policy(policy):
            result = step(1)
            gate.open()  # comes here only if the call has returned
            return await result

    assert asyncio.run(main()) == 2


@pytest.mark.parametrize("policy", ["inline", "naive"])
def test_a_recorded_function_with_state_does_not_block_the_loop(policy, gate):
    total = engine.value([0])

    @engine.op(updates="total")
    def add(total, x):
        gate()
        total[0] += x

    @engine.op
    def both(total, x):
        return total[0], x

    @engine.hybridize
    def step(x):
        add(total, x)
        return both(total, x)

    step.record(1)

    async def main():
        with engine.policy(policy):
            results = [step(1), step(2)]
            gate.open()  # comes here only if the calls have returned
            return [await result for result in results]

    assert run(main()) == [(1, 1), (3, 2)]


def test_a_node_that_fails_beside_a_loop_fails_what_depends_on_it(gate):
    @engine.op
    def good(x):
        return x + 1

    @engine.op
    def bad(x):
        raise KeyError(x)

    @engine.hybridize
    def step(x):
        bad(x)
        return good(x)

    @engine.hybridize
    def fails(x):
        return good(bad(x))

    async def main():
        with engine.policy("inline"):
            with pytest.raises(KeyError) as error:
                await fails(1)
            assert "op 'bad'" in error.value.__notes__[0]
            return await step(1)

    assert run(main()) == 2


def test_a_run_beside_a_loop_takes_the_gil_once():
    # Another thread counts whenever it gets the GIL. No switch is forced, so it gets it only where a node gives it up.
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    look = engine.op(lambda seen: seen + (counted[0],))

    @engine.hybridize
    def step(seen):
        for _ in range(500):
            seen = look(seen)
        return seen

    step.record(())

    async def main():
        with engine.policy("inline"):
            return await step(())

    before, counter = sys.getswitchinterval(), threading.Thread(target=count)
    sys.setswitchinterval(PATIENCE)
    counter.start()
    try:
        seen = run(main())
    finally:
        sys.setswitchinterval(before)
        stop.set()
        counter.join()
    assert len(seen) == 500 and len(set(seen)) == 1


def test_functions_in_c_let_other_threads_have_the_gil():
    # Between functions in C there is no line of Python at which the interpreter would hand the GIL over.
    lock, seen = threading.Lock(), []
    let, busy, count = engine.op(lock.release), engine.op(sorted), engine.op(len)
    numbers = list(range(2000, 0, -1))

    @engine.hybridize
    def step(numbers, seen):
        let()
        for _ in range(1000):
            busy(numbers)
        return count(seen)

    def other():
        with lock:
            seen.append(1)

    deadline = time.monotonic() + PATIENCE
    while True:
        seen.clear()
        lock.acquire()
        thread = threading.Thread(target=other)
        thread.start()
        with engine.policy("inline"):
            found = step(numbers, seen).get()
        thread.join()
        if found or time.monotonic() > deadline:
            break
    assert found == 1


def test_a_loop_that_has_closed_is_not_kept_by_what_ends_later(gate):
    async def main():
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(slow(), 0.01)

    slow = engine.op(lambda: gate())
    loops = []
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        loops.append(weakref.ref(loop))
        del loop
    gate.open()
    engine.wait_all()
    gc.collect()
    assert [ref() for ref in loops] == [None] * 3
