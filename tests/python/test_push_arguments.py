"""Bad input: a clear error that says what was expected, names the op and its line; nothing is pushed."""

import inspect

import pytest

import engine
from conftest import line_of


@pytest.fixture(autouse=True)
def nothing_is_pushed():
    before = engine.stats()["pushed"]
    yield
    assert engine.stats()["pushed"] == before


@pytest.mark.parametrize("verb", [engine.push, engine.push_async])
def test_what_is_not_callable_is_refused(verb):
    with pytest.raises(TypeError, match=r"fn is an int; a callable is expected"):
        verb(3)


def test_a_refusal_names_the_op_and_the_line():
    with pytest.raises(TypeError) as error:
        engine.push(lambda: None, reads=[3.0], name="scale")  # refused here
    file, line = line_of("refused here")
    assert str(error.value).startswith(f"push of 'scale' at {file}:{line}: reads[0] is a float")
    assert "a Var or a Value is expected" in str(error.value)


@pytest.mark.parametrize("mode", ["reads", "updates", "writes"])
@pytest.mark.parametrize("wrong", [3, [None], ["a"], [[]], object()])
def test_what_is_no_var_is_refused(mode, wrong):
    with pytest.raises(TypeError, match=rf"{mode}(\[0\])? is an? .*expected"):
        engine.push(lambda: None, **{mode: wrong})


def test_a_var_of_another_engine_is_refused_by_name():
    with engine.Engine(workers=1) as other:
        foreign = engine.Var("foreign", other)
        with pytest.raises(engine.UsageError, match="foreign") as error:
            engine.push(lambda: None, reads=[foreign], name="mixed")
        assert "mixed" in str(error.value)
        assert "test_push_arguments.py" in str(error.value)


def test_an_unknown_pool_is_refused_with_those_there_are():
    with engine.Engine(workers=1, pools={"disk": 1}) as eng:
        with pytest.raises(engine.UsageError, match="disk"):
            eng.pool("disc")
        with pytest.raises(engine.UsageError, match="(?s)push of 'f'.*disk"):
            eng.push(lambda: None, place="disc", name="f")


@pytest.mark.parametrize(
    ("keyword", "wrong", "says"),
    [
        ("priority", "high", "priority is a str; an int is expected"),
        ("priority", None, "priority is a NoneType; an int is expected"),
        ("place", 3, "place is an int; engine.io"),
        ("name", 3, "name is an int; a str is expected"),
        ("cancel", True, "cancel is a bool; a CancelScope is expected"),
    ],
)
def test_a_wrong_type_is_refused(keyword, wrong, says):
    with pytest.raises(TypeError, match=says):
        engine.push(lambda: None, **{keyword: wrong})


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError):
        engine.push(lambda: None, mutates=[])


def test_an_unknown_policy_is_refused_with_those_there_are():
    with pytest.raises(engine.UsageError, match="threaded.*naive|naive.*threaded"):
        engine.set_policy("fastest")
    with pytest.raises(TypeError, match="str"):
        engine.set_policy(3)
    assert set(engine.policies()) >= {"threaded", "naive"}


@pytest.mark.parametrize("wrong", [3, None, "v"])
def test_waiting_for_what_is_no_var_is_refused(wrong):
    with pytest.raises(TypeError, match="a Var or a Value is expected"):
        engine.wait(wrong)
    with pytest.raises(TypeError, match="a Var or a Value is expected"):
        engine.clear_error(wrong)


def test_a_wrong_timeout_is_refused():
    with pytest.raises(TypeError, match="timeout is a str"):
        engine.Var().wait("1")
    with pytest.raises(engine.UsageError, match="not a number"):
        engine.wait_all(float("nan"))


@pytest.mark.parametrize("wrong", [3, -3, 10**30, -(10**30)])
@pytest.mark.parametrize("verb", [engine.push, engine.push_async])
def test_a_priority_out_of_range_is_refused(verb, wrong):
    with pytest.raises(engine.UsageError, match=rf"priority is {wrong}; -2 \(last\) to 2 \(first\) are allowed"):
        verb(lambda *done: None, priority=wrong)


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"workers": "two"}, TypeError, "workers is a str"),
        ({"workers": -2}, engine.UsageError, "^Engine: workers is -2; at least -1"),
        ({"workers": 10**30}, engine.UsageError, "workers"),
        ({"max_pending": 0}, engine.UsageError, "max_pending is 0; at least 1"),
        ({"streams_per_device": 33}, engine.UsageError, "at most 32"),
        ({"start_step": -1}, engine.UsageError, "start_step is -1; at least 0"),
        ({"stop_step": 1 << 24}, engine.UsageError, "at most 16777215"),
        ({"spin": "soon"}, TypeError, "spin is a str; seconds are expected"),
        ({"stall_timeout": float("nan")}, engine.UsageError, "stall_timeout is nan; seconds from 0"),
        ({"policy_options": 1}, TypeError, "policy_options is no dict"),
        ({"policy_options": {"raise_at_push": True}}, engine.UsageError, r"that is for 'naive'"),
        ({"policy_options": {"raise_at_push": 3}, "policy": "naive"}, engine.UsageError, "raise_at_push"),
        ({"policy": "cost_model", "start_step": 8, "stop_step": 8}, engine.UsageError, "start_step = 8 and stop_step"),
        ({"pools": ["disk"]}, TypeError, "pools"),
        ({"pools": {"disk": {"size": 3}}}, TypeError, "'size' is unknown"),
        ({"drain_timeout": -1}, engine.UsageError, "drain_timeout"),
        ({"on_start": 3}, TypeError, "on_start is an int; a callable"),
        ({"policy": "fastest"}, engine.UsageError, "threaded"),
        ({"worker": 2}, TypeError, "^Engine: 'worker' is unknown; allowed are .*workers"),
    ],
)
def test_wrong_options_are_refused(options, kind, says):
    with pytest.raises(kind, match=says):
        engine.Engine(**options)


def test_init_after_first_use_is_refused():
    engine.default()
    with pytest.raises(engine.UsageError, match="already running"):
        engine.init(workers=1)


def test_the_steps_are_checked_when_cost_model_is_chosen():
    with engine.Engine(workers=1, start_step=8, stop_step=8) as eng:
        with pytest.raises(engine.UsageError, match="start_step = 8 and stop_step = 8"):
            eng.set_policy("cost_model")
        assert eng.policy[0] == "threaded"
        eng.set_policy("cost_model", stop_step=9)


def test_times_are_seconds_and_none_leaves_an_option_alone():
    with engine.Engine(workers=1, spin=0.001, drain_timeout=0.5, stall_timeout=None, policy=None) as eng:
        assert eng.workers == 1 and eng.policy[0] == "threaded"


def test_a_policy_may_come_with_its_parameters():
    options = {"policy_options": {"raise_at_push": True}, "policy": "naive"}
    with engine.Engine(workers=1, **options) as eng:
        assert eng.policy == ("naive", {"raise_at_push": True, "smart_stage": True})


def test_init_says_what_it_takes():
    keywords = inspect.signature(engine.init).parameters
    assert list(keywords)[:3] == ["workers", "intra_op_threads", "io_threads"]
    for name, keyword in keywords.items():
        assert keyword.kind is inspect.Parameter.KEYWORD_ONLY and keyword.default is None, name
        assert f"{name}: " in engine.init.__doc__
    with pytest.raises(TypeError, match="worker"):
        engine.init(worker=2)
    with engine.Engine(**dict.fromkeys(keywords)) as eng:  # both take the same
        assert eng.workers > 0


def test_every_error_of_the_engine_has_its_class():
    assert {"DeadlineError", "DeviceError", "StageTimeoutError"} < set(engine.errors.__all__) <= set(engine.__all__)
    for name in engine.errors.__all__:
        assert issubclass(getattr(engine, name), engine.Error)
    assert not issubclass(engine.Error, RuntimeError)
    assert issubclass(engine.UsageError, ValueError)
