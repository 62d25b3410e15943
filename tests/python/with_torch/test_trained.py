"""Calls with gradients that go without AOTAutograd's own wrapper: what autograd may ask of them, and which graphs need the wrapper."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from support import MODES, same
from torch import nn
from torch.autograd import forward_ad

import engine.torch
from engine.torch import regions

OPTIONS = {"workers": 2}
OURS = "EngineBackward"


def compiled(model, *given, **kwargs):
    """``given``: of a first call with a backward pass, which torch compiles then."""
    ours = torch.compile(model, backend=engine.torch.backend, options=OPTIONS, **kwargs)
    out = ours(*[g.detach().requires_grad_(g.requires_grad) for g in given]) if given else None
    if given:
        (out[0] if isinstance(out, tuple) else out).sum().backward()
    return ours


@pytest.fixture(params=MODES)
def mode(forced, request):
    forced(request.param)
    return request.param


@pytest.fixture
def workers(forced):
    forced("workers")


class Heads(nn.Module):
    """Outputs with and without gradients, one that the backward pass needs itself, one that is a view of what was made, a number."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        hidden = self.first(x).exp()
        out = self.second(hidden)
        return hidden, out.argmax(1), out.view(-1, 3), 7, (out * x.sum()).t()


def differently(used, out):
    hidden, best, viewed, number, turned = out
    assert number == 7 and not best.requires_grad
    if used == "one":
        return hidden.square().sum()
    if used == "expanded":
        return viewed.sum()
    if used == "turned":
        return (turned.t() @ viewed.view(-1, 6).t()).square().sum()
    return hidden.sum() * viewed.mean() + turned.square().sum()


@pytest.mark.parametrize("used", ["one", "expanded", "turned", "all"])
def test_outputs_and_gradients_are_eagers(mode, used):
    model = Heads()
    other, x = copy.deepcopy(model), torch.randn(4, 6)
    ours = compiled(model, x.requires_grad_())
    model.zero_grad()
    x = x.detach()
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    for _ in range(3):
        mine, theirs = ours(a), other(b)
        assert mine[0].grad_fn.name() == OURS
        same(mine, theirs)
        differently(used, mine).backward()
        differently(used, theirs).backward()
        same(a.grad, b.grad)
        # To a graph a gradient that nobody asked for is zeros.
        same([p.grad for p in model.parameters()], [torch.zeros_like(p) if p.grad is None else p.grad for p in other.parameters()])


def square(x, weight):
    return (x @ weight).square().sum(1)


def made(count=1):
    weights = [torch.randn(5, 5, requires_grad=True) for _ in range(count)]
    return [torch.randn(3, 5, requires_grad=True), *weights]


def test_a_second_pass_needs_the_graph_to_be_kept(workers):
    given = made()
    out = compiled(square, *given)(*given)
    first = torch.autograd.grad(out.sum(), given, retain_graph=True)
    same(torch.autograd.grad(out.sum(), given), first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()


def test_what_the_backward_pass_needs_may_not_have_changed(workers):
    x, weight = made()
    out = compiled(square, x, weight)(x, weight)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_an_output_that_the_backward_pass_needs_may_not_have_changed_and_keeps_nothing(workers):
    x = torch.randn(4, requires_grad=True)
    ours = compiled(torch.exp, x)
    out = ours(x)
    assert out.grad_fn.name() == OURS
    out.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    gc.disable()
    try:
        out = ours(x)
        seen = weakref.ref(out)
        del out
        assert seen() is None, "the output and what made it keep each other"
    finally:
        gc.enable()


def test_gradients_of_gradients_are_refused_as_by_torch(workers):
    given = made()
    gradients = torch.autograd.grad(compiled(square, *given)(*given).sum(), given, create_graph=True)
    assert all(g.requires_grad for g in gradients)
    same([g.detach() for g in gradients], list(torch.autograd.grad(square(*given).sum(), given)))
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradients[0].sum().backward()


def test_a_gradient_that_is_passed_on_stays_the_callers(workers):
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    given = torch.ones(3)
    out = compiled(torch.add, x, y)(x, y)
    torch.autograd.grad(out, [x, y], given, create_graph=True)
    assert not given.requires_grad and given.grad_fn is None


def test_hooks_see_the_gradients_and_may_change_them(workers):
    x, weight = made()
    found = []
    out = compiled(square, x, weight)(x, weight)
    out.register_hook(lambda g: found.append(g.clone()) or 2 * g)
    out.grad_fn.register_hook(lambda into, outof: found.append(len(into)))
    out.sum().backward()
    same(found, [torch.ones(3), 2])
    same(x.grad, 2 * torch.autograd.grad(square(x, weight).sum(), x)[0])


def test_an_input_without_a_gradient_takes_no_part(workers):
    x, weight = made()
    out = compiled(lambda x, weight: square(x.detach(), weight), x, weight)(x, weight)
    out.sum().backward()
    assert x.grad is None and weight.grad is not None
    assert out.grad_fn.next_functions[0][0] is None


def test_the_model_may_be_gone_and_another_thread_may_go_backward(workers):
    given = made()
    out = compiled(square, *given)(*given)
    torch._dynamo.reset()
    gc.collect()
    thread = threading.Thread(target=lambda: out.sum().backward())
    thread.start()
    thread.join()
    same([g.grad for g in given], list(torch.autograd.grad(square(*given).sum(), given)))


def test_threads_go_backward_through_one_graph_at_once(workers):
    given = made()
    ours = compiled(square, *given)
    out = ours(*given)
    wanted = torch.autograd.grad(square(*given).sum(), given)
    wrong = []

    def back():
        for _ in range(50):
            found = torch.autograd.grad(out.sum(), given, retain_graph=True)
            wrong.extend(1 for a, b in zip(found, wanted) if not torch.equal(a, b))

    threads = [threading.Thread(target=back) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_failure_of_the_backward_pass_names_the_models_line(workers):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.new_zeros(2)[torch.tensor([9])].sum() + gradient

    def model(x):
        return Fails.apply(x) * 2

    ours = torch.compile(model, backend=engine.torch.backend, options=OPTIONS)
    with pytest.raises(IndexError):
        ours(torch.randn(3, requires_grad=True)).sum().backward()
    out = ours(torch.randn(3, requires_grad=True))
    assert out.grad_fn.name() == OURS
    with pytest.raises(IndexError, match=r"engine.torch: in .*, at .*test_trained.py:\d+"):
        out.sum().backward()


def test_under_no_grad_behind_training_there_is_no_node(workers):
    model = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    ours = compiled(model, x)
    assert ours(x).grad_fn.name() == OURS
    with torch.no_grad():
        out = ours(x)
    assert out.grad_fn is None and not out.requires_grad


def changed(x, weight):
    x.add_(1)
    return square(x, weight)


@pytest.mark.parametrize(("model", "why"), [
    (lambda x, weight: (square(x, weight), x.view(-1)), "outputs that share memory with something"),
    (changed, "inputs that change"),
])  # fmt: skip
def test_graphs_that_need_the_wrapper_have_it(workers, model, why):
    before = set(regions.compiled)
    x, weight = made()
    x = x.detach()
    ours = compiled(model, x, weight)
    same(ours(x.clone(), weight), model(x.clone(), weight))
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


def test_forward_mode_is_left_to_the_wrapper(workers):
    x, weight = made()
    ours = compiled(square, x, weight)
    with forward_ad.dual_level():
        with pytest.raises(Exception, match="jvp|forward mode|forward AD|dual"):
            ours(forward_ad.make_dual(x, torch.ones_like(x)), weight)


def test_compiled_autograd_is_left_to_the_wrapper(workers):
    given = made()
    ours = compiled(square, *given)
    with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        out = ours(*given)
        assert out.grad_fn.name() != OURS
        out.sum().backward()
    same(given[1].grad, torch.autograd.grad(square(*given).sum(), given)[1])
    out = ours(*given)
    with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        with pytest.raises(NotImplementedError, match="switch it on before"):
            out.sum().backward()
