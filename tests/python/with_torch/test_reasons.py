"""compile_step: what a step says that torch cannot trace; and a call that raises eagerly, too, says nothing of other calls."""

import re

import pytest
import torch
from kinds import net
from programs import compared, nothing, plain
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

import engine.torch

NUMBER = r"it reads a number out of a tensor, as \.item\(\), float\(\), `if tensor:` and torch\.equal\(\) do"


def condition(model, x):
    loss = model(x).square().mean()
    return loss if torch.isfinite(loss) else loss * 0


REASONS = {
    "a condition": (condition, NUMBER + r" \(at .*test_reasons.py:\d+: return loss if torch.isfinite"),
    "a distribution": (lambda m, x: -torch.distributions.Normal(m(x), 1.0, validate_args=True).log_prob(x[:, :4]).mean(), NUMBER),
    "equal": (lambda m, x: m(x).mean() * (2 if torch.equal(x, x) else 1), NUMBER),
    "a size": (lambda m, x: F.ctc_loss(m(x)[:, None].log_softmax(-1), torch.ones(1, 2).long(), torch.tensor([6]), torch.tensor([2])),
               "it makes a tensor whose size only the data say"),
    "a view that is changed": (lambda m, x: m(x).quantile(0.9), r"changes what a tensor is a view of, at .*test_reasons.py:\d+: "),
    "a distribution that does not look": (lambda m, x: -torch.distributions.Normal(m(x), 1.0, validate_args=False).log_prob(x[:, :4]).mean(), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_a_step_says_why_it_cannot_be_traced(name):
    loss, reason = REASONS[name]

    def make():
        model = nn.Linear(8, 4)
        return model, plain(SGD(model.parameters(), lr=0.1), lambda x: loss(model, x)), nothing, nothing

    why = compared(make, 3).why_eager
    assert re.search(reason, why) if reason else not why


def test_what_torch_would_log_of_a_capture_is_one_line(capfd):
    """torch's formula for the sizes of this gradient is wrong, and it would log a page about that."""
    bag = nn.EmbeddingBag(30, 8, mode="sum", sparse=True)
    step = engine.torch.compile_step(plain(SGD(bag.parameters(), lr=0.1), lambda *given: bag(*given).square().sum()))
    with pytest.warns(UserWarning, match="torch cannot trace it: RuntimeError: "):
        for _ in range(3):
            step(torch.randint(0, 30, (10,)), torch.tensor([0, 3, 6]), torch.rand(10))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_batch_that_eager_refuses_too_leaves_the_step_a_plan(forced, at):
    forced("in turn")
    found = []
    for compile in (engine.torch.compile_step, lambda step: step):
        torch.manual_seed(0)
        model = net()
        step = compile(plain(SGD(model.parameters(), lr=0.1, momentum=0.9), lambda x: model(x).square().mean()))
        errors = []
        for i in range(8):
            try:
                step(torch.full((6, 7 if i == at else 8), i / 8))
            except RuntimeError as error:
                errors.append((i, str(error)))
        found.append((errors, [p.tolist() for p in model.parameters()], step))
    assert found[0][:2] == found[1][:2] and [i for i, _ in found[0][0]] == [at]
    step = found[0][2]
    assert not step.why_eager and len(step.ready) == 1 and step.captures == 1


def test_many_batches_that_eager_refuses_use_up_no_captures(forced):
    forced("in turn")
    model = net()
    step = engine.torch.compile_step(plain(SGD(model.parameters(), lr=0.1), lambda x: model(x).square().mean()))
    for _ in range(3):
        step(torch.ones(6, 8))
    for width in range(40):
        if width != 8:
            with pytest.raises(RuntimeError, match="cannot be multiplied"):
                step(torch.ones(6, width))
    step(torch.ones(6, 8))
    assert not step.why_eager and step.captures == 1


def test_an_operator_in_a_variable_is_no_state(forced):
    """torch notes in it what it has found out."""
    forced("in turn")

    def make():
        model, softmax, relu = nn.Linear(8, 4), torch.ops.aten._safe_softmax.default, torch.ops.aten.relu
        return model, plain(SGD(model.parameters(), lr=0.1), lambda x: softmax(relu(model(x)), -1).square().mean()), nothing, nothing

    assert not compared(make).why_eager
