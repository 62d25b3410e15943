"""engine.torch.serve: views of slices, parts put in place, repeated rows, numbers of requests' data, checks, one row, and weights that
change while they are copied or lie otherwise than before. What cannot be served is refused with its reason."""

import ctypes
import re

import pytest
import torch
from torch import nn

import engine
import engine.torch


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def close(server, model, *request):
    with torch.no_grad():
        torch.testing.assert_close(server(*request), model(*request), rtol=1e-4, atol=1e-4, equal_nan=True)


def answers(model, example, *requests, **options):
    server = engine.torch.serve(model.eval(), example, **options)
    for request in requests:
        close(server, model, *request)
    return server


class Of(nn.Module):
    """A model of parts that a function computes with."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *given):
        return self.function(self, *given)


def linear(width=8, to=6):
    return nn.Linear(width, to)


def test_an_example_may_be_a_slice():
    data, ids = torch.randn(100, 6), torch.randint(0, 50, (100, 2))
    halves = Of(lambda m, x: m.a(x[:, :3]) * m.b(x[:, 3:]) + x[:, 2:3], a=linear(3, 4), b=linear(3, 4))
    answers(halves, (data[40:48],), (data[:8],), (data[3:20],), (data[40:48],))
    tables = Of(lambda m, ids: m.a(ids[:, 0]) - m.b(ids[:, 1]), a=nn.Embedding(50, 4), b=nn.Embedding(50, 4))
    answers(tables, (ids[40:48],), (ids[:8],), (ids[3:20],))


def test_parts_of_a_parameter():
    def start():
        return nn.Parameter(torch.randn(3, 8))

    expanded = Of(lambda m, x: torch.cat([m.top(x), m.start[1].expand(len(x), -1)], 1), top=linear(8, 8), start=start())
    chunks = Of(lambda m, x: m.top(x)[:, :4] * m.start[1].chunk(2)[0] + m.start[1].chunk(2)[1], top=linear(8, 8), start=start())
    for model in (expanded, chunks):
        answers(model, (torch.randn(4, 8),), (torch.randn(5, 8),), (torch.randn(4, 8),))


@pytest.mark.parametrize("dim", [1, -1])
def test_stacks_of_products_lookups_and_softmaxes(dim):
    x, ids = torch.randn(7, 8), torch.randint(0, 20, (7,))
    answers(Of(lambda m, x: torch.stack([m.a(x), m.b(x)], dim), a=linear(), b=linear()), (x[:4].clone(),), (x,))
    answers(Of(lambda m, x: torch.stack([m.a(x).softmax(-1), m.b(x).softmax(-1)], dim), a=linear(), b=linear()), (x[:4].clone(),), (x,))
    answers(Of(lambda m, i: torch.stack([m.a(i), m.b(i)], dim), a=nn.Embedding(20, 6), b=nn.Embedding(20, 6)), (ids[:4].clone(),), (ids,))
    x = torch.randn(7, 5, 8)
    answers(Of(lambda m, x: torch.stack([m.a(x).relu(), m.b(x).relu()], dim), a=linear(), b=linear()), (x[:4].clone(),), (x,))


def test_a_row_that_stands_for_many():
    rank = Of(lambda m, user, items: (m.a(user.expand(len(items), -1)) * m.b(items)).sum(1), a=linear(16), b=linear(12))
    user = torch.randn(1, 16)
    answers(rank, (user, torch.randn(4, 12)), (user, torch.randn(4, 12)), (user, torch.randn(100, 12)), batch=((None, 0), {}))
    begin = Of(lambda m, x: m.cell(x, m.start.expand(len(x), -1)), cell=nn.GRUCell(4, 16), start=nn.Parameter(torch.randn(1, 16)))
    answers(begin, (torch.randn(4, 4),), (torch.randn(6, 4),), (torch.randn(100, 4),))


def longest(m, x, lengths):
    most = lengths.max().item()
    torch._check(most >= 1)
    torch._check(most <= 64)
    return (torch.arange(most)[None] < lengths[:, None]).float()


@pytest.mark.parametrize("function", [lambda m, x, lengths: x * lengths.max().item(), longest, lambda m, x, lengths: x[x[:, 0] > 0].sum(0)])
def test_numbers_and_sizes_that_only_the_data_say_are_refused(function):
    with pytest.raises(engine.errors.UsageError, match="known only from the data of a request|cannot export"):
        engine.torch.serve(Of(function).eval(), (torch.randn(4, 3), torch.tensor([2, 7, 1, 5])))


def checked(m, x):
    assert (x >= 0).all(), "a negative count"
    return m.a(x)


def checked_later(m, x):
    torch._assert_async((x >= 0).all(), "a negative count")
    return m.a(x)


@pytest.mark.parametrize("function", [checked, checked_later])
def test_checks_of_a_request_are_made(function):
    model, good = Of(function, a=linear(4, 4)), torch.rand(4, 4)
    try:
        server = answers(model, (good,), (good,), (torch.rand(9, 4),))
    except engine.errors.UsageError as refused:
        assert "export" in str(refused) or "check" in str(refused)  # so it is said
        return
    with pytest.raises((RuntimeError, AssertionError), match="negative count"):
        server(good - 2)
    close(server, model, good)


@pytest.mark.parametrize("given", [(0, 1), ()])
def test_limits_that_are_the_operators_defaults(given):
    x = torch.randn(5, 16) * 3
    answers(nn.Hardtanh(*given), (x,), (x,))


def test_norms_of_all_and_conjugates():
    x = torch.randn(5, 16)
    answers(Of(lambda m, x: x / torch.linalg.vector_norm(x)), (x,), (x,), (x[:2],))
    power = Of(lambda m, x: (torch.fft.rfft(x) * torch.fft.rfft(x).conj()).real)
    with pytest.raises(engine.errors.UsageError, match="negates when it is read"):
        engine.torch.serve(power.eval(), (x,))


@pytest.mark.parametrize("function", [lambda m, x: m.a(x).squeeze(), lambda m, x: x - x.mean(0) if len(x) > 1 else x])
def test_a_model_that_treats_one_row_otherwise_is_served_with_two_and_more(function):
    model, x = Of(function, a=linear(16, 1)), torch.randn(5, 16)
    with pytest.raises(engine.errors.UsageError, match=r"it treats one row otherwise than two and more; serve it with rows=\(2, ...\)"):
        engine.torch.serve(model.eval(), (x,))
    server = answers(model, (x,), (x,), (x[:2],), rows=(2, 100))
    with pytest.raises(ValueError, match="1 row"):
        server(x[:1])


@pytest.mark.parametrize("rows", [(1, 1), (1, 2), (2, 2), (8, 8), (7, 8)])
def test_requests_of_one_number_of_rows_or_two(rows):
    model, x = Of(lambda m, x: m.a(x).relu().sum(1), a=linear(4)), torch.randn(9, 4)
    server = answers(model, (x[: rows[0]],), (x[: rows[0]],), (x[: rows[1]],), rows=rows)
    for other in (rows[0] - 1, rows[1] + 1):
        with pytest.raises(ValueError, match=f"has {other} rows|is of size .{other}, 4"):
            server(x[:other])
    for count in (16, 3):
        with pytest.raises(engine.errors.UsageError, match=rf"the example has {count} rows; rows={re.escape(str(rows))} allows"):
            engine.torch.serve(model, (torch.randn(count, 4),), rows=rows)


def test_products_of_rows_that_overlap():
    series, x = torch.randn(60), torch.randn(20, 12)
    answers(Of(lambda m, s: m.a(s.unfold(0, 8, 1)), a=linear()), (series[:20],), (series,), (series[:10],), rows=(10, 100))
    answers(Of(lambda m, s: m.a(s.unfold(0, 8, 1)), a=linear(8, 1)), (series[:20],), (series,), (series[:10],), rows=(10, 100))
    answers(Of(lambda m, x: m.a(x.unfold(1, 8, 2)), a=linear()), (x[:4],), (x,), (x[:1],))
    pairs = Of(lambda m, x: m.a(torch.as_strided(x, (len(x) - 1, 24), (12, 1))), a=linear(24))
    answers(pairs, (x[:4],), (x,), (x[:3],), rows=(3, 100))


# --- weights


class Scaled(nn.Module):
    """Has a tensor that is no parameter and no buffer, and one in a list."""

    def __init__(self):
        super().__init__()
        self.weight, self.shifts = torch.randn(4, 4), [torch.randn(4)]

    def forward(self, x):
        return x @ (self.weight * 2).tanh() + self.shifts[0]


def test_tensors_that_are_no_parameters():
    model, x = nn.Sequential(Scaled(), nn.ReLU()).eval(), torch.randn(3, 4)
    server = answers(model, (x,), (x,))
    model[0].weight.mul_(0.1)
    model[0].shifts[0].add_(1)
    close(server, model, x)
    model[0].weight = torch.randn(4, 4)
    server.update()
    close(server, model, x)
    model[0].weight.mul_(0.1)
    close(server, model, x)


def test_a_change_while_weights_are_copied_is_found_by_the_next_request():
    model, x = nn.Linear(4, 4).eval(), torch.randn(3, 4)
    server = engine.torch.serve(model, (x,))
    kept, changed = server._lowering.as_kept, []

    def as_kept(constant):
        made = kept(constant)
        if not changed:
            changed.append(True)
            with torch.no_grad():
                model.weight.add_(0.5)
                model.bias.add_(0.5)
        return made

    server._lowering.as_kept = as_kept
    with torch.no_grad():
        model.weight.mul_(1.0)
    server(x)
    assert changed
    close(server, model, x)


def test_weights_that_lie_otherwise():
    net, image = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval(), torch.randn(2, 3, 9, 9)
    server = answers(net, (image,), (image,))
    net.to(memory_format=torch.channels_last)
    close(server, net, image)
    with torch.no_grad():
        net[0].weight.mul_(2)
    close(server, net, image)
    table, ids = nn.Embedding(4, 4).eval(), torch.arange(4)
    server = answers(table, (ids,), (ids,))
    table.weight.data = torch.randn(4, 4).t()
    close(server, table, ids)


@pytest.mark.parametrize("width", [16, 512])
def test_other_memory_is_noticed_wherever_it_lies(width):
    model, x = nn.Linear(width, width, bias=False).eval(), torch.randn(2, width)
    server = answers(model, (x,), (x,))
    for _ in range(4):
        for _ in range(2):  # the second may get the memory that the first one had
            model.weight.data = model.weight.data * 1.25
        close(server, model, x)
    model.half().float()
    close(server, model, x)


@torch.library.custom_op("engine_test::at_most_10", mutates_args=())
def at_most_10(x: torch.Tensor) -> torch.Tensor:
    if x.max() > 10:
        raise ValueError("more than 10")
    return x.clone()


at_most_10.register_fake(torch.empty_like)


class Allocated(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

    @staticmethod
    def bytes():
        ask = ctypes.CDLL(None).mallinfo2
        ask.restype = Allocated
        now = ask()
        return now.uordblks + now.hblkhd


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this C library does not say what is allocated")
def test_what_was_made_for_a_request_is_freed_where_nobody_gets_it():
    large = 1 << 18  # floats of an output
    model = Of(lambda m, x, limited: (x.expand(1, large).clone(), at_most_10(limited))).eval()
    server = engine.torch.serve(model, (torch.ones(1, 1), torch.ones(3)), batch=None)
    request, refused = (torch.ones(1, 1), torch.ones(3)), (torch.ones(1, 1), torch.full((3,), 20.0))
    server(*request)
    before = Allocated.bytes()
    made = server(*request)
    assert Allocated.bytes() - before >= 4 * large
    del made
    for _ in range(2):
        server.explain(*request)
        assert Allocated.bytes() - before < 2 * large
        with pytest.raises(ValueError, match="more than 10"):
            server(*refused)
        assert Allocated.bytes() - before < 2 * large
        with pytest.raises(ValueError, match="more than 10"):
            server.explain(*refused)
        assert Allocated.bytes() - before < 2 * large
