"""Graphs and calls with gradients that need AOTAutograd's own wrapper, or that are refused."""

import pytest
import torch
from support import compiled, made, same, square, trained
from torch import nn
from torch.autograd import forward_ad

import engine.torch
from engine.torch import regions

OURS = "EngineBackward"


@pytest.fixture
def workers(forced):
    forced("workers")


def test_under_no_grad_behind_training_there_is_no_node(workers):
    model = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    ours = trained(model, x)
    assert ours(x).grad_fn.name() == OURS
    with torch.no_grad():
        out = ours(x)
    assert out.grad_fn is None and not out.requires_grad


def test_under_no_grad_a_graph_that_switches_it_on_keeps_its_gradients(workers):
    def model(x, weight):
        with torch.enable_grad():
            return square(x, weight)

    given = made()
    ours = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            gradients = torch.autograd.grad(ours(*given), given, torch.ones(3))
    same(list(gradients), list(torch.autograd.grad(model(*given).sum(), given)))


def test_a_transform_around_the_backward_pass_is_refused(workers):
    given = made()
    out = trained(square, *given)(*given)
    with pytest.raises(RuntimeError, match="can't run inside of vmap"):
        torch.func.vmap(lambda gradient: torch.autograd.grad(out, given, gradient, retain_graph=True))(torch.eye(3))
    same(torch.autograd.grad(out.sum(), given), torch.autograd.grad(square(*given).sum(), given))


def changed(x, weight):
    x.add_(1)
    return square(x, weight)


@pytest.mark.parametrize(("model", "why"), [
    (lambda x, weight: (square(x, weight), x.view(-1)), "outputs that share memory with something"),
    (changed, "inputs that change unseen or have a history"),
])  # fmt: skip
def test_graphs_that_need_the_wrapper_have_it(workers, model, why):
    before = set(regions.compiled)
    x, weight = made()
    ours = compiled(model)

    def first(out):
        return out[0] if isinstance(out, tuple) else out

    for _ in range(3):
        mine, theirs = x * 1, x * 1
        a, b = ours(mine, weight), model(theirs, weight)
        same((a, mine), (b, theirs))
        same(*[list(torch.autograd.grad(first(out).sum(), [x, weight])) for out in (a, b)])
    region, = set(regions.compiled) - before
    assert region.trained is None and region.needs_wrapper == why
    assert f"because of {why}" in str(engine.torch.explain(ours)[0])


def test_sizes_that_vary_need_the_wrapper(workers):
    x, weight = made()
    ours = compiled(square, dynamic=True)
    for rows in (3, 4, 5):
        x = torch.randn(rows, 5)
        out = ours(x, weight)
        same(out, square(x, weight))
        assert out.grad_fn.name() != OURS
        out.sum().backward()


def test_numbers_as_inputs_need_the_wrapper(workers):
    model = nn.Linear(5, 3)
    pooled = compiled(lambda x: model(x.mean(0)), dynamic=True)
    added = compiled(lambda x, weight, n: (x @ weight).sum(0) + n)
    x, weight = made()
    for n in range(2, 7):
        rows = torch.randn(n, 5)
        same(pooled(rows), model(rows.mean(0)))
        out = added(x, weight, n)
        same(out, (x @ weight).sum(0) + n)
        out.sum().backward()


class Wrapped(torch.Tensor):
    """Another tensor, which does all the work."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        args, kwargs = torch.utils._pytree.tree_map_only(Wrapped, lambda w: w.inner, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(torch.Tensor, Wrapped, function(*args, **kwargs))


@pytest.mark.parametrize("made_inside", [False, True])
def test_tensor_subclasses_need_the_wrapper(workers, made_inside):
    def model(x, weight):
        return (Wrapped(x) if made_inside else x) * weight

    before = set(regions.compiled)
    ours = compiled(model)
    _, weight = made()
    for _ in range(3):
        x = torch.randn(5, 5)
        out = ours(x if made_inside else Wrapped(x), weight)
        assert type(out) is Wrapped
        same(out.inner.detach(), (x * weight).detach())
        out.sum().backward()
    assert {r.needs_wrapper for r in set(regions.compiled) - before} <= {"tensor subclasses"}


def test_outputs_that_are_views_of_an_input_need_the_wrapper_in_any_number(workers):
    def model(x, weight):
        a, b = x.chunk(2)
        return (x * weight).sum(), a, b

    ours = compiled(model)
    for _ in range(3):
        x, weight = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
        out, a, _ = ours(x, weight)
        a.detach().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()


def test_a_view_without_a_history_takes_no_ones_gradient(workers):
    def model(x):
        twice = x * 2
        with torch.no_grad():
            view = twice.t()
        return view, x * 3

    ours = compiled(model)
    for _ in range(3):
        x = torch.randn(3, 3, requires_grad=True)
        ours(x)[1].sum().backward()
        same(x.grad, torch.full((3, 3), 3.0))


def test_hooks_of_saved_tensors_are_met_eagerly_wherever_measuring_is(forced):
    forced("eager")
    x = torch.randn(4, requires_grad=True)
    ours = trained(torch.exp, x)
    choice = max(regions.compiled, key=lambda region: region.number).choice
    choice._asked = "in turn", True  # as in a later comparison
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert ours(x).grad_fn.name() == "ExpBackward0"


def test_forward_mode_is_left_to_the_wrapper(workers):
    x, weight = made()
    ours = trained(square, x, weight)
    with forward_ad.dual_level():
        with pytest.raises(Exception, match="jvp|forward mode|forward AD|dual"):
            ours(forward_ad.make_dual(x, torch.ones_like(x)), weight)


def test_compiled_autograd_is_left_to_the_wrapper(workers):
    given = made()
    ours = trained(square, *given)
    with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        out = ours(*given)
        assert out.grad_fn.name() != OURS
        out.sum().backward()
    same(given[1].grad, torch.autograd.grad(square(*given).sum(), given)[1])
    out = ours(*given)
    with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        with pytest.raises(NotImplementedError, match="switch it on before"):
            out.sum().backward()
