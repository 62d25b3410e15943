"""engine.metrics, Prometheus' text, the endpoint on request, and the live table."""

import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

import engine
from engine.monitoring import watching
from engine.monitoring.counters import read


def test_metrics_are_the_counters_and_those_of_the_stages():
    with engine.Engine(workers=1) as eng:
        for _ in range(7):
            eng.push(lambda: None)
        eng.wait_all()
        stage = engine.data.staged(iter(range(5)), name="five")
        assert list(stage) == list(range(5))
        now = engine.metrics(eng)
        assert now["pushed"] == now["completed"] == 7 and now["pending"] == 0 and now["workers"] == 1
        assert now["stages"]["five"]["delivered"] == 5 and now["devices"] == eng.device_stats()
        json.dumps(now)


def test_stages_of_one_name_are_told_apart():
    stages = [engine.data.staged(iter(range(2)), name="twin") for _ in range(2)]
    assert {"twin", "twin 2"} <= set(engine.metrics()["stages"])
    for stage in stages:
        list(stage)


def test_smart_stages_are_there_as_stages_are():
    steps = engine.data.smart_stage(lambda x: engine.op(lambda x: x + 1)(x), iter(range(5)), name="smart", profile_steps=0, guard_steps=0)
    assert [value.get() for value in steps] == [1, 2, 3, 4, 5]
    now = engine.metrics()["stages"]["smart"]
    assert now["steps"] == now["delivered"] == now["position"] == 5 and {"fill", "capacity", "threads", "producer_wait"} <= now.keys()
    text = engine.metrics.prometheus()
    assert 'engine_stage_steps_total{stage="smart"} 5' in text and 'engine_stage_delivered_total{stage="smart"} 5' in text
    found = watching.sample(engine.default())
    (rows,) = [rows for title, _, rows in watching.tables(found, found, 0) if title == "stages"]
    assert "smart" in [row[0] for row in rows]
    assert watching.sample_of(text).stages["smart"]["steps"] == 5


def test_metrics_may_be_asked_while_other_threads_make_stages():
    before, done, wrong = sys.getswitchinterval(), threading.Event(), []
    many = [engine.data.staged(iter(())) for _ in range(500)]  # so that it takes long to go over them

    def make():
        while not done.is_set():
            engine.data.staged(iter(()))

    makers = [threading.Thread(target=make) for _ in range(2)]
    sys.setswitchinterval(1e-6)  # so that a thread is likely to get in between
    try:
        for maker in makers:
            maker.start()
        for _ in range(50):
            try:
                assert len(engine.metrics()["stages"]) >= len(many)
            except RuntimeError as error:
                wrong.append(error)
    finally:
        done.set()
        sys.setswitchinterval(before)
        for maker in makers:
            maker.join()
    assert wrong == []


def test_prometheus_text_follows_the_format():
    stage = engine.data.staged(iter(range(3)), name='a "b" \\ c')
    list(stage)
    text = engine.metrics.prometheus()
    line = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{stage="([^"\\]|\\.)*"\})? -?[0-9.e+-]+')
    typed, seen = {}, set()
    for row in text.splitlines():
        if row.startswith("# TYPE"):
            _, _, name, kind = row.split()
            assert name not in typed
            typed[name] = kind
            continue
        assert line.fullmatch(row), row
        name = re.split(r"[{ ]", row)[0]
        assert name in typed and (typed[name] == "gauge" or name.endswith("_total"))
        seen.add(name)
    assert seen == set(typed) and text.endswith("\n")
    assert {
        "engine_pushed_total",
        "engine_pending",
        "engine_stage_fill",
        "engine_stage_producer_wait_seconds_total",
    } <= seen
    assert 'stage="a \\"b\\" \\\\ c"' in text
    assert read(text)["engine_workers"] == engine.default().workers


def test_the_endpoint_answers_on_loopback_until_it_is_closed():
    with engine.metrics.serve() as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(server.url + "/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert "engine_pushed_total" in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(server.url + "/secrets")
    server.close()  # a second time does nothing
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(server.url + "/metrics", timeout=5)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_the_endpoint_is_refused_on_other_addresses(host):
    with pytest.raises(engine.UsageError, match="only 127.0.0.1"):
        engine.metrics.serve(host=host)


@pytest.mark.parametrize("port", [-1, 65536, "80"])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(engine.UsageError, match="0 to 65535"):
        engine.metrics.serve(port)


def sample(time, completed, pending, **stage):
    return watching.Sample(time, {"completed": completed, "pushed": completed + pending, "pending": pending},
                              {"batches": stage} if stage else {}, {"dense": (40.0, 1.5)})  # fmt: skip


def test_the_table_has_rates_queues_and_stages():
    stage = {"delivered": 10, "fill": 3, "capacity": 4, "threads": 2, "producer_wait": 1.0, "consumer_wait": 0.0}
    found = watching.tables(sample(0, 100, 5, **stage),
                               sample(2, 300, 5, **{**stage, "delivered": 30, "producer_wait": 2.0}), 0)  # fmt: skip
    tables = {title: rows for title, _, rows in found}
    assert tables["engine"][0][:3] == ["100/s", "100/s", "5"] and tables["engine"][0][-1] == "running"
    assert tables["ops"] == [["dense", "40/s", "1.50"]]
    assert tables["stages"] == [["batches", "10.0/s", "3 of 4", "2", "50%", "0%"]]


def test_the_table_says_that_nothing_has_ended_for_long():
    watch = watching._Watch()
    states = [watch.look(sample(time, 10, 3))[0][2][0][-1] for time in (0, 4, 6, 9)]
    assert (
        states[:2] == ["running", "running"]
        and states[2].startswith("STALLED for 6 s")
        and states[3].startswith("STALLED for 9 s")
    )
    assert watch.look(sample(10, 11, 3))[0][2][0][-1] == "running"


def test_a_sample_of_this_process_has_the_rates_of_its_ops():
    with engine.Engine(workers=1) as eng:

        class UntilOpsEnded:  # stands for the event that ends the sample
            def wait(self, seconds):
                for _ in range(5):
                    eng.push(lambda: None, name="counted")
                eng.wait_all()

        found = watching.sample(eng, 0.05, UntilOpsEnded())
    assert found.counters["pushed"] == 5 and found.ops["counted"][0] == pytest.approx(100)


def test_a_sample_leaves_the_programs_own_trace_alone():
    with engine.trace() as trace:
        found = watching.sample(engine.default(), 0.01)
        engine.push(lambda: None, name="mine")
        engine.wait_all()
    assert found.ops == {} and "mine" in [e.name for e in trace.events]


class UntilTraced:
    """Stands for the event that ends a sample: meanwhile the program traces."""

    def __init__(self, eng):
        self.eng, self.trace = eng, engine.trace(engine=eng)

    def wait(self, seconds):
        self.eng.push(lambda: None, name="before")
        self.eng.wait_all()
        with self.trace:
            self.eng.push(lambda: None, name="mine")
            self.eng.wait_all()
            with pytest.raises(engine.UsageError, match="already running"), engine.trace(engine=self.eng):
                pass
            assert watching.sample(self.eng, 0.01).ops == {}


def test_a_trace_takes_over_from_a_sample():
    with engine.Engine(workers=1) as eng:
        program = UntilTraced(eng)
        assert watching.sample(eng, 0.05, program).ops == {}  # what it saw is no rate
        assert [event.name for event in program.trace.events] == ["mine"]
        with engine.trace(engine=eng) as again:
            pass
        assert again.events == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_child_of_a_fork_may_trace_while_the_parent_is_sampled(run_python):
    ended = run_python(
        """
    import os
    from engine.monitoring import watching

    class Forks:
        def wait(self, seconds):
            self.child = os.fork()
            if self.child == 0:
                with engine.trace() as trace:
                    engine.push(lambda: None, name="child")
                    engine.wait_all()
                os._exit([event.name for event in trace.events] != ["child"])

    forks = Forks()
    watching.sample(engine.default(), 0.01, forks)
    print(os.waitstatus_to_exitcode(os.waitpid(forks.child, 0)[1]))
    """
    )
    assert ended.out == "0\n", ended


def test_live_shows_a_table_while_the_block_runs(capfd):
    pytest.importorskip("rich", reason="the live table needs rich")
    with engine.live(interval=0.02, ops=False) as shown:
        while shown.looks < 3:
            engine.push(lambda: None)
            engine.wait_all()
    assert "pending" in capfd.readouterr().err


def test_without_rich_the_message_says_what_to_install(monkeypatch):
    for name in ("rich", "rich.console", "rich.live", "rich.table"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        engine.UsageError, match=r"pip install rich;.*engine.metrics\(\) has the same numbers"
    ):
        engine.live()


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_an_interval_that_is_none_is_refused(interval):
    with pytest.raises(engine.UsageError, match="interval"):
        engine.live(interval=interval)


def test_top_watches_another_program(tmp_path):
    pytest.importorskip("rich", reason="the live table needs rich")
    with engine.metrics.serve() as server:
        done = subprocess.run([sys.executable, "-m", "engine", "top", server.url, "--interval", "0.01", "--rounds", "2"],
                              capture_output=True, text=True, timeout=100)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "pending" in done.stderr


@pytest.mark.parametrize(
    ("address", "said"), [("localhost", "is no address"), ("http://127.0.0.1:1", "nobody answers")]
)
def test_top_says_what_is_wrong_with_an_address(address, said):
    pytest.importorskip("rich", reason="the live table needs rich")
    with pytest.raises(engine.UsageError, match=said):
        watching.watch(address)


def test_top_refuses_an_answer_of_something_else():
    with pytest.raises(engine.UsageError, match="no engine_pushed_total"):
        read("python_info 1\n")
    with pytest.raises(engine.UsageError, match="no text of Prometheus"):
        read("<html> <body>")


def test_names_of_stages_with_other_ends_of_lines_are_read_again():
    with engine.data.staged(iter(range(3)), name="a\u2028b\x85c\rd") as stage:
        next(stage)
        assert "a\u2028b\x85c\rd" in watching.sample_of(engine.metrics.prometheus()).stages


def test_a_port_is_no_bool():
    with pytest.raises(engine.UsageError, match="port is True"):
        engine.metrics.serve(port=True)
