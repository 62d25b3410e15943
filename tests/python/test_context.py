"""What a body sees of the code that pushed it: its context variables, and so NumPy's errstate; no scopes and no blocks."""

import asyncio
import contextvars

import numpy as np
import pytest

import engine

USER = contextvars.ContextVar("user", default="nobody")


def test_context_variables_are_carried():
    seen = []
    see = engine.op(lambda: USER.get())
    for user in ("ann", "bob"):
        token = USER.set(user)
        assert see().get() == user
        engine.push(lambda: seen.append(USER.get()))
        engine.push_async(lambda done: (seen.append(USER.get()), done()))
        engine.wait_all()
        USER.reset(token)
    assert seen == ["ann"] * 2 + ["bob"] * 2 and see().get() == "nobody"


def test_modes_of_torch_are_those_of_the_worker():
    torch = pytest.importorskip("torch")
    modes = engine.op(lambda: (torch.is_grad_enabled(), torch.is_autocast_enabled()))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert modes().get() == (True, False)


def test_a_recorded_function_has_the_context_of_its_recording():
    step = engine.hybridize(lambda x: engine.op(lambda x: USER.get())(x))
    token = USER.set("ann")
    step.record(1)
    USER.reset(token)
    assert step(1).get() == "ann"


def test_what_a_body_sets_stays_in_it():
    engine.op(lambda: USER.set("eve") and None)().get()
    assert USER.get() == "nobody" and engine.op(lambda: USER.get())().get() == "nobody"


@pytest.mark.skipif(int(np.__version__.split(".")[0]) < 2, reason="there it is no context variable")
def test_errstate_is_carried():
    divide = engine.op(lambda x: x / 0.0)
    with np.errstate(divide="raise"):
        failed = divide(np.ones(1))
    with pytest.raises(FloatingPointError):
        failed.get()
    with np.errstate(divide="ignore"):
        assert np.isinf(divide(np.ones(1)).get())


def test_a_policy_block_holds_for_its_own_task_only():
    async def inside(entered, leave):
        with engine.policy("inline"):
            entered.set()
            await leave.wait()
            return engine.default().policy[0]

    async def outside(entered, leave):
        await entered.wait()
        seen = engine.default().policy[0]
        leave.set()
        return seen

    async def main():
        entered, leave = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(inside(entered, leave), outside(entered, leave))

    assert asyncio.run(main()) == ["inline", "threaded"]


def test_scopes_and_blocks_of_the_pusher_are_not_open_in_a_body():
    scope, seen = engine.CancelScope(), []

    def body():
        scope.cancel()
        engine.push(lambda: seen.append(engine.default().policy[0]))

    with scope, engine.policy("inline"):
        engine.push(body)
    engine.wait_all()
    assert seen == ["threaded"]


def test_an_awaited_value_does_not_need_the_policy_of_its_task():
    async def main():
        with engine.policy("inline"):
            return await engine.op(lambda: 3)()

    assert asyncio.run(main()) == 3


def test_sub_interpreters(run_python):
    ended = run_python(
        """
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        import _interpreters as interpreters
    x = engine.value(1)
    add = engine.op(lambda x: x + 1)
    assert add(x).get() == 2
    other = interpreters.create()
    refused = "try:\\n    import engine\\n    raise SystemExit('it was imported')\\nexcept ImportError as error:\\n    pass\\n"
    interpreters.run_string(other, refused)
    for _ in range(200):
        assert add(x).get() == 2
    interpreters.destroy(other)
    for _ in range(200):
        assert add(x).get() == 2
    print("ok")
    """
    )
    assert ended.out == "ok\n", ended
