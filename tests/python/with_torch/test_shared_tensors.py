"""Memory that tensors share: storages, sparse tensors, gradients, and what somebody else has a view of."""

import collections

import numpy as np
import pytest
import torch

import engine
from engine import alias
from engine.alias import apart
from engine.extents import fixed, memory_of, overlap

POLICIES = ["threaded", "inline", "naive"]


@engine.op(updates="x")
def scale(x):
    x.mul_(10)


def sparse(x):
    return torch.sparse_coo_tensor([[0, 1]], x, check_invariants=False)


def sparse_rows(x):
    return torch.sparse_csr_tensor([0, 2], [0, 1], x, size=(1, 2), check_invariants=False)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("way", [sparse, sparse_rows, lambda x: {x}, lambda x: collections.deque([x]), lambda x: x.untyped_storage()])
def test_an_output_that_has_the_argument_in_it_is_a_copy(way, policy):
    with engine.policy(policy):
        x = engine.value(torch.ones(2))
        out = engine.op(way)(x)
        out.wait()
        scale(x)
        x.wait()
        assert not overlap(memory_of(out.get()), memory_of(x.get()))
        if isinstance(out.get(), torch.Tensor):
            assert out.get().to_dense().sum() == 2 and out.get().layout == way(torch.ones(2)).layout


@pytest.mark.parametrize("way", [sparse, sparse_rows, lambda x: {x}, lambda x: x.untyped_storage()])
def test_values_of_a_tensor_and_of_what_has_its_memory_have_one_var(way):
    x = torch.ones(2)
    assert engine.value(x).var == engine.value(way(x)).var
    assert not overlap(memory_of(apart(way(x))), memory_of(x))


def test_a_tensor_and_its_gradient_have_one_var():
    w = torch.ones(2, requires_grad=True)
    (w * 2).sum().backward()
    value = engine.value(w)
    assert engine.value(w.grad).var == value.var


VIEWS = {
    "itself": lambda t: t,
    "a view": lambda t: t[:],
    "a view of a view": lambda t: t[:][:1],
    "detached": lambda t: t.detach(),
    "as an array": lambda t: t.numpy(),
    "a view of it as an array": lambda t: t.numpy()[:1],
    "a parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_tensor_that_somebody_else_has_is_copied(view):
    cache = torch.zeros(2)
    fill = engine.op(lambda k: VIEWS[view](cache.fill_(k)))
    first = fill(1)
    first.wait()
    fill(2).wait()
    assert float(first.get()[0]) == 1


def test_views_that_nobody_else_has_are_not_copied():
    where = []

    def made(view):
        def fn():
            tensor = torch.ones(4)
            where.append(tensor.data_ptr())
            return view(tensor)

        return engine.op(fn)

    for view in (lambda t: t, lambda t: t[:], lambda t: t[1:][:2], lambda t: t.view(2, 2).t()):
        assert made(view)().get().untyped_storage().data_ptr() == where[-1]


def test_types_and_devices_never_change():
    assert all(fixed(one) for one in (torch.float32, torch.device("cpu"), torch.strided))
    assert not fixed(torch.nn.Linear(1, 1))


STORED = {
    "a list": (list, lambda c, x: c.append(x)),
    "a set": (set, lambda c, x: c.add(x)),
    "a dict in a deque": (lambda: collections.deque([{}]), lambda c, x: c[0].update(x=x.detach())),
    "a list, as NumPy's": (list, lambda c, x: c.append(x.numpy())),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", STORED)
def test_what_an_op_puts_into_a_container_that_it_updates_is_a_copy(kind, policy):
    make, put = STORED[kind]
    with engine.policy(policy):
        c, x = engine.value(make()), engine.value(torch.ones(2))
        engine.op(put, updates="c")(c, x)
        scale(x)
        engine.wait_all()
        assert not overlap(memory_of(c.get()), memory_of(x.get()))
        (stored,) = c.get()[0].values() if kind == "a dict in a deque" else c.get()
        assert stored.tolist() == [1, 1]


def in_a_list(x):
    made = [x]
    made.append(made)
    return made


def in_a_dict(x):
    made = {0: x}
    made[1] = made
    return made


@pytest.mark.parametrize("way", [in_a_list, in_a_dict])
def test_an_output_that_contains_itself_is_a_copy_that_does(way):
    x = torch.ones(2)
    with engine.Engine(workers=1):
        made = engine.op(way)(x).get()
    assert made[1] is made and torch.equal(made[0], x) and not overlap(memory_of(made[0]), memory_of(x))


def test_a_copy_of_a_parameter_is_a_parameter_with_its_gradient():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 3.0)
    with engine.Engine(workers=1):
        made = engine.op(lambda given: given)(weight).get()
    assert type(made) is torch.nn.Parameter and torch.equal(made.grad, weight.grad)
    assert not overlap(memory_of([made, made.grad]), memory_of([weight, weight.grad]))


KEPT = torch.arange(4.0)
OF_NUMPY = np.zeros(4, np.float32)
HAVE_THEIR_OWN = {
    "made": lambda x: torch.empty(3),
    "computed": lambda x: x * 2 + 1,
    "a copy": lambda x: x.clone(),
    "several, also in containers": lambda x: [x + 1, {"a": x + 2}],
    "contiguous again": lambda x: x.view(2, 2).t().contiguous(),
}
MAY_SHARE_IT = {
    "an array's": lambda x: torch.from_numpy(OF_NUMPY),
    "a buffer's": lambda x: torch.frombuffer(bytearray(16), dtype=torch.uint8),
    "by DLPack": lambda x: torch.from_dlpack(OF_NUMPY),
    "the argument": lambda x: x,
    "a view of it": lambda x: x[1:],
    "one that is kept": lambda x: KEPT,
    "detached from one that is kept": lambda x: KEPT.detach(),
    "has a gradient": lambda x: (x.clone().requires_grad_() * 2),
    "sparse": lambda x: x.to_sparse(),
}


def asked_for(way):
    """How often the function in Python looked at what such an op returns."""
    asked, x = [], engine.value(torch.ones(4))
    engine._core._set_unshared(lambda *all: asked.append(all) or alias.unshared(*all))
    try:
        engine.op(way)(x).wait()
        return len(asked)
    finally:
        engine._core._set_unshared(alias.unshared)


@pytest.mark.parametrize("way", HAVE_THEIR_OWN.values(), ids=HAVE_THEIR_OWN)
def test_no_python_code_looks_at_a_tensor_that_shares_its_memory_with_nobody(way):
    assert asked_for(way) == 0


@pytest.mark.parametrize("way", MAY_SHARE_IT.values(), ids=MAY_SHARE_IT)
def test_a_tensor_that_may_share_its_memory_is_looked_at(way):
    assert asked_for(way) == 1


def test_an_output_that_an_array_was_lent_from_is_a_copy():
    lent = []

    def lends(x):
        made = x + 1
        lent.append(made.numpy())
        return made

    out = engine.op(lends)(torch.ones(3)).get()
    lent[0][:] = 7
    assert out.tolist() == [2, 2, 2]
