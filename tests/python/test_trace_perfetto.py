"""Trace files are Chrome's JSON as Perfetto reads it: its trace processor says so, and the format's rules."""

import collections
import json

import pytest

import engine


@pytest.fixture
def trace_file(tmp_path):
    """A trace of plain ops, a plan's nodes, and an op that waits inside, so that its worker's role is lent."""

    @engine.op
    def node(x):
        return x

    @engine.hybridize
    def step(x):
        return node(node(x))

    path = tmp_path / "trace.json"
    with engine.trace(path):
        a, b = engine.Var("a"), engine.Var("b")
        for _ in range(5):
            engine.push(lambda: None, writes=[a], name="write")
            engine.push(lambda: None, reads=[a], updates=[b], name='read "quoted"')
        engine.push(lambda: a.wait(), name="waits inside")
        step(1)
        engine.wait_all()
    return path


def edges_of(text):
    slices = [e for e in json.loads(text)["traceEvents"] if e["ph"] == "X" and e["cat"] == "op"]
    return sum(len(e["args"]["after"]) for e in slices), len(slices)


def test_slices_of_a_track_nest_and_flows_begin_and_end_in_slices(trace_file):
    events = json.loads(trace_file.read_text())["traceEvents"]
    named = {e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    by_track = collections.defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            assert e["tid"] in named and e["dur"] >= 0
            by_track[e["tid"]].append((round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)))
    for slices in by_track.values():
        opened = []
        for begin, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while opened and opened[-1] <= begin:
                opened.pop()
            assert not opened or end <= opened[-1]
            opened.append(end)
    flows = collections.defaultdict(list)
    for e in events:
        if e["ph"] in "sf":
            flows[e["id"]].append(e)
            at = round(e["ts"] * 1000)
            assert any(begin <= at <= end for begin, end in by_track[e["tid"]])
    assert len(flows) == edges_of(trace_file.read_text())[0] > 0
    for pair in flows.values():
        assert [e["ph"] for e in pair] == ["s", "f"] and pair[0]["ts"] <= pair[1]["ts"] and pair[1]["bp"] == "e"


def test_perfettos_trace_processor_loads_it_with_its_flows(trace_file):
    processor = pytest.importorskip("perfetto.trace_processor", reason="the package perfetto is not installed")
    try:
        processor.TraceProcessor().close()
    except Exception as error:  # it downloads its program on first use
        pytest.skip(f"Perfetto's trace processor cannot be had: {error!r}")
    with processor.TraceProcessor(trace=str(trace_file)) as loaded:
        edges, ops = edges_of(trace_file.read_text())
        assert [row.n for row in loaded.query("select count(*) as n from slice where category = 'op'")] == [ops]
        assert [row.n for row in loaded.query("select count(*) as n from flow")] == [edges]
        threads = {row.name for row in loaded.query("select name from thread where name is not null")}
        assert any(thread.startswith(("cpu/", "caller")) for thread in threads)
        wrong = "select count(*) as n from stats where severity in ('error', 'data_loss') and value > 0"
        assert [row.n for row in loaded.query(wrong)] == [0]
