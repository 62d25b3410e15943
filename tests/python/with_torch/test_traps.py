"""The traps of running torch's operators on threads of one's own; the numbers are those of docs/torch.md."""

import gc
import math
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from support import MODES, check, compiled, same
from torch import nn

import engine.torch

seen = []  # (thread, torch's threads there) of each call of `look`


@torch.library.custom_op("engine_test::look", mutates_args=())
def look(x: torch.Tensor) -> torch.Tensor:
    seen.append((threading.get_ident(), torch.get_num_threads()))
    return x.clone()


look.register_fake(torch.empty_like)


class Looking(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        return sum(look(part(x)) for part in self.parts)


@pytest.mark.parametrize(("mode", "threads"), [("workers", 1), ("in turn", 1), ("caller", 2)])
def test_1_and_3_kernels_use_one_thread_each_or_the_caller_all(forced, mode, threads):
    forced(mode)
    torch.set_num_threads(2)
    model, seen[:] = Looking(), []
    ours = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            same(ours(torch.ones(2, 8)).shape, torch.Size([2, 8]))
    assert {t for _, t in seen} == {threads} and torch.get_num_threads() == 2


TEAMS = """
import os, sys, threading
sys.path.insert(0, {here!r})
import torch
from support import compiled
from engine.torch.modes import Choice
made = Choice.__post_init__
Choice.__post_init__ = lambda self: (made(self), self.hold("workers"))
torch.set_num_threads(2)
seen = set()

@torch.library.custom_op("engine_test::where", mutates_args=())
def where(x: torch.Tensor) -> torch.Tensor:
    seen.add(threading.get_native_id())
    return x.clone()

where.register_fake(torch.empty_like)
weight = torch.ones(384, 384, dtype=torch.float64)  # MKL multiplies these; oneDNN only narrower numbers

def net(parts):
    return [where((part @ weight).sin()) for part in parts]  # MKL's threads, and those of PyTorch's own loops

ours = compiled(net)
with torch.no_grad():
    small = [weight[:1]] * 8
    for _ in range(20):  # the engine's threads come, and OpenMP's need not
        ours(small)
    before, large = set(os.listdir("/proc/self/task")), [weight] * 8
    seen.clear()
    for _ in range(200):
        ours(large)
        if len(seen) > 1:
            break
    made = set(os.listdir("/proc/self/task")) - before

def eagerly():
    with torch.no_grad():
        there = set(os.listdir("/proc/self/task"))
        (large[0] @ weight).sin()
        print(len(seen), len(made), len(set(os.listdir("/proc/self/task")) - there))

thread = threading.Thread(target=eagerly)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted where Linux lists them")
def test_1_and_3_no_worker_makes_a_team():
    """The kernels of a thread that may use more threads than one make threads of OpenMP's, as those of the last thread do,
    which runs them eagerly. They are counted in a new process, because a worker's stay."""
    script = TEAMS.format(here=os.path.dirname(__file__))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    threads, made, eagerly = map(int, done.stdout.split())
    assert threads > 1 and made == 0 and eagerly == 1


@pytest.mark.parametrize("mode", MODES)
def test_2_running_changes_no_setting_that_dynamo_guards_on(forced, mode):
    forced(mode)
    torch.set_num_threads(2)
    torch._dynamo.utils.counters.clear()
    ours = compiled(Looking())
    with torch.no_grad():
        for _ in range(5):
            ours(torch.ones(2, 8))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_4_random_numbers_come_in_the_order_of_the_graph(forced):
    forced("workers")

    def net(x):
        return [torch.rand(3) + torch.randn(5)[:3] * x, torch.bernoulli(torch.full((9,), 0.5)), nn.functional.dropout(x, 0.5),
                torch.randperm(7), torch.randint(0, 9, (4,)), torch.empty(3).uniform_()]  # fmt: skip

    check(net, torch.ones(3), steps=10)


def test_5_what_is_changed_gets_a_new_version_and_views_stay_views(forced):
    forced("workers")
    model = nn.BatchNorm1d(4)
    ours = compiled(model)
    ours(torch.randn(3, 4))
    before = model.running_mean._version
    ours(torch.randn(3, 4))
    assert model.running_mean._version > before
    x = torch.ones(4, requires_grad=True)
    out = compiled(lambda x: (x * 2).view(2, 2))(x)
    out.sum().backward()
    same(x.grad, torch.full((4,), 2.0))


@pytest.mark.parametrize("mode", MODES)
def test_5_in_inference_mode_nodes_change_tensors_of_that_mode(forced, mode):
    forced(mode)

    def net(caches, x):
        out = []
        for cache in caches:
            cache.add_((cache + x).sin().cos().exp().sum())
            out.append(look(cache) + 1)
        return out

    ours = compiled(net)
    with torch.inference_mode():
        mine, theirs = ([torch.zeros(2000) for _ in range(16)] for _ in range(2))
        for _ in range(20):
            a, b = ours(mine, torch.ones(2000)), net(theirs, torch.ones(2000))
            same(a, b)
            assert all(t.is_inference() for t in a)
    assert not torch.is_inference_mode_enabled()
    fresh = [torch.zeros(2000) for _ in range(16)]
    for made in ours(fresh, torch.ones(2000)):
        assert not made.is_inference()


def test_6_constants_made_in_the_model_are_tensors(forced):
    forced("workers")
    table = torch.arange(4.0)

    def net(x):
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(4) + table

    check(net, torch.ones(4))


def test_7_numbers_do_not_promote(forced):
    forced("workers")

    def net(half, whole, flag):
        return half + 2.5, half * 3, whole + 2, whole / 2, whole * 2.5, flag + 1, 2.0 - half, whole // 2, torch.where(flag, half, 0.0)

    check(net, torch.ones(3, dtype=torch.bfloat16), torch.arange(3), torch.tensor([True, False, True]))


def test_8_what_is_written_at_the_end_is_written_behind_its_readers(forced):
    forced("workers")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(64))

        def forward(self, x):
            reads = [self.seen.sin().sum() + i for i in range(8)]
            self.seen += x
            self.seen.view(8, 8)[0].mul_(2)
            return torch.stack([*reads, self.seen.sum()])

    check(Net(), torch.randn(64), steps=20)


def test_10_sizes_are_computed_from_inputs(forced):
    forced("workers")

    def net(x):
        n = x.shape[0]
        return torch.zeros(n // 3 + max(n, 5), 2) + n % 4 + (x.sum() * (n - 1))

    ours = compiled(net, dynamic=True)
    for n in (6, 9, 17):
        same(ours(torch.ones(n, 2)), net(torch.ones(n, 2)))


def test_11_what_is_no_operator_is_left_to_python(forced):
    forced("workers")

    def net(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) + 1

    ours = compiled(net)
    for x in (torch.ones(3), -torch.ones(3)):
        same(ours(x), net(x))
    region = max(engine.torch.regions.compiled, key=lambda r: r.number)
    (program,) = region.programs.values()
    assert program.why_not == "cond is no operator" and program.lowered is None
    assert "no plan, but calls from Python, because of cond is no operator" in str(engine.torch.explain(ours)[-1])
    # What is an operator stays a program, so the reason is that one node and no other.
    ours = compiled(lambda x: x.sin() + 1)
    same(ours(torch.ones(3)), torch.ones(3).sin() + 1)
    (program,) = max(engine.torch.regions.compiled, key=lambda r: r.number).programs.values()
    assert not program.why_not and program.lowered is not None


@torch.library.custom_op("engine_test::scale_in_place", mutates_args=("x",))
def scale_in_place(x: torch.Tensor, by: float) -> torch.Tensor:
    x.mul_(by)
    return x.sum()


@scale_in_place.register_fake
def _(x, by):
    return x.new_empty(())


@pytest.mark.parametrize("mode", MODES)
def test_11_a_custom_operator_that_changes_its_argument_is_ordered(forced, mode):
    forced(mode)

    def net(x):
        y = x.clone()
        before = [y.sin() + i for i in range(4)]
        total = scale_in_place(y, 3.0) + scale_in_place(y, 0.5)
        return *before, total, y

    ours = compiled(net)
    for _ in range(20):
        x = torch.randn(8)
        same(ours(x), net(x))


def test_11_functions_of_python_s_own_are_called(forced):
    """Numbers that the graph computes: of sizes, and of what a tensor holds."""
    forced("workers")

    def net(x):
        rows = x.shape[0]
        return x[: max(1, rows // 2)] * (rows**2 % 7) + math.sqrt(rows), x.new_zeros(rows + 1).sum() + float(rows) / 3

    ours = compiled(net, dynamic=True)
    for rows in (4, 7, 12):
        x = torch.randn(rows, 3)
        same(ours(x), net(x))


def test_12_python_kernels_run_while_the_caller_waits(forced):
    forced("workers")
    model = Looking()
    ours, x, elsewhere = compiled(model), torch.ones(2, 8), False
    with torch.no_grad():
        for _ in range(300):  # a caller may run all nodes of a call
            seen.clear()
            mine = ours(x)
            assert len(seen) == 6
            elsewhere |= any(thread != threading.get_ident() for thread, _ in seen)
            if elsewhere:
                break
        same(mine, model(x))
    assert elsewhere


def test_13_sparse_gradients(forced):
    forced("workers")
    check(nn.Embedding(10, 4, sparse=True), torch.tensor([1, 2, 2]))


def test_13_workers_flush_denormal_numbers_as_the_caller_does(forced):
    forced("workers")
    ours = compiled(lambda x, y: [a * 0.5 for a in (x, y, x, y, x, y)])
    tiny = torch.full((4,), 1.2e-38)
    if not torch.set_flush_denormal(True):
        pytest.skip("the processor cannot flush denormal numbers")
    try:
        assert all(not a.any() for a in ours(tiny, tiny.clone()))
    finally:
        torch.set_flush_denormal(False)
    assert all(a.all() for a in ours(tiny, tiny.clone()))


@pytest.mark.parametrize("mode", MODES)
def test_13_a_value_is_released_by_its_last_reader(forced, mode):
    """Of four branches with twelve values each, no more are alive than the branches need, whichever thread runs them."""
    forced(mode)
    made, held, mutex = [], [], threading.Lock()

    @torch.library.custom_op("engine_test::count", mutates_args=())
    def count(x: torch.Tensor) -> torch.Tensor:
        with mutex:
            gc.collect()
            held.append(sum(r() is not None for r in made))
            out = x.clone()
            made.append(weakref.ref(out.untyped_storage()))
            return out

    count.register_fake(torch.empty_like)

    def net(x):
        outs = []
        for i in range(4):
            y = x + i
            for _ in range(12):
                y = count(y) + 1
            outs.append(y)
        return outs

    ours, x = compiled(net), torch.ones(4)
    gc.collect()
    gc.freeze()  # what other tests have left would be looked through for each value
    try:
        for _ in range(5):
            made.clear(), held.clear()
            same(ours(x), [x + i + 12 for i in range(4)])
            assert len(held) == 48 and max(held) <= (4 if mode == "workers" else 1)
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("mode", MODES)
def test_13_a_profiler_sees_every_node_whichever_thread_runs_it(forced, mode):
    forced(mode)
    model = Looking()
    ours, x = compiled(model), torch.ones(2, 8)
    with torch.no_grad():
        ours(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            calls, seen[:] = 0, []
            while calls < 3 or (mode == "workers" and calls < 300 and len({thread for thread, _ in seen}) < 2):
                mine, calls = ours(x), calls + 1
        same(mine, model(x))
    (program,) = max(engine.torch.regions.compiled, key=lambda r: r.number).programs.values()
    events = profile.events()
    nodes = [event for event in events if event.name.startswith("engine: ")]
    assert len(nodes) == calls * program.steps
    assert sum(event.name == "aten::addmm" for event in events) == 6 * calls  # what runs inside a node, too
    threads = {event.thread for event in nodes}
    assert len(threads) > 1 if mode == "workers" else len(threads) == 1


def test_13_a_profiler_that_has_ended_sees_no_node(forced):
    forced("workers")
    ours, x = compiled(Looking()), torch.ones(2, 8)
    with torch.no_grad():
        ours(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            ours(x)
        ours(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            pass
    assert not [event for event in profile.events() if event.name.startswith("engine: ")]
