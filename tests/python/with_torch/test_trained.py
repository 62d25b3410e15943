"""Calls with gradients that go without AOTAutograd's own wrapper: what autograd may ask of them."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from support import MODES, close, compiled, made, same, square, trained
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from engine.torch import regions

OURS = "EngineBackward"


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
    ours = trained(model, x.requires_grad_())
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


def test_a_second_pass_needs_the_graph_to_be_kept(workers):
    given = made()
    out = trained(square, *given)(*given)
    first = torch.autograd.grad(out.sum(), given, retain_graph=True)
    same(torch.autograd.grad(out.sum(), given), first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()


def test_what_the_backward_pass_needs_may_not_have_changed(workers):
    x, weight = made()
    out = trained(square, x, weight)(x, weight)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_an_output_that_the_backward_pass_needs_may_not_have_changed_and_keeps_nothing(workers):
    x = torch.randn(4, requires_grad=True)
    ours = trained(torch.exp, x)
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
    gradients = torch.autograd.grad(trained(square, *given)(*given).sum(), given, create_graph=True)
    assert all(g.requires_grad for g in gradients)
    same([g.detach() for g in gradients], list(torch.autograd.grad(square(*given).sum(), given)))
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradients[0].sum().backward()


def test_a_gradient_that_is_passed_on_stays_the_callers(workers):
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    given = torch.ones(3)
    out = trained(torch.add, x, y)(x, y)
    torch.autograd.grad(out, [x, y], given, create_graph=True)
    assert not given.requires_grad and given.grad_fn is None


def test_hooks_see_the_gradients_and_may_change_them(workers):
    x, weight = made()
    found = []
    out = trained(square, x, weight)(x, weight)
    out.register_hook(lambda g: found.append(g.clone()) or 2 * g)
    out.grad_fn.register_hook(lambda into, outof: found.append(len(into)))
    out.sum().backward()
    same(found, [torch.ones(3), 2])
    same(x.grad, 2 * torch.autograd.grad(square(x, weight).sum(), x)[0])


def test_an_input_without_a_gradient_takes_no_part(workers):
    x, weight = made()
    out = trained(lambda x, weight: square(x.detach(), weight), x, weight)(x, weight)
    out.sum().backward()
    assert x.grad is None and weight.grad is not None
    assert out.grad_fn.next_functions[0][0] is None


def test_the_model_may_be_gone_and_another_thread_may_go_backward(workers):
    given = made()
    out = trained(square, *given)(*given)
    torch._dynamo.reset()
    gc.collect()
    thread = threading.Thread(target=lambda: out.sum().backward())
    thread.start()
    thread.join()
    same([g.grad for g in given], list(torch.autograd.grad(square(*given).sum(), given)))


def test_threads_go_backward_through_one_graph_at_once(workers):
    given = made()
    ours = trained(square, *given)
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

    ours = compiled(model)
    with pytest.raises(IndexError):
        ours(torch.randn(3, requires_grad=True)).sum().backward()
    out = ours(torch.randn(3, requires_grad=True))
    assert out.grad_fn.name() == OURS
    with pytest.raises(IndexError, match=r"engine.torch: in .*, at .*test_trained.py:\d+"):
        out.sum().backward()


probes = []


@torch.library.custom_op("engine_test_trained::probe", mutates_args=())
def probe(x: torch.Tensor) -> torch.Tensor:
    probes.append([seen.expired() for seen in probes.pop()] if probes else [])
    return x.clone()


probe.register_fake(torch.empty_like)


class Probed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return probe(gradient)


def test_what_the_backward_pass_no_longer_needs_is_let_go_unless_the_graph_is_kept(workers):
    def model(x, by):
        return Probed.apply(x) * by

    def given():
        return torch.randn(300, 300, requires_grad=True), torch.randn(300, 300)

    ours = trained(model, *given())
    x, by = given()
    out = ours(x, by)
    assert out.grad_fn.name() == OURS
    seen = StorageWeakRef(by.untyped_storage())
    del by
    for kept in (True, False):
        probes[:] = [[seen]]
        out.sum().backward(retain_graph=kept)
        assert probes == [[not kept]]
    assert seen.expired()


def test_gradients_may_come_in_batches(mode):
    given = made()
    out, eager = trained(square, *given)(*given), square(*given)
    batches = [torch.autograd.grad(each, given, torch.eye(3), is_grads_batched=True) for each in (out, eager)]
    close(batches[0], batches[1])


def test_a_gradient_may_be_sparse(workers):
    def model(x):
        return x.exp() * 2

    x, ids = torch.randn(6, 2, requires_grad=True), torch.tensor([4, 1, 4])
    ours = trained(model, x)
    gradients = [torch.autograd.grad(nn.functional.embedding(ids, f(x), sparse=True).square().sum(), x)[0] for f in (ours, model)]
    same(gradients[0], gradients[1].to_dense() if gradients[1].is_sparse else gradients[1])


@pytest.mark.parametrize("split", [False, True])
def test_a_change_of_an_output_that_shares_memory_with_what_is_kept_is_seen(workers, split):
    def model(x):
        hidden = x.exp()
        return hidden.split(2) if split else hidden.view(-1)

    x = torch.randn(4, 2, requires_grad=True)
    ours = trained(model, x)
    for f in (ours, model):
        out = f(x)
        out = out[0] if split else out
        torch.autograd.grad(out.sum(), x, retain_graph=True)
        with torch.no_grad():
            out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation|has been modified inplace"):
            out.sum().backward()


def test_batch_norms_train(mode):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8, affine=False))
    other, x = copy.deepcopy(model), torch.randn(16, 6)
    ours = trained(model, x)
    other(x)
    model.zero_grad()
    for _ in range(3):
        x = torch.randn(16, 6)
        mine, theirs = ours(x), other(x)
        assert mine.grad_fn.name() == OURS
        same(mine, theirs)
        mine.square().sum().backward()
        theirs.square().sum().backward()
        same([p.grad for p in model.parameters()], [p.grad for p in other.parameters()])
        same(list(model.buffers()), list(other.buffers()))
    model.eval(), other.eval()
    same(ours(x), other(x))


def changed(x, weight):
    x.add_(1)
    return square(x, weight)


def test_a_change_of_an_input_is_seen_by_what_needs_it(workers):
    x, weight = made()
    x = x.detach()
    ours = trained(changed, x, weight)
    other, before = torch.randn(3, 5, requires_grad=True), x.clone()
    needs = other * x
    out = ours(x, weight)
    assert out.grad_fn.name() == OURS
    same(x, before + 1)
    wanted = before.clone()
    same(torch.autograd.grad(out.sum(), weight)[0], torch.autograd.grad(changed(wanted, weight).sum(), weight)[0])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        needs.sum().backward()


def test_an_input_that_a_kernel_returns_stays_the_callers(workers):
    ours = compiled(lambda x: nn.functional.dropout(x, 0.5))
    for _ in range(3):
        x = torch.empty(0, 5, requires_grad=True)
        out = ours(x)
        assert x.is_leaf and out is not x
        out.sum().backward()
        assert x.grad.shape == (0, 5)


class Exponential(torch.autograd.Function):
    """Keeps its result for itself, so torch does not look whether it has changed."""

    @staticmethod
    def forward(ctx, x):
        ctx.out = x.exp()
        return ctx.out

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.out


def test_an_output_that_a_function_keeps_for_itself_is_let_go(workers):
    x = torch.randn(4, requires_grad=True)
    ours = trained(lambda x: Exponential.apply(x), x)
    out = ours(x)
    assert out.grad_fn.name() == OURS
    same(torch.autograd.grad(out.sum(), x, retain_graph=True)[0], x.exp().detach())
    seen = weakref.ref(out)
    del out
    gc.collect()
    assert seen() is None


def test_a_second_derivative_by_way_of_a_gradient_that_is_laid_otherwise_is_refused_too(workers):
    given = made()
    out = trained(torch.mm, *given)(*given)
    along = torch.randn(5, 3, requires_grad=True)
    gradient, = torch.autograd.grad(out, given[0], along.t(), create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(gradient.sum(), along)


def test_threads_that_go_backward_once_each_do_not_wait_for_each_other_for_ever(workers):
    x, weight = made()
    ours = trained(lambda x, weight: square(x, weight).sum(), x.detach(), weight)
    told = []

    def back(out):
        try:
            out.backward()
        except RuntimeError as error:
            told.append(str(error))

    for _ in range(500):
        out = ours(torch.randn(3, 5), weight)  # its tensor is Python's too, so letting it go takes the GIL
        threads = [threading.Thread(target=back, args=(out,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all("a second time" in text for text in told)


def test_what_a_run_is_timed_into_stays_while_it_runs(workers):
    given = made()
    trained(square, *given)(*given)
    program = max(regions.compiled, key=lambda region: region.number).programs["forward"]
    program.timed = 0
    way = program.way("workers")
    seen = weakref.ref(program.times)
    program.way("workers")  # of another thread's run
    assert seen() is not None
    del way
    assert seen() is None
