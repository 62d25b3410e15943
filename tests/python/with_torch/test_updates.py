"""SGD and Adagrad of a table touch only the rows that a batch has looked up, and give eager's bits."""

import copy

import pytest
import torch
from support import MODES, compiled, same, training
from torch import nn
from torch.optim import SGD, Adagrad, Adam, SparseAdam

import engine.torch
from engine.torch import adapter, updates

ROWS = 50
OPTIMIZERS = {"sgd": lambda p: SGD(p, lr=0.1), "adagrad": lambda p: Adagrad(p, lr=0.1)}


class Tables(nn.Module):
    """Tables of several widths; the gradients of all but the first are parts of rows of a larger tensor."""

    def __init__(self, widths=(16, 1, 19), **kwargs):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, width, **kwargs) for width in widths)
        self.top = nn.Linear(sum(widths), 1)

    def forward(self, ids):
        return self.top(torch.cat([table(i) for table, i in zip(self.tables, ids)], -1))


def by_rows(step):
    """How many tables a compiled step updates by rows."""
    assert not step.why_eager
    return sum(bool(call.title) for call in step.last.program.lowered.calls)


def compared(model, make, batches, loss_of=lambda out: out.square().mean(), step_of=training):
    """Runs steps on the batches, compiled and eager, from the same state. How many tables were updated by rows."""
    other = copy.deepcopy(model)
    optimizers = make(model.parameters()), make(other.parameters())
    ours = engine.torch.compile_step(step_of(model, optimizers[0], loss_of), options={"workers": 2})
    theirs = step_of(other, optimizers[1], loss_of)
    for batch in batches:
        same(ours(batch), theirs(batch).detach())
        same(model.state_dict(), other.state_dict())
        same(optimizers[0].state_dict()["state"], optimizers[1].state_dict()["state"])
    return by_rows(ours)


def batches(*shape, tables=3, count=6, dtype=torch.int64):
    torch.manual_seed(0)
    return [torch.randint(0, ROWS // 2, (tables, *shape), dtype=dtype) for _ in range(count)]  # many are there twice


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_that_come_twice_add_up_as_eagerly(forced, optimizer, mode):
    forced(mode)
    assert all(map(updates.exact, (updates.SGD, updates.ADAGRAD)))
    assert compared(Tables(), OPTIMIZERS[optimizer], batches(64)) == 3


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("shape", "dtype"), [((1,), torch.int64), ((4, 5), torch.int32), ((0,), torch.int64), ((700,), torch.int64)])
def test_batches_of_all_shapes_are_those_of_eager(forced, optimizer, shape, dtype):
    forced("in turn")
    assert compared(Tables(padding_idx=3), OPTIMIZERS[optimizer], batches(*shape, dtype=dtype), torch.sum) == 3


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_zeros_keep_their_signs_and_numbers_that_are_none_spread_as_eagerly(forced, optimizer):
    forced("in turn")
    model = Tables((4, 4, 4))
    with torch.no_grad():
        model.tables[0].weight.zero_().neg_()
        model.tables[1].weight[::3] = float("nan")
        model.tables[2].weight[::3] = float("inf")
    signs = model.tables[0].weight.signbit().clone()
    other = copy.deepcopy(model)
    made = [OPTIMIZERS[optimizer](m.parameters()) for m in (model, other)]
    ours = engine.torch.compile_step(training(model, made[0]))
    theirs = training(other, made[1])
    for batch in batches(8):
        ours(batch), theirs(batch)
        same(model.state_dict(), other.state_dict())
        assert torch.equal(model.tables[0].weight.signbit(), other.tables[0].weight.signbit())
    assert signs.all() and by_rows(ours) == 3


@pytest.mark.parametrize("rate", [0.0, float("inf"), float("nan")])
def test_a_rate_that_changes_all_rows_changes_all_rows(forced, rate):
    forced("in turn")
    model = Tables()
    other = copy.deepcopy(model)
    made = [SGD(m.parameters(), lr=0.1) for m in (model, other)]
    ours, theirs = engine.torch.compile_step(training(model, made[0])), training(other, made[1])
    for i, batch in enumerate(batches(8)):
        for optimizer in made:
            optimizer.param_groups[0]["lr"] = rate if i == 4 else 0.1
        ours(batch), theirs(batch)
        same(model.state_dict(), other.state_dict())
    assert by_rows(ours) == 3


def test_where_small_numbers_become_zero_all_rows_are_updated(forced):
    forced("in turn")
    model = Tables()
    with torch.no_grad():
        model.tables[0].weight.fill_(1e-40)
    torch.set_flush_denormal(True)
    try:
        assert compared(model, OPTIMIZERS["sgd"], batches(8)) == 3
        assert not model.tables[0].weight.any(1).all()  # rows that no batch has
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(("make", "kwargs"), [
    (lambda p: SGD(p, lr=0.1, momentum=0.9), {}), (lambda p: SGD(p, lr=0.1, weight_decay=0.1), {}),
    (lambda p: SGD(p, lr=0.1, maximize=True), {}), (lambda p: Adagrad(p, weight_decay=0.1), {}), (lambda p: Adagrad(p, eps=0), {}),
    (Adam, {}), (OPTIMIZERS["sgd"], {"scale_grad_by_freq": True}), (OPTIMIZERS["sgd"], {"sparse": True}),
    (OPTIMIZERS["sgd"], {"dtype": torch.float64}),
], ids=["momentum", "weight decay", "maximize", "Adagrad's decay", "no eps", "Adam", "by frequency", "sparse", "float64"])  # fmt: skip
def test_updates_that_touch_all_rows_are_left_as_they_are(forced, make, kwargs):
    forced("in turn")
    model = Tables((16,), **kwargs).to(kwargs.get("dtype", torch.float32))
    assert compared(model, make, batches(8, tables=1)) == 0


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, 8)

    def forward(self, ids):
        return self.table(ids) * self.table(ids.flip(0))



def clipped(model, optimizer, loss_of):
    def step(ids):
        optimizer.zero_grad()
        loss = loss_of(model(ids))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        return loss

    return step


def returned(model, optimizer, loss_of):
    def step(ids):
        optimizer.zero_grad()
        loss_of(model(ids)).backward()
        optimizer.step()
        return model.tables[0].weight.grad.clone()

    return step


def test_a_gradient_that_others_read_is_made_whole(forced):
    forced("in turn")
    assert compared(Twice(), OPTIMIZERS["sgd"], batches(8, tables=1)) == 0
    assert compared(Tables(), OPTIMIZERS["sgd"], batches(8), step_of=clipped) == 0
    assert compared(Tables(), OPTIMIZERS["sgd"], batches(8), step_of=returned) == 2


def test_indices_that_the_step_changes_before_the_update_are_those_of_the_look_up(forced):
    def changing(model, optimizer, loss_of):
        def step(ids):
            optimizer.zero_grad()
            found = ids.remainder(ROWS)  # of the step's own
            loss = loss_of(model(found))
            loss.backward()
            found.zero_()
            optimizer.step()
            return loss

        return step

    forced("in turn")
    assert compared(Tables(), OPTIMIZERS["sgd"], batches(8), step_of=changing) == 0


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_updated_as_eagerly(forced, mode):
    forced("in turn")
    compared(nn.EmbeddingBag(ROWS, 16, mode=mode, padding_idx=3), OPTIMIZERS["sgd"], [b[0] for b in batches(8, 4)])


def test_an_update_by_rows_counts_as_a_change_of_the_table(forced):
    forced("in turn")
    model = Tables()
    step = engine.torch.compile_step(training(model, SGD(model.parameters(), lr=0.1)))
    for batch in batches(8):
        before = model.tables[0].weight._version
        step(batch)
    assert by_rows(step) == 3 and model.tables[0].weight._version > before


class Looked(nn.Module):
    """One table, looked up once or twice."""

    def __init__(self, twice, padding):
        super().__init__()
        self.twice, self.table = twice, nn.Embedding(ROWS, 18, sparse=True, padding_idx=padding)

    def forward(self, ids):
        found = self.table(ids[0])
        return found * self.table(ids[1]) if self.twice else found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("twice", [False, True])
def test_sparse_adam_needs_no_interpreter_and_gives_eagers_bits(forced, twice, padding, mode):
    forced(mode)
    model = Looked(twice, padding)
    other = copy.deepcopy(model)
    made = [SparseAdam(m.parameters(), lr=0.1, betas=(0.8, 0.99)) for m in (model, other)]
    ours, theirs = engine.torch.compile_step(training(model, made[0])), training(other, made[1])
    for i, batch in enumerate(batches(200)):
        for optimizer in made:
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + i)
        same(ours(batch), theirs(batch).detach())
        same(model.state_dict(), other.state_dict())
        same(made[0].state_dict()["state"], made[1].state_dict()["state"])
    calls = {str(call.target): spec for call, spec in zip(ours.last.program.lowered.calls, ours.last.program.lowered.specs)}
    assert not calls["engine_torch.sparse_adam.default"][4]  # takes_gil


def test_sparse_adam_of_other_numbers_is_torchs_own(forced):
    forced("workers")
    model = Looked(True, None).double()
    other = copy.deepcopy(model)
    made = [SparseAdam(m.parameters(), lr=0.1) for m in (model, other)]
    ours, theirs = engine.torch.compile_step(training(model, made[0])), training(other, made[1])
    for batch in batches(20):
        same(ours(batch), theirs(batch).detach())
        same(model.state_dict(), other.state_dict())
    assert not ours.why_eager


def gradient(rows, ids, count=ROWS, padding=-1, by_frequency=False, by_rows=True):
    """Of a table that was looked up, made by the adapter's rows or by torch."""
    given = [("c", part) for part in (rows, ids, count, padding, by_frequency)]
    return adapter.load().update((updates.GRADIENT, -1, 0.0), given, by_rows)


SMALL = torch.tensor([[-0.0, 1e-40], [0.0, float("nan")], [float("inf"), -0.0], [-float("inf"), 1.0], [3e38, 3e38]])


@pytest.mark.parametrize("made", [
    lambda: (torch.randn(900, 16), torch.randint(0, ROWS, (900,))),  # each row many times
    lambda: (torch.randn(4, 5, 19), torch.randint(0, ROWS, (4, 5), dtype=torch.int32)),
    lambda: (torch.randn(30, 40)[:, 3:20], torch.randint(0, ROWS, (30,))),  # a part of rows
    lambda: (torch.randn(17, 30).t(), torch.randint(0, ROWS, (30,))),
    lambda: (torch.ones(1, 1).expand(30, 8), torch.randint(0, ROWS, (60,))[::2]),
    lambda: (torch.randn(0, 8), torch.randint(0, ROWS, (0,))),
    lambda: (SMALL.repeat(4, 1), torch.arange(20) % 3),
    lambda: (torch.randn(30, 1), torch.randint(0, ROWS, (30,))),
    lambda: (torch.randn(8), torch.tensor(3)),
    lambda: (torch.randn(30, 8).double(), torch.randint(0, ROWS, (30,))),  # torch's own, as those behind it
    lambda: (torch.randn(30, 8).bfloat16(), torch.randint(0, ROWS, (30,))),
    lambda: (torch.randn(30, 8)._neg_view(), torch.randint(0, ROWS, (30,))),
])  # fmt: skip
@pytest.mark.parametrize("more", [{}, {"padding": 3}, {"by_frequency": True}], ids=["", "padding", "by frequency"])
def test_a_gradient_by_rows_has_torchs_bits(made, more):
    assert updates.exact(updates.GRADIENT)
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            rows, ids = made()
            ours, theirs = (gradient(rows, ids, by_rows=own, **more) for own in (True, False))
        finally:
            torch.set_num_threads(before)
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.stride() == theirs.stride()
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[ours.element_size()]
        number = ~theirs.isnan()  # the sign of what is no number may differ with the order of two
        assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.view(bits)[number], theirs.view(bits)[number])


def test_ids_that_are_no_rows_get_no_gradient():
    rows, ids = torch.ones(4, 2), torch.tensor([-1, 7, 1 << 40, 1])
    ours = gradient(rows, ids, 3, padding=-5)
    assert ours.tolist() == [[0, 0], [1, 1], [0, 0]]
    assert torch.equal(ours, gradient(rows, ids, 3, padding=-5, by_rows=False))


@pytest.mark.parametrize("mode", MODES)
def test_torch_compile_makes_gradients_of_tables_by_rows(forced, mode):
    forced(mode)
    torch.manual_seed(0)
    model = Tables(padding_idx=2)
    other = copy.deepcopy(model)
    before = set(engine.torch.regions.compiled)  # of models of other tests; their parameters' ids may be given again
    net = compiled(model)
    for _ in range(4):
        ids = [torch.randint(0, ROWS, (64,)) for _ in range(3)]
        for run, of in ((net, model), (other, other)):
            of.zero_grad()
            run(ids).square().mean().backward()
        same([p.grad for p in model.parameters()], [p.grad for p in other.parameters()])
    (region,) = set(engine.torch.regions.compiled) - before
    specs = region.programs["backward"].lowered.specs
    assert sum(spec[-2] is not None and spec[-2][0] == updates.GRADIENT for spec in specs) == 3


def test_a_step_with_a_dense_optimizer_makes_gradients_by_rows(forced):
    forced("workers")
    torch.manual_seed(0)
    assert compared(Tables(), lambda p: Adam(p, lr=0.1), batches(64)) == 0  # none of these updates is by rows
