"""stage_subgraph_on_cpu: arrays that the stage makes cross to the device in one copy an item, on the software device."""

import array
import threading

import pytest

import engine
from conftest import PATIENCE

np = pytest.importorskip("numpy")

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}
WAYS = [
    AT_ONCE,
    {**AT_ONCE, "num_threads": 2, "capacity": 3},
    {"do_smart_stage": False},
    {"profile_steps": 2, "guard_steps": 2},
]


@pytest.fixture
def eng():
    with engine.Engine(workers=1, devices=["software"]) as made:
        yield made


class Program:
    """row -> parse -> train, on the device, which notes what it was given."""

    def __init__(self, eng, parse, rows=20, **options):
        self.weights = engine.value([0], name="weights", engine=eng)
        self.seen = []

        @engine.op
        def parsed(row):
            return parse(row)

        @engine.op(updates="weights", place=engine.gpu(0))
        def train(weights, batch):
            self.seen.append(batch)

        @engine.op(updates="weights", outputs=1)
        def count(weights):
            weights[0] += 1
            return weights[0]

        def step(row):
            train(self.weights, parsed(row))
            return count(self.weights)

        self.steps = engine.data.smart_stage(step, iter(range(rows)), stage_subgraph_on_cpu=True, engine=eng, **options)
        self.counted = [done.get() for done in self.steps]


@pytest.mark.parametrize("options", WAYS)
def test_the_device_sees_device_memory_however_steps_run(eng, options):
    def parse(row):
        ids = np.arange(12, dtype=np.int64).reshape(3, 4) + row
        return {
            "x": np.full(7, row, np.float32),
            "ids": [ids[:, 1:], ids],
            "name": f"row {row}",
            "rate": np.float32(0.5),
        }

    program = Program(eng, parse, rows=60, **options)
    assert program.counted == list(range(1, 61))
    for row, batch in enumerate(program.seen):
        expected = parse(row)
        assert batch["name"] == expected["name"] and batch["rate"] == expected["rate"]
        for there, here in zip([batch["x"], *batch["ids"]], [expected["x"], *expected["ids"]]):
            assert isinstance(there, engine.DeviceArray)
            assert (there.shape, there.dtype, there.nbytes, there.device) == (here.shape, here.dtype, here.nbytes, 0)
            assert np.array_equal(there.to_host(), here)
    assert eng.device_stats()["host_syncs"] == 0


def test_it_is_said_and_the_boundary_is_named(eng):
    program = Program(eng, lambda row: np.zeros(4), **AT_ONCE)
    assert ("copy to gpu 0: parsed", "") in program.steps.report["nodes"]
    assert program.steps.report["boundary"] == [("copy to gpu 0", 0)]
    reason = dict(program.steps.report["nodes"])["train"]
    assert reason == "is placed on a GPU, and stage_subgraph_on_cpu keeps the stage off it"
    assert "staged copies are packed into one an item" in program.steps.explain()


def test_other_buffers_cross_too_and_what_is_no_array_passes(eng):
    made = [bytes(b"abc"), bytearray(b"de"), array.array("i", [1, 2, 3]), memoryview(b"xyz"), np.zeros((0, 3)),
            np.asfortranarray(np.arange(6.0).reshape(2, 3)), None, "text", 7, np.array(["a"], object),
            np.array(3.0), np.array(["2020"], "M8[D]")]  # fmt: skip
    batch = Program(eng, lambda row: made, rows=1, **AT_ONCE).seen[0]
    crossed = [isinstance(there, engine.DeviceArray) for there in batch]
    assert crossed == [True] * 6 + [False] * 6
    for there, here in zip(batch, made[:6]):
        assert np.array_equal(there.to_host(), np.asarray(memoryview(here)))
    # The arrays among them are copies, because the function keeps its own.
    assert all(there is here or isinstance(there, np.ndarray) and np.array_equal(there, here) for there, here in zip(batch[6:], made[6:]))


class Moves:
    """An array of another framework, which comes to the host when it is asked for the `at`th time."""

    def __init__(self, at):
        self.left = at

    def __dlpack_device__(self):
        self.left -= 1
        return (1 if self.left <= 0 else 2, 0)

    def __array__(self, *args, **kwargs):
        return np.zeros(3)


def test_an_array_that_moves_while_it_crosses_fails_the_step(eng):
    failed = 0
    for at in range(1, 9):
        try:
            (batch,) = Program(eng, lambda row: [Moves(at), np.zeros(2)], rows=1, **AT_ONCE).seen
            assert len(batch) == 2 and np.array_equal(batch[1].to_host(), np.zeros(2))
        except engine.UsageError as error:
            assert "has other arrays than when its copy to the device began" in str(error)
            failed += 1
    assert failed  # between the look that finds the arrays and the one that replaces them


def test_a_value_may_be_used_on_both_sides(eng):
    @engine.op
    def parse(row):
        return np.full(3, row, np.float64), "note"

    @engine.op(place=engine.gpu(0))
    def on_device(pair):
        return type(pair[0]).__name__, pair[1]

    @engine.op
    def on_host(pair):
        return float(pair[0].sum())

    def step(row):
        pair = parse(row)
        return on_device(pair), on_host(pair)

    for options in WAYS:
        with engine.data.smart_stage(step, iter(range(5)), stage_subgraph_on_cpu=True, engine=eng, **options) as steps:
            for row in range(5):
                there, here = steps.step()
                assert (there.get(), here.get()) == (("DeviceArray", "note"), 3.0 * row)


def test_arrays_outlive_their_steps_but_not_their_engine(eng):
    program = Program(eng, lambda row: np.full(1000, row), **AT_ONCE)
    kept = program.seen
    assert [int(there.to_host()[999]) for there in kept] == list(range(20))
    assert len({there.address for there in kept}) == 20
    with pytest.raises(AttributeError, match="of kind 'software' has no __cuda_array_interface__"):
        kept[0].__cuda_array_interface__  # noqa: B018
    assert not hasattr(kept[0], "__cuda_array_interface__")
    assert repr(kept[0]) == "<engine.DeviceArray <i8 of 1000 on device 0>"


def test_the_interface_for_frameworks_describes_what_is_there(eng):
    """On the software device, whose memory is the host's, NumPy can take by it what a framework would take on CUDA."""
    made = [np.arange(24, dtype="<f4").reshape(2, 3, 4), np.array([True, False]), np.float64(2.5) * np.ones((1, 1)),
            np.arange(5, dtype=np.uint16)]  # fmt: skip
    (batch,) = Program(eng, lambda row: made, rows=1, **AT_ONCE).seen
    for there, here in zip(batch, made):
        said = there._interface()
        assert said == {"shape": here.shape, "typestr": here.dtype.str, "data": (there.address, False),
                        "version": 3, "strides": None, "stream": None}  # fmt: skip
        assert said["data"][0] % here.itemsize == 0

        class Taken:
            __array_interface__ = {k: v for k, v in said.items() if k != "stream"}

        assert np.array_equal(np.asarray(Taken()), here) and np.array_equal(np.asarray(Taken()), there.to_host())


def test_memory_is_used_again_once_nobody_has_it(eng):
    seen = set()

    @engine.op
    def parse(row):
        return np.zeros(1000)

    weights = engine.value(None, engine=eng)

    @engine.op(updates="weights", place=engine.gpu(0))
    def train(weights, batch):
        seen.add(batch.address)

    @engine.op(updates="weights", outputs=1)
    def end(weights):
        return None

    def step(row):
        train(weights, parse(row))
        return end(weights)

    for done in engine.data.smart_stage(step, iter(range(200)), stage_subgraph_on_cpu=True, engine=eng, **AT_ONCE):
        done.get()
    assert len(seen) < 20


def test_a_source_may_work_on_its_stages_lane(eng):
    lanes = []

    def rows():
        for row in range(3):
            ready = engine.Var("ready", eng)
            lanes.append(engine.data.stage_lane())
            eng.push(lambda: None, writes=[ready], place=engine.data.stage_lane())
            yield row, ready

    stage = engine.data.staged(rows(), stage_subgraph_stream_id=2, engine=eng)
    for _, ready in stage:
        ready.wait()
    assert set(lanes) == {engine.gpu(0, lane=17)}
    assert engine.data.stage_lane() == engine.cpu()
    with pytest.raises(engine.UsageError, match=r"0 … 8 is expected"):
        engine.data.staged(rows(), stage_subgraph_stream_id=9, engine=eng)


def test_copies_end_with_a_cancel(eng):
    gate = threading.Event()

    def parse(row):
        if row == 3:
            gate.wait(PATIENCE)
        return np.zeros(3)

    weights = engine.value(None, engine=eng)

    @engine.op
    def parsed(row):
        return parse(row)

    @engine.op(updates="weights", place=engine.gpu(0), outputs=1)
    def train(weights, batch):
        return batch.shape

    steps = engine.data.smart_stage(
        lambda row: train(weights, parsed(row)), iter(range(9)), stage_subgraph_on_cpu=True, engine=eng, **AT_ONCE
    )
    assert [steps.step().get() for _ in range(3)] == [(3,)] * 3
    steps.cancel()
    gate.set()
    with pytest.raises(engine.CancelledError):
        steps.step()
