"""Ops on devices, from Python, on the software device."""

import time

import engine
import pytest


@pytest.fixture
def eng():
    with engine.Engine(workers=1, devices=["software"], streams_per_device=2) as made:
        yield made


def test_ops_on_a_device_are_ordered_with_those_on_the_host(eng):
    a, seen = engine.Var("a", eng), []
    eng.push(lambda: seen.append(("gpu", engine.defer_sync())), writes=[a], place=engine.gpu(0))
    eng.push(lambda: seen.append(("lane", engine.defer_sync())), updates=[a], place=engine.gpu(0, lane=3))
    eng.push(lambda: seen.append(("copy", engine.defer_sync())), updates=[a], place=engine.copy_out(0))
    eng.push(lambda: seen.append(("host", engine.defer_sync())), updates=[a])
    a.wait()
    assert seen == [("gpu", True), ("lane", True), ("copy", True), ("host", False)]
    eng.wait_all()
    stats = eng.device_stats()
    assert stats["issued"] == stats["retired"] == 3
    assert stats["lanes"] == 3
    assert stats["host_syncs"] == 0


def test_an_op_decorated_for_a_device_runs_there(eng):
    @engine.op(place=engine.gpu(0))
    def double(x):
        assert engine.defer_sync()
        return 2 * x

    value = engine.value(21, engine=eng)
    assert double(value).get() == 42


def test_whoever_asks_whether_a_value_is_done_hears_of_it_without_a_wait(eng):
    made = engine.op(lambda x: 2 * x, place=engine.gpu(0))(engine.value(21, engine=eng))
    until = time.monotonic() + 60
    while not made.done() and time.monotonic() < until:
        time.sleep(1e-4)
    assert made.done()


def test_a_bulk_on_a_device_is_not_a_record_an_op(eng):
    a = engine.Var("a", eng)
    with engine.bulk(15, engine=eng):
        for _ in range(15):
            eng.push(lambda: None, updates=[a], place=engine.gpu(0))
    eng.wait_all()
    assert eng.device_stats()["records"] < 15  # 1, unless this thread was kept from pushing for a millisecond


def test_a_static_hybrid_on_a_device_is_one_graph_launch_a_call(eng):
    ran = []

    @engine.op(place=engine.gpu(0), graph_key=engine.GraphKey(1, params=7))
    def double(x):
        ran.append("double")
        return 2 * x

    @engine.op(place=engine.gpu(0), graph_key=engine.GraphKey(hash("add")))
    def add(x, y):
        ran.append("add")
        return x + y

    weights = engine.value(21, engine=eng)

    @engine.hybridize(static_alloc=True, static_shape=True)
    def step(w):
        return add(double(w), w)

    for _ in range(10):
        assert step(weights).get() == 63
        eng.wait_all()  # the frame is back: all calls have the same one
    assert ran == ["double", "add"] * 3  # twice for real, once into the graph
    stats = eng.device_stats()
    assert (stats["graph_launches"], stats["graph_instantiations"], stats["graph_updates"]) == (8, 1, 0)
    assert stats["records"] == 10


def test_graph_keys_that_mean_nothing_are_refused(eng):
    a = engine.Var("a", eng)
    with pytest.raises(engine.UsageError, match="kind is 0"):
        engine.GraphKey(0)
    with pytest.raises(engine.UsageError, match="on a device"):
        eng.push(lambda: None, updates=[a], graph_key=engine.GraphKey(1))
    with pytest.raises(TypeError, match="graph_key is an int"):
        eng.push(lambda: None, updates=[a], place=engine.gpu(0), graph_key=1)


def test_cuda_stream_is_refused_where_there_is_none(eng):
    a = engine.Var("a", eng)
    with pytest.raises(engine.UsageError, match="outside of an op"):
        engine.cuda_stream()
    for place, why in (engine.gpu(0), "software"), (engine.cpu(), "not placed on a device"):
        eng.push(engine.cuda_stream, writes=[a], place=place)
        with pytest.raises(engine.UsageError, match=why):
            a.wait()


def test_what_is_no_device_is_refused(eng):
    a = engine.Var("a", eng)
    with pytest.raises(engine.UsageError, match="device 1"):
        eng.push(lambda: None, writes=[a], place=engine.gpu(1))
    with pytest.raises(engine.UsageError, match="lane"):
        eng.push(lambda: None, writes=[a], place=engine.gpu(0, lane=77))
    with pytest.raises(engine.UsageError, match="both count from 0"):
        engine.gpu(-1)
    with pytest.raises(engine.UsageError, match="abacus"):
        engine.Engine(devices=["abacus"])
    with pytest.raises(engine.DeviceError):
        engine.Engine(devices=["cuda:31"])
    with pytest.raises(engine.UsageError, match="streams_per_device"):
        engine.Engine(streams_per_device=0)


def test_placements_compare_by_lane():
    assert engine.gpu(0, lane=1) == engine.gpu(0, lane=1) != engine.gpu(0)
    assert len({engine.gpu(0), engine.gpu(0, lane=0), engine.gpu(0)}) == 2


def test_an_error_on_a_device_is_raised_by_who_waits(eng):
    a, b = engine.Var("a", eng), engine.Var("b", eng)

    def fail():
        raise ValueError("planted")

    eng.push(fail, writes=[a], name="bad", place=engine.gpu(0))
    eng.push(lambda: None, reads=[a], writes=[b], place=engine.gpu(0))
    with pytest.raises(ValueError, match="planted"):
        b.wait()
