"""engine.explain of traces: what it says, what the page holds, and which files it refuses."""

import html.parser
import json
import subprocess
import sys
import threading

import pytest

import engine
from engine.explanation import analysis
from engine.explanation.model import TraceData, TraceEvent, TraceWait, parse


def op(number, name, thread, begin, end, after=(), ready=None, pushed=0.0):
    return TraceEvent(
        name, thread, begin, end, number, False, pushed, begin if ready is None else ready, after=tuple(after)
    )


def data(*events, waits=(), threads=("cpu/0", "cpu/1")):
    return TraceData("made", list(events), list(waits), list(threads), max(e.end for e in events))


def traced(tmp_path, push):
    path = tmp_path / "trace.json"
    with engine.trace(path) as trace:
        push()
        engine.wait_all()
    return path, trace


def diamond():
    a, b, c = engine.Var("a"), engine.Var("b"), engine.Var("c")
    engine.push(lambda: None, writes=[a], name="top")
    engine.push(lambda: None, reads=[a], writes=[b], name="left")
    engine.push(lambda: None, reads=[a], writes=[c], name="right")
    engine.push(lambda: None, reads=[b, c], name="bottom")


# --- what a trace carries


def test_an_event_names_what_it_came_behind_and_its_vars(tmp_path):
    _, trace = traced(tmp_path, diamond)
    at = {e.name: e for e in trace.events}
    assert at["left"].after == at["right"].after == (at["top"].op,)
    assert set(at["bottom"].after) == {at["left"].op, at["right"].op}
    assert [(mode, name) for mode, _, name in at["left"].uses] in (
        [("reads", "a"), ("writes", "b")],
        [("writes", "b"), ("reads", "a")],
    )
    for e in trace.events:
        assert e.pushed is not None and 0 <= e.pushed <= e.ready <= e.begin <= e.end
        assert e.pusher.startswith("caller") and "test_explain_trace.py" in e.site
        assert all(trace.events[n].end <= e.begin + 1e-9 for n in e.after)


def test_a_var_that_takes_the_place_of_a_deleted_one_is_another_var(tmp_path):
    def push():
        for i in range(50):
            v = engine.Var("v")
            engine.push(lambda: None, reads=[v], name="reads")
            del v
            engine.wait_all()
            w = engine.Var("w")
            engine.push(lambda: None, writes=[w], name="writes")
            del w
            engine.wait_all()

    _, trace = traced(tmp_path, push)
    assert len(trace.events) == 100 and all(e.after == () for e in trace.events)


def test_nodes_of_a_plan_name_their_run_and_the_nodes_before_them(tmp_path):
    @engine.op
    def first(x):
        return x + 1

    @engine.op
    def second(x):
        return x * 2

    @engine.hybridize
    def step(x):
        return second(first(x))

    def push():
        for i in range(3):
            step(i)

    _, trace = traced(tmp_path, push)
    assert {e.plan for e in trace.events} == {"step"} and {e.run for e in trace.events} == {1, 2, 3}
    for e in trace.events:
        assert [trace.events[n].name for n in e.after] == (["first"] if e.name == "second" else [])
        assert all(trace.events[n].run == e.run for n in e.after)


def test_an_asynchronous_op_lasts_until_its_completion(tmp_path):
    v = engine.Var("v")

    def push():
        called = []
        ready = threading.Event()
        engine.push_async(lambda done: (called.append(done), ready.set()), writes=[v], name="async")
        engine.push(lambda: None, reads=[v], name="behind")
        ready.wait()
        called[0]()
        engine.wait_all()
        engine.stop()  # the body may outlast the op, and is recorded when it returns
        engine.start()

    _, trace = traced(tmp_path, push)
    at = {e.name: e for e in trace.events}
    assert at["async"].settled is not None and at["async"].settled <= at["behind"].begin
    assert at["behind"].ready >= at["async"].settled


def test_a_thread_that_waits_says_for_what(tmp_path, gate):
    v = engine.Var("awaited")
    engine.push(gate, writes=[v])
    gate.wait_until_entered()
    with engine.trace() as trace:
        opener = threading.Timer(0.02, gate.open)
        opener.start()
        v.wait()
        opener.join()
    assert ("var", "awaited") in {(w.cause, w.name) for w in trace.waits}


def test_waits_for_a_stage_are_those_of_the_taker_and_of_its_producers():
    go = threading.Event()

    def source():
        go.wait()
        yield from range(6)

    with engine.trace() as trace:
        stage = engine.data.staged(source(), capacity=1, name="slow")
        threading.Timer(0.02, go.set).start()
        assert list(stage) == list(range(6))
    assert ("stage empty", "slow") in {(w.cause, w.name) for w in trace.waits}


def test_a_trace_in_a_trace_of_the_same_engine_is_refused_and_the_outer_keeps_its_ops():
    with engine.trace() as outer:
        engine.push(lambda: None, name="kept")
        engine.wait_all()
        with pytest.raises(engine.UsageError, match="already running"):
            with engine.trace():
                pass
    assert "kept" in [e.name for e in outer.events]


def test_ops_that_had_not_run_are_counted(gate):
    with engine.trace() as trace:
        v = engine.Var("v")
        engine.push(gate, writes=[v])
        engine.push(lambda: None, reads=[v])
        gate.wait_until_entered()
    gate.open()
    engine.wait_all()
    assert trace.data.pending == 2
    with pytest.raises(engine.UsageError, match="2 were pushed and had not run: end the block with wait_all"):
        engine.explain(trace)


# --- what follows from it


def test_the_critical_path_is_the_longest_chain_of_dependent_ops():
    a = analysis.analyse(data(op(0, "a", "cpu/0", 0, 1), op(1, "b", "cpu/1", 0, 3), op(2, "c", "cpu/0", 3, 5, [0, 1]),
                              op(3, "d", "cpu/1", 3, 4, [1])))  # fmt: skip
    assert a.path == [1, 2] and a.span == 5 and a.work == 7 and a.makespan == 5 and a.bound == 5
    assert a.at_once == [0, 1.0, 4.0] or a.at_once[2] == pytest.approx(2) and a.at_once[1] == pytest.approx(3)


def test_work_of_stages_does_not_count_for_what_workers_could_do():
    a = analysis.analyse(data(op(0, "a", "cpu/0", 0, 4), op(1, "b", "cpu/1", 0, 4), op(2, "parse", "batches", 0, 4)))
    assert a.work == 12 and a.on_workers == 8 and a.bound == a.makespan == 4


def test_ops_that_run_on_a_lent_worker_count_once():
    a = analysis.analyse(data(op(0, "waits", "cpu/0", 0, 4), op(1, "inside", "cpu/0", 1, 3), threads=["cpu/0"]))
    assert a.on_workers == 4 and a.bound == a.makespan == 4


def test_a_thread_that_only_waits_is_the_callers(gate):
    with engine.trace() as trace:
        helper = threading.Thread(target=lambda: v.wait())
        v = engine.Var("v")
        engine.push(gate, writes=[v])
        gate.wait_until_entered()
        helper.start()
        threading.Timer(0.02, gate.open).start()
        helper.join()
        engine.wait_all()
    assert {w.thread for w in trace.waits if w.cause in ("var", "all")} == {"caller"}


def idle_of(a, thread):
    return [(round(i.begin, 6), round(i.end, 6), i.cause) for i in a.idle if i.thread == thread]


def test_a_worker_is_idle_by_dependency_while_pushed_ops_wait_for_others():
    a = analysis.analyse(data(op(0, "long", "cpu/0", 0, 4), op(1, "next", "cpu/1", 4, 5, [0])))
    assert idle_of(a, "cpu/1") == [(0, 4, "dependency")]
    assert idle_of(a, "cpu/0") == [(4, 5, "nothing ready")]


def test_a_worker_is_idle_by_dispatch_while_an_op_is_ready():
    a = analysis.analyse(data(op(0, "a", "cpu/0", 0, 4), op(1, "late", "cpu/1", 3, 4, ready=1.0, pushed=1.0)))
    assert idle_of(a, "cpu/1") == [(0, 1, "nothing ready"), (1, 3, "dispatch")]
    a = analysis.analyse(data(op(0, "a", "cpu/0", 0, 4), op(1, "queued", "cpu/0", 4, 5, ready=2.0, pushed=2.0)))
    assert idle_of(a, "cpu/1") == [(0, 2, "nothing ready"), (2, 4, "dispatch"), (4, 5, "nothing ready")]


def test_a_worker_is_idle_because_a_stage_is_empty_only_while_nothing_is_pushed():
    waits = [TraceWait("stage empty", "batches", "caller", 1, 3)]
    a = analysis.analyse(
        data(op(0, "a", "cpu/0", 0, 2), op(1, "b", "cpu/0", 4, 5, pushed=4.0, ready=4.0), waits=waits)
    )
    assert idle_of(a, "cpu/0") == [(2, 3, "stage empty"), (3, 4, "nothing ready")]


def test_waits_for_the_interpreter_lock_are_idle_time_inside_ops():
    waits = [TraceWait("gil", "", "cpu/0", 1, 2)]
    a = analysis.analyse(data(op(0, "a", "cpu/0", 0, 4), op(1, "b", "cpu/1", 0, 4), waits=waits))
    assert a.idle_by_cause == {"gil": 1} and a.busy == {"cpu/0": 0.75, "cpu/1": 1.0}


def test_a_full_stage_is_its_producers_time_and_no_workers():
    waits = [TraceWait("stage full", "batches", "batches", 0, 3)]
    a = analysis.analyse(data(op(0, "a", "cpu/0", 0, 4), op(1, "b", "cpu/1", 0, 4), waits=waits))
    assert a.idle_by_cause == {} and a.stage_full == 3
    assert "producers of stages waited 3 s" in str(engine.explain(a.data))


def test_idle_time_of_all_causes_and_busy_time_are_the_whole_time(tmp_path):
    path, _ = traced(tmp_path, lambda: [diamond() for _ in range(30)])
    a = engine.explain(path).analysis
    workers = set(a.workers)
    idle = sum(i.end - i.begin for i in a.idle if i.thread in workers and i.cause != "gil")
    busy = sum(e.end - e.begin for e in a.data.events if e.thread in workers)
    assert idle + busy == pytest.approx(a.makespan * len(a.workers), rel=1e-6)


def test_the_text_says_work_path_idle_time_and_kinds(tmp_path):
    path, trace = traced(tmp_path, diamond)
    text = str(engine.explain(path))
    assert text == str(engine.explain(trace)) == str(trace.explain())
    for part in ("4 ops of 4 kinds", "critical path 3 ops: top", "no schedule on", "bottom", "ran at once"):
        assert part in text


# --- the page


class Elements(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_the_page_is_one_file_that_loads_nothing(tmp_path):
    path, _ = traced(tmp_path, diamond)
    page = engine.explain(path).write(tmp_path / "page.html").read_text(encoding="utf-8")
    elements = Elements()
    elements.feed(page)
    tags = [tag for tag, _ in elements.found]
    assert not {"link", "iframe", "img", "object", "embed", "base"} & set(tags)
    assert not any({"src", "href", "action", "background"} & set(a) for _, a in elements.found)
    assert "@import" not in page and "url(" not in page and "fetch(" not in page and "XMLHttpRequest" not in page
    assert "@@" not in page and page.count("<canvas") == 2


@pytest.mark.parametrize(
    "name",
    ["</script><script>document.title='bad'</script>", "<b>&amp;\"'", "caf\u00e9 \u2028 \U0001f600", "@@data@@"],
)
def test_no_name_of_an_op_breaks_the_page(name):
    page = engine.explain(data(op(0, name, "cpu/0", 0, 1))).html()
    elements = Elements()
    elements.feed(page)
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert "<" not in name or name not in page
    held = page.split('id="data">')[1].split("</script>")[0]
    assert json.loads(held)["names"] == [name]


def test_a_plan_that_was_profiled_has_a_page_and_one_that_never_ran_says_what_to_do():
    @engine.op
    def work(x):
        return x

    @engine.hybridize
    def step(x):
        return work(work(x))

    with pytest.raises(engine.UsageError, match="not recorded yet"):
        engine.explain(step)
    step.record(1)
    with pytest.raises(engine.UsageError, match="call .profile"):
        engine.explain(step).html()
    assert "<svg" in engine.explain(step)._repr_html_() and "<svg" in step.plan._repr_html_()
    step.profile(1)
    assert json.loads(engine.explain(step).html().split('id="data">')[1].split("</script>")[0])["path"] == [0, 1]


def test_notebooks_show_traces_plans_and_stages(tmp_path):
    path, trace = traced(tmp_path, diamond)
    assert trace._repr_html_().startswith("<iframe") and engine.explain(path)._repr_html_().startswith("<iframe")
    stage = engine.data.staged(iter(range(3)), capacity=2, name="<numbers>")
    assert "&lt;numbers&gt;" in stage._repr_html_() and "0 of 2" in stage._repr_html_()
    list(stage)
    with engine.trace() as empty:
        pass
    assert empty._repr_html_() is None


# --- bad input


GOOD = {"writer": "engine", "format": 3, "length": 10, "pending": 0, "left_out": 0, "threads": ["cpu/0"]}
THREAD = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "cpu/0"}}
SLICE = {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 1, "name": "op", "cat": "op",
         "args": {"op": 0, "skipped": False, "ready": 0, "after": [], "uses": []}}  # fmt: skip


def file_with(*events, **other):
    return json.dumps({"otherData": {**GOOD, **other}, "traceEvents": [THREAD, *events]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("PK\x03\x04", "is no JSON"),
        (b"\xff\xfe\x00", "is no"),
        ("[" * 100000, "is"),
        ("[]", "no Chrome trace at all"),
        ("{}", "no Chrome trace at all"),
        ('{"traceEvents": [{"ph": "X", "name": "theirs"}]}', "a Chrome trace of another program"),
        ('[{"ph": "B", "name": "theirs"}]', "a Chrome trace of another program"),
        ('{"otherData": {"writer": "engine"}, "traceEvents": []}', "format None"),
        ('{"otherData": {"writer": "engine", "format": 2}, "traceEvents": []}', "format 2"),
        ('{"otherData": {"writer": "engine", "format": 3}}', "no list 'traceEvents'"),
        (file_with(SLICE)[:-40], "is cut off"),
        (file_with({**SLICE, "ts": "soon"}), "event 1 is malformed: 'soon' is no time"),
        (file_with({**SLICE, "ts": float("nan")}), "event 1 is malformed: nan is no time"),
        (file_with({**SLICE, "dur": -1}), "ends before it begins"),
        (file_with({**SLICE, "tid": 7}), "event 1 is malformed: lacks 7"),
        (file_with({**SLICE, "args": {}}), "event 1 is malformed: lacks 'uses'"),
        (file_with("slice"), "event 1 is malformed"),
        (file_with({**SLICE, "args": {**SLICE["args"], "op": 3}}), "not numbered from 0 on"),
        (
            file_with({**SLICE, "args": {**SLICE["args"], "after": [0]}}),
            "comes behind an op that does not come before it",
        ),
        (file_with({**SLICE, "args": {**SLICE["args"], "after": [-1]}}), "-1 is no number of an op"),
        (file_with({**SLICE, "cat": "wait", "args": {"cause": "mood", "for": ""}}), "'mood' is no cause"),
        (file_with(SLICE, length="long"), "'otherData' is wrong"),
        (file_with(), "no op ended while 'broken.json' was recorded, so there is nothing to explain"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_reason(tmp_path, text, said):
    path = tmp_path / "broken.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(engine.UsageError) as refused:
        engine.explain(path)
    assert said in str(refused.value) and "broken.json" in str(refused.value)


def test_a_trace_that_is_cut_anywhere_is_refused(tmp_path):
    path, _ = traced(tmp_path, diamond)
    text = path.read_bytes()
    for length in range(1, len(text.rstrip()), 7):
        with pytest.raises(engine.UsageError):
            parse(text[:length], "cut.json")


def test_what_is_no_trace_and_no_plan_is_refused():
    with pytest.raises(TypeError, match="a list is no hybridized function, no plan, no smart stage, no trace"):
        engine.explain([])
    with pytest.raises(FileNotFoundError):
        engine.explain("no-such-trace.json")


# --- the command line


def command(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "engine", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=100
    )


def test_the_command_explains_a_trace_and_writes_the_page(tmp_path):
    path, _ = traced(tmp_path, diamond)
    done = command("explain", path, "--html", tmp_path / "page.html")
    assert (
        done.returncode == 0
        and "critical path 3 ops" in done.stdout
        and (tmp_path / "page.html").as_uri() in done.stdout
    )
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_command_says_what_is_wrong_with_a_file(tmp_path):
    (tmp_path / "cut.json").write_text('{"displayTimeUnit":"ns"')
    for name, said in (("cut.json", "cut off"), ("none.json", "No such file")):
        done = command("explain", tmp_path / name)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_the_demo_writes_a_page(tmp_path):
    done = command("demo", "--steps", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ops of 4 kinds" in done.stdout and (tmp_path / "engine-demo.html").exists()


def test_an_explained_trace_says_in_short_what_it_is(tmp_path):
    _, trace = traced(tmp_path, diamond)
    assert repr(engine.explain(trace)).startswith("<engine.TraceExplanation of 'trace.json': 4 ops, span ")
