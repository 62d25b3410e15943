"""engine.torch.smart_stage: calls that are alike and differ, compiled models inside of a step, several threads that iterate."""

import sys
import threading

import pytest

from small_files import PATIENCE, one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import torch
from torch.nn import functional as F

import engine
import engine.torch
from engine.torch import ahead

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}  # staged from the first step on


def columns(count=6):
    return [{"x": torch.full((2, 3), float(i - 8))} for i in range(count)]


def signs(batch):
    x = batch["x"].abs()
    return torch.copysign(x, 0.0).sum().item(), torch.copysign(x, -0.0).sum().item()


def in_place_under_autocast(batch):
    x = batch["x"]
    with torch.autocast("cpu", torch.bfloat16):
        F.relu(x)
        F.relu(x, inplace=True)
    return (x * 2).sum().item()


def in_place_by_position(batch):
    x = batch["x"]
    with torch.autocast("cpu", torch.bfloat16):
        F.relu(x, False)
        F.relu(x, True)
    return (x * 2).sum().item()


def first_outside_then_the_item(batch):
    x, outside = batch["x"], torch.ones(2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        outside.add_(x)
        x.add_(outside)
    return (x * 2).sum().item()


def first_a_weight_then_the_item(batch):
    x, weight = batch["x"], torch.ones(2, 3, requires_grad=True)
    with torch.no_grad():
        weight.add_(x)
        x.add_(weight)
    return (x * 2).sum().item()


@pytest.mark.parametrize("step", [signs, in_place_under_autocast, in_place_by_position, first_outside_then_the_item,
                                  first_a_weight_then_the_item])  # fmt: skip
def test_calls_that_are_alike_are_told_apart(step):
    assert list(engine.torch.smart_stage(step, columns(), **AT_ONCE)) == [step(batch) for batch in columns()]


def in_another_order(x, n):
    made = [x.abs(), x * 2] if n % 3 else [x * 2, x.abs()]
    return [*made, made[n % 2] + 1]


def with_other_constants(x, n):
    least = 0.0 if n % 4 else -0.0
    return [x.clamp(min=n % 5), torch.copysign(x, least), x.clamp(n % 2, 3), x.clamp(min=1, max=3 - n % 3), x.sum(dim=n % 2)]


def the_same_once_or_twice(x, n):
    made = [x + 1 for _ in range(1 + n % 3)]
    made[0].mul_(2)  # each has a result of its own
    return [*made, x + 1]


def once_more_behind_another(x, n):
    if n % 2:
        return [x * 2, x.abs()]
    first = x.abs()
    second = x * 2
    first.mul_(-1)
    return [first, second, x.abs()]


def changed_through_a_view(x, n):
    a = x * 2
    if n % 5 == 4:
        x._base.add_(1)
    return [a, x * 3]


def with_other_tensors(x, n):
    given = (_OUTSIDE, _OTHER)[n % 7 == 6]
    return [x % given, torch.where(x > 0, x, given), x.abs()]


def with_a_table_that_thaws(x, n):
    _TABLE.requires_grad_(n >= 75)
    return [F.embedding(x.abs().long(), _TABLE), x * 2]


def changed_between(x, n):
    a = x.abs()
    if n % 5 == 4:
        x.add_(1)
    return [a, x.abs(), x * 2]


def with_a_gradient(x, n):
    a = x * 2
    if n % 5 == 4:
        x.requires_grad_()
    b = x * 3
    if n % 5 == 4:
        b.sum().backward()
        return [a, b.detach(), x.grad.clone()]
    return [a, b, x.abs()]


def under_autocast(x, n):
    w = x.T.clone()
    with torch.autocast("cpu", torch.bfloat16, enabled=n % 5 == 4):
        return [x @ w, x.abs()]


def lent_to_numpy(x, n):
    a = x.abs()
    if n % 5 == 4:
        x.numpy()[0, 0] = 7
    return [a, x * 2, x + a]


_TABLE = torch.arange(400.0).view(200, 2)
_OUTSIDE, _OTHER = torch.full((2, 3), 3.0), torch.full((2, 3), 5.0)


@pytest.mark.parametrize("calls", [in_another_order, with_other_constants, the_same_once_or_twice, once_more_behind_another,
                                   with_other_tensors, with_a_table_that_thaws, changed_between, changed_through_a_view, with_a_gradient, under_autocast,
                                   lent_to_numpy])  # fmt: skip
def test_a_step_may_call_otherwise_than_the_one_before(calls):
    def run(given):
        numbers = iter(range(1000))

        def step(batch):
            return [(made.requires_grad, made.tolist()) for made in calls(batch["x"], next(numbers))]

        return list(given(step))

    def views():
        return [{"x": batch["x"].clone()[:]} for batch in columns(150)]

    staged = run(lambda step: engine.torch.smart_stage(step, views(), **AT_ONCE))
    assert staged == run(lambda step: map(step, views()))


def test_calls_that_come_as_in_the_step_before_are_told_at_a_glance(monkeypatch):
    looks, seen = [], ahead.staged.key
    monkeypatch.setattr(ahead.staged, "key", lambda *args: looks.append(args) or seen(*args))

    def step(batch):
        x = batch["x"]
        bounded = torch.where(x > 0, x, _OUTSIDE) % _OUTSIDE  # learned a step later than what stands behind it
        return (x.clamp(min=1.0).log1p() + bounded + bounded.unsqueeze(0).abs()).sum().item()

    steps = engine.torch.smart_stage(step, columns(60), **AT_ONCE)
    for _ in range(20):
        next(steps)
    assert looks
    looks.clear()
    for _ in steps:
        pass
    assert not looks


def test_a_call_behind_the_last_node_may_change_the_item(monkeypatch):
    monkeypatch.setattr(ahead, "_MOST", 8)

    def run(given):
        calls = iter(range(100))

        def step(batch):
            x, n = batch["x"], next(calls)
            x * (n / 7)  # another constant in each step, so another node
            doubled = x * 2
            if n > 12:
                x.clamp_(max=0)  # a kind of call that is new
            return (x * 3 + doubled).sum().item()

        return given(step)

    ours = run(lambda step: list(engine.torch.smart_stage(step, columns(20), **AT_ONCE)))
    assert ours == run(lambda step: [step(batch) for batch in columns(20)])


@pytest.mark.parametrize("backend", ["eager", engine.torch.backend], ids=["eager", "engine"])
def test_a_model_that_is_compiled_inside_of_the_step(backend):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    compiled = torch.compile(model, backend=backend)

    def step(batch, model=compiled):
        with torch.no_grad():
            return model(batch["x"] * 2 + 1)

    ours = list(engine.torch.smart_stage(step, columns(), **AT_ONCE))
    for a, batch in zip(ours, columns()):
        torch.testing.assert_close(a, step(batch, model))
        assert type(a) is torch.Tensor


def test_a_backend_that_refuses_the_items_tensors_is_told_of():
    torch._dynamo.reset()
    model = torch.compile(torch.nn.Linear(3, 1), backend="aot_eager")
    steps = engine.torch.smart_stage(lambda batch: model(batch["x"] + 1).detach(), columns(), **AT_ONCE)
    with pytest.raises(engine.UsageError, match=r"call it with engine.torch.plain\(tensor\)"):
        next(steps)
    torch._dynamo.reset()
    steps = engine.torch.smart_stage(lambda batch: model(engine.torch.plain(batch["x"] + 1)).detach(), columns(), **AT_ONCE)
    assert len(list(steps)) == 6


def test_each_thread_that_iterates_keeps_its_threads(monkeypatch):
    """A thread that began to iterate before another one was taken for the stage's own."""
    set_for, second, seen = [], threading.Event(), []
    monkeypatch.setattr(sys.modules["engine.torch.smart_stage"], "set_intra_op_threads", lambda n: set_for.append(threading.get_ident()))

    def load():
        assert second.wait(PATIENCE)  # the second thread is where the first one is
        yield from columns(2)

    steps = engine.torch.smart_stage(lambda batch: threading.get_ident(), load(), num_clients=2, do_smart_stage=False)

    class Telling:
        def acquire(self, **options):
            entered.append(threading.get_ident())
            if len(entered) == 2:
                second.set()
            return free.acquire(**options)

        def release(self):
            free.release()

    entered, free = [], steps._turns._free
    steps._turns._free = Telling()
    threads = [threading.Thread(target=lambda: seen.append(next(steps))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    steps.cancel()
    assert len(set(seen)) == 2 and not set_for


def test_threads_run_steps_in_turn_in_the_order_of_the_items():
    running, order = threading.Lock(), []

    def step(batch):
        assert running.acquire(blocking=False), "two steps at once"
        order.append(int(batch["x"][0, 0]))
        torch.ones(100, 100).sum()  # gives the interpreter's lock up
        running.release()
        return order[-1]

    loader = [{"x": torch.full((1, 1), i)} for i in range(400)]
    steps = engine.torch.smart_stage(step, loader, num_clients=3, **AT_ONCE)
    threads = [threading.Thread(target=lambda: list(steps)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == list(range(400))


def test_more_threads_than_num_clients_and_a_step_that_asks_for_the_next_are_refused():
    steps = engine.torch.smart_stage(lambda batch: next(steps), columns(), **AT_ONCE)
    with pytest.raises(engine.UsageError, match=r"more than num_clients \(1\) threads ask for steps at once; raise num_clients"):
        next(steps)


def a_view_and_a_weight(batch):
    offset = torch.full((3,), 0.5, requires_grad=True)
    view = batch["x"].view(3, 2).T
    view += offset[:1]
    loss = view.square().mean()
    loss.backward()
    return loss.item(), offset.grad.tolist()


def detached(batch):
    return (batch["x"].detach_() * 2).sum().item()


def as_text(batch):
    x = batch["x"] * 2
    return str(batch["x"]), repr(x), f"{x[0, 0]} {x.sum():.3f}", "{:>9.1f}".format(batch["x"].mean())


def a_parameter(batch):
    """Whose values the optimizer changes, and so the batch's."""
    x, doubled = batch["x"], batch["x"] * 2
    offset, copied = torch.nn.Parameter(x), torch.nn.Parameter(doubled.clone())
    optimizer = torch.optim.SGD([offset, copied], 0.5)
    (offset * copied * doubled).sum().backward()
    optimizer.step()
    kinds = [type(p).__name__ for p in (offset, copied)], isinstance(offset, torch.nn.Parameter), isinstance(x, torch.nn.Parameter)
    return kinds, offset.grad.tolist(), (x * 3).tolist(), copied.tolist()


def a_table_of_the_batch(batch):
    table = torch.nn.Embedding.from_pretrained(batch["x"])
    return table(torch.tensor([1])).tolist(), table.weight.requires_grad, list(table.state_dict())


def a_parameter_of_what_asks_for_a_gradient(batch):
    x = batch["x"].requires_grad_()
    offset = torch.nn.Parameter(x)
    (offset * x).sum().backward()
    return offset.grad.tolist(), x.grad.tolist(), offset.is_leaf


KEPT = []


def a_parameter_of_what_was_kept(batch):
    KEPT[:] = [batch["x"] * 2, *KEPT[:1]]
    with torch.no_grad():
        one = KEPT[-1].detach()
    one += 1
    return torch.nn.Parameter(KEPT[-1]).sum().item()


def detached_otherwise(batch):
    x = batch["x"]
    other = x.detach()
    before = (other * 2).sum().item()
    other.mul_(3)
    return before, (x * 2).sum().item(), (other * 2).sum().item()


@pytest.mark.parametrize("step", [a_view_and_a_weight, detached, as_text, a_parameter, a_table_of_the_batch, detached_otherwise,
                                  a_parameter_of_what_asks_for_a_gradient, a_parameter_of_what_was_kept])  # fmt: skip
def test_what_a_step_may_do_with_the_item_it_may_do_with_what_ran_ahead(step):
    expected = [step(batch) for batch in columns(12)]
    KEPT.clear()
    assert list(engine.torch.smart_stage(step, columns(12), **AT_ONCE)) == expected
