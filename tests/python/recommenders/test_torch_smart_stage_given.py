"""engine.torch.smart_stage: batches with tensors of other layouts or with attributes, loaders that wait for the program, and what
goes with a stage that the program forgets."""

import collections
import copy
import gc
import queue
import threading
import types
import weakref

import pytest

from small_files import PATIENCE, one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import numpy
import torch

import engine.torch

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}  # staged from the first step on
WAYS = [{}, AT_ONCE, {**AT_ONCE, "capacity": 4}, {"do_smart_stage": False}]


def rows(count=16):
    return [torch.full((3, 4), i / 8 - 1) for i in range(count)]


def sparse():
    return [x.relu().to_sparse() for x in rows()], lambda x: (x * 2).to_dense().sum().item()


def compressed_rows():
    return [x.relu().to_sparse_csr() for x in rows()], lambda x: (x @ torch.ones(4, 1)).sum().item()


def nested():
    return [torch.nested.nested_tensor([x[0], x[1, :2]]) for x in rows()], lambda x: x.to_padded_tensor(0.0).sum().item()


def made_sparse_by_the_step():
    return rows(), lambda x: ((x * 2).to_sparse() * 2).to_dense().sum().item()


def with_attributes():
    given = rows()
    for i, x in enumerate(given):
        x.lengths = [i, i + 1]
    return given, lambda x: (x * 2).sum().item() + sum(x.lengths)


def with_attributes_of_some():
    given, step = with_attributes()
    return [{"x": x, "y": x + 1} for x in given], lambda batch: step(batch["x"]) + (batch["y"] * 3).tanh().sum().item()


@pytest.mark.parametrize("kind", [sparse, compressed_rows, nested, made_sparse_by_the_step, with_attributes, with_attributes_of_some])
def test_steps_are_those_of_the_loop_in_turn(kind):
    given, step = kind()
    expected = [step(x) for x in given]
    for options in WAYS:
        given, step = kind()
        assert list(engine.torch.smart_stage(step, given, **options)) == expected, options


W = torch.ones(3, 4, requires_grad=True)


def by(change):
    """What runs ahead is changed by way of another tensor with its memory."""

    def step(x):
        y = x * 2
        change(y)
        return (y + 1).sum().item(), (x * 2).sum().item()

    return step


def a_view_under_autocast(y):
    with torch.autocast("cpu", torch.bfloat16):
        view = y.view(-1)
    view.mul_(3)


def an_array_under_autocast(y):
    with torch.autocast("cpu", torch.bfloat16):
        array = y.numpy()
    array[0, 0] += 70


def with_gradients_behind_no_grad(x):
    with torch.no_grad():
        y = x * 2 + 1
    y += W
    loss = (y * y).sum()
    loss.backward()
    gradient, W.grad = W.grad, None
    return loss.item(), gradient.sum().item()


def other_data(x):
    y = x * 2
    y.data = x + 100
    x.data = x + 1
    return (y + 1).sum().item(), (x * 2).sum().item()


def a_transform(x):
    doubled = x * 2
    gradient = torch.func.grad(lambda w: (doubled * w + x).square().sum())(torch.ones(4))
    return gradient.sum().item(), (x * 3).sum().item()


@pytest.mark.parametrize("step", [by(a_view_under_autocast), by(an_array_under_autocast), by(lambda y: y.expand_as(W).mul_(3)),
                                  by(lambda y: y[numpy.int64(0)].zero_()), by(lambda y: engine.torch.plain(y).mul_(3)),
                                  by(lambda y: copy.copy(y).mul_(3)), lambda x: (copy.copy(x).mul_(3).sum().item(), (x * 2).sum().item()),
                                  with_gradients_behind_no_grad, a_transform, other_data])  # fmt: skip
def test_calls_on_other_tensors_with_the_memory_of_the_items(step):
    expected = [step(x) for x in rows(40)]
    for options in WAYS:
        assert list(engine.torch.smart_stage(step, rows(40), **options)) == expected, options


class Scaled(collections.namedtuple("Scaled", "x")):
    """Its constructor does more than to keep its part."""

    def __new__(cls, x):
        return super().__new__(cls, x / 2)


def test_items_and_results_are_the_programs_objects():
    kept = []

    def step(item):
        kept.append((item.x * 2).sum().item())
        return kept

    expected = [(Scaled(x).x * 2).sum().item() for x in rows()]
    for options in WAYS:
        kept.clear()
        for result in engine.torch.smart_stage(step, [Scaled(x) for x in rows()], **options):
            assert result is kept
        assert kept == expected
        returned = engine.torch.smart_stage(lambda x: Scaled(x * 2), rows(), **options)
        assert [type(made.x) is torch.Tensor and made.x.sum().item() for made in returned] == [x.sum().item() for x in rows()]


@pytest.mark.parametrize("options", [{"profile_steps": 0, "guard_steps": 0, "capacity": capacity} for capacity in (1, 4)])
def test_a_loader_may_wait_for_what_the_program_does_with_a_step(options):
    """While the stage waits for the next item, the step of this one begins and ends."""
    answers, closed = queue.Queue(), []

    def observations():
        value = 1.0
        for _ in range(20):
            yield torch.full((4,), value)
            value = answers.get(timeout=PATIENCE)
        closed.append(True)

    seen = []
    for answer in engine.torch.smart_stage(lambda x: (x * 2).sum().item() / 7, observations(), **options):
        seen.append(answer)
        answers.put(answer)
    assert seen == pytest.approx([(8 / 7) ** n for n in range(1, 21)]) and closed


class Held:
    def __init__(self, teacher):
        self.teacher = teacher


@pytest.mark.parametrize("options", WAYS)
def test_a_teacher_with_attention_works_as_in_the_loop(options):
    """Where it gets other than torch's own tensors, torch takes another way, which fills rows of padding otherwise."""
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    teacher = torch.nn.TransformerEncoder(layer, 1).requires_grad_(False)
    held = types.SimpleNamespace(inside=[Held(teacher)])
    padding = torch.arange(5) > torch.tensor([[4], [2], [1]])
    given = [torch.randn(3, 5, 8) for _ in range(12)]

    def step(x):
        return held.inside[0].teacher.eval()(x * 2, src_key_padding_mask=padding).sum().item()

    expected = [step(x) for x in given]
    steps = engine.torch.smart_stage(step, given, **options)
    assert list(steps) == expected
    assert "a TransformerEncoder, which in evaluation mode works otherwise" in steps.explain()


class Trainer:
    def __init__(self, cancels):
        self.cancels, self.closed = cancels, threading.Event()

    def batches(self):
        try:
            yield from rows(1000)
        finally:
            self.closed.set()

    def step(self, x):
        return (x * 2).sum().item()

    def train(self):
        self.steps = engine.torch.smart_stage(self.step, self.batches(), **AT_ONCE)
        for _ in zip(range(5), self.steps):
            pass
        if self.cancels:
            self.steps.cancel()
        return self.closed


@pytest.mark.parametrize("cancels", [True, False])
def test_with_a_stage_its_loader_and_the_object_whose_step_it_runs_go(cancels):
    trainer = Trainer(cancels)
    closed, gone = trainer.train(), threading.Event()
    weakref.finalize(trainer, gone.set)
    del trainer
    for _ in range(int(PATIENCE * 10)):
        gc.collect()
        if gone.wait(0.1) and closed.is_set():
            return
    pytest.fail(f"object gone: {gone.is_set()}, loader closed: {closed.is_set()}")
