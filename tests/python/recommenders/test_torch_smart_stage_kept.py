"""engine.torch.smart_stage: steps that keep tensors of earlier batches, change what shares memory with a batch, or change how
PyTorch counts give what the loop in turn gives."""

import collections
import concurrent.futures
import copy
import dataclasses
import sys
import threading

import pytest

from small_files import one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import torch

import engine
import engine.torch
from engine.torch import ahead
from engine.torch.item import Item

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}  # staged from the first step on
WAYS = [{}, AT_ONCE, {**AT_ONCE, "capacity": 3}, {"profile_steps": 3, "guard_steps": 4, "num_threads": 2, "capacity": 4}]


def batches():
    return [{"x": torch.full((2, 3), float(i - 4))} for i in range(12)]


def what_changed():
    last = [torch.zeros(2, 3)]

    def step(batch):
        changed, last[0] = batch["x"] - last[0], batch["x"]
        return changed.sum().item()

    return step, batches()


def mixup_with_the_last_batch():
    last = []

    def step(batch):
        x = batch["x"]
        mixed = torch.lerp(x, last[-1], 0.25) if last else x
        last.append(x)
        return mixed.sum().item()

    return step, batches()


def replay_buffer():
    memory = collections.deque(maxlen=4)

    def step(batch):
        memory.append(batch["x"] * 2)
        return torch.cat(list(memory)).square().sum().item(), torch.stack(list(memory)).mean(0).sum().item()

    return step, batches()


def dataclass_of_the_last_step():
    @dataclasses.dataclass
    class Result:
        tensor: torch.Tensor

    last = [Result(torch.zeros(2, 3))]

    def step(batch):
        result = Result(batch["x"] * 2)
        difference, last[0] = result.tensor - last[0].tensor, result
        return difference.sum().item()

    return step, batches()


def views_of_earlier_batches():
    kept = []

    def step(batch):
        kept.append(batch["x"].view(-1)[1:3])
        return [(view * 2).sum().item() for view in kept[-3:]]

    return step, batches()


def an_earlier_batch_is_changed():
    kept = []

    def step(batch):
        x = batch["x"]
        if kept:
            kept[-1].add_(x)
            x.mul_(kept[-1])
        kept.append(x)
        return (x * 2).sum().item(), (kept[0] * 2).sum().item()

    return step, batches()


def functions_over_earlier_batches():
    kept = []

    def step(batch):
        doubled = batch["x"] * 2
        kept.append(lambda: (doubled * 2).sum().item() + (batch["x"] * 2).sum().item())
        return [function() for function in kept]

    return step, batches()


def ops_of_the_engine():
    later, kept = engine.op(lambda t: (t * 2 + 1).sum().item()), []

    def step(batch):
        kept.append(later(batch["x"] * 2))
        return kept[max(0, len(kept) - 2)].get(), (batch["x"] * 2 + 1).sum().item()

    return step, batches()


def threads_of_the_step_that_outlive_it():
    kept = []

    def step(batch):
        kept.append(workers.submit(lambda: [(batch["x"] * 2 + 1).sum().item() for _ in range(20)]))
        earlier = kept[max(0, len(kept) - 2)]
        return earlier.result() if len(kept) > 1 else [], (batch["x"] * 2 + 1).sum().item()

    workers = concurrent.futures.ThreadPoolExecutor(2)
    return step, batches()


def two_equal_calls_and_one_is_changed():
    def step(batch):
        one, other = batch["x"] * 2, batch["x"] * 2
        one.add_(1)
        return one.sum().item(), other.sum().item()

    return step, batches()


def batches_share_memory():
    rows = torch.arange(20.0)

    def step(batch):
        before = (batch["x"] * 2).sum().item()
        batch["x"].add_(1)
        return before, (batch["x"] * 3).sum().item()

    return step, [{"x": rows[i : i + 6]} for i in range(12)]


def what_batches_are_views_of_is_changed():
    rows = torch.arange(20.0)

    def step(batch):
        before = (batch["x"] * 2).sum().item()
        rows.mul_(1.5)
        return before, (batch["x"] * 2).sum().item(), (batch["x"] * 2 + 1).sum().item()

    return step, [{"x": rows[i : i + 6]} for i in range(12)]


def the_batch_is_changed_by_way_of_numpy():
    def step(batch):
        x = batch["x"]
        before = x * 2
        x.numpy()[...] *= 3
        return (x * 2 + before).sum().item()

    return step, batches()


def some_steps_ask_for_the_batchs_gradient():
    numbers, weight = iter(range(100)), torch.tensor(3.0, requires_grad=True)

    def step(batch):
        x = batch["x"].double()
        if next(numbers) % 3 == 2:
            x.requires_grad_()
            (gradient,) = torch.autograd.grad((x / 2 * weight).square().sum(), x)
            x = (x + 0.1 * gradient.sign()).detach()
        return (x / 2).sum().item()

    return step, batches()


def a_call_that_gives_its_argument_as_it_is():
    def step(batch):
        x = batch["x"].float()
        x.requires_grad_()
        (x * x).sum().backward()
        return batch["x"].grad.sum().item()

    return step, batches()


def batch_norm_is_trained_on_other_tensors():
    norm = torch.nn.BatchNorm1d(3, affine=False)

    def step(batch):
        norm.eval()
        seen = norm(batch["x"]).sum().item(), (batch["x"] - norm.running_mean).sum().item()
        norm.train()
        norm(torch.arange(6.0).view(2, 3))
        return seen

    return step, batches()


def copies_of_the_batch():
    def step(batch):
        one = copy.deepcopy(batch["x"])
        both = copy.deepcopy({"x": batch["x"], "flat": batch["x"].view(-1)})
        both["flat"][0] = 7
        one.add_(1)
        return one.sum().item(), both["x"].sum().item(), (batch["x"] * 2).sum().item(), type(one).__name__

    return step, batches()


def some_steps_change_the_default_dtype():
    numbers = iter(range(100))

    def step(batch):
        torch.set_default_dtype(torch.float64 if next(numbers) % 3 == 2 else torch.float32)
        third = (batch["x"] > 0).long() / 3
        torch.set_default_dtype(torch.float32)
        return third.sum().item(), str(third.dtype), str(((batch["x"] > 0).long() / 3).dtype)

    return step, batches()


def some_steps_flush_denormal_numbers():
    numbers = iter(range(100))

    def step(batch):
        torch.set_flush_denormal(next(numbers) % 3 == 2)
        small = (batch["x"].double() * 1e-310).sum().item()
        torch.set_flush_denormal(False)
        return small

    return step, batches()


def some_steps_change_what_no_call_reads_any_more():
    numbers, weight = iter(range(100)), torch.ones(3, requires_grad=True)

    def step(batch):
        number = next(numbers) % 5
        doubled = batch["x"] * 2
        rows = doubled.unbind(0)
        if number == 2:
            rows[1].numpy()[0] = 7
        if number == 3:
            doubled.numpy()[...] += 1
        if number == 4:
            rows[0].add_(1)
        return (rows[0] * weight).sum().item(), (doubled + 1).sum().item(), (rows[1] * weight).sum().item()

    return step, batches()


def a_call_that_copies_some_items_only():
    numbers, weight = iter(range(100)), torch.ones(3, requires_grad=True)

    def step(batch):
        copied = batch["x"].contiguous()
        if next(numbers) > 6:
            copied.numpy()[...] += 1
        return (copied * weight).sum().item(), (batch["x"] * 3).sum().item()

    return step, [{"x": batch["x"].t().contiguous().t() if i < 5 else batch["x"]} for i, batch in enumerate(batches())]


def later_steps_make_other_calls():
    numbers, weight = iter(range(100)), torch.ones(3, requires_grad=True)

    def step(batch):
        later = next(numbers) > 6
        x, doubled = batch["x"], batch["x"] * 2
        if later:
            x.add_(doubled.mul_(2))
        seen = (doubled * weight).sum().item(), (x * weight).sum().item()
        return seen, (doubled + x).sum().item() if later else 0, (x * 2).sum().item() if later else 0

    return step, batches()


KINDS = [what_changed, mixup_with_the_last_batch, replay_buffer, dataclass_of_the_last_step, views_of_earlier_batches,
         an_earlier_batch_is_changed, functions_over_earlier_batches, ops_of_the_engine, threads_of_the_step_that_outlive_it,
         two_equal_calls_and_one_is_changed, batches_share_memory, what_batches_are_views_of_is_changed, the_batch_is_changed_by_way_of_numpy,
         some_steps_ask_for_the_batchs_gradient, a_call_that_gives_its_argument_as_it_is,
         batch_norm_is_trained_on_other_tensors, copies_of_the_batch, some_steps_change_the_default_dtype,
         some_steps_flush_denormal_numbers, some_steps_change_what_no_call_reads_any_more, a_call_that_copies_some_items_only,
         later_steps_make_other_calls]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_the_loop_in_turn(kind):
    step, source = kind()
    expected = [step(batch) for batch in source]
    for options in WAYS:
        step, source = kind()
        assert list(engine.torch.smart_stage(step, source, **options)) == expected, options


@pytest.mark.parametrize("kind", KINDS)
def test_they_hold_where_a_step_gets_plain_tensors_at_once(kind, monkeypatch):
    monkeypatch.setattr(ahead, "_SETTLED", 0)
    monkeypatch.setattr(ahead, "_LOOKED_AT", 4)
    step, source = kind()
    expected = [step(batch) for batch in source]
    step, source = kind()
    assert list(engine.torch.smart_stage(step, source, **AT_ONCE, capacity=6)) == expected


def test_what_no_call_reads_any_more_is_a_plain_tensor_but_in_steps_that_are_looked_at():
    seen, weight = [], torch.ones(3, requires_grad=True)

    def step(batch):
        rows = (batch["x"] * 2).unbind(0)
        seen.append([type(tensor) is torch.Tensor for tensor in (batch["x"], batch["label"], *rows)])
        return sum((row * weight).sum() for row in rows).item()

    source = [{"x": torch.ones(2, 3), "label": torch.zeros(2)} for _ in range(140)]
    assert list(engine.torch.smart_stage(step, source, **AT_ONCE)) == [12] * 140
    plain = [False, True, True, True]  # x is read by the product
    assert all(tensors == [False] * 4 for tensors in seen[:5])
    assert seen.count(plain) > 125 and seen.count([False] * 4) == 140 - seen.count(plain)
    assert seen[63] == seen[127] == [False] * 4


@pytest.mark.parametrize("kind", [what_changed, two_equal_calls_and_one_is_changed, batch_norm_is_trained_on_other_tensors])
def test_they_hold_where_each_item_is_whole_before_its_step(kind):
    """As above, with the program of each item run after the step before it, or before it, but never beside it."""
    step, source = kind()
    expected = [step(batch) for batch in source]
    step, source = kind()
    program, seen, items = ahead.Program(), [], []
    for batch in source[:2]:
        items.append(Item(program, batch))
        program.run(items[-1])
    for i, item in enumerate(items):
        seen.append(step(item.data()))
        item.end()
        if len(items) < len(source):
            items.append(Item(program, source[len(items)]))
            program.run(items[-1])
    assert seen == expected


@pytest.fixture
def threads_that_overtake_one_another():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("kind", [ops_of_the_engine, threads_of_the_step_that_outlive_it])
def test_threads_of_the_step_may_call_while_it_ends(kind, threads_that_overtake_one_another):
    step, source = kind()
    expected = [step(batch) for batch in source]
    for _ in range(20):
        step, source = kind()
        assert list(engine.torch.smart_stage(step, source, **AT_ONCE)) == expected


def test_a_call_on_a_thread_of_the_step_ends_what_runs_ahead_of_it_and_explain_says_so():
    def step(batch):
        doubled = batch["x"] * 2
        ends = threading.Thread(target=doubled.add_, args=(1,))
        ends.start()
        ends.join()
        return (doubled * 3).sum().item()

    source = batches()
    steps = engine.torch.smart_stage(step, source, **AT_ONCE)
    assert list(steps) == [((batch["x"] * 2 + 1) * 3).sum().item() for batch in source]
    assert "in the step add_: is called on a thread that the step does not run on" in steps.explain()


def test_a_tensor_of_another_stage_is_a_plain_tensor():
    def step(batch):
        inner = engine.torch.smart_stage(lambda other: (other["x"] + batch["x"] * 2).sum().item(), batches()[:4], **AT_ONCE)
        return list(inner)

    expected = [[(other["x"] + batch["x"] * 2).sum().item() for other in batches()[:4]] for batch in batches()]
    assert list(engine.torch.smart_stage(step, batches(), **AT_ONCE)) == expected


def test_a_step_that_raises_stop_iteration_does_not_end_the_loop():
    numbers = iter(range(5))

    def step(batch):
        return next(numbers), batch["x"].sum().item()

    steps = engine.torch.smart_stage(step, batches(), **AT_ONCE)
    assert [next(steps)[0] for _ in range(5)] == list(range(5))
    for _ in range(7):
        with pytest.raises(RuntimeError, match="the step raised StopIteration") as caught:
            next(steps)
        assert isinstance(caught.value.__cause__, StopIteration)
    assert list(steps) == [] and steps.position == 12


def test_explain_says_that_a_tensor_with_a_gradient_stays():
    steps = engine.torch.smart_stage(lambda batch: (batch["x"].requires_grad_() * 2).sum().item(), batches(), **AT_ONCE)
    assert len(list(steps)) == 12 and "in the step mul: takes a tensor with a gradient" in steps.explain()
