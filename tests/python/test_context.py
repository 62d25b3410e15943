"""What a body sees of the code that pushed it: its context variables, and so NumPy's errstate, and PyTorch's modes; no scopes and no blocks."""

import asyncio
import contextlib
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


def modes_of(torch):
    on = torch.is_autocast_enabled("cpu")
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), on and torch.get_autocast_dtype("cpu")


BLOCKS = {
    "none": lambda torch: [],
    "no_grad": lambda torch: [torch.no_grad()],
    "inference_mode": lambda torch: [torch.inference_mode()],
    "grad in inference_mode": lambda torch: [torch.inference_mode(), torch.enable_grad()],
    "autocast": lambda torch: [torch.autocast("cpu", dtype=torch.bfloat16)],
    "another autocast": lambda torch: [torch.autocast("cpu", dtype=torch.float16), torch.no_grad()],
    "autocast that is off inside": lambda torch: [torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False)],
}


@pytest.mark.parametrize("policy", ["threaded", "inline", "naive"])
@pytest.mark.parametrize("block", BLOCKS)
def test_modes_of_torch_are_carried(block, policy):
    torch = pytest.importorskip("torch")
    look, seen = engine.op(lambda: modes_of(torch)), []
    with contextlib.ExitStack() as stack, engine.policy(policy):
        for each in BLOCKS[block](torch):
            stack.enter_context(each)
        expected = modes_of(torch)
        assert look().get() == expected
        engine.push(lambda: seen.append(modes_of(torch)))
        engine.push_async(lambda done: (seen.append(modes_of(torch)), done()))
        engine.push(lambda: engine.push(lambda: seen.append(modes_of(torch))))
        step = engine.hybridize(lambda x: engine.op(lambda x: modes_of(torch))(x))
        assert step(1).get() == step(2).get() == expected
    engine.wait_all()
    assert seen == [expected] * 3 and step(3).get() == expected  # a node has the modes of the recording
    assert look().get() == modes_of(torch) == (True, False, False)


def test_a_body_has_the_modes_of_its_push_also_on_the_thread_that_waits():
    torch = pytest.importorskip("torch")
    with engine.Engine(workers=0) as own:
        seen = []
        own.push(lambda: seen.append(modes_of(torch)))
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            expected = modes_of(torch)
            own.push(lambda: seen.append(modes_of(torch)))
            own.wait_all()
            assert modes_of(torch) == expected
        assert seen == [(True, False, False), expected]


def test_modes_of_torch_that_a_body_sets_or_fails_in_stay_in_it():
    torch = pytest.importorskip("torch")
    with engine.Engine(workers=1) as own:
        v = engine.value(0, engine=own)

        @engine.op
        def fails(v):
            torch.set_grad_enabled(True)
            raise KeyError

        with torch.no_grad():
            failed = fails(v)
        engine.op(lambda v: torch.set_grad_enabled(False) and None)(v)
        assert engine.op(lambda v: modes_of(torch))(v).get() == (True, False, False)
        with pytest.raises(KeyError):
            failed.get()


def test_modes_of_torch_are_carried_also_if_it_is_imported_late(run_python):
    pytest.importorskip("torch")
    ended = run_python(
        """
    look = engine.op(lambda: __import__("torch").is_grad_enabled())
    engine.op(lambda: None)().get()
    import torch
    with torch.no_grad():
        print(look().get())
    print(look().get())
    """
    )
    assert ended.out == "False\nTrue\n", ended


def test_nothing_of_torch_is_imported_for_a_program_without_it(run_python):
    ended = run_python(
        """
    engine.op(lambda: None)().get()
    print(sorted(name for name in sys.modules if name.partition(".")[0] == "torch" or name == "engine.torch_modes"))
    """
    )
    assert ended.out == "[]\n", ended


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


def test_an_operator_has_the_context_in_which_it_was_made():
    seen = []
    token = USER.set("ann")
    with np.errstate(divide="raise"):
        operator = engine.new_operator(lambda: (seen.append((USER.get(), np.geterr()["divide"])), USER.set("changed")))
    USER.reset(token)
    for _ in range(2):
        operator.push()
        engine.wait_all()
    assert seen == [("ann", "raise" if int(np.__version__.split(".")[0]) >= 2 else "warn")] * 2


def test_sources_of_a_stage_have_the_context_in_which_it_was_made():
    token = USER.set("ann")
    stages = [
        engine.data.staged(USER.get),
        engine.data.staged(USER.get() for _ in iter(int, 1)),
        engine.data.staged({"a": USER.get}, num_threads=3, capacity=3),
        engine.data.staged(lambda: (USER.get(), np.geterr()["divide"])),
    ]
    USER.reset(token)
    first = [next(stage) for stage in stages]
    assert first[:2] == ["ann", "ann"] and first[3][0] == "ann"
    assert [next(stages[2]) for _ in range(9)] == [{"a": "ann"}] * 9
    stages[0].restart(USER.get)
    assert next(stages[0]) == "ann"
    for stage in stages:
        stage.cancel()
    assert USER.get() == "nobody"


def test_what_a_source_sets_lasts_from_item_to_item():
    def numbers():
        token = USER.set("mine")
        for _ in range(3):
            yield USER.get()
        USER.reset(token)
        yield USER.get()

    assert list(engine.data.staged(numbers())) == ["mine"] * 3 + ["nobody"]


def test_sources_of_a_stage_have_the_modes_of_torch():
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        stage = engine.data.staged(torch.is_grad_enabled)
    assert next(stage) is False
    stage.cancel()
    with engine.data.staged(torch.is_grad_enabled) as stage:
        assert next(stage) is True


def test_scopes_and_blocks_around_a_stage_are_not_open_in_its_sources():
    with engine.CancelScope() as scope, engine.policy("inline"):
        stage = engine.data.staged(lambda: engine.default().policy[0])
    scope.cancel()
    assert next(stage) == "threaded"
    stage.cancel()
