"""Models under torch.compile do what they do eagerly: outputs, gradients, state, random numbers."""

import pytest
import torch
from support import MODES, check, compiled, same
from torch import nn

import engine.torch


def convnet():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 5))


@pytest.mark.parametrize("mode", MODES)
def test_a_convolutional_net_with_batch_norm_trains_as_eager(forced, mode):
    forced(mode)
    check(convnet(), torch.randn(4, 3, 16, 16))


class Residual(nn.Module):
    """A block of a residual net, with a shortcut of its own, and a classifier behind it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))
        self.short, self.last = nn.Conv2d(3, 8, 1, stride=2, bias=False), nn.Linear(8, 5)

    def forward(self, x):
        made = self.norms[1](self.second(self.norms[0](self.first(x)).relu_())) + self.norms[2](self.short(x))
        return self.last(nn.functional.adaptive_avg_pool2d(made.relu_(), 1).flatten(1))


class Cast(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("around", [nn.Sequential, Cast])
def test_a_residual_block_trains_as_eager(forced, mode, around):
    forced(mode)
    check(around(Residual()), torch.randn(4, 3, 16, 16))


def test_a_residual_block_takes_batches_of_many_sizes(forced):
    forced("workers")
    models = [Residual() for _ in range(3)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    results, graphs = [], []
    for model, called in zip(models, (compiled(models[0], dynamic=True), torch.compile(models[1], backend="eager", dynamic=True), models[2])):
        torch._dynamo.utils.counters.clear()
        results.append([])
        for rows in (4, 9, 3, 17):
            torch.manual_seed(rows)
            model.zero_grad()
            out = called(torch.randn(rows, 3, 16, 16))
            out.square().mean().backward()
            results[-1].append([out.detach(), [p.grad for p in model.parameters()]])
        results[-1].append(dict(model.state_dict()))
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    same(results[0], results[2])
    assert graphs[0] == graphs[1]  # no more than torch's own


@pytest.mark.parametrize("mode", MODES)
def test_dropout_draws_the_numbers_of_eager(forced, mode):
    forced(mode)
    branches = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.4), nn.Linear(16, 4)) for _ in range(4))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = branches

        def forward(self, x):
            return torch.cat([b(x) for b in self.branches], 1) + torch.rand(())

    check(Net(), torch.randn(8, 16), steps=20)


def test_attention_and_embeddings_train_as_eager(forced):
    forced("workers")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(50, 16)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)

        def forward(self, ids):
            return self.layer(self.table(ids)).mean(1)

    check(Net(), torch.randint(0, 50, (3, 7)))


def test_autocast_casts_as_eager(forced):
    forced("workers")
    linear = nn.Linear(8, 8)

    def net(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(x).relu() @ linear.weight

    same(compiled(net)(torch.ones(2, 8)), net(torch.ones(2, 8)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(compiled(linear)(torch.ones(2, 8)), linear(torch.ones(2, 8)))


def test_inputs_that_are_changed_in_place_are_changed(forced):
    forced("workers")

    def net(x, y):
        x.add_(1)
        y[1:].mul_(x[1:])
        return x * 2, y.view(-1)[0]

    mine, theirs = (torch.arange(6.0), torch.ones(6)), (torch.arange(6.0), torch.ones(6))
    same(compiled(net)(*mine), net(*theirs))
    same(mine, theirs)


def test_outputs_that_are_inputs_views_duplicates_or_none(forced):
    forced("workers")

    def net(x, y):
        z = x + 1
        return x, x.view(2, 3), z, z, z.t(), None, (y.detach(), 3)

    x, y = torch.arange(6.0).view(2, 3), torch.ones(2, requires_grad=True)
    ours, theirs = compiled(net)(x, y), net(x, y)
    same(ours, theirs)
    assert ours[0] is x and ours[1].data_ptr() == x.data_ptr() and ours[2] is ours[3]


def test_a_dynamic_batch_needs_no_graph_for_each_size(forced):
    forced("workers")
    model = nn.Linear(4, 4)

    def net(x):
        half = x.shape[0] // 2
        return model(x)[:half].reshape(half * 2, 2).sum(1) / x.size(0)

    ours = compiled(net, dynamic=True)
    before = set(engine.torch.regions.compiled)
    for n in (6, 10, 8, 12):
        x = torch.randn(n, 4)
        same(ours(x), net(x))
    assert len(set(engine.torch.regions.compiled) - before) == 1


def test_graph_breaks_and_recompiles(forced):
    forced("workers")
    model = nn.Linear(4, 4)

    def net(x, flag):
        x = model(x)
        if x.sum().item() > 1e9:
            x = x + 1
        return x * 2 if flag else x.relu()

    ours = compiled(net)
    for rows, flag in [(2, True), (2, False), (2, True), (3, True), (4, False), (5, True)]:
        x = torch.ones(rows, 4)
        same(ours(x, flag), net(x, flag))


def test_a_graph_that_breaks_under_autocast_is_cast_as_torchs_own(forced):
    """For each size of a batch, too."""
    forced("workers")

    def gradients(backend):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        model, found = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), []

        def net(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = model[0](x)
                torch._dynamo.graph_break()
                return model[1](x.relu())

        run = torch.compile(net, backend=backend)
        for rows in (2, 3, 4, 3):
            out = run(torch.randn(rows, 4))
            out.float().sum().backward()
            found.append([out.detach(), [p.grad.clone() for p in model.parameters()]])
        assert torch._dynamo.utils.counters["graph_break"]
        return found

    same(gradients(engine.torch.backend), gradients("aot_eager"))


def test_a_compiled_model_inside_another(forced):
    forced("workers")
    inner = compiled(nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), inner, nn.ReLU())
    same(compiled(model)(torch.ones(2, 4)), model(torch.ones(2, 4)))


def test_lists_and_several_outputs_of_an_operator(forced):
    forced("workers")

    def net(x):
        a, _, c = x.split(2, 1)
        top, where = torch.topk(x, 2)
        parts = torch.unbind(x)
        return a @ c.t(), top, where, parts[0] + parts[-1], torch.stack(parts[1:3])

    x = torch.randn(4, 6)
    same(compiled(net)(x), net(x))


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_both_partitions_train(forced, partition):
    forced("workers")
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    ours = torch.compile(model, backend=engine.torch.backend, options={"partition": partition})
    x = torch.randn(3, 4)
    same(ours(x), model(x))
    ours(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
