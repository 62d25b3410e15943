"""engine.torch.smart_stage: tensors on their way to a device, the threads of several producers, and the end of the program."""

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from small_files import PATIENCE, one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import torch

import engine
import engine.torch
from engine.torch import ahead, moving
from engine.torch.item import Item
from engine.torch.team import Team
from engine.torch.unchanged import noted

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}  # staged from the first step on


def items(count=24):
    return [{"x": torch.ones(6, 4), "ids": torch.arange(6) + i} for i in range(count)]


def test_moves_to_a_device_are_packed_into_one_copy(monkeypatch):
    copies, copied = [], moving.copied
    monkeypatch.setattr(moving, "copied", lambda tensors, device: copies.append(len(tensors)) or copied(tensors, device))

    def step(batch):
        x, ids = batch["x"].to("meta"), (batch["ids"] * 2).to(torch.device("meta"), non_blocking=True)
        return (x * 2).shape, ids.dtype, x.device.type, ids.device.type

    seen = list(engine.torch.smart_stage(step, items(), stage_subgraph_on_cpu=True, **AT_ONCE))
    assert seen == [(torch.Size([6, 4]), torch.int64, "meta", "meta")] * 24
    assert len(copies) >= 20 and set(copies[-16:]) == {2}  # earlier items may be read while the program is half learned


def test_what_cannot_be_copied_ahead_is_moved_by_the_step(monkeypatch):
    def full(tensors, device):
        raise torch.OutOfMemoryError("the device is full")

    monkeypatch.setattr(moving, "copied", full)
    steps = engine.torch.smart_stage(lambda batch: batch["x"].to("meta").shape, items(), stage_subgraph_on_cpu=True, **AT_ONCE)
    assert list(steps) == [torch.Size([6, 4])] * 24


def test_packed_tensors_are_what_copies_of_each_would_be():
    made = [torch.randn(3, 5), torch.arange(7), torch.tensor(2.5), torch.zeros(0, 4), torch.randn(4, 6).T, torch.tensor([True, False]),
            torch.randn(3).bfloat16(), torch.randn(4, 6)[:, ::2], torch.randn(5).expand(3, 5),
            torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)]  # fmt: skip
    there = moving.copied(made, torch.device("cpu"))
    alone = [torch.ops.aten._to_copy(t) for t in made]
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(made, there))
    assert [t.stride() for t in there] == [t.stride() for t in alone]
    assert len({t.untyped_storage().data_ptr() for t in there}) == 1


class Cuda:
    """In place of torch.cuda: what is asked of two devices, in order. Each thread has a current device, which is 0 at first."""

    def __init__(self):
        self.here, self.calls = threading.local(), []

    def is_initialized(self):
        return True

    def current_device(self):
        return getattr(self.here, "device", 0)

    def set_device(self, device):
        self.here.device = device

    def Stream(self, device):
        return ("stream", device, len(self.calls))

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.here.device = self.current_device(), stream[1]
        yield
        self.here.device = before

    def Event(self):
        return self

    def record(self):
        self.calls.append(("record", self.current_device()))

    def current_stream(self, device=None):
        return self

    def wait_event(self, event):
        self.calls.append(("wait", self.current_device()))


def test_what_runs_ahead_uses_the_device_of_the_step_and_the_step_waits_for_it(monkeypatch):
    cuda = Cuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(moving.Mover, "_streams", {})
    mover, other = moving.Mover(0), moving.Mover(0)

    def ahead(mover):
        with mover.stream(True):
            return mover._stream(), mover.mark(True)

    with ThreadPoolExecutor(1) as stage:
        streams = []
        for device in (1, 0, 1):
            cuda.set_device(device)
            mover.step()
            stream, event = stage.submit(ahead, mover).result()
            mover.wait(event, [torch.ones(1)])
            streams.append(stream)
        assert stage.submit(cuda.current_device).result() == 0  # as it was
    assert cuda.calls == [(what, device) for device in (1, 0, 1) for what in ("record", "wait")]
    assert streams[0] == streams[2] != streams[1] and [stream[1] for stream in streams] == [1, 0, 1]
    other.step()
    assert other._stream() == streams[0]  # stages of one number share it
    with mover.stream(False):  # a whole step runs where the program says
        assert mover.mark(False) is None


class Streams:
    """In place of torch.cuda: the streams of each thread, and which has waited for which."""

    def __init__(self):
        self.here, self.waited = threading.local(), []

    def is_initialized(self):
        return True

    def current_device(self):
        return 0

    def Stream(self, device):
        return Waits("the stage's", self.waited)

    def current_stream(self, device=None):
        return getattr(self.here, "stream", None) or Waits("the default", self.waited)

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.here.stream = self.current_stream(), stream
        yield
        self.here.stream = before


class Waits(str):
    def __new__(cls, name, waited):
        made = super().__new__(cls, name)
        made.waited = waited
        return made

    def wait_stream(self, other):
        self.waited.append((str(self), str(other)))


@pytest.mark.parametrize("loaders, steps", [("the default", "the default"), ("the loader's", "the steps'"), ("the stage's", "the stage's")])
def test_the_stages_stream_goes_on_behind_those_of_loader_and_steps(monkeypatch, loaders, steps):
    cuda = Streams()
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(moving.Mover, "_streams", {})
    mover = moving.Mover(0)
    with cuda.stream(Waits(steps, cuda.waited)):
        mover.step()

    def ahead():
        with cuda.stream(Waits(loaders, cuda.waited)), mover.stream(True):
            mover.behind()

    with ThreadPoolExecutor(1) as stage:
        stage.submit(ahead).result()
    assert set(cuda.waited) == {("the stage's", other) for other in (loaders, steps) if other != "the stage's"}


class OnDevice(torch.Tensor):
    is_cuda = True


@pytest.mark.parametrize("where", ["leaf", "outside", "nowhere"])
def test_an_item_waits_for_other_streams_if_something_of_it_is_read_on_a_device(monkeypatch, where):
    """It is noted before which changes of it count, so none can come between."""
    program, table, order = ahead.Program(), torch.ones(4, 4), []
    monkeypatch.setattr(ahead, "noted", lambda tensor: order.append("noted") or noted(tensor))
    for i in range(3):
        item = Item(program, torch.arange(4))
        item.leaves = [leaf.as_subclass(OnDevice) if where == "leaf" else leaf for leaf in item.leaves]
        for node in program.nodes:
            node.outside = [tensor.as_subclass(OnDevice) if where == "outside" else tensor for tensor in node.outside]
        program.run(item, behind=lambda: order.append("behind"))
        item.leaves = [leaf.as_subclass(torch.Tensor) for leaf in item.leaves]
        table[item.data()]
        item.end()
    assert order == {"leaf": ["behind", "behind", "noted", "behind"], "outside": ["noted", "behind"], "nowhere": ["noted"]}[where]


def test_each_producer_has_as_many_threads_as_the_pool_leaves_it():
    team, all_of_them = Team(2, 1, callers=2), threading.Barrier(4)
    with ThreadPoolExecutor(2) as producers:
        for made in [producers.submit(team.each, lambda _: all_of_them.wait(PATIENCE), [0, 1]) for _ in range(2)]:
            made.result()
    assert not all_of_them.broken


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "import os; os.fork() or os._exit(0)"])
def test_a_program_may_end_while_its_stage_runs_ahead(end):
    text = f"""
        import itertools, sys, torch, engine.torch
        steps = engine.torch.smart_stage(lambda x: (x * 2).sum(), map(torch.ones, itertools.repeat(64)), capacity=4, **{AT_ONCE})
        for _ in range(9): next(steps)
        print("here", flush=True)
        {end}
    """
    quiet = "ignore:This process:DeprecationWarning"  # of CPython from 3.12 on, at a fork beside threads
    done = subprocess.run([sys.executable, "-W", quiet, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "")


def test_a_forked_child_is_refused_steps_and_the_parent_trains_on():
    steps = engine.torch.smart_stage(lambda batch: batch["x"].sum().item(), items(), **AT_ONCE)
    assert [next(steps) for _ in range(6)] == [24.0] * 6
    child = os.fork()
    if child == 0:
        status = 1
        try:
            next(steps)
        except engine.errors.ForkedWhilePending:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(steps) == [24.0] * 18
