"""Objects that may change and have no memory that can be found: their identity stands for it. And memory in containers of all kinds."""

import collections
import threading
import types

import numpy as np
import pytest

import engine
from engine.alias import apart
from engine.extents import Extent, fixed, memory_of, overlap
from engine.values import vars_of

POLICIES = ["threaded", "inline", "naive"]


class Model:
    def __init__(self):
        self.n, self.weight = 0, np.zeros(2)


@engine.op(updates="x")
def scale(x):
    x *= 10


@engine.op(updates="m")
def bump(m):
    if isinstance(m, Model):
        m.n += 1
        m.weight += 1
    elif isinstance(m, dict):
        m["n"] += 1
    elif isinstance(m, (set, collections.deque)):
        m.clear()
    else:
        m[0] += 1


MAKES = {
    "a list": lambda: [0],
    "a dict": lambda: {"n": 0},
    "a set": lambda: {0},
    "a deque": lambda: collections.deque([0]),
    "an object": Model,
    "a list in a list": lambda: [[0]],
    "an empty bytearray": bytearray,
}


@pytest.mark.parametrize("what", MAKES)
def test_values_of_one_object_have_one_var(what):
    data = MAKES[what]()
    first, second, other = engine.value(data), engine.value(data), engine.value(MAKES[what]())
    assert first.var == second.var != other.var
    inner = data[0] if what == "a list in a list" else data
    assert engine.value((1, inner)).var == first.var
    copy = engine.value(data, alias="copy")
    assert copy.var != first.var and not overlap(memory_of(copy.get()), memory_of(data))


@pytest.mark.parametrize("data", [1, "text", b"bytes", (1, "a"), None, 1.5, len, Model, types, frozenset([1]), np.float64(1), np.dtype(int),
                                  threading.main_thread, ValueError("v"), range(3), engine.MISSING])  # fmt: skip
def test_what_never_changes_may_belong_to_many_values(data):
    assert engine.value(data).var != engine.value(data).var
    assert apart(data) is data


@pytest.mark.parametrize("policy", POLICIES)
def test_ops_on_two_values_of_one_list_are_ordered(policy, gate):
    with engine.policy(policy):
        data = [0]
        a, b = engine.value(data), engine.value(data)
        if policy == "threaded":
            engine.op(lambda x: gate(), updates="x")(a)
        bump(a)
        read = engine.op(lambda x: x[0])(b)
        if policy == "threaded":
            with pytest.raises(TimeoutError):
                read.get(0.05)
        gate.open()
        assert read.get() == 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("made", [Model, lambda: [0]])
def test_an_op_that_returns_what_it_updates_returns_a_copy(policy, made):
    def n(m):
        return (m.n, m.weight.sum()) if isinstance(m, Model) else m[0]

    with engine.policy(policy):
        m = engine.value(made())
        step = engine.op(lambda m: m, updates="m", outputs=1)
        bump(step(m))
        assert engine.op(n)(m).get() == n(made())


def test_with_alias_order_an_op_returns_the_object_itself_and_it_is_ordered(gate):
    m = engine.value(Model())
    same = engine.op(lambda m: m, alias="order")(m)
    engine.op(lambda m: gate(), updates="m")(m)
    bump(same)
    read = engine.op(lambda m: m.n)(m)
    gate.open()
    assert read.get() == 1 and same.get() is m.get()


def test_one_object_as_two_outputs_becomes_two():
    first, second = engine.op(lambda: (lambda m: (m, [m]))(Model()), outputs=2)()
    bump(first)
    first.wait()
    assert second.get()[0].n == 0 and first.get().n == 1


def test_a_list_of_another_value_is_copied_by_overwrite():
    data = [1]
    a, b = engine.value(data), engine.value([0])
    b.overwrite(data)
    bump(a)
    assert b.get() == [1] and a.get() == [2]
    b.overwrite(b.get())  # its own
    assert b.get() == [1]


def test_an_object_that_cannot_be_copied_stays_itself():
    lock = threading.Lock()
    v = engine.value(lock)
    assert engine.op(lambda x: x)(v).get() is lock
    assert engine.op(lambda x: [x, 1])(lock).get()[0] is lock


SHARED = {
    "a deque": lambda x: collections.deque([x], 3),
    "a set in a tuple": lambda x: (collections.deque([collections.deque([x])]), 1),
    "a dict of a list": lambda x: {"k": [x]},
}


def first_of(item):
    while not isinstance(item, np.ndarray) or item.dtype == object:
        item = next(iter(item.values() if isinstance(item, dict) else item))
    return item


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", SHARED)
def test_parts_of_containers_are_copied(how, policy):
    with engine.policy(policy):
        x = engine.value(np.ones(2))
        out = engine.op(SHARED[how])(x)
        out.wait()
        scale(x)
        x.wait()
        assert first_of(out.get()).sum() == 2 and type(out.get()) is type(SHARED[how](0))
        if how == "a deque":
            assert out.get().maxlen == 3


def array_of(item, shape=(2,)):
    made = np.empty(shape, object)
    made[(0,) * len(shape)] = item
    return made


def test_an_array_of_objects_has_the_memory_of_its_items():
    x = np.ones(2)
    assert engine.value(x).var != engine.value(array_of(np.ones(2))).var
    value = engine.value(x)
    assert value.var in vars_of(engine.value(array_of(x)))
    for shape in ((2,), (2, 2)):
        made = apart(array_of(x, shape))
        assert made.shape == shape and made.dtype == object and first_of(made).tolist() == [1, 1]
        assert not overlap(memory_of(made), memory_of(x)) and made.flat[1] is None


def test_the_mask_of_a_masked_array_is_its_memory():
    mask = np.array([True, False])
    both = np.ma.MaskedArray(np.ones(2), mask=mask, copy=False)
    assert np.shares_memory(both.mask, mask)
    assert engine.value(mask).var == engine.value(both).var


def test_extents_of_many_overlap_as_those_of_few(rng):
    def some():
        return [(rng.choice(("host", "id")), low := rng.randrange(400), low + rng.randrange(1, 4)) for _ in range(rng.randrange(1, 20))]

    def by_each(one: list[Extent], other: list[Extent]):
        return any(a == d and b < f and e < c for a, b, c in one for d, e, f in other)

    seen = set()
    for _ in range(2000):
        one, other = some(), some()
        assert overlap(one, other) == by_each(one, other)
        seen.add(by_each(one, other))
    assert len(seen) == 2


def test_a_raw_argument_that_is_state_which_the_function_changes_is_refused():
    a = np.ones(2)
    w = engine.value(a, name="w")
    total = engine.op(lambda y: float(y.sum()))
    step = engine.hybridize(lambda x: (scale(w), total(x))[1])
    with pytest.raises(engine.UsageError, match="the state 'w', which the function changes in place, shares memory with argument 0"):
        step(a)
    assert step(np.ones(2)).get() == 2
    read = engine.hybridize(lambda x: total(x) + total(w))
    assert read(a).get() == 40


def test_fixed():
    assert fixed(np.add) and fixed(np.int8(3)) and not fixed([]) and not fixed(Model()) and not fixed(threading.Lock())


def test_an_object_that_no_value_has_is_returned_itself():
    model = Model()
    same = engine.op(lambda m: m)
    assert same(model).get() is model
    with engine.Executor() as pool:
        assert pool.submit(lambda m: m, model).result() is model


def test_an_interrupt_while_memory_is_looked_for_is_raised_and_forgets_nothing():
    held, armed = np.zeros(4), []

    class Shown:
        @property
        def __array_interface__(self):
            if armed:
                armed.clear()
                raise KeyboardInterrupt
            return held.__array_interface__

    v = engine.op(Shown)()  # what an op has made is looked at when somebody asks for memory
    engine.wait(v)
    armed.append(True)
    with pytest.raises(KeyboardInterrupt):
        engine.value(np.zeros(1))
    assert engine.value(held).var == v.var
