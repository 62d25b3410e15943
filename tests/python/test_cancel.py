"""Cancel scopes: what has not started is skipped."""

import asyncio
import threading

import pytest

import engine


def test_ops_that_have_not_started_are_skipped(gate):
    a, b, ran = engine.Var("a"), engine.Var("b"), []
    with engine.CancelScope() as scope:
        engine.push(gate, writes=[a])
        engine.push(lambda: ran.append(1), reads=[a], writes=[b], name="later")
    gate.wait_until_entered()
    scope.cancel()
    gate.open()
    assert a.wait()
    with pytest.raises(engine.CancelledError) as error:
        b.wait()
    assert scope.cancelled and ran == []
    assert error.value.op == "later" and error.value.file == __file__


def test_ops_outside_the_scope_are_left_alone(gate):
    a, b = engine.Var("a"), engine.Var("b")
    scope = engine.CancelScope()
    with scope:
        pass
    engine.push(gate, writes=[a])
    engine.push(lambda: None, reads=[a], writes=[b])
    scope.cancel()
    gate.open()
    assert b.wait()


def test_the_innermost_scope_counts_and_the_keyword_overrides_it():
    v = [engine.Var(str(i)) for i in range(3)]
    outer, inner, given = (engine.CancelScope() for _ in range(3))
    inner.cancel()
    with outer:
        with inner:
            engine.push(lambda: None, writes=[v[0]])
            engine.push(lambda: None, writes=[v[1]], cancel=given)
        engine.push(lambda: None, writes=[v[2]])
    with pytest.raises(engine.CancelledError):
        v[0].wait()
    assert v[1].wait() and v[2].wait()


def test_run_always_ignores_the_scope():
    v, ran = engine.Var("v"), []
    scope = engine.CancelScope()
    scope.cancel()
    engine.push(lambda: ran.append(1), writes=[v], cancel=scope, run_always=True)
    assert v.wait() and ran == [1]


def test_a_long_body_can_look(gate):
    v, seen = engine.Var("v"), []

    def body():
        seen.append(engine.cancelled())
        gate()
        seen.append(engine.cancelled())

    scope = engine.CancelScope()
    engine.push(body, writes=[v], cancel=scope)
    gate.wait_until_entered()
    scope.cancel()
    gate.open()
    v.wait()
    assert seen == [False, True]
    assert engine.cancelled() is False


def test_threads_and_tasks_have_their_own_scope():
    scope, open_scopes = engine.CancelScope(), []
    scope.cancel()
    v = engine.Var("v")

    async def task(enter, other):
        if enter:
            with scope:
                await other.wait()
        else:
            engine.push(lambda: None, writes=[v])  # while the other task is inside
            other.set()

    async def main():
        event = asyncio.Event()
        await asyncio.gather(task(True, event), task(False, event))

    asyncio.run(main())
    assert v.wait()

    with scope:
        thread = threading.Thread(target=lambda: engine.push(lambda: open_scopes.append(1), writes=[v]))
        thread.start()
        thread.join()
    assert v.wait() and open_scopes == [1]


def test_a_scope_that_ends_inside_of_another_takes_itself_alone_away(gate):
    v, w = engine.Var("v"), engine.Var("w")

    def rows():
        with engine.CancelScope():
            yield 1

    reader = rows()
    next(reader)
    engine.push(gate, writes=[v])
    with engine.CancelScope() as outer:
        reader.close()
        engine.push(lambda: None, reads=[v], writes=[w])
    outer.cancel()
    gate.open()
    with pytest.raises(engine.CancelledError):
        w.wait()
    with pytest.raises(engine.UsageError, match="ends in another thread or task"):
        outer.__exit__()


def test_the_scope_around_a_recording_is_that_of_its_first_run():
    double = engine.op(lambda x: 2 * x)
    step, other = engine.hybridize(lambda x: double(double(x))), engine.hybridize(lambda x: double(x))
    with engine.CancelScope() as scope:
        assert step(1).get() == 4
        plan = other.record(1)
        stage = engine.data.smart_stage(lambda x: double(x), iter(range(3)), profile_steps=0, guard_steps=0)
        assert stage.step().get() == 0
    scope.cancel()
    assert [step(i).get() for i in (1, 2)] == [4, 8]
    assert plan.start([5]).output(0) == 10
    assert [v.get() for v in stage] == [2, 4]
    with scope, pytest.raises(engine.CancelledError):
        step(1).get()
