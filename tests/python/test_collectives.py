"""Communicators: collectives between ranks on software devices, against NumPy; what is refused, and what can go wrong."""

import os

import pytest

import engine
from conftest import line_of
from engine.comm import Collective
from test_processes import CHILD, held

np = pytest.importorskip("numpy")

RANKS = 3
DTYPES = ["i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
REDUCTIONS = {"sum": np.add, "product": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.fixture
def eng():
    made = engine.Engine(workers=1, devices=["software"] * RANKS, on_unobserved=lambda error: None)
    with made:
        yield made


@pytest.fixture
def comms(eng):
    return engine.comm.communicators(range(RANKS), name="data", engine=eng)


def on(rank, array, eng):
    """A Value of a copy of the array on the rank's device."""
    return engine.value(engine.DeviceArray(array, rank, eng), engine=eng)


def host(value):
    return value.get().to_host()


def error_of(value):
    with pytest.raises(engine.CommunicatorError) as caught:
        value.get()
    return caught.value


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_collective_gives_what_numpy_does(eng, comms, dtype, rng):
    given = [np.array([rng.randrange(1, 5) for _ in range(6)], dtype).reshape(2, 3) for _ in range(RANKS)]
    results = {}
    for r, comm in enumerate(comms):
        x = on(r, given[r], eng)

        def push(key, count, make, comm=comm, x=x, r=r):
            out = results[key, r] = on(r, np.zeros(count, dtype), eng)
            comm.push(make(x, out))

        for name in (*REDUCTIONS, "average"):
            push(name, 6, lambda a, b, name=name: Collective.all_reduce(a, b, name))
        push("scattered", 2, lambda a, b: Collective.reduce_scatter(a, b, "max"))
        push("gathered", 6 * RANKS, Collective.all_gather)
        push("cast", 6, lambda a, b: Collective.broadcast(a, b, root=2))
        in_place = results["in place", r] = on(r, given[r], eng)
        comm.push(Collective.all_reduce(in_place))
        comm.push(Collective.broadcast(in_place, root=1))
    flat = [g.ravel() for g in given]
    for r in range(RANKS):
        for name, reduce in REDUCTIONS.items():
            assert np.array_equal(host(results[name, r]), reduce.reduce(flat, dtype=dtype)), name
        average = np.add.reduce(flat, dtype="f8") / RANKS
        assert np.allclose(host(results["average", r]), average.astype(dtype), rtol=1e-3), "average"
        assert np.array_equal(host(results["scattered", r]), np.maximum.reduce(flat)[2 * r : 2 * r + 2])
        assert np.array_equal(host(results["gathered", r]), np.concatenate(flat))
        assert np.array_equal(host(results["cast", r]), flat[2])
        assert np.array_equal(host(results["in place", r]), np.add.reduce(given, dtype=dtype))
        assert results["in place", r].var.version == 2
    assert comms[0].stats() == {"collectives": 10, "groups": 10}


def test_a_collective_of_a_view_is_ordered_with_what_it_lies_in(eng, comms, gate):
    x = [on(r, np.ones(2), eng) for r in range(RANKS)]
    views = [engine.op(lambda array: array, alias="order")(v) for v in x]
    assert [v.wait() for v in views] == [True] * RANKS
    engine.op(lambda array: gate() or array.from_host(np.full(2, 5.0)), updates="array")(x[0])
    for comm, v in zip(comms, views):
        comm.push(Collective.all_reduce(v))
    gate.open()
    assert [host(v).tolist() for v in x] == [[7.0, 7.0]] * RANKS and x[1].var.version == 1


def test_a_group_is_one_launch(eng, comms):
    """Each hands its rank to the next, and a sum goes along."""
    mine = [on(r, np.full(4, r, "i4"), eng) for r in range(RANKS)]
    theirs = [on(r, np.full(4, -1, "i4"), eng) for r in range(RANKS)]
    for r, comm in enumerate(comms):
        total = on(r, np.array([1.5]), eng)
        comm.push(
            [
                Collective.send_to(mine[r], (r + 1) % RANKS),
                Collective.recv_from(theirs[r], (r - 1) % RANKS),
                Collective.all_reduce(total),
            ]
        )
        mine[r] = total
    for r, comm in enumerate(comms):
        assert host(theirs[r]).tolist() == [(r - 1) % RANKS] * 4
        assert host(mine[r]).tolist() == [4.5]
        assert comm.stats() == {"collectives": 3, "groups": 1}


def test_ops_before_and_behind_are_ordered_by_vars(eng, comms, gate):
    """Buffers without a Value: their Vars are named as for engine.push."""
    arrays = [engine.DeviceArray(np.zeros(2), r, eng) for r in range(RANKS)]
    ready = [engine.Var(f"ready {r}", eng) for r in range(RANKS)]
    seen = []
    eng.push(gate, writes=ready)
    for r, comm in enumerate(comms):
        eng.push(lambda r=r: arrays[r].from_host(np.full(2, r + 1.0)), updates=ready[r])
        comm.push(Collective.all_reduce(arrays[r]), updates=ready[r])
        eng.push(lambda r=r: seen.append(arrays[r].to_host().tolist()), reads=ready[r])
    gate.wait_until_entered()
    assert comms[0].stats()["groups"] == 0
    gate.open()
    eng.wait_all()
    assert seen == [[6.0, 6.0]] * RANKS


def test_a_gradient_is_reduced_while_the_backward_pass_goes_on(eng, comms, gate):
    """Layer by layer, on the one worker: the upper layer's sum is there while the lower layer's op stands still."""
    upper, lower = ([on(r, np.zeros(2), eng) for r in range(RANKS)] for _ in range(2))

    @engine.op(updates="gradient")
    def backward(gradient, of, stop=None):
        if stop is not None:
            stop()
        gradient.from_host(np.full(2, of))

    for r, comm in enumerate(comms):
        backward(upper[r], r + 1.0)
        comm.push(Collective.all_reduce(upper[r]))
    for r, comm in enumerate(comms):
        backward(lower[r], 10.0, gate if r == 0 else None)
        comm.push(Collective.all_reduce(lower[r]))
    gate.wait_until_entered()
    assert [host(g).tolist() for g in upper] == [[6.0, 6.0]] * RANKS
    gate.open()
    assert [host(g).tolist() for g in lower] == [[30.0, 30.0]] * RANKS


def test_names_are_those_that_were_given_or_of_the_collective(eng, comms):
    with engine.trace(engine=eng) as trace:
        for r, comm in enumerate(comms):
            x = on(r, np.zeros(1), eng)
            comm.push(Collective.all_reduce(x), name="gradients")
            comm.push(Collective.broadcast(x))
            comm.push([Collective.all_reduce(x), Collective.broadcast(on(r, np.zeros(1), eng))])
        eng.wait_all()
    for r in range(RANKS):
        ran = [e for e in trace.events if e.thread == f"gpu{r}/comm{r}" and e.name != "communicator_join"]
        ran.sort(key=lambda e: e.begin)
        assert [e.name for e in ran] == ["gradients", "broadcast", "collectives"]


def test_bulks_and_replays_are_pushes_like_others(eng, comms):
    x = [on(r, np.ones(2), eng) for r in range(RANKS)]
    for r, comm in enumerate(comms):
        with engine.bulk(4, engine=eng):
            for _ in range(4):
                comm.push(Collective.all_reduce(x[r]))
    assert [host(v).tolist() for v in x] == [[81.0, 81.0]] * RANKS

    def step(rank):
        @engine.op(updates="v")
        def third(v):
            v.from_host(v.to_host() / 3)

        def run(v):
            third(v)
            comms[rank].push(Collective.all_reduce(v, reduction="max"))

        return engine.hybridize(run, static_shape=True)

    steps = [step(r) for r in range(RANKS)]
    for _ in range(3):
        for r, one in enumerate(steps):
            one(x[r])
    assert [host(v).tolist() for v in x] == [[3.0, 3.0]] * RANKS
    assert comms[0].stats() == {"collectives": 7, "groups": 7}


# What rank 0 calls, what rank 1 calls, and what the error says of both. `x` and `y` are of 4 and of 8.
MISMATCHES = {
    "sizes": (
        lambda x, y: Collective.all_reduce(x),
        lambda x, y: Collective.all_reduce(y),
        ("all_reduce of 4 float32 (sum)", "all_reduce of 8 float32 (sum)"),
    ),
    "dtypes": (
        lambda x, y: Collective.all_gather(x, y, dtype="int32"),
        lambda x, y: Collective.all_gather(x, y),
        ("all_gather of 4 int32", "all_gather of 4 float32"),
    ),
    "roots": (
        lambda x, y: Collective.broadcast(x, root=0),
        lambda x, y: Collective.broadcast(x, root=1),
        ("broadcast of 4 float32 from rank 0", "broadcast of 4 float32 from rank 1"),
    ),
    "reductions": (
        lambda x, y: Collective.reduce_scatter(y, x, "max"),
        lambda x, y: Collective.reduce_scatter(y, x),
        ("reduce_scatter of 4 float32 (max)", "reduce_scatter of 4 float32 (sum)"),
    ),
    "groups": (
        lambda x, y: [Collective.all_reduce(x), Collective.all_reduce(y)],
        lambda x, y: [Collective.all_reduce(x)],
        ("all_reduce of 4 float32 (sum) and all_reduce of 8 float32 (sum)", "all_reduce of 4 float32 (sum)"),
    ),
    "sides": (
        lambda x, y: Collective.send_to(x, 1),
        lambda x, y: Collective.recv_from(y, 0),
        ("send of 4 float32", "recv of 8 float32"),
    ),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_ranks_that_do_not_fit_together_are_named(eng, case):
    *calls, said = MISMATCHES[case]
    comms = engine.comm.communicators([0, 1], name="pair", engine=eng)
    done = [engine.Var("done", eng) for _ in comms]
    for r, comm in enumerate(comms):
        x, y = on(r, np.zeros(4, "f4"), eng), on(r, np.zeros(8, "f4"), eng)
        comm.push(calls[r](x, y), writes=done[r], name=case)
    for r, var in enumerate(done):
        with pytest.raises(engine.CommunicatorError) as caught:
            var.wait()
        text = str(caught.value)
        assert all(part in text for part in said) and f"communicator 'pair', rank {r} of 2" in text
        assert caught.value.op == case


@pytest.mark.parametrize("fault", ["call_fails", "async_error", "never_comes"])
def test_a_fault_fails_what_needs_the_collective_and_nothing_else(eng, fault):
    id = engine.comm.communicator_id("software")
    engine.testing.plant_loopback_fault(id, 1, 2, fault)
    comms = [engine.comm.Communicator(id, r, 2, r, name="data", timeout=1.0, engine=eng) for r in range(2)]
    x = [on(r, np.ones(2), eng) for r in range(2)]
    y = [on(r, np.ones(2), eng) for r in range(2)]
    apart = on(0, np.ones(2), eng)

    @engine.op
    def look(v):
        return v.to_host().tolist()

    for r, comm in enumerate(comms):
        comm.push(Collective.all_reduce(x[r]))
    for r in range(2):
        x[r].wait()  # so the first has ended for good
    for r, comm in enumerate(comms):
        comm.push(Collective.all_reduce(y[r]), name="lost")  # the push
    needs, fine, other = look(y[0]), look(x[0]), look(apart)
    assert (fine.get(), other.get()) == ([2.0, 2.0], [1.0, 1.0])
    for failed in (y[1], needs):
        error = error_of(failed)
        assert error.op == "lost" and (error.file, error.line) == line_of("the push")
        assert "communicator 'data', rank" in str(error)
    assert [hop.op for hop in error.path] == ["look"]
    late = on(0, np.ones(1), eng)
    comms[0].push(Collective.all_reduce(late))
    assert "communicator 'data', rank 0 of 2" in str(error_of(late))
    eng.clear_error(y[0])
    assert look(y[0]).get() is not None  # the device goes on


def test_a_rank_that_skips_a_collective_tells_the_others(eng, comms):
    x = [on(r, np.ones(1), eng) for r in range(RANKS)]

    @engine.op(updates="v")
    def loss(v):
        raise ValueError("not a number")

    loss(x[0])
    for r, comm in enumerate(comms):
        comm.push(Collective.all_reduce(x[r]))
    with pytest.raises(ValueError, match="not a number"):
        x[0].get()
    assert "did not run" in str(error_of(x[1])) and "not a number" in str(error_of(x[2]))


def test_abort_ends_what_waits_for_a_rank_that_never_comes(eng, comms):
    x = on(0, np.ones(1), eng)
    comms[0].push(Collective.all_reduce(x))
    comms[0].abort("enough")
    assert "rank 0 of 3: aborted: enough" in str(error_of(x))
    with pytest.raises(engine.CommunicatorError, match="enough"):
        comms[0].var.wait()


def test_what_is_dropped_with_work_pending_lasts_until_the_work_has_ended(eng, comms):
    out = [engine.value(engine.DeviceArray(np.zeros(1000), r, eng), engine=eng) for r in range(RANKS)]
    used = []
    for r in range(RANKS):
        x = engine.DeviceArray(np.full(1000, r + 1.0), r, eng)
        comms[r].push(Collective.all_reduce(x, out[r]))
        used.append(x.address)
        del x
        comms[r] = None
        if r == 0:  # the others have not come: its memory is in use
            assert engine.DeviceArray(np.zeros(1000), 0, eng).address != used[0]
    for v in out:
        assert host(v).tolist() == [6.0] * 1000
    eng.wait_all()
    assert engine.DeviceArray(np.zeros(1000), 0, eng).address == used[0]


def test_a_program_may_end_with_collectives_that_nobody_answers(run_python):
    ended = run_python("""
        import numpy as np
        engine.init(workers=1, devices=["software"] * 2, drain_timeout=0.01, on_unobserved=lambda e: print(e))
        comms = engine.comm.communicators([0, 1], name="data")
        comms[0].push(engine.comm.Collective.all_reduce(engine.DeviceArray(np.zeros(1))), name="alone")
    """)
    assert ended.code == 0 and "the engine was shut down" in ended.out and "'alone'" in ended.out, ended
    assert "Traceback" not in ended.err, ended


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_refused_its_parents_communicator(run_python):
    held(run_python(CHILD + """
import numpy as np
engine.init(workers=1, devices=["software"])
(comm,) = engine.comm.communicators([0], name="data")
x = engine.value(engine.DeviceArray(np.ones(2)))
comm.push(engine.comm.Collective.all_reduce(x))
x.wait()
def refused():
    global comm
    for use in (lambda: comm.push(engine.comm.Collective.all_reduce(x)), lambda: comm.abort("why")):
        try:
            use()
        except engine.UsageError as error:
            assert "communicator 'data'" in str(error) and "in a fork's child" in str(error), error
        else:
            raise AssertionError("not refused")
    del comm
    works()
assert child(refused) == 0
comm.push(engine.comm.Collective.all_reduce(x))
assert x.get().to_host().tolist() == [1.0, 1.0]
print("ok")
"""))


class Tensor:
    """As a framework on CUDA shows its memory."""

    def __init__(self, **fields):
        array = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3, "strides": None}
        self.__cuda_array_interface__ = {**array, **fields}


REFUSED = {
    "no collective": (7, TypeError, "calls is an int; an engine.comm.Collective"),
    "no collectives": ([7], TypeError, r"calls\[0\] is an int"),
    "none": ([], engine.UsageError, "has no calls"),
    "an unknown kind": (
        Collective("all_or_nothing", None, None),
        engine.UsageError,
        "'all_or_nothing'; all_reduce, ",
    ),
    "a host array": (
        Collective.all_reduce(np.zeros(2)),
        TypeError,
        "all_reduce: send is a numpy.ndarray; an engine.DeviceArray",
    ),
    "no such rank": (lambda a: Collective.send_to(a, 7), engine.UsageError, "send names rank 7; 0 to 2 are allowed"),
    "itself": (lambda a: Collective.recv_from(a, 0), engine.UsageError, "recv names its own rank"),
    "an unknown reduction": (
        lambda a: Collective.all_reduce(a, None, "mean"),
        engine.UsageError,
        "'mean'; sum, product",
    ),
    "unlike buffers": (
        lambda a: Collective.all_reduce(a, a._replace("f8")),
        engine.UsageError,
        "send is 6 float32, recv is 6 float64, and there are 3 ranks; both are alike",
    ),
    "no part for each": (
        lambda a: Collective.reduce_scatter(a, a),
        engine.UsageError,
        "send is 6 float32, recv is 6 float32, and there are 3 ranks; send holds one recv for each rank",
    ),
    "parts of none": (lambda a: Collective.all_gather(a, a), engine.UsageError, "recv holds one send for each rank"),
    "another dtype": (
        lambda a: Collective.all_reduce(a._replace("i2")),
        engine.UsageError,
        "has elements <i2; int8, ",
    ),
    "no whole number": (
        lambda a: Collective.all_reduce(a._replace("u1", 3), dtype="bfloat16"),
        engine.UsageError,
        "has 3 bytes, which are no whole number of bfloat16",
    ),
    "CUDA's memory": (Collective.all_reduce(Tensor()), engine.UsageError, "is memory of CUDA; .* of kind 'software'"),
    "not contiguous": (Collective.all_reduce(Tensor(strides=(4, 8))), engine.UsageError, "not C-contiguous"),
    "big-endian": (Collective.all_reduce(Tensor(typestr=">f4")), engine.UsageError, "another byte order"),
    "read-only": (Collective.broadcast(Tensor(data=(1, True)), root=1), engine.UsageError, "is read-only"),
    "masked": (Collective.all_reduce(Tensor(mask=Tensor())), engine.UsageError, "has a mask"),
    "no protocol": (Collective.all_reduce(Tensor(data=None)), engine.UsageError, "lacks a field"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_calls_that_do_not_fit_are_refused_and_named(eng, comms, case):
    class Array(engine.DeviceArray):
        def _replace(self, dtype, size=6):
            return engine.DeviceArray(np.zeros(size, dtype), 0, eng)

    call, kind, said = REFUSED[case]
    if callable(call):
        call = call(Array(np.zeros(6, "f4"), 0, eng))
    with pytest.raises(kind, match=said):
        comms[0].push(call, name="bad")
    assert comms[0].stats()["groups"] == 0


def test_buffers_of_elsewhere_are_refused(eng, comms):
    with pytest.raises(engine.UsageError, match="on device 1; the communicator is on device 0"):
        comms[0].push(Collective.all_reduce(on(1, np.zeros(1), eng)))
    with engine.Engine(workers=1, devices=["software"]) as other:
        array = engine.DeviceArray(np.zeros(1), engine=other)
        with pytest.raises(engine.UsageError, match="of another engine"):
            comms[0].push(Collective.all_reduce(array))

    @engine.op
    def later(_):
        return 1

    with pytest.raises(engine.UsageError, match=r"at .*test_collectives.py:\d+: .* is not computed yet"):
        comms[0].push(Collective.all_reduce(engine.Value(*_unset(eng))))


def _unset(eng):
    return engine.MISSING, engine.Var("later", eng)


def test_communicators_that_cannot_be_made_are_refused(eng):
    id = engine.comm.communicator_id("software")
    assert len(id) == 128 and id != engine.comm.communicator_id("software")
    for arguments, said in [
        ((b"short", 0, 1), "id has 5 bytes; the 128"),
        ((bytes(128), 0, 1), "its id is empty"),
        ((id, 2, 2), "rank 2 of 2"),
        ((id, 0, 1, 7), "no device 7"),
    ]:
        with pytest.raises(engine.UsageError, match=said):
            engine.comm.Communicator(*arguments, engine=eng)
    with pytest.raises(engine.UsageError, match="seconds from 0"):
        engine.comm.Communicator(id, 0, 1, timeout=-1, engine=eng)
    with pytest.raises(engine.UsageError, match="no devices"):
        engine.comm.communicators([], engine=eng)
    with pytest.raises(engine.UsageError, match="'abacus'; cuda and software"):
        engine.comm.communicator_id("abacus")
    with pytest.raises(engine.UsageError, match="'earthquake'; call_fails, async_error, never_comes"):
        engine.testing.plant_loopback_fault(id, 0, 1, "earthquake")
    (comm,) = engine.comm.communicators([1], name="alone", engine=eng)
    assert repr(comm) == "<engine.comm.Communicator 'alone', rank 0 of 1 on device 1>"
    assert (comm.rank, comm.size, comm.device, comm.name) == (0, 1, 1, "alone")
    x = on(1, np.zeros(1), eng)
    eng.shutdown()
    with pytest.raises(engine.UsageError, match="after shutdown"):
        comm.push(Collective.all_reduce(x), name="late")


def test_without_nccl_the_error_says_so():
    try:
        assert len(engine.comm.communicator_id("cuda")) == 128  # a build that has it
    except engine.CommunicatorError as error:
        assert "this build has no NCCL" in str(error) or "ncclGetUniqueId" in str(error)


def test_arrays_are_made_on_a_device_by_hand(eng):
    x = engine.DeviceArray(np.arange(6.0).reshape(2, 3)[:, ::-1], 1, eng)
    assert (x.shape, x.dtype, x.device) == ((2, 3), np.float64, 1)
    assert x.to_host().tolist() == [[2.0, 1.0, 0.0], [5.0, 4.0, 3.0]]
    x.from_host(np.ones((2, 3)))
    assert x.to_host().sum() == 6
    assert engine.DeviceArray(np.zeros((0, 3)), engine=eng).to_host().shape == (0, 3)
    with pytest.raises(engine.UsageError, match=r"is <f4 of shape \(3\); <f8 of shape \(2, 3\) is expected"):
        x.from_host(np.zeros(3, "f4"))
    with pytest.raises(engine.UsageError, match="device 9"):
        engine.DeviceArray(np.zeros(3), 9, eng)
    with pytest.raises(TypeError, match="array is a str; a NumPy array"):
        engine.DeviceArray("three", engine=eng)
    with pytest.raises(TypeError, match="engine is an int"):
        engine.DeviceArray(np.zeros(3), 0, 7)
