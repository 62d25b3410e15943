"""Forks, threads, and the end of the interpreter."""

import os
import pathlib
import subprocess
import sys
import textwrap
import threading

import torch
from support import compiled, same
from torch import nn

TRAINING = """
    import threading, torch, engine.torch
    from support import layers, training

    torch.set_num_threads(1)
    torch.manual_seed(0)  # of some others all units of the first layer are dead
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # Adam reads .item(), where torch itself may abort at exit
    step = engine.torch.compile_step(training(model, optimizer), options={"workers": 2})
    x = torch.ones(4, 8)
    for _ in range(2): step(x)
    step.last.choice.hold("workers")
    for _ in range(2): step(x)
    assert not step.why_eager
"""


def program(text):
    path = os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(TRAINING) + textwrap.dedent(text)], capture_output=True,
                          text=True, timeout=120, env=os.environ | {"PYTHONPATH": path})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child_trains_on():
    out = program("""
        import os
        before = [p.clone() for p in model.parameters()]
        child = os.fork()
        if child == 0:
            for _ in range(3): step(x)
            os._exit(0 if not torch.equal(before[0], model[0].weight) else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        for _ in range(3): step(x)
    """)
    assert out.split() == ["0"]


def test_the_workers_of_many_children_begin_at_once():
    """The first thread of a child that asks torch for its number of threads makes torch's own anew."""
    out = program("""
        import os
        ended = []
        for _ in range(40):
            child = os.fork()
            if child == 0:
                try:
                    for _ in range(2): step(x)
                    os._exit(0)
                finally:
                    os._exit(1)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(sum(ended))
    """)
    assert out.split() == ["0"]


def test_products_that_are_not_shared_bring_no_thread_beside_the_workers():
    out = program("""
        import os
        from engine.torch import products

        products.tried = lambda form, threads, precision: (products.Trial(2.0, 1.0, True, 64),)
        from support import compiled

        ours = compiled(lambda a, b: (a @ b, b @ a))
        a, b = torch.randn(256, 256), torch.randn(256, 256)
        ours(a, b)
        region, = engine.torch.regions.compiled
        region.choice.hold("in turn")
        ours(a, b)
        threads = len(os.listdir("/proc/self/task"))
        region.choice.hold("workers")
        for _ in range(200): ours(a, b)
        lowered = region.programs["inference"].lowered
        assert [lowered.by(i) for i in range(2)] == ["oneDNN's brgemm"] * 2
        print(len(os.listdir("/proc/self/task")) - threads)
    """)
    assert out.split() == ["0"]


def test_a_worker_keeps_what_python_keeps_for_a_thread(forced):
    """threading.local ends with the thread's state, so a state that is made anew for each call has lost it. Such a state
    would also be made where no fork waits for it: CPython 3.11 hangs a child whose parent was making one."""
    forced("workers")
    kept, caller = threading.local(), threading.get_ident()
    found: dict[int, list[int]] = {}  # by worker: how many calls it knew of, call by call

    @torch.library.custom_op("engine_test::keeps", mutates_args=())
    def keeps(x: torch.Tensor) -> torch.Tensor:
        if threading.get_ident() != caller:
            kept.calls = getattr(kept, "calls", 0) + 1
            found.setdefault(threading.get_ident(), []).append(kept.calls)
        return x.clone()

    keeps.register_fake(torch.empty_like)
    ours = compiled(lambda x: sum(keeps(x + i) for i in range(16)))
    with torch.no_grad():
        for _ in range(1000):
            ours(torch.ones(2, 4))
            if any(len(calls) > 4 for calls in found.values()):
                break
    assert found, "no worker has run a node"
    for calls in found.values():
        assert calls == list(range(1, len(calls) + 1))


def test_loaders_that_fork_work_beside_a_step():
    out = program("""
        data = torch.utils.data.TensorDataset(torch.randn(16, 8))
        for (batch,) in torch.utils.data.DataLoader(data, 4, num_workers=1, multiprocessing_context="fork"):
            step(batch)
        print("done")
    """)
    assert out.split() == ["done"]


def test_the_interpreter_may_end_while_a_thread_trains():
    program("""
        entered = threading.Event()
        def train():
            while True:
                step(x)
                entered.set()
        threading.Thread(target=train, daemon=True).start()
        assert entered.wait(60)
    """)


def test_threads_may_call_one_model_at_once(forced):
    forced("workers")
    model = nn.Linear(8, 8)
    ours = compiled(model)
    x = torch.randn(4, 8)
    with torch.no_grad():
        ours(x)
    wrong = []

    def call(seed):
        mine = torch.full((4, 8), float(seed))
        with torch.no_grad():
            for _ in range(20):
                if not torch.equal(ours(mine), model(mine)):
                    wrong.append(seed)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_step_called_inside_a_node_of_another(forced):
    forced("workers")
    inner = compiled(nn.Linear(4, 4).requires_grad_(False))
    x = torch.ones(2, 4)
    inner(x)

    @torch.library.custom_op("engine_test::nested", mutates_args=())
    def nested(x: torch.Tensor) -> torch.Tensor:
        return inner(x).clone()

    nested.register_fake(torch.empty_like)
    outer = compiled(lambda x: nested(x) + nested(x * 2) + nested(x * 3))
    with torch.no_grad():
        for _ in range(3):
            same(outer(x), inner(x) + inner(x * 2) + inner(x * 3))


TOGETHER = """
    import sys, torch, engine.torch, warnings
    import torch.distributed as dist, torch.distributed._functional_collectives as functional
    from torch import nn
    from torch.nn.functional import mse_loss

    rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.set_num_threads(1)

    def summed(t):
        return functional.wait_tensor(functional.all_reduce(t, "sum", dist.group.WORLD))

    def trained(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 1))
        call, update, told = wrap(model)
        losses = []
        for i in range(60):
            x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1000 * rank + i))
            losses.append(update(call, x).item())
        return losses + [p.tolist() for p in model.parameters()], told
"""


def two_processes(text, folder):
    """What two processes of one group print."""
    text = textwrap.dedent(TOGETHER) + textwrap.dedent(text) + "\ndist.barrier(); dist.destroy_process_group()\n"
    both = [subprocess.Popen([sys.executable, "-c", text, str(rank), str(folder / "store")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(2)]  # fmt: skip
    try:
        done = [process.communicate(timeout=120) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], done
    return [out for out, _ in done]


def test_processes_make_collectives_of_a_step_in_one_order(tmp_path):
    said = two_processes("""
        def eager(model): return wrapped(model, lambda step: step)
        def plan(model): return wrapped(model, lambda step: engine.torch.compile_step(step, options={"workers": 2}))

        def wrapped(model, compile):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            @compile
            def step(x):
                optimizer.zero_grad()
                loss = mse_loss(model(x).squeeze(1), x.sum(1))
                loss.backward()
                for p in model.parameters():
                    p.grad.copy_(summed(p.grad) / 2)
                optimizer.step()
                return loss
            def update(call, x):
                if getattr(step, "last", None) and rank == 0:
                    step.last.choice.hold("workers")  # the other one chooses for itself
                return step(x)
            return None, update, step

        (expected, _), (found, step) = trained(eager), trained(plan)
        print(found == expected, repr(step.why_eager))
    """, tmp_path)  # fmt: skip
    assert said == ["True ''\n"] * 2


def test_a_step_with_a_collective_in_place_runs_eagerly_and_says_so(tmp_path):
    said = two_processes("""
        warnings.simplefilter("ignore")
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        @engine.torch.compile_step
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
            return loss
        for _ in range(4):
            step(torch.ones(4, 8))
        print(step.why_eager[:48])
    """, tmp_path)  # fmt: skip
    assert said == ["it calls a collective of torch.distributed that \n"] * 2


def test_graphs_with_collectives_run_in_turn_on_all_processes(tmp_path):
    said = two_processes("""
        class Sum(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return summed(x)
            @staticmethod
            def backward(ctx, gradient): return summed(gradient)

        def model_of(model):
            return lambda x: sum(Sum.apply(model(x * k)) for k in (1.0, 0.5, 0.25))

        def eager(model): return model_of(model), update, None
        def plan(model):
            return torch.compile(model_of(model), backend=engine.torch.backend, options={"workers": 2}), update, None

        def update(call, x):
            loss = mse_loss(call(x).squeeze(1), x.sum(1))
            loss.backward()
            return loss

        (expected, _), (found, _) = trained(eager), trained(plan)
        print(torch.allclose(torch.tensor(expected[:60]), torch.tensor(found[:60])),
              sorted({(region.choice.decided, region.choice.why[:18]) for region in engine.torch.regions.compiled}))
    """, tmp_path)  # fmt: skip
    assert said == ["True [('in turn', 'it has collectives')]\n"] * 2


def test_ops_that_return_the_first_tensors_do_not_wait_for_each_other_for_ever():
    out = program("""
        import threading, time
        import engine

        both, empty = threading.Barrier(2), torch.empty

        def slowly(*args, **kwargs):
            time.sleep(.2)  # gives the interpreter up, as the real one does
            return empty(*args, **kwargs)

        @engine.op
        def made(n):
            both.wait(20)
            return torch.zeros(n)

        engine.init(workers=2)
        torch.empty = slowly
        print([len(value.get()) for value in [made(2), made(3)]])
    """)
    assert out.strip() == "[2, 3]"
