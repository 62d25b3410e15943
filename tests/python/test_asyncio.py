"""Awaiting Values and Vars."""

import asyncio
import queue
import threading

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


def test_awaiting_is_one_op(gate):
    slow = engine.op(lambda: gate())

    async def main():
        v = slow()
        before = engine.stats()["pushed"]
        asyncio.get_running_loop().call_soon(gate.open)
        await v
        return engine.stats()["pushed"] - before

    assert run(main()) == 1


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
    engine.wait_all(PATIENCE)


@pytest.mark.parametrize("policy", ["threaded", "naive"])
def test_an_async_op_completed_by_the_loop_itself(policy):
    async def main():
        v, loop = engine.Var("v"), asyncio.get_running_loop()
        with engine.policy(policy):
            engine.push_async(lambda done: loop.call_soon_threadsafe(done), writes=[v])
            await v

    run(main())


def test_awaiting_with_no_workers():
    async def main():
        with engine.Engine(workers=0) as none:
            return await engine.value(5, engine=none)

    assert run(main()) == 5


def test_stages_are_asynchronous_iterators():
    async def main():
        seen = [item async for item in engine.data.staged(iter(range(20)), capacity=4)]
        steps = engine.data.smart_stage(lambda x: engine.op(lambda x: x + 1)(x), iter(range(20)), profile_steps=1, guard_steps=1)
        return seen, [await value async for value in steps]

    assert asyncio.run(main()) == (list(range(20)), list(range(1, 21)))


def test_a_cancelled_await_of_a_stage_loses_no_item(gate):
    def read():
        gate()
        yield from range(3)

    async def main():
        stage = engine.data.staged(read())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(stage.__anext__(), 0.05)
        gate.open()
        return [item async for item in stage]

    assert asyncio.run(main()) == [0, 1, 2]


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
