"""The calls of the C++ interface beside push, and what else is refused or said."""

import pytest

import engine
from conftest import PATIENCE


def test_try_push_refuses_where_push_would_wait(gate):
    with engine.Engine(workers=1, max_pending=2) as eng:
        eng.push(gate)
        gate.wait_until_entered()
        ran = []
        pushed = [eng.try_push(lambda: ran.append(1)) for _ in range(50)]
        assert not all(pushed) and pushed[0]
        gate.open()
        eng.wait_all()
        assert len(ran) == sum(pushed)


def test_a_held_op_starts_when_it_is_released():
    v, seen = engine.Var("v"), []
    held = engine.push_held(lambda: seen.append("held"), writes=v)
    engine.push(lambda: seen.append("behind"), reads=v)
    assert not v.settled and seen == []
    held.release()
    held.release()
    engine.wait_all()
    assert seen == ["held", "behind"]
    engine.push_held(lambda: seen.append("dropped"), writes=v)  # nobody keeps it
    v.wait()
    assert seen[-1] == "dropped"


def test_an_operator_is_pushed_often():
    v, seen = engine.Var("v"), []
    step = engine.new_operator(lambda: seen.append(1), updates=[v], name="step")
    for _ in range(10):
        step.push()
    step.push(priority=2)
    v.wait()
    assert len(seen) == 11 and v.version == 11


def test_versions_inside_of_ops():
    v, w, seen = engine.Var("v"), engine.Var("w"), []
    for _ in range(3):
        engine.push(lambda: seen.append((engine.version(v), engine.version(w))), reads=[w], updates=[v])
    v.wait()
    assert seen == [(1, 0), (2, 0), (3, 0)]
    with pytest.raises(engine.UsageError, match="outside of an op"):
        engine.version(v)


def test_a_deleted_var_is_refused():
    v = engine.Var("v")
    v.delete()
    with pytest.raises(engine.UsageError, match="deleted"):
        engine.push(lambda: None, reads=[v])


def test_what_is_given_wrongly_is_said():
    with pytest.raises(TypeError, match=r"devices is a str.*\[\"software\"\]"):
        engine.Engine(devices="software")
    with pytest.raises(engine.UsageError, match="processor 99999"):
        engine.Engine(workers=1, cpus=[99999])
    with pytest.raises(engine.UsageError, match="priority is 99"):
        engine.op(priority=99)(print)
    with pytest.raises(TypeError, match=r"features\[0\] is an int.*iter\(the list\)"):
        engine.data.staged([1, 2])


def test_a_trace_inside_a_trace_is_refused_and_takes_nothing_from_the_outer():
    with engine.trace() as outer:
        engine.push(lambda: None, name="first")
        engine.wait_all()
        with pytest.raises(engine.UsageError, match="already running"), engine.trace():
            pass
        engine.push(lambda: None, name="second")
        engine.wait_all()
    assert [e.name for e in outer.events] == ["first", "second"]


def test_a_pause_of_the_consumer_fails_a_stage_with_a_timeout_and_no_other(monkeypatch):
    given, options = [], engine.stages.stage_options
    monkeypatch.setattr(engine.stages, "stage_options", lambda **all: given.append(options(**all)) or given[-1])
    short = engine.data.staged(iter(range(3)), capacity=1, timeout=0.001)
    assert short.take() == 0 and short.join(PATIENCE)  # its producer waits for room, and gives up
    with pytest.raises(engine.StageTimeoutError):
        list(short)
    # Nobody can wait for ten years, but this is the time that the producer of any other stage has.
    assert list(engine.data.staged(iter(range(3)), capacity=1)) == [0, 1, 2]
    assert [each["timeout"] for each in given] == [0.001, 3e8]


def test_explain_tells_of_the_workers_of_its_own_engine():
    with engine.Engine(workers=3) as eng:
        step = engine.hybridize(lambda x: x + 1)
        step(engine.value(1, engine=eng)).get()
        assert engine.explain(step).workers == 3


def test_recorded_functions_say_that_they_cannot_be_profiled_or_recorded_inside():
    double = engine.op(lambda x: x + x)
    inner = engine.hybridize(lambda x: double(x))
    for use in (lambda x: inner.profile(x), lambda x: engine.graph(double, x)):
        with pytest.raises(engine.UsageError, match="while the function is recorded"):
            engine.hybridize(lambda x, use=use: (double(x), use(double(x))))(1)


def test_what_is_reported_can_be_logged(caplog):
    def fails():
        raise KeyError("nobody looks")

    with pytest.raises(TypeError, match="log_to: logger is an int; a name or a logging.Logger is expected"):
        engine.log_to(3)
    with engine.Engine(workers=1, **engine.log_to("engine.test")) as eng:
        eng.push(fails, writes=[engine.Var("v", eng)])
    (record,) = [r for r in caplog.records if r.name == "engine.test"]
    assert record.levelname == "ERROR" and record.exc_info[0] is KeyError
