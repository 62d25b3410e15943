"""engine.torch.serve: answers are the model's, bad requests are refused by name, and weights may change."""

import gc
import os
import resource
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import engine
import engine.torch

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

from recommenders import schema  # noqa: E402
from recommenders.layers import Inputs  # noqa: E402
from recommenders.models import MODELS  # noqa: E402

BATCH = ((Inputs(0, 1, 1),), {})
ROWS = (1, 2, 3, 8, 17, 64, 200, 512)


def trained(model):
    """The model with batch norms, biases and slopes that are not those of a new one."""
    numbers = torch.Generator().manual_seed(5)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            for tensor, low in ((module.running_mean, -1.0), (module.running_var, 0.5), (module.weight, 0.5), (module.bias, -1.0)):
                tensor.data.copy_(torch.rand(tensor.shape, generator=numbers) + low)
    return model.eval()


def recommender(name, length=6):
    kind = MODELS[name]
    data = schema.amazon(0.01, length) if kind.data == "amazon" else schema.DATASETS[kind.data](0.01)
    return trained(kind.make(data, False)), data


def request_of(data, rows, seed=0):
    numbers = torch.Generator().manual_seed(seed)
    sizes = data.tables

    def drawn(columns, *more):
        made = [torch.randint(0, sizes[c.table], (rows, *more), generator=numbers) for c in columns]
        return torch.stack(made) if made else torch.zeros(0, rows, *more, dtype=torch.int64)

    return Inputs(torch.randn(rows, len(data.dense), generator=numbers), drawn(data.single), drawn(data.lists, data.length))


def same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


class Tables(nn.Module):
    def __init__(self, rows=10, width=4):
        super().__init__()
        self.users, self.items = nn.Embedding(rows, width), nn.Embedding(2 * rows, width)
        self.top = nn.Sequential(nn.Linear(2 * width + 3, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1))

    def forward(self, dense, ids):
        return self.top(torch.cat([dense, self.users(ids[:, 0]), self.items(ids[:, 1])], 1)).squeeze(1)


def small(rows=4):
    return torch.randn(rows, 3), torch.randint(0, 10, (rows, 2))


@pytest.fixture
def model():
    return trained(Tables())


@pytest.fixture
def server(model):
    return engine.torch.serve(model, small())


@pytest.mark.parametrize("name", list(MODELS))
def test_answers_are_the_models(name):
    model, data = recommender(name)
    server = engine.torch.serve(model, (request_of(data, 4),), batch=BATCH)
    with torch.no_grad():
        for rows in ROWS:
            given = request_of(data, rows, rows)
            same(server(given), model(given))
        whole = request_of(data, 32)
        part = Inputs(whole.dense[:8], whole.single[:, :8], whole.lists[:, :8])  # not contiguous
        same(server(part), model(part))


def test_batch_norms_and_lookups_are_no_nodes_of_their_own():
    model, data = recommender("dlrm")
    server = engine.torch.serve(model, (request_of(data, 4),), batch=BATCH)
    told = server.explain().splitlines()
    assert len(told) == 10  # 7 products, all look-ups, the copy of the answer
    assert sum("26 look-ups" in line for line in told) == 1 and "batch_norm" not in server.explain()
    timed = server.explain(request_of(data, 8))
    assert timed.startswith("serve 'DLRM': 9 nodes, ") and "us" in timed


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.short = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.second(torch.relu(self.norm(self.first(x)))) + self.short(x))
        return {"scores": self.last(x.mean((2, 3))), "map": x, "nothing": None}


def test_a_cnn_block_and_a_dict_of_outputs():
    model = trained(Block())
    server = engine.torch.serve(model, (torch.randn(4, 3, 8, 8),))
    with torch.no_grad():
        for rows in (1, 2, 9):
            x = torch.randn(rows, 3, 8, 8)
            got, expected = server(x), model(x)
            assert list(got) == list(expected) and got["nothing"] is None
            same(got["scores"], expected["scores"])
            same(got["map"], expected["map"])


def test_a_tiny_bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                                     max_position_embeddings=32, attn_implementation="sdpa")  # fmt: skip

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = transformers.BertModel(config, add_pooling_layer=False)

        def forward(self, ids):
            return self.bert(ids).last_hidden_state

    model = Bert().eval()
    server = engine.torch.serve(model, (torch.randint(0, 100, (4, 12)),))
    with torch.no_grad():
        for rows in (1, 3, 16):
            ids = torch.randint(0, 100, (rows, 12))
            same(server(ids), model(ids))


def test_an_encoder_layer_with_attention():
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    server = engine.torch.serve(model, (torch.randn(4, 7, 32),))
    with torch.no_grad():
        for rows in (1, 3, 16):
            x = torch.randn(rows, 7, 32)
            same(server(x), model(x))


class Pointwise(nn.Module):
    def forward(self, x, y, flags):
        a = torch.where(flags, x, y) * 2 + 1
        b = torch.clamp(a, -1, 1.5) / (x.abs() + 1) - torch.maximum(x, y)
        c = torch.exp(b).sqrt() + torch.tanh(y) + x.sigmoid() * (x > y) + (~flags) - torch.rsqrt(x * x + 1)
        joined = torch.cat([c, torch.stack([a, b], 1).flatten(1)[:, :5], x.flip(1)], 1)
        return joined, c.sum(1), c.mean(), c.amax(1, keepdim=True), x.softmax(-1)


def test_pointwise_chains_of_special_numbers():
    model = Pointwise()

    def drawn(rows):
        x, y = torch.randn(2, rows, 37) * 30
        x[0, :6] = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, 1e-40, 200.0])
        return x, y, torch.rand(rows, 37) > 0.5

    server = engine.torch.serve(model.eval(), drawn(4))
    for rows in (1, 5, 700):
        given = drawn(rows)
        for got, expected in zip(server(*given), model(*given)):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("change, error, text", [
    (lambda d, i: (d,), TypeError, "there are 1 positional arguments; 2 are wanted"),
    (lambda d, i: (d, None), TypeError, "ids is of type NoneType; a tensor is wanted"),
    (lambda d, i: (d.double(), i), TypeError, "dense is of Double; Float is wanted"),
    (lambda d, i: (d, i.int()), TypeError, "ids is of Int; Long is wanted"),
    (lambda d, i: (d[0], i), ValueError, r"dense is of size \[3\]; \[rows, 3\] is wanted"),
    (lambda d, i: (d[:, :2], i), ValueError, r"dense is of size \[4, 2\]; \[rows, 3\] is wanted"),
    (lambda d, i: (d, i[:3]), ValueError, "ids has 3 rows, and dense has 4"),
    (lambda d, i: (d[:0], i[:0]), ValueError, "dense has 0 rows; 1 to 65536 are allowed"),
    (lambda d, i: (d.to_sparse(), i), TypeError, "dense is no plain tensor in the CPU's memory"),
    (lambda d, i: (d, torch.full_like(i, 10)), IndexError, "index out of range in self: .*the index 10 of ids.*'users.weight'; 0 to 9 are"),
    (lambda d, i: (d, torch.full_like(i, -1)), IndexError, "the index -1 of ids"),
])  # fmt: skip
def test_a_bad_request_is_refused_by_name(server, model, change, error, text):
    given = small()
    with pytest.raises(error, match=text):
        server(*change(*given))
    with torch.no_grad():
        same(server(*given), model(*given))


def test_keyword_arguments_and_nested_ones():
    class Nested(nn.Module):
        def forward(self, parts, scale, *, shift):
            return (parts["a"] + parts["b"][0]) * scale + shift

    a, b, shift = torch.randn(3, 4, 2)
    server = engine.torch.serve(Nested().eval(), ({"a": a, "b": [b]}, 3), {"shift": shift})
    same(server({"a": a, "b": [b]}, 3, shift=shift), (a + b) * 3 + shift)
    with pytest.raises(ValueError, match="scale is another constant"):
        server({"a": a, "b": [b]}, 4, shift=shift)
    with pytest.raises(TypeError, match="there is no argument shift"):
        server({"a": a, "b": [b]}, 3)
    with pytest.raises(TypeError, match=r"parts\['b'\] has 2 parts; 1 are wanted"):
        server({"a": a, "b": [b, b]}, 3, shift=shift)


def test_changes_of_weights_are_noticed(server, model):
    given = small()
    with torch.no_grad():
        for change in (lambda: model.top[4].weight.mul_(2), lambda: model.top[2].running_var.add_(1), lambda: model.users.weight.add_(1),
                       lambda: model.load_state_dict(trained(Tables()).state_dict())):  # fmt: skip
            before = server(*given)
            change()
            assert not torch.allclose(server(*given), before)
            same(server(*given), model(*given))
        model.top[0].weight = nn.Parameter(torch.randn_like(model.top[0].weight))  # another object: nobody counts that
        server.update()
        same(server(*given), model(*given))
        model.top[0].weight.data = torch.randn(16, 11) * 3
        same(server(*given), model(*given))
        model.top[0].weight.data = torch.randn(8, 11)
        with pytest.raises(RuntimeError, match=r"'top.0.weight' is torch.float32 of \[8, 11\] now, and was torch.float32 of \[16, 11\]"):
            server(*given)


def test_a_batch_norm_that_is_trained_further_is_noticed():
    torch.manual_seed(3)
    norms = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(6, 4)
    served = engine.torch.serve(norms, (x,))
    with torch.no_grad():
        for _ in range(3):
            norms.train()
            norms(torch.randn(32, 4) * 3 + 1)  # changes the running statistics alone, which torch does not count
            norms.eval()
            torch.testing.assert_close(served(x), norms(x), rtol=1e-4, atol=1e-5)


def test_an_optimizer_beside_a_server(server, model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        given = small()
        model.train()
        model(*given).square().mean().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            same(server(*given), model(*given))


@pytest.mark.parametrize("make, text", [
    (lambda: nn.Sequential(nn.Linear(3, 3).eval(), nn.Dropout()).train(), "is in training mode; call model.eval"),
    (lambda: type("Draws", (nn.Module,), {"forward": lambda self, x: x + torch.rand_like(x)})().eval(), "draws random numbers"),
    (lambda: type("Asks", (nn.Module,), {"forward": lambda self, x: x if x.sum() > 0 else -x})().eval(), "torch.export cannot export"),
    (lambda: type("Changes", (nn.Module,), {"forward": lambda self, x: x.add_(1)})().eval(), "the model changes"),
    (lambda: type("Solves", (nn.Module,), {"forward": lambda self, x: torch.linalg.solve(x.T @ x + torch.eye(3), x.T)})().eval(),
     "an operator that must not be left out"),
])  # fmt: skip
def test_what_cannot_be_served_says_why(make, text):
    with pytest.raises(engine.errors.UsageError, match=text):
        engine.torch.serve(make(), (torch.randn(4, 3),))


def test_options_that_are_none(model):
    wrong = (({"rows": (0, 5)}, "rows is"), ({"batch": 3}, "batch is 3"), ({"batch": [0]}, "batch has 1 dimensions for 2 arguments"))
    for kwargs, text in wrong:
        with pytest.raises(engine.errors.UsageError, match=text):
            engine.torch.serve(model, small(), **kwargs)
    with pytest.raises(engine.errors.UsageError, match="a tuple of the model's arguments"):
        engine.torch.serve(model, small()[0])


def test_many_threads_at_once(server, model):
    with torch.no_grad():
        wanted = [(given, model(*given)) for given in (small(rows) for rows in (1, 4, 4, 33))]
    failed = []

    def client(first):
        try:
            for i in range(100):
                given, expected = wanted[(first + i) % len(wanted)]
                if i % 10 == 0:
                    with pytest.raises(IndexError):
                        server(given[0], given[1] + 100)
                same(server(*given), expected)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def test_memory_stays_flat(server):
    given = [small(rows) for rows in (1, 4, 64)]

    def asked(n):
        for i in range(n):
            server(*given[i % 3])
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    before = asked(1000)
    assert asked(10_000) - before < 4 << 20


def test_a_server_that_is_dropped_is_freed(model):
    server = engine.torch.serve(model, small())
    server(*small())
    gone = weakref.ref(server)
    del server
    gc.collect()
    assert gone() is None


def test_a_forked_child_answers(server, model):
    given = small()
    expected = server(*given)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(server(*given), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_no_grad_is_not_needed_and_inputs_may_want_gradients(server):
    dense, ids = small()
    assert not server(dense.requires_grad_(), ids).requires_grad
