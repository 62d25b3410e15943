"""compile_step: what may be an argument of a captured step, and what tells its calls apart."""

import collections
import dataclasses
import warnings

import pytest
import torch
from support import same
from torch import nn
from torch.optim import SGD

import engine.torch


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    more: Batch


Named = collections.namedtuple("Named", "x y")


class Encoding(collections.UserDict):
    """As that of transformers: items, and what else the tokenizer knows."""

    def __init__(self, data, encodings=None):
        super().__init__(data)
        self._encodings = encodings


class Plain:
    def __init__(self, x):
        self.x = x


def column(i):
    return torch.full((2, 1), float(i))


def stepped(get):
    model = nn.Linear(1, 1, bias=False)
    optimizer = SGD(model.parameters(), lr=0.0)

    def step(*args, **kwargs):
        optimizer.zero_grad()
        x = get(*args, **kwargs)
        loss = (model(x) * 0).sum() + x.sum()
        loss.backward()
        optimizer.step()
        return loss

    return engine.torch.compile_step(step)


@pytest.mark.parametrize(("make", "get"), [
    (lambda i: Batch(column(i)), lambda b: b.x),
    (lambda i: Frozen(column(0), Batch(column(i))), lambda b: b.x + b.more.x),
    (lambda i: [{"a": Batch(column(i))}], lambda b: b[0]["a"].x),
    (lambda i: Named(column(i), 1.0), lambda b: b.x * b.y),
    (lambda i: collections.UserDict(x=column(i)), lambda b: b["x"]),
    (lambda i: Encoding({"x": column(i), "more": Batch(column(0))}, object()), lambda b: b["x"] + b["more"].x),
], ids=["dataclass", "nested", "in containers", "named tuple", "UserDict", "an encoding"])  # fmt: skip
def test_objects_with_parts_are_looked_into(forced, make, get):
    forced("in turn")
    step = stepped(get)
    assert [step(make(i)).item() for i in range(6)] == [0, 2, 4, 6, 8, 10]
    assert step.captures == 1 and not step.why_eager


def test_an_object_that_is_used_again_with_another_tensor(forced):
    forced("in turn")
    step, batch, got = stepped(lambda b: b.x * b.scale), Batch(column(0)), []
    for i in range(6):
        batch.x = column(i)
        batch.scale = 1.0 if i < 4 else 0.5
        got.append(step(batch).item())
    assert got == [0, 2, 4, 6, 4, 5] and step.captures == 2


@pytest.mark.parametrize(("make", "get", "named"), [
    (lambda i: column(i).numpy(), torch.tensor, "numpy.ndarray"),
    (lambda i: Plain(column(i)), lambda b: b.x, "test_arguments.Plain"),
    (lambda i: {"rows": {i}}, lambda b: torch.full((2, 1), float(*b["rows"])), "builtins.set"),
], ids=["array", "object", "set"])  # fmt: skip
def test_what_may_change_unseen_is_refused_by_name(forced, make, get, named):
    forced("in turn")
    step, held = stepped(get), make(0)
    with pytest.warns(UserWarning, match=f"runs eagerly: an argument of type {named}, which may change unseen; tensors, numbers"):
        got = [step(make(i)).item() for i in range(6)]
    del held
    assert got == [0, 2, 4, 6, 8, 10] and named in step.why_eager


def test_what_an_encoding_keeps_besides_is_not_captured(forced):
    forced("in turn")
    step = stepped(lambda b: b["x"] + b._encodings.x)
    with pytest.warns(UserWarning, match="runs eagerly: .*_encodings"):
        assert [step(Encoding({"x": column(0)}, Plain(column(i)))).item() for i in range(4)] == [0, 2, 4, 6]


def test_equal_numbers_that_are_not_the_same_are_told_apart(forced):
    forced("in turn")
    step = stepped(lambda x, sign: torch.copysign(x, sign))
    assert [step(column(1), sign).item() for sign in (0.0, 0.0, -0.0, 0.0, -0.0)] == [2, 2, -2, 2, -2]
    assert step.captures == 2
    step = stepped(lambda x, number: x * (number != number))
    for _ in range(4):
        step(column(1), float("nan"))
    assert step.captures == 1


def test_one_tensor_as_two_arguments_is_not_taken_for_two(forced):
    forced("in turn")
    step = stepped(lambda x, y: x + 2 * y)
    x, y = column(1), column(10)
    assert [step(*args).item() for args in ((x, x), (x, x), (x, y), (y, x), (y, y))] == [6, 6, 42, 24, 60]


def test_modules_and_optimizers_may_be_arguments(forced):
    forced("in turn")

    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    results = []
    for run in (engine.torch.compile_step(step), step):
        torch.manual_seed(0)
        models = [nn.Linear(1, 1), nn.Linear(1, 1)]
        optimizers = [SGD(m.parameters(), lr=0.1) for m in models]
        results.append([run(models[i % 2], optimizers[i % 2], column(i)).detach() for i in range(8)])
        assert not getattr(run, "why_eager", "")
    same(*results)


def test_an_argument_that_the_step_adds_to_is_refused(forced):
    forced("in turn")
    history = []
    step = stepped(lambda x, losses: (losses.append(1), x)[1])
    with pytest.warns(UserWarning, match="runs eagerly: it changes what a list"):
        for i in range(4):
            step(column(i), history)
    assert history == [1] * 4


def test_what_is_returned_in_objects_is_returned_in_them(forced):
    forced("in turn")
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.0)

    def make(kind):
        def step(x):
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            return kind(loss)

        return engine.torch.compile_step(step)

    step = make(lambda loss: Batch(loss, 2.0))
    for i in range(4):
        out = step(column(i))
        same(out.x, model(column(i)).sum().detach())
        assert type(out) is Batch and type(out.x) is torch.Tensor and out.scale == 2.0
    assert not step.why_eager
    step = make(Plain)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for i in range(4):
            assert step(column(i)).x.detach().item() == model(column(i)).sum().item()
    assert "it returns a Plain" in str(told[0].message)


class Marked(torch.Tensor):
    pass


def asked(get):
    """A step of what is asked of an argument, beside eager."""
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.0)

    def step(x):
        optimizer.zero_grad()
        loss = model(torch.ones(1, 1)).sum() * 0 + get(x)
        loss.backward()
        optimizer.step()
        return loss

    return engine.torch.compile_step(step), step


def parameter(requires_grad):
    return nn.Parameter(torch.ones(3), requires_grad)


def sparse(*at, coalesced=False):
    made = torch.sparse_coo_tensor([list(at)], torch.ones(len(at)), (4,))
    return made.coalesce() if coalesced else made


KINDS = {
    "a parameter": (lambda x: 1.0 + isinstance(x, nn.Parameter), [torch.ones(3), torch.ones(3), parameter(False), parameter(False)]),
    "another class": (lambda x: 1.0 + isinstance(x, Marked), [torch.ones(3), torch.ones(3), torch.ones(3).as_subclass(Marked)] * 2),
    "a conjugate": (lambda x: torch.view_as_real(x.resolve_conj()).sum() + x.is_conj(),
                    [torch.ones(3) * 1j, torch.ones(3) * 1j, (torch.ones(3) * 1j).conj(), torch.ones(3) * 1j]),
    "a negative view": (lambda x: x.sum() + x.is_neg(), [torch.ones(3), torch.ones(3), (torch.ones(3) * 1j)[::1].conj().imag.clone(),
                                                          torch._neg_view(torch.ones(3))]),
    "sparse": (lambda x: x.is_coalesced() + x.to_dense().sum(), [sparse(1, 2), sparse(1, 2), sparse(1, 2, coalesced=True), sparse(1, 2)]),
    "another count": (lambda x: x._values().shape[0] + x.to_dense().sum(), [sparse(1, 2), sparse(1, 2), sparse(3), sparse(0, 1, 2)]),
    "a place in memory": (lambda x: x.storage_offset() + x.sum(), [torch.ones(6)[:3], torch.ones(6)[:3], torch.ones(6)[3:]]),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_what_is_asked_of_an_argument_is_that_of_the_call(forced, name):
    forced("in turn")
    get, tensors = KINDS[name]
    ours, theirs = asked(get)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in tensors:
            same(ours(x), theirs(x).detach())


def test_a_size_is_returned_as_one_and_may_be_an_argument():
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.0)

    @engine.torch.compile_step
    def step(x, size):
        optimizer.zero_grad()
        loss = model(x.reshape(size)).sum()
        loss.backward()
        optimizer.step()
        return loss, x.shape

    for i in range(4):
        size = step(column(1), torch.Size([1, 2, 1]))[1]
        assert type(size) is torch.Size and size == (2, 1)
    assert not step.why_eager and step.captures == 1
