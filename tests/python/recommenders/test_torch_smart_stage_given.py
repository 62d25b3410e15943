"""engine.torch.smart_stage: batches with tensors of other layouts or with attributes, loaders that wait for the program, and what
goes with a stage that the program forgets."""

import collections
import copy
import gc
import queue
import threading
import time
import types
import weakref

import pytest

from small_files import PATIENCE, one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import numpy
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

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


def beside_an_array_with_its_memory():
    def step(batch):
        batch["raw"] -= batch["raw"].mean()
        return (batch["x"] * 2).abs().sum().item()

    return [{"raw": x.numpy(), "x": x} for x in rows()], step


def of_one_array(changes, count=30):
    """Two tensors that share memory, and do not count each other's changes; later steps change one of them."""
    numbers = iter(range(count))

    def step(batch):
        if next(numbers) > 12:
            changes(batch["all"])
        return (batch["left"] * 3).sum().item(), batch["other"].sum().item()

    arrays = [numpy.full((4, 4), i + 1.0) for i in range(count)]
    given = [{"left": torch.from_numpy(a[:, :2]), "all": torch.from_numpy(a), "other": torch.ones(3)} for a in arrays]
    return given, step


def of_one_array_changed_in_place():
    return of_one_array(lambda x: x.mul_(2))


def of_one_array_changed_by_way_of_numpy():
    return of_one_array(lambda x: x.numpy().__imul__(2))


def made_in_inference_mode():
    with torch.inference_mode():
        given = [{"x": x, "view": x[:, :2]} for x in (x + 1 for x in rows(30))]
    numbers = iter(range(30))

    @torch.inference_mode()
    def step(batch):
        if next(numbers) > 12:
            batch["view"].mul_(2)
        return (batch["x"] * 3).sum().item()

    return given, step


def a_table_made_in_inference_mode():
    with torch.inference_mode():
        table, few = torch.zeros(5, 3), torch.zeros(5)

    @torch.inference_mode()
    def step(ids):
        seen = table[ids].sum().item(), few[ids].sum().item()
        table.add_(1)
        few.add_(1)
        return seen

    return [torch.tensor([i % 5, (i + 1) % 5]) for i in range(30)], step


@pytest.mark.parametrize("kind", [sparse, compressed_rows, nested, made_sparse_by_the_step, with_attributes, with_attributes_of_some,
                                  beside_an_array_with_its_memory, of_one_array_changed_in_place, of_one_array_changed_by_way_of_numpy,
                                  made_in_inference_mode, a_table_made_in_inference_mode])  # fmt: skip
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
                                  by(lambda y: y.apply_(lambda v: v * v)), by(lambda y: y.map_(W.detach(), lambda a, b: a * 10 + b)),
                                  with_gradients_behind_no_grad, a_transform, other_data])  # fmt: skip
def test_calls_on_other_tensors_with_the_memory_of_the_items(step):
    expected = [step(x) for x in rows(40)]
    for options in WAYS:
        assert list(engine.torch.smart_stage(step, rows(40), **options)) == expected, options


FROZEN = torch.ones(4, 2)
WIDE = torch.linspace(0.1, 0.9, 4 * 512).view(4, 512)


class Rounded(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made.bfloat16().float() if isinstance(made, torch.Tensor) and made.dtype == torch.float32 else made


def rounded(x):
    with Rounded():
        y = x * 1.2345
    return y.sum().item(), (x * 2).sum().item()


def counted(x):
    with FlopCounterMode(display=False) as flops:
        y = x @ FROZEN
    return flops.get_total_flops(), y.sum().item()


def attention_by_formula(x):
    y = x.view(1, 1, 3, 4) * 2
    with sdpa_kernel(SDPBackend.MATH):
        made = F.scaled_dot_product_attention(y, y, y)
    return made.view(-1).tolist(), (x * 2).sum().item()


def filled_with_nan(x):
    torch.use_deterministic_algorithms(True)
    try:
        return torch.empty_like(x).isnan().all().item(), (x * 2).sum().item()
    finally:
        torch.use_deterministic_algorithms(False)


def with_other_precisions(x):
    """The second call is made where the precision is as the step found it, so it might run ahead meanwhile."""
    torch.set_float32_matmul_precision("medium")
    try:
        rounded = (x @ WIDE).tolist()
    finally:
        torch.set_float32_matmul_precision("highest")
    return rounded, (x @ WIDE * 2).tolist()


class Percent(torch.Tensor):
    """Products with it are divided by 100."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        return made / 100 if func in (torch.Tensor.mul, torch.Tensor.__mul__, F.embedding) else made


class Meters(torch.Tensor):
    seen = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs)


RATE, LENGTH = torch.full((4,), 7.0).as_subclass(Percent), torch.ones(4).as_subclass(Meters)


def of_another_class(x):
    Meters.seen.clear()
    made = [x * RATE, RATE * x, F.embedding(x[0].long().clamp(0), RATE[:, None]), x * LENGTH, LENGTH * x, torch.cat([x[0], LENGTH]), x * 2]
    seen = list(Meters.seen)
    return [type(engine.torch.plain(y)).__name__ for y in made], [y.as_subclass(torch.Tensor).tolist() for y in made], seen


@pytest.mark.parametrize("step", [rounded, counted, attention_by_formula, filled_with_nan, with_other_precisions, of_another_class])
def test_modes_settings_and_classes_of_the_programs(step):
    expected = [step(x) for x in rows(40)]
    for options in WAYS:
        assert list(engine.torch.smart_stage(step, rows(40), **options)) == expected, options


def test_a_step_that_changes_settings_runs_whole_and_says_so():
    steps = engine.torch.smart_stage(attention_by_formula, rows(40), **AT_ONCE)
    list(steps)
    assert "in the step scaled_dot_product_attention: is called with other settings of PyTorch than its step began with" in steps.explain()
    assert "no call of it, because the step changes settings of PyTorch" in steps.explain()


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


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("ends", ["with", "cancel", "hook", "break"])
def test_at_its_end_a_stage_lets_its_loader_go(ends, options):
    closed = threading.Event()

    def loader():
        try:
            yield from rows(1000)
        finally:
            closed.set()

    steps = engine.torch.smart_stage(lambda x: x.sum().item(), loader(), **options)
    if ends == "with":
        with steps:
            next(steps)
    elif ends == "hook":
        with engine.data.make_prefetch_hook():
            next(steps)
    elif ends == "cancel":
        next(steps)
        steps.cancel()
    else:
        for _ in zip(range(12), steps):
            pass
        del steps
    assert closed.wait(PATIENCE)


@pytest.mark.parametrize("options", WAYS)
def test_behind_a_break_no_thread_reads(options, monkeypatch):
    monkeypatch.setattr("engine.torch.reading._PATIENCE", PATIENCE)  # also where others use the machine
    class Rows(torch.utils.data.Dataset):
        inside = 0

        def __len__(self):
            return 60

        def __getitem__(self, i):
            self.inside += 1
            time.sleep(0.002)
            alone, self.inside = self.inside == 1, self.inside - 1
            return torch.tensor(alone)

    data = Rows()
    for _ in range(3):
        for n, alone in enumerate(engine.torch.smart_stage(lambda x: x.all().item(), torch.utils.data.DataLoader(data, batch_size=2), **options)):
            assert alone and data.inside in (0, 1)
            if n == 12:
                break
        assert data.inside == 0


@pytest.mark.parametrize("options", WAYS)
def test_an_item_may_contain_itself(options):
    def loader():
        for row in rows():
            batch = [row]
            batch.append(batch)
            yield batch

    step = lambda batch: (batch[1] is batch, (batch[0] * 2).sum().item())  # noqa: E731
    assert list(engine.torch.smart_stage(step, loader(), **options)) == list(map(step, loader()))


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
