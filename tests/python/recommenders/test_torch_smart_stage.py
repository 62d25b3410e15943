"""engine.torch.smart_stage: what runs ahead and what cannot, errors, loaders of every kind, positions, devices, threads."""

import os
import threading
import time

import pytest

from small_files import PATIENCE, one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, IterableDataset

import engine
import engine.torch
from engine.torch import ahead, staged
from engine.torch.item import Item

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}  # staged from the first step on
WAYS = [{}, AT_ONCE, {"profile_steps": 2, "guard_steps": 2}, {**AT_ONCE, "num_threads": 2, "capacity": 4},
        {"do_smart_stage": False}]  # fmt: skip


def items(count=24):
    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(6, 4, generator=generator), "ids": torch.arange(6) + i, "i": i} for i in range(count)]


def results(step, given=None, **options):
    steps = engine.torch.smart_stage(step, items() if given is None else given, **options)
    return list(steps), steps


class Model:
    """Something to train, so that a step has a rest."""

    def __init__(self):
        torch.manual_seed(5)
        self.linear = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.linear.parameters(), 0.1)

    def train(self, x):
        self.optimizer.zero_grad()
        loss = self.linear(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def simple(model, batch):
    return model.train((batch["x"] * 2).tanh())


def in_place(model, batch):
    x = batch["x"]
    doubled = x * 2
    x.add_(1)  # what comes behind sees another x
    return model.train(doubled + x * 3)


def in_place_through_a_view(model, batch):
    x = batch["x"]
    flat = x.view(-1)
    squared = x.square()
    flat[0] = 7
    return model.train(x + squared)


def with_out(model, batch):
    torch.add(batch["x"], 1, out=batch["x"])
    return model.train(batch["x"] * 2)


def random(model, batch):
    return model.train(torch.nn.functional.dropout(batch["x"] * 2, 0.5))


def branches(model, batch):
    x = batch["x"] * 2
    return model.train(x.sin() if batch["i"] % 3 else x.cos().sin())


def a_number_of_the_item(model, batch):
    return model.train(batch["x"] * batch["i"])


def parts(model, batch):
    values, places = torch.max(batch["x"], 0)
    one, two = batch["x"].split(3)
    stacked = torch.stack([one, two], 0).sum(0)
    return model.train((values + places + stacked + batch["x"].shape[0]) / 20)


def autocast(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = (batch["x"] @ batch["x"].T)[:, :4]
    return model.train(x.float())


def gradient_of_the_item(model, batch):
    x = batch["x"].requires_grad_()
    (grad,) = torch.autograd.grad((x * x).sum(), x)
    return model.train(grad)


@pytest.mark.parametrize("step", [simple, in_place, in_place_through_a_view, with_out, random, branches,
                                  a_number_of_the_item, parts, autocast, gradient_of_the_item])  # fmt: skip
def test_steps_are_the_same_whichever_way_they_run(step):
    def run(**options):
        model = Model()
        torch.manual_seed(9)  # for what a step draws
        return results(lambda batch: step(model, batch), **options)[0]

    model = Model()
    torch.manual_seed(9)
    expected = [step(model, batch) for batch in items()]
    for options in WAYS:
        assert run(**options) == expected, options


def test_a_frozen_table_is_looked_up_ahead_until_the_step_changes_it():
    table = torch.arange(400.0).reshape(100, 4)

    def run(changes, ahead=False, **options):
        own, model, asked = table.clone(), Model(), [threading.Event() for _ in items()]

        def loader():
            for item, event in zip(items(), asked):
                event.set()  # the item before has been run ahead
                yield item

        def step(batch):
            found = torch.nn.functional.embedding(batch["ids"], own)
            if changes and batch["i"] % 5 == 4:
                if ahead and batch["i"] + 2 < len(asked):
                    assert asked[batch["i"] + 2].wait(PATIENCE)
                if changes == "in place":
                    own.mul_(0.5)
                else:
                    own.data = own * 0.5
            return model.train(found / 100)

        return results(step, loader(), **options)

    for changes in ("", "in place", "other data"):
        staged, steps = run(changes, True, capacity=4, **AT_ONCE)
        assert staged == run(changes, do_smart_stage=False)[0]
        told = "in the step embedding: reads a tensor that the step changes"
        assert (told in steps.explain()) == bool(changes)
        assert ("embedding" in steps.explain().split("ahead of the step: ")[1].split("\n")[0]) == (not changes)


def test_explain_names_the_calls_and_why_others_stay():
    model = Model()
    _, steps = results(lambda batch: random(model, batch), **AT_ONCE)
    text = steps.explain()
    assert "staged what depends on the item alone" in text
    assert "ahead of the step: mul\n" in text
    assert "in the step dropout: draws random numbers" in text


def test_a_step_that_never_makes_a_call_again_does_not_run_it_ahead_for_ever():
    _, steps = results(lambda batch: a_number_of_the_item(Model(), batch), **AT_ONCE)
    assert "in the step mul (" in steps.explain() and "is not part of every step" in steps.explain()
    assert sum(node is not None for node in steps.program.nodes) <= 5


def test_a_tensor_that_each_step_makes_anew_keeps_its_calls_in_the_step():
    def step(batch):
        with torch.no_grad():
            mask = torch.ones(6, 4)
        return float((batch["x"] * mask).sum() + (batch["x"] * 2).sum())

    seen, steps = results(step, **AT_ONCE)
    assert seen == [step(batch) for batch in items()]
    text = steps.explain()
    assert "in the step mul: takes a tensor that each step makes anew" in text
    assert "ahead of the step: mul, sum" in text


def test_calls_that_take_a_gradient_are_looked_at_once(monkeypatch):
    looked, key = [], staged.key
    monkeypatch.setattr(staged, "key", lambda *args: (looked.append(args), key(*args))[1])
    model, program = Model(), ahead.Program()
    counts = []
    for batch in items(4):
        item, before = Item(program, batch), len(looked)
        program.run(item)
        seen = item.data()["x"]
        for _ in range(5):
            seen.sum() + model.linear(seen).sum()
        item.end()
        counts.append(len(looked) - before)
    layers = sum(args[0] is model.linear.weight for args in looked)
    assert layers == 1 and counts[-1] < counts[0]


def test_a_call_that_takes_a_gradient_and_changes_the_item_is_never_passed_by():
    weight = torch.full((1,), 0.5, requires_grad=True)

    def step(batch):
        x = batch["x"]
        doubled = (x * 2).detach().clone()
        x.add_(weight)  # what comes behind sees another x
        return float((doubled + x.detach() * 3).sum())

    assert results(step, items(), **AT_ONCE)[0] == [step(batch) for batch in items()]


def test_what_a_step_returns_and_keeps_is_plain():
    kept = []

    def step(batch):
        x = batch["x"] * 2
        kept.append(x)
        return {"x": x, "same": batch["x"], "i": batch["i"]}

    seen, steps = results(step, items(6), **AT_ONCE)
    for i, (out, item) in enumerate(zip(seen, items(6))):
        assert type(out["x"]) is type(out["same"]) is torch.Tensor and out["i"] == i
        assert torch.equal(out["x"], item["x"] * 2)
    # What it kept still computes, after its item is gone.
    assert torch.equal(engine.torch.plain(kept[3] + 1), items(6)[3]["x"] * 2 + 1)


@pytest.mark.parametrize("options", WAYS)
def test_a_step_that_raises_fails_alone_at_its_own_line(options):
    given = items(12)
    given[5]["x"] = torch.zeros(6, 3)  # matmul cannot take it

    def step(batch):
        return (batch["x"] @ torch.ones(4)).sum()

    steps = engine.torch.smart_stage(step, given, **options)
    seen = [next(steps) for _ in range(5)]
    with pytest.raises(RuntimeError) as caught:
        next(steps)
    assert any("return (batch" in str(entry.statement) for entry in caught.traceback)
    seen += list(steps)
    assert len(seen) == 11 and steps.position == 12


@pytest.mark.parametrize("options", WAYS)
def test_a_loader_that_fails_gives_its_own_error_after_the_steps_before_it(options):
    def loader():
        yield from items(7)
        raise OSError("rows.parquet: truncated")

    steps = engine.torch.smart_stage(lambda batch: batch["i"], loader(), name="rows", **options)
    assert [next(steps) for _ in range(7)] == list(range(7))
    for _ in range(2):
        with pytest.raises(OSError, match="rows.parquet: truncated"):
            next(steps)


class Rows(Dataset):
    def __init__(self, dies=None):
        self.dies = dies

    def __len__(self):
        return 30

    def __getitem__(self, i):
        if i == self.dies:
            os._exit(3)
        return torch.full((4,), float(i)), i


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.full((4,), float(i)), i) for i in range(30)])


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("options", [AT_ONCE, {"profile_steps": 2, "guard_steps": 2}])
def test_data_loaders_with_and_without_forked_workers(workers, options):
    model = Model()
    loader = DataLoader(Rows(), batch_size=3, num_workers=workers)
    expected = [(model.train(x / 30), i.tolist()) for x, i in loader]
    model = Model()
    assert results(lambda batch: (model.train(batch[0] / 30), batch[1].tolist()), loader, **options)[0] == expected


def test_iterable_datasets():
    loader = DataLoader(Stream(), batch_size=4)
    assert results(lambda batch: float(batch[0].sum()), loader, **AT_ONCE)[0] == [float(x.sum()) for x, _ in loader]


@pytest.mark.parametrize("options", [AT_ONCE, {"do_smart_stage": False}])
def test_a_worker_of_a_loader_that_dies_is_an_error(options):
    loader = DataLoader(Rows(dies=20), batch_size=2, num_workers=1, prefetch_factor=1)
    steps = engine.torch.smart_stage(lambda batch: batch[1].tolist(), loader, **options)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid"):
        list(steps)


@pytest.mark.parametrize("options", [AT_ONCE, {"profile_steps": 2, "guard_steps": 2, "capacity": 3}])
def test_position_says_where_to_go_on(options):
    def step(batch):
        return float((batch["x"] * 2).sum())

    expected = [step(batch) for batch in items()]
    seen, position = [], 0
    while position < 24:
        with engine.torch.smart_stage(step, items(), skip=position, **options) as steps:
            seen += [result for _, result in zip(range(7), steps)]
            position = min(24, position + 7)
            assert steps.position == position
    assert seen == expected


def test_a_stage_has_an_intra_op_team_of_its_own():
    before, seen = torch.get_num_threads(), []
    pool = engine.data.stage_pool("teams", intra_op_threads_num=3)

    class Loader:
        def __iter__(self):
            return iter(items(8))

    def look(batch):
        return torch.get_num_threads()

    def own(threads):
        assert engine.torch.set_intra_op_threads(threads)
        seen.append(torch.get_num_threads())

    for threads in (1, 3):
        thread = threading.Thread(target=own, args=(threads,))
        thread.start()
        thread.join()
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen[:2] == [1, 3] and seen[2] == torch.get_num_threads() == before
    counts, _ = results(
        look, Loader(), use_stage_subgraph_thread_pool=True, stage_subgraph_thread_pool_id=pool, **AT_ONCE
    )
    assert counts == [before] * 8


def test_the_inter_op_threads_of_a_pool_run_calls_side_by_side():
    main, both, teams = threading.get_ident(), threading.Barrier(2), []

    @torch.library.custom_op("engine_test::meet", mutates_args=())
    def meet(x: torch.Tensor) -> torch.Tensor:
        if threading.get_ident() != main:
            both.wait(PATIENCE)  # the other call runs at the same time
            teams.append(torch.get_num_threads())
        return x + 1

    pool = engine.data.stage_pool("side by side", inter_op_threads_num=2, intra_op_threads_num=3)

    def run(**options):
        learned = threading.Event()

        def loader():
            """Items behind the first wait until a step has ended. One that ran ahead earlier might find only the first of
            the two calls learned, and that call would wait for the other in vain."""
            first, *others = items()
            yield first
            assert learned.wait(PATIENCE)
            yield from others

        def step(batch):
            result = (meet(batch["x"]).sum() + meet(batch["ids"]).sum()).item()
            learned.set()
            return result

        pooled = {"use_stage_subgraph_thread_pool": True, "stage_subgraph_thread_pool_id": pool}
        return results(step, loader(), **pooled, **options)

    expected = [(meet(batch["x"]).sum() + meet(batch["ids"]).sum()).item() for batch in items()]
    seen, steps = run(profile_steps=2, guard_steps=4)
    assert seen == expected and not both.broken
    if steps.stats()["read"] > 8 and teams:
        assert set(teams) == {3}
    seen, _ = run(**AT_ONCE)
    assert seen == expected and len(teams) >= 2 and set(teams) == {3} and not both.broken


def test_a_compiled_step_gets_plain_tensors_and_says_so():
    compiled = torch.compile(lambda batch: (batch["x"] * 2).sum(), backend="eager")
    seen, steps = results(compiled, items(6), **AT_ONCE)
    assert [float(s) for s in seen] == [float((item["x"] * 2).sum()) for item in items(6)]
    assert "the step is compiled" in steps.explain()


def test_steps_run_on_the_thread_that_asks_and_modes_hold():
    def step(batch):
        return threading.get_ident(), torch.is_grad_enabled()

    with torch.no_grad():
        assert set(results(step)[0]) == {(threading.get_ident(), False)}


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="'capasity' is unknown"):
        engine.torch.smart_stage(print, [], capasity=3)
    with pytest.raises(TypeError, match="an int is no function"):
        engine.torch.smart_stage(3, [])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"skip": -1}, "skip is -1; 0 … "),
        ({"skip": True}, "skip is a bool; an int is expected"),
        ({"profile_steps": "8"}, "profile_steps is a str"),
        ({"profile_steps": True}, "profile_steps is a bool"),
        ({"guard_steps": None}, "guard_steps is a NoneType"),
        ({"num_threads": "2", "use_stage_subgraph_thread_pool": True}, "num_threads is a str"),
        ({"use_stage_subgraph_thread_pool": True, "stage_subgraph_thread_pool_id": "a"}, "stage_subgraph_thread_pool_id is a str"),
        ({"do_smart_stage": "off"}, "do_smart_stage is a str; True, False or None is expected"),
        ({"stage_subgraph_on_cpu": 1}, "stage_subgraph_on_cpu is an int; True or False is expected"),
        ({"closed_exception_types": "x"}, "smart_stage: closed_exception_types has 'x'"),
        ({"options": {"capacity": 2}}, "options is a dict; a SmartStageOptions or None is expected"),
        ({"graph": len}, "its option graph is another function than its step"),
        ({"input_state": [1]}, "input_state is for ops of the engine's"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_honoured_are_refused(options, message):
    with pytest.raises((TypeError, engine.UsageError), match=message):
        engine.torch.smart_stage(print, [], **options)


def test_the_guard_decides_and_says_what_it_measured():
    def step(batch):
        return float(batch["x"].sum())

    steps = engine.torch.smart_stage(step, items() * 20, profile_steps=4, guard_steps=4)
    seen = list(steps)
    assert seen == [step(batch) for batch in items() * 20]
    report = steps.report
    assert report["decided"]


def test_a_stage_that_was_dropped_makes_the_calls_of_the_plain_step_and_no_others(monkeypatch):
    """Whatever a model's step costs, it costs the same once the guard has dropped the stage."""
    here, read_by, seen, runs = threading.get_ident(), [], [], []
    busy = torch.ones(200, 200)

    class SlowElsewhere:  # reading ahead takes many times as long as the step, so the guard drops the stage
        def __iter__(self):
            for item in items() * 40:
                read_by.append(threading.get_ident())
                for _ in range(0 if read_by[-1] == here else 50):
                    busy @ busy
                yield item

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    run = ahead.Program.run
    monkeypatch.setattr(ahead.Program, "run", lambda *args: (runs.append(args), run(*args))[1])
    model, kinds = Model(), []

    def step(batch):
        kinds.append(type(batch["x"]))
        return simple(model, batch)

    steps = engine.torch.smart_stage(step, SlowElsewhere(), profile_steps=4, guard_steps=4)
    for _ in range(100):
        next(steps)
    assert steps.report["decided"] and not steps.report["on"] and any(thread != here for thread in read_by) and runs
    counts = len(read_by), len(kinds)
    runs.clear()
    with Calls():
        for _ in range(20):
            next(steps)
    dropped, seen, given = seen, [], items()[:20]
    with Calls():
        for batch in given:
            simple(model, batch)
    assert dropped == seen and not runs
    assert set(kinds[counts[1] :]) == {torch.Tensor} and set(read_by[counts[0] :]) == {here}


def test_bytes_of_tensors_bound_what_is_ahead():
    def loader():
        while True:
            yield {"x": torch.ones(1000), "again": None}  # 4,000 bytes, and as many are made of them

    steps = engine.torch.smart_stage(lambda batch: batch["x"] * 2, loader(), capacity=50, capacity_bytes=20000, profile_steps=3, guard_steps=0)
    for _ in range(4):
        next(steps)
    assert not steps.report["in_turn"]
    while not (stage := steps.stats()["stage"])["waiting"]:  # of which nothing else tells
        time.sleep(0)
    assert (stage["fill"], stage["fill_bytes"]) == (2, 16000)
    steps.cancel()
