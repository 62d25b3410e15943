"""The five models of examples/recommenders, compiled: outputs, gradients and weights are those of the eager ones."""

import copy
import pathlib
import sys

import pytest
import torch
from support import MODES, check, close, compiled, same

import engine.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples"))

from recommenders import schema  # noqa: E402
from recommenders.layers import Inputs  # noqa: E402
from recommenders.models import MODELS  # noqa: E402

ROWS, LENGTH = 6, 4


def data_of(name):
    kind = MODELS[name]
    return schema.amazon(0.0005, LENGTH) if kind.data == "amazon" else schema.DATASETS[kind.data](0.0005)


def batch(data, seed, rows=ROWS):
    """Inputs and labels with values that are missing, and lists that end."""
    torch.manual_seed(seed)

    def keys(columns, *shape):
        made = [torch.randint(0, min(9, c.buckets), (rows, *shape)) for c in columns]
        return torch.stack(made) if made else torch.zeros(0, rows, *shape, dtype=torch.int64)

    lists = keys(data.lists, data.length) * (torch.arange(data.length) < torch.randint(0, data.length + 1, (rows, 1)))
    return Inputs(torch.rand(rows, len(data.dense)), keys(data.single), lists), torch.randint(0, 2, (rows,)).float()


class Both(torch.nn.Module):
    """What serving asks for and what training asks for."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, label):
        return self.model(inputs), self.model.loss(inputs, label)


@pytest.mark.parametrize("name", list(MODELS))
def test_outputs_and_gradients_of_every_model_are_those_of_eager(forced, name):
    data = data_of(name)
    # DIEN looks its items up in three places, so their gradients are added up in another order.
    check(Both(MODELS[name].make(data, False)), *batch(data, 1), steps=2 * len(MODES), gradients=close if name == "dien" else same,
          before=lambda step: forced(MODES[step // 2]))  # fmt: skip


@pytest.mark.parametrize("name", list(MODELS))
def test_batches_of_many_sizes_need_no_more_graphs_than_torchs_own(forced, name):
    forced("workers")
    data, model = data_of(name), MODELS[name].make(data_of(name), False)
    found, graphs = [], []
    for called in (compiled(model, dynamic=True), torch.compile(model, backend="eager", dynamic=True), model):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        found.append([])
        for rows in (6, 9, 17, 4):
            inputs, label = batch(data, rows, rows)
            model.zero_grad()
            out = called(inputs)
            torch.nn.functional.binary_cross_entropy_with_logits(out, label).backward()
            found[-1].append((out, [p.grad for p in model.parameters()]))
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    for ours, theirs in zip(found[0], found[2]):
        close(*ours[:1], *theirs[:1])
        close(ours[1], theirs[1])
    assert graphs[0] == graphs[1]


@pytest.mark.parametrize("name", list(MODELS))
def test_autocast_casts_as_torchs_own_graphs_do(forced, name):
    """Its partition keeps numbers of fewer bits, so gradients are compared with those of a graph that torch itself runs."""
    forced("workers")
    data = data_of(name)
    models = [MODELS[name].make(data, False)]
    models.append(copy.deepcopy(models[0]))
    found = []
    for called, model in zip((compiled(models[0]), torch.compile(models[1], backend="aot_eager")), models):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inputs, label = batch(data, 5)
            out = called(inputs)
        torch.nn.functional.binary_cross_entropy_with_logits(out.float(), label).backward()
        found.append((out, [p.grad for p in model.parameters()]))
    same(found[0][0], found[1][0])
    close(found[0][1], found[1][1])


@pytest.mark.parametrize("name", ["dlrm", "din"])
def test_sparse_gradients_of_tables_are_those_of_eager(forced, name):
    forced("workers")
    data = data_of(name)
    check(Both(MODELS[name].make(data, True)), *batch(data, 2), steps=2)


@pytest.mark.parametrize("name", list(MODELS))
def test_a_whole_step_of_every_model_leaves_the_weights_of_the_eager_one(forced, name):
    forced("workers")
    data = data_of(name)
    ours = MODELS[name].make(data, False)
    theirs = copy.deepcopy(ours)

    def step_of(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(inputs, label):
            optimizer.zero_grad()
            loss = model.loss(inputs, label)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    step, eager = engine.torch.compile_step(step_of(ours), options={"workers": 2}), step_of(theirs)
    for seed in range(3):
        same(step(*batch(data, seed)), eager(*batch(data, seed)))
    assert not step.why_eager
    same(dict(ours.state_dict()), dict(theirs.state_dict()))
