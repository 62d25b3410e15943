"""Traces: what ran, where and when."""

import contextlib
import json
import threading

import pytest

import engine


def test_a_trace_names_every_op_and_its_thread(tmp_path):
    with engine.trace(tmp_path / "t.json") as trace:
        v = engine.Var("v")
        for _ in range(3):
            engine.push(lambda: None, updates=[v], name="work")
        engine.push(lambda: None, updates=[v], name="disk", place=engine.io())
        engine.wait_all()
    work = [e for e in trace.events if e.name == "work"]
    assert len(work) == 3 and all(e.thread.startswith("cpu/") and 0 <= e.begin <= e.end < 600 for e in work)
    assert [e.thread.split("/")[0] for e in trace.events if e.name == "disk"] == ["io"]
    assert all(a.end <= b.begin for a, b in zip(work, work[1:]))
    events = json.loads((tmp_path / "t.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert sum(e.get("name") == "work" for e in events) >= 3


def test_skipped_ops_are_marked():
    with engine.trace() as trace:
        v = engine.Var("v")
        engine.push(lambda: 1 / 0, writes=[v], name="fails")
        engine.push(lambda: None, reads=[v], name="skipped")
        with pytest.raises(ZeroDivisionError):
            v.wait()
        engine.wait_all()
    assert {e.name: e.skipped for e in trace.events if e.name in ("fails", "skipped")} == {
        "fails": False,
        "skipped": True,
    }


def test_nothing_is_waited_for(gate):
    with engine.trace() as trace:
        engine.push(gate, name="running")
        gate.wait_until_entered()
    assert "running" not in [e.name for e in trace.events]


def test_traces_end_when_the_block_raises():
    with pytest.raises(KeyError):
        with engine.trace():
            raise KeyError
    with engine.trace():
        pass


def test_an_engine_of_ones_own_can_be_traced():
    with engine.Engine(workers=1) as eng:
        with engine.trace(engine=eng) as trace:
            eng.push(threading.get_ident, name="mine")
            eng.wait_all()
    assert "mine" in [e.name for e in trace.events]


def test_a_trace_ends_with_its_object_if_its_block_is_never_left():
    entered = engine.trace()
    entered.__enter__()
    with pytest.raises(engine.UsageError, match="already running"):
        with engine.trace():
            pass
    with pytest.raises(engine.UsageError, match="already running"):
        entered.__enter__()
    del entered
    with engine.trace():
        pass
    with pytest.raises(engine.UsageError, match="not open"):
        engine.trace().__exit__()
    with pytest.raises(TypeError, match="an Engine is expected"):
        engine.trace(engine=1)


def test_one_trace_object_may_be_used_again():
    trace = engine.trace()
    for name in ("first", "second"):
        with trace:
            engine.push(lambda: None, name=name)
            engine.wait_all()
        assert [e.name for e in trace.events if e.name in ("first", "second")] == [name]


@pytest.mark.filterwarnings("ignore:nanobind")
def test_a_trace_that_begins_anew_or_never_began_is_no_trap():
    entered = engine.trace()
    entered.__enter__()
    with contextlib.suppress(TypeError, RuntimeError, engine.UsageError):
        entered.__init__()
    entered.__exit__()

    class Unmade(engine.Trace):
        def __init__(self):
            pass

    for wrong in (Unmade(), 5):
        with pytest.raises(TypeError):
            engine.Trace.__enter__(wrong)
        with pytest.raises(TypeError):
            engine.Trace.__exit__(wrong)
    with engine.trace():
        pass


def test_a_child_of_a_fork_is_not_traced_and_may_trace(run_python):
    ended = run_python(
        """
    def names(trace):
        return [e.name for e in trace.events]
    def push(name):
        engine.push(lambda: None, name=name)
        engine.wait_all()
    with engine.trace() as outer:
        push("before")
        pid = os.fork()
        if pid == 0:
            with engine.trace() as inner:
                push("child")
            outer.__exit__()
            print(names(inner), names(outer), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        push("after")
    print(names(outer))
    """
    )
    assert ended.out == "['child'] []\n['before', 'after']\n", ended


def test_what_was_recorded_is_read_when_somebody_asks(tmp_path, monkeypatch):
    read, parse = [], engine.tracing.model.parse
    monkeypatch.setattr(engine.tracing.model, "parse", lambda json, name: read.append(name) or parse(json, name))
    trace = engine.trace(tmp_path / "t.json")
    for name in ("first", "second"):
        with trace:
            engine.push(lambda: None, name=name)
            engine.wait_all()
        assert name in (tmp_path / "t.json").read_text()
    assert read == []
    assert [e.name for e in trace.events] == ["second"] and trace.explain() and repr(trace)
    assert read == ["t.json"]


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_recorded(tmp_path):
    for wrong, error in ((tmp_path / "none" / "t.json", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error, match="trace"):
            engine.trace(wrong)
    written = tmp_path / "t.json"
    block = engine.trace(written)
    assert not written.exists()
    with block:
        pass
    assert written.exists()


def test_an_open_trace_is_not_explained():
    with engine.trace() as trace:
        engine.push(lambda: None, name="here")
        engine.wait_all()
        for explain in (engine.explain, engine.Trace.explain):
            with pytest.raises(engine.UsageError, match="behind its `with` block"):
                explain(trace)
        assert trace._repr_html_() is None
    assert "here" in str(engine.explain(trace))
    with trace, pytest.raises(engine.UsageError, match="not over"):
        engine.explain(trace)  # what it had the first time is no answer either
