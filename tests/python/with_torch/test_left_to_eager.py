"""compile_step: steps that do what no run of a plan would run eagerly and say why; several optimizers of one parameter; programs
that have no file."""

import os
import random
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch
from programs import compared, nothing, plain
from torch import nn
from torch.optim import SGD, Adagrad, Adam, SparseAdam

import engine.torch


# --- several optimizers of one parameter


@pytest.mark.parametrize("second", [lambda p: Adam(p, lr=0.05), lambda p: Adagrad(p, lr=0.1, lr_decay=0.5)], ids=["Adam", "Adagrad"])
@pytest.mark.parametrize("first", [lambda p: Adam(p, lr=0.05), lambda p: SGD(p, lr=0.05)], ids=["Adam", "SGD"])
def test_two_optimizers_of_a_trunk_count_by_themselves(forced, first, second):
    forced("in turn")

    def make():
        trunk, a, b = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 1)
        of_a, of_b = first([*trunk.parameters(), *a.parameters()]), second([*trunk.parameters(), *b.parameters()])

        def step(x, both):
            of_a.zero_grad()
            loss = a(trunk(x).tanh()).square().mean()
            loss.backward()
            of_a.step()
            if both:
                of_b.zero_grad()
                (b(trunk(x).tanh()) - 1).square().mean().backward()
                of_b.step()
            return loss

        return nn.ModuleList([trunk, a, b]), step, lambda i: (i % 3 != 2,), nothing

    assert not compared(make, 12).why_eager


# --- what a run would not do


def other_data_of_a_variable(model):
    center = torch.zeros(4)

    def loss(x):
        out = model(x)
        center.data = center.data * 0.9 + out.detach().mean(0) * 0.1
        return (out - center).square().mean()

    return loss


def other_data_of_an_argument(model):
    def loss(x):
        x.data = x.data.clamp(-0.5, 0.5)
        return model(x).square().mean()

    return loss


def an_argument_that_wants_a_gradient(model):
    def loss(x):
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).square().mean(), x)
        return model(x.detach() + 0.1 * gradient.sign()).square().mean()

    return loss


@pytest.mark.parametrize("kind, why", [(other_data_of_a_variable, "it gives a tensor other data"), (other_data_of_an_argument, "it gives a tensor other data"),
                                       (an_argument_that_wants_a_gradient, "which of its arguments require gradients")])  # fmt: skip
def test_a_step_that_changes_more_than_a_run_would_runs_eagerly(forced, kind, why):
    forced("in turn")

    def make():
        model = nn.Linear(8, 4)
        return model, plain(SGD(model.parameters(), lr=0.1), kind(model)), nothing, nothing

    assert why in compared(make).why_eager


class Pooled(nn.Module):
    """Branches that a pool's thread computes."""

    def __init__(self):
        super().__init__()
        self.branches, self.top = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.Linear(24, 4)

    def forward(self, x):
        with ThreadPoolExecutor(1) as pool:
            return self.top(torch.cat(list(pool.map(lambda branch: branch(x), self.branches)), 1))


def test_a_step_that_computes_on_another_thread_runs_eagerly(forced):
    forced("in turn")

    def make():
        model = Pooled()
        return model, plain(SGD(model.parameters(), lr=0.1), lambda x: model(x).square().mean()), nothing, nothing

    assert "it computes with tensors on another thread" in compared(make).why_eager


@pytest.mark.parametrize("read", [lambda kept: kept["step"], lambda kept: kept.get("step"), lambda kept: dict(kept)["step"],
                                  lambda kept: kept["exp_avg"].mean()])  # fmt: skip
def test_a_count_in_python_that_a_step_reads_makes_it_run_eagerly(forced, read):
    forced("in turn")

    def make():
        model = nn.Embedding(4, 4, sparse=True)
        optimizer = SparseAdam(model.parameters(), lr=0.1)

        def loss(x):
            return model(x.long().abs()).square().mean() * (1 + read(optimizer.state[model.weight]) if optimizer.state else 1)

        return model, plain(optimizer, loss), nothing, nothing

    why = compared(make).why_eager
    assert "it reads how often an optimizer has updated" in why if read(dict(step=1, exp_avg=torch.zeros(1))) == 1 else not why


def a_product(model):
    return lambda x: model(x).prod(1).square().mean()


def a_teacher_with_attention(model):
    teacher = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)
    return lambda x: (model(x).mean() - teacher(x[None]).mean()).square()


def a_learned_value(model):
    mask = torch.arange(24).reshape(6, 4) % 3 == 0
    return lambda x: (model(x).masked_fill(mask, model.bias[0]) * x[:, :4].cos()).sum()


def a_learned_value_by_name(model):
    mask = torch.arange(24).reshape(6, 4) % 3 == 0
    return lambda x: (torch.masked_fill(x[:, :4], mask=mask, value=model.bias[0]) * model(x)).sum()


@pytest.mark.parametrize("kind, why", [(a_product, "a gradient through prod"), (a_learned_value, "a gradient through masked_fill"),
                                       (a_learned_value_by_name, "a gradient through masked_fill"), (a_teacher_with_attention, "a TransformerEncoderLayer in evaluation mode")])
def test_what_torch_computes_otherwise_in_a_capture_runs_eagerly(forced, kind, why):
    forced("in turn")

    def make():
        model = nn.Linear(8, 4)
        return model, plain(SGD(model.parameters(), lr=0.1), kind(model)), nothing, nothing

    assert why in compared(make).why_eager


def test_an_argument_with_an_attribute_runs_eagerly(forced):
    forced("in turn")

    def given(i):
        y = torch.zeros(6, 4)
        y.weight = float(i)
        return (y,)

    def make():
        model = nn.Linear(8, 4)
        return model, plain(SGD(model.parameters(), lr=0.1), lambda x, y: ((model(x) - y) * y.weight).square().mean()), given, nothing

    assert "an attribute 'weight' of the program's" in compared(make).why_eager


def test_the_type_of_autocast_and_what_an_optimizer_has_are_followed(forced):
    forced("in turn")

    def make():
        model = nn.Linear(8, 4)
        optimizer = SGD(model.parameters(), lr=0.1)
        optimizer.scale = 1.0

        def loss(x):
            with torch.autocast("cpu"):
                return model(x).float().square().mean() * optimizer.scale * optimizer.defaults["lr"]

        def between(i):
            if i == 4:
                torch.set_autocast_dtype("cpu", torch.float16)
            if i == 6:
                optimizer.scale = 2.0
            if i == 8:
                optimizer.defaults["lr"] = 0.5

        return model, plain(optimizer, loss), nothing, between

    before = torch.get_autocast_dtype("cpu")
    try:
        step = compared(lambda: (torch.set_autocast_dtype("cpu", before), make())[1], 10)
    finally:
        torch.set_autocast_dtype("cpu", before)
    assert not step.why_eager and step.captures == 4


DRAWS = {
    "numpy.random.default_rng without a seed": lambda: float(numpy.random.default_rng().random()),
    "random.SystemRandom": lambda: random.SystemRandom().random(),
    "os.urandom": lambda: os.urandom(1)[0] / 256,
    "time.perf_counter": lambda: time.perf_counter(),
    "time.time_ns": lambda: time.time_ns(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_step_that_asks_for_what_is_new_each_time_runs_eagerly(forced, name):
    forced("in turn")
    model = nn.Linear(8, 4)
    optimizer = SGD(model.parameters(), lr=0.1)

    @engine.torch.compile_step
    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        return DRAWS[name]()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len({step(torch.ones(2, 8)) for _ in range(8)}) > 4
    assert f"it calls {name}" in step.why_eager


@pytest.mark.parametrize("given", [lambda i: torch.nested.nested_tensor([torch.randn(2 + i % 3, 8), torch.randn(3, 8)]),
                                   lambda i: torch.randn(6, 8).to_mkldnn()], ids=["nested", "of oneDNN"])  # fmt: skip
def test_a_batch_of_another_kind_of_tensor_runs_eagerly(forced, given):
    forced("in turn")

    def make():
        model = nn.Linear(8, 4)
        dense = lambda x: x.to_padded_tensor(0.0) if x.is_nested else x.to_dense()  # noqa: E731
        return model, plain(SGD(model.parameters(), lr=0.1), lambda _, x: model(dense(x)).square().mean()), lambda i: (given(i),), nothing

    assert "which a capture cannot stand in for" in compared(make).why_eager


WITHOUT_A_FILE = """
import torch
from torch import nn
import engine.torch

def trained(compile):
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @compile
    def step(x, a):
        optimizer.zero_grad()
        try:
            factor = torch.linalg.cholesky(a)
        except torch.linalg.LinAlgError:
            factor = torch.linalg.cholesky(a + 2 * torch.eye(4))
        loss = (model(x) @ factor).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = []
    for i in range(10):
        if i == 7:
            before = optimizer.step
            def clipped():
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                before()
            optimizer.step = clipped
        losses.append(float(step(torch.randn(6, 8), torch.eye(4) * (-1.0 if i in (5, 8) else 1.0))))
    return losses

print(trained(engine.torch.compile_step) == trained(lambda step: step))
"""


def test_a_program_without_a_file_is_no_code_of_torchs():
    done = subprocess.run([sys.executable, "-W", "ignore", "-"], input=WITHOUT_A_FILE, capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["True"], done.stderr
