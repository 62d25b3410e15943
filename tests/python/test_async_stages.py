"""async for over stages: each item goes to one await, whoever is cancelled."""

import asyncio
import contextvars
import threading
import time

import pytest

import engine
from conftest import PATIENCE

USER = contextvars.ContextVar("user", default="nobody")


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


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


def test_an_await_that_was_given_up_holds_up_no_loop():
    gate = threading.Event()

    async def gives_up(stage):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(stage.__anext__(), 0.05)

    stage = engine.data.staged([lambda: gate.wait(PATIENCE), iter(range(3))])
    asyncio.run(gives_up(stage))  # returns, although the source does not
    gate.set()
    assert asyncio.run(all_of(stage)) == [[True, number] for number in range(3)]


def test_a_step_that_raises_stop_iteration_ends_its_await():
    async def main():
        steps = engine.data.smart_stage(lambda row: next(iter(())), iter(range(3)))
        with pytest.raises(RuntimeError, match="the step raised StopIteration"):
            await steps.__anext__()

    run(main())


async def all_of(stage):
    return [item async for item in stage]


def test_each_item_goes_to_one_of_the_tasks_that_iterate_a_stage():
    async def main():
        stage = engine.data.staged(iter(range(100)), capacity=4)
        return await asyncio.gather(*(all_of(stage) for _ in range(3)))

    seen = run(main())
    assert sorted(item for items in seen for item in items) == list(range(100))
    assert all(items == sorted(items) for items in seen)


def test_each_step_goes_to_one_of_the_tasks_that_iterate_a_smart_stage():
    async def main():
        steps = engine.data.smart_stage(lambda x: engine.op(lambda x: x + 1)(x), iter(range(50)), profile_steps=1, guard_steps=1)
        return await asyncio.gather(*(all_of(steps) for _ in range(3)))

    assert sorted(value.get() for values in run(main()) for value in values) == list(range(1, 51))


def test_each_item_goes_to_one_of_the_loops_and_threads_that_iterate_a_stage():
    stage, seen = engine.data.staged(iter(range(100)), capacity=4, num_clients=4), []

    def loop():
        seen.extend(run(all_of(stage)))

    def plain():
        seen.extend(stage)

    threads = [threading.Thread(target=target) for target in (loop, loop, plain, plain)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(seen) == list(range(100))


def test_what_a_cancelled_task_has_asked_for_goes_to_the_task_that_is_left(gate):
    def read():
        gate()
        yield from range(3)

    async def main():
        stage = engine.data.staged(read())
        first, second = (asyncio.ensure_future(all_of(stage)) for _ in range(2))
        await asyncio.to_thread(gate.wait_until_entered)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.open()
        return await second

    assert sorted(run(main())) == [0, 1, 2]


def test_an_item_that_comes_as_its_await_is_cancelled_is_not_lost():
    async def main():
        stage = engine.data.staged(iter(range(3)))
        asked = asyncio.ensure_future(stage.__anext__())
        await asyncio.sleep(0)
        while stage.stats()["delivered"] == 0:
            pass  # the loop does not hear of the item before the task is cancelled
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        return await all_of(stage)

    assert run(main()) == [0, 1, 2]


def test_an_item_that_was_asked_for_before_a_restart_does_not_come_after_it(gate):
    def read():
        gate()
        yield "old"

    async def main():
        stage = engine.data.staged(read())
        asked = asyncio.ensure_future(stage.__anext__())
        await asyncio.to_thread(gate.wait_until_entered)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        gate.open()
        await asyncio.to_thread(stage.restart, iter(["new"]))
        return await all_of(stage)

    assert run(main()) == ["new"]


def test_what_an_await_runs_has_the_context_of_the_task():
    seen = []

    def step(x):
        seen.append(USER.get())
        return engine.op(lambda x: x)(x)

    async def main():
        USER.set("ann")
        return [await value async for value in engine.data.smart_stage(step, iter(range(3)))]

    assert run(main()) == [0, 1, 2] and set(seen) == {"ann"}


def test_the_item_of_an_await_whose_loop_has_ended_goes_to_the_next_one(gate):
    def read():
        gate()
        yield from range(3)

    stage = engine.data.staged(read())

    async def take():
        await stage.__anext__()

    loop = asyncio.new_event_loop()
    task = loop.create_task(take())
    loop.run_until_complete(asyncio.sleep(0))  # it has asked; then the loop ends, as behind Ctrl-C
    loop.close()
    task._log_destroy_pending = False
    del task, loop
    gate.open()
    patience = time.monotonic() + PATIENCE
    while not stage._left and time.monotonic() < patience:  # until the item has come, and nobody has it
        time.sleep(0.001)

    async def rest():
        return [item async for item in stage]

    assert asyncio.run(rest()) == [0, 1, 2]
