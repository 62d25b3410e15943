"""Outputs that share memory with arguments, or with each other, mean the same under every policy."""

import array
import collections
import dataclasses
import functools
import gc
import mmap
import multiprocessing.shared_memory
import random
import weakref

import numpy as np
import pytest

import engine
from engine import _core
from engine.extents import extents, leaves, overlap
from engine.values import vars_of


@engine.op(updates="x")
def fill(x, by):
    for each in x if isinstance(x, list) and x and isinstance(x[0], np.ndarray) else [x]:
        each[:] = by


def data():
    return np.arange(4.0)


WAYS = {
    "the argument": lambda x: x,
    "a slice": lambda x: x[1:],
    "a transpose": lambda x: x.reshape(2, 2).T,
    "a list of views": lambda x: [x[:2], x[2:]],
    "a dict of views": lambda x: {"a": x, "b": 1},
    "a tuple with the argument": lambda x: (x, x),
    "a memoryview": lambda x: memoryview(x),
    "a view of the buffer": lambda x: np.frombuffer(memoryview(x), x.dtype),
}


def plain(thing):
    if isinstance(thing, dict):
        return {key: plain(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [plain(each) for each in thing]
    return np.asarray(thing).tolist() if isinstance(thing, (np.ndarray, memoryview)) else thing


@pytest.mark.parametrize("policy", ["threaded", "inline", "naive"])
@pytest.mark.parametrize("way", WAYS)
def test_a_later_update_of_the_argument_does_not_change_the_output(way, policy):
    with engine.policy(policy):
        x = engine.value(data())
        out = engine.op(WAYS[way])(x)
        fill(x, 9.0)
        assert plain(out.get()) == plain(WAYS[way](data()))
        step = engine.hybridize(lambda y: engine.op(WAYS[way])(y))
        given = engine.value(data())
        out = step(given)
        fill(given, 9.0)
        assert plain(out.get()) == plain(WAYS[way](data()))


@pytest.mark.parametrize("kind", [list, bytearray, set, collections.deque, collections.OrderedDict])
def test_containers_of_python_are_copied_too(kind):
    made = kind.fromkeys if issubclass(kind, dict) else kind
    x = engine.value(made(b"abcd"))
    out = engine.op(lambda x: x)(x)
    engine.op(lambda x: x.clear(), updates="x")(x)
    assert out.get() == made(b"abcd") and x.get() == kind()


@engine.op(updates="x")
def bump(x):
    x += 1


class Model:
    def __init__(self):
        self.buffer, self.items = np.zeros(2), [np.zeros(2)]

    @engine.op
    def out(self, by):
        self.buffer[:] = by
        return self.buffer

    @engine.op
    def held(self, by):
        self.items[0][:] = by
        return self.items, 1


def whole(x):
    return x.base if isinstance(x, np.flatiter) else np.asarray(x)


def own(kind):
    """Functions whose result somebody else has, too; what it is; and how to change what the other has."""
    kept = np.zeros(4)
    if kind == "a global":
        return lambda: kept
    if kind == "a view of it":
        return lambda: kept[1:][1:]
    if kind == "its buffer":
        return lambda: memoryview(kept)[1:]
    if kind == "its places":
        return lambda: kept.flat
    if kind == "a buffer of nobody else's":
        buffer = memoryview(bytearray(32)).cast("d")
        return lambda: buffer[1:]
    if kind == "an array in a buffer of nobody else's":
        only = memoryview(bytearray(32))
        return lambda: np.frombuffer(only)
    if kind == "an array in its buffer":
        return lambda: np.frombuffer(memoryview(kept).cast("B"), np.float64)
    if kind == "in a dict":
        return lambda: {"x": (kept, 1)}
    return functools.cache(lambda: np.zeros(4))


@pytest.mark.parametrize("kind", [
    "a global", "a view of it", "its buffer", "its places", "a buffer of nobody else's", "an array in a buffer of nobody else's",
    "an array in its buffer", "in a dict", "what a cache has"])  # fmt: skip
@pytest.mark.parametrize("recorded", [False, True])
def test_what_somebody_else_has_too_is_copied(kind, recorded):
    call = got = engine.op(own(kind))
    if recorded:
        call = engine.hybridize(lambda: got())
    first, second = call(), call()
    spoil = engine.op(lambda x: whole(x["x"][0] if isinstance(x, dict) else x).fill(7.0), updates="x")
    spoil(first)
    shown = [str(plain(list(x) if isinstance(x, np.flatiter) else x)) for x in (first.get(), second.get())]
    assert "7.0" in shown[0] and "7.0" not in shown[1]


def test_a_method_that_returns_its_buffer():
    model = Model()
    results = [model.out(by) for by in (1, 2, 3)]
    assert [one.get().tolist() for one in results] == [[1, 1], [2, 2], [3, 3]]
    results = [model.held(by) for by in (1, 2)]
    assert [plain(one.get()) for one in results] == [[[[1, 1]], 1], [[[2, 2]], 1]]


def test_what_nobody_else_has_is_not_copied():
    where = []

    def kept(make):
        def fn():
            made = make()
            array = made
            while not isinstance(array, np.ndarray):
                array = next(iter(array.values() if isinstance(array, dict) else array))
            where.append(array.__array_interface__["data"][0])
            return made

        return engine.op(fn)

    for make in (lambda: np.zeros(4), lambda: np.zeros(4)[1:], lambda: (np.zeros(4), 1), lambda: {"x": [np.zeros(4)]}):
        out = kept(make)().get()
        while not isinstance(out, np.ndarray):
            out = next(iter(out.values() if isinstance(out, dict) else out))
        assert out.__array_interface__["data"][0] == where[-1]


def test_a_view_of_the_value_of_a_closure():
    w = engine.value(np.zeros(2))
    for alias in ("copy", "order"):
        out = engine.op(lambda: w.get()[:1], alias=alias)()
        out.get()
        bump(w)
        w.get()
        assert out.get()[0] == w.get()[0] - 1


@pytest.mark.parametrize("how", ["called", "recorded"])
def test_data_of_a_result_lead_to_its_var(how):
    made = engine.op(lambda: np.zeros(4))
    y = made() if how == "called" else engine.hybridize(lambda: made())()
    again = engine.value(y.get()[1:])
    assert again.var == y.var
    stolen = []
    engine.op(lambda x: stolen.append(x))(y).get()
    assert engine.value(stolen).var == y.var and engine.value(stolen, alias="copy").var != y.var
    listed = engine.value([])
    engine.op(lambda x: x.append(np.zeros(3)), updates="x")(listed)
    assert engine.value(listed.get()[0]).var == listed.var  # it came in by an update


def test_overwriting_with_what_a_value_has(gate):
    u, v = engine.value(np.zeros(3)), engine.value(np.ones(3))
    engine.op(lambda x: (gate(), x.fill(2.0))[1], updates="x")(u)
    v.overwrite(u._data)  # the data of its place in the order: behind what was called so far
    bump(u)
    gate.open()
    assert v.get().tolist() == [2, 2, 2] and u.get().tolist() == [3, 3, 3]
    bump(v)
    assert u.get().tolist() == [3, 3, 3] and v.get().tolist() == [3, 3, 3]


def test_data_that_overwrite_lead_to_its_var(gate):
    v, brought = engine.value(np.ones(3)), np.zeros(3)
    engine.op(lambda x: gate(), updates="x")(v)
    v.overwrite(brought)
    assert engine.value(brought[1:]).var == v.var  # also before it has happened
    gate.open()
    assert v.get() is brought and engine.value(brought[:1]).var == v.var
    v.overwrite(v.get()[::-1])
    assert np.shares_memory(v.get(), brought)  # it is its own


def test_two_outputs_of_one_memory_with_no_value_to_order_them():
    both = engine.op(lambda: (lambda y: (y, y[:2]))(np.ones(3)), outputs=2, alias="order")
    whole, part = both()
    fill(whole, 0.0)
    assert part.get().tolist() == [1, 1] and not whole.get().any()


def test_two_outputs_that_share_memory_become_two():
    both = engine.op(lambda x: (lambda y: (y, y[:2]))(x + 1), outputs=2)
    whole, part = both(engine.value(data()))
    fill(whole, 0.0)
    assert part.get().tolist() == [1, 2] and not whole.get().any()


def test_the_order_of_memory_is_kept():
    x = engine.value(np.asfortranarray(np.ones((3, 4))))
    assert engine.op(lambda x: x)(x).get().flags.f_contiguous


def test_a_view_that_is_declared_stays_one_and_is_ordered():
    tail = engine.op(lambda x: x[1:], alias="order")
    for _ in range(50):
        x = engine.value(data())
        y = tail(x)
        fill(x, 9.0)
        before = engine.op(lambda y: y.sum())(y)
        fill(y, 1.0)
        assert before.get() == 27 and x.get().tolist() == [9, 1, 1, 1]
    with pytest.raises(engine.UsageError, match="'copy' or 'order'"):
        engine.op(alias="maybe")(lambda x: x)


def test_values_of_one_memory_have_one_var():
    whole = np.zeros(4)
    a, b, other = engine.value(whole), engine.value(whole[1:]), engine.value(np.zeros(4))
    assert a.var == b.var and a.var != other.var
    assert engine.value(whole, alias="copy").var != a.var
    del a, b
    gc.collect()
    assert engine.value(whole[1:2]) is not None


class Exports:
    """An array of somebody's own, which says only one thing about itself."""

    def __init__(self, array, how):
        self.array = array
        if how == "dlpack":
            type(self).__dlpack__ = lambda self, **asked: self.array.__dlpack__(**asked)
            type(self).__dlpack_device__ = lambda self: self.array.__dlpack_device__()
        else:
            type(self).__array_interface__ = property(lambda self: self.array.__array_interface__)
            self.nbytes = array.nbytes


def exported(how):
    return lambda array: type("Exports", (Exports,), {})(array, how)


WAYS_TO_SHARE = {
    "a view of a view": lambda whole: whole[2:][1:],
    "backwards": lambda whole: whole[::-2],
    "as bytes": lambda whole: whole[3:].view(np.uint8),
    "memoryview": lambda whole: memoryview(whole)[4:],
    "frombuffer": lambda whole: np.frombuffer(memoryview(whole)[5:]),
    "frombuffer of a buffer": lambda whole: np.frombuffer(memoryview(whole).cast("B"), np.float32, 4, 24),
    "in a list": lambda whole: [1, (whole[6:],)],
    "in a dataclass": lambda whole: Pair({"x": whole[:1]}),
    "dlpack": lambda whole: np.from_dlpack(whole[2:]),
    "an exporter by dlpack": lambda whole: exported("dlpack")(whole[2:]),
    "an exporter by the array interface": lambda whole: exported("interface")(whole[2:]),
    "from_numpy": lambda whole: pytest.importorskip("torch").from_numpy(whole[3:]),
    "a tensor of a tensor": lambda whole: pytest.importorskip("torch").from_numpy(whole[3:])[1:].numpy()[1:],
    "an exporter of a view that goes backwards": lambda whole: exported("interface")(whole[5:1:-1]),
    "an exporter of a view with gaps": lambda whole: exported("interface")(whole[1::3]),
    "as_strided": lambda whole: np.lib.stride_tricks.as_strided(whole[1:], (2, 2), (8, 16)),
}


@pytest.mark.parametrize("way", WAYS_TO_SHARE)
def test_memory_is_found_by_its_address(way):
    whole = np.arange(8.0)
    one, other = engine.value(whole), engine.value(WAYS_TO_SHARE[way](whole))
    assert one.var == other.var
    again = engine.value(WAYS_TO_SHARE[way](whole), alias="copy")
    assert again.var != one.var
    fill(one, 9.0)
    engine.wait_all()
    kept = again.get()
    assert not overlap([extent for leaf in leaves(kept, set()) for extent in extents(leaf)], extents(whole))
    assert "9" not in repr(kept.array if isinstance(kept, Exports) else plain(kept))


@pytest.mark.parametrize("buffer", ["bytearray", "mmap", "shared memory", "array"])
def test_two_views_of_a_buffer_have_one_var(buffer):
    if buffer == "mmap":
        memory = mmap.mmap(-1, 4096)
    elif buffer == "shared memory":
        owner = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
        memory = owner.buf
    else:
        memory = bytearray(4096) if buffer == "bytearray" else array.array("B", bytes(4096))
    first, second, apart = (np.frombuffer(memory, np.uint8, 1024, at) for at in (0, 512, 2048))
    values = [engine.value(data) for data in (first, second, apart)]
    assert values[0].var == values[1].var != values[2].var
    whole = engine.value(memory)  # of both: ops on it name the Vars of both
    assert set(vars_of(whole)) == {values[0].var, values[2].var}
    del values, whole, first, second, apart
    gc.collect()
    if buffer == "shared memory":
        del memory
        owner.close()
        owner.unlink()


def test_ops_on_data_that_joins_two_values_are_ordered_with_both():
    memory = np.zeros(8)
    left, right = engine.value(memory[:4]), engine.value(memory[4:])
    both = engine.value(memory[2:6])
    assert left.var != right.var
    for i in range(50):
        fill(left, float(i))
        fill(right, float(i))
        before = engine.op(lambda x: x.copy())(both)
        fill(both, -1.0)
        after = engine.op(lambda x, y: (x[2:].copy(), y[:2].copy()), outputs=2)(left, right)
        assert before.get().tolist() == [i] * 4
        assert [part.get().tolist() for part in after] == [[-1, -1]] * 2


class Claims:
    """Says that it lies at an address, where nothing looks."""

    def __init__(self, low, size):
        self.low, self.high = low, low + size
        self.__class__ = type("Claims", (Claims,), {})  # so that only those with memory have the attribute
        type(self).__array_interface__ = {"data": (low, False), "shape": (size,), "typestr": "|u1"}


def test_values_are_found_by_address_among_many_and_forgotten():
    gc.collect()
    base = 1 << 50  # nobody lives here
    _core._values_at([])  # so that those of other tests are placed
    before = _core._known_memory()
    for seed in range(5):
        draw = random.Random(seed)
        values = set()
        for _ in range(300):
            low = base + draw.randrange(1 << draw.choice((8, 16, 30)))
            values.add(engine.Value(Claims(low, draw.randrange(1 << draw.choice((1, 6, 20)))), engine.Var()))
            if draw.random() < 0.3:
                values.discard(draw.choice(list(values)))
            low = base + draw.randrange(1 << 30 if draw.random() < 0.2 else 1 << 12)
            asked = ("host", low, low + 1 + draw.randrange(1 << draw.choice((1, 10, 25))))
            expected = {v for v in values if v._data.low < asked[2] and asked[1] < v._data.high and v._data.low < v._data.high}
            assert set(_core._values_at([asked])) == expected, f"seed {seed}"
        values.clear()
        expected.clear()
    assert _core._known_memory() == before


def test_the_memory_of_data_that_was_overwritten_may_be_another_values():
    first = np.zeros(4)
    where = first.__array_interface__["data"][0]
    old = engine.value(first)
    del first
    old.overwrite(np.ones(4))
    old.get()
    kept = []  # so that each look gets other memory, until the freed piece comes
    for _ in range(1000):
        kept.append(np.zeros(4))
        if kept[-1].__array_interface__["data"][0] == where:
            break
    new = engine.value(kept[-1])
    assert new.var != old.var
    assert np.array_equal(new.get(), np.zeros(4)) and np.array_equal(old.get(), np.ones(4))


def test_tensors_of_torch():
    torch = pytest.importorskip("torch")
    for way in (lambda x: x, lambda x: x[1:], lambda x: x.view(2, 2), lambda x: [x.detach()], lambda x: x.numpy()):
        x = engine.value(torch.arange(4.0))
        out = engine.op(way)(x)
        fill(x, 9.0)
        assert "9" not in str(out.get())
    tensor = torch.zeros(4)
    assert engine.value(tensor).var == engine.value(tensor[1:]).var == engine.value(tensor.numpy()).var


@dataclasses.dataclass
class Pair:
    a: object
    b: object = 1


Point = collections.namedtuple("Point", "x y")


def test_values_in_namedtuples_ordered_dicts_and_dataclasses_are_read():
    total = engine.op(lambda p: p[0] + p[1] if isinstance(p, tuple) else sum(vars(p).values() if isinstance(p, Pair) else p.values()))
    one, two = engine.value(1), engine.value(2)
    assert total(Point(one, two)).get() == 3
    assert total(collections.OrderedDict(a=one, b=two)).get() == 3
    assert total(Pair(one, two)).get() == 3
    step = engine.hybridize(lambda x: total(Point(x, two)))
    assert [step(1).get(), step(2).get()] == [3, 4]
    with pytest.raises(engine.UsageError, match="set has Values"):
        engine.op(len)({one, two})


def test_a_container_without_values_is_passed_as_it_is():
    items = list(range(1000))
    engine.op(lambda items: items.append(1))(items).get()
    assert len(items) == 1001 and items[-1] == 1


def test_what_cannot_change_in_place_cannot_be_updated():
    for data in (1.5, 3, np.float32(1), "text", (1, 2)):
        v = engine.value(data)
        engine.op(lambda w: None, updates="w")(v)
        with pytest.raises(TypeError, match="cannot be changed in place"):
            v.get()
    with pytest.raises(engine.UsageError, match=r"computes a new object.*w\[...\] ="):

        @engine.op(updates="w")
        def lost(w, g):
            w = w - g

    with pytest.raises(engine.UsageError, match="computes a new object"):

        @engine.op(updates="w")
        def lost_to_a_closure(w, g):
            w = w - g; print(lambda: w)  # fmt: skip

    @engine.op(updates="w")
    def kept(w, g):
        w -= g


def test_generator_functions_are_no_ops():
    with pytest.raises(TypeError, match="generator function"):

        @engine.op
        def numbers():
            yield 1


def test_a_module_that_another_thread_is_importing_is_in_nobodys_way(run_python):
    ended = run_python("""
    import types
    sys.modules["torch"] = types.ModuleType("torch")  # as an import leaves it, until it has run the module
    same = engine.op(lambda x: x)
    print(same(engine.value(bytearray(b"ab"))).get(), same(engine.value([1])).get())
    """)
    assert ended.out == "bytearray(b'ab') [1]\n", ended


def test_a_value_may_have_one_array_twice_and_small_ones_side_by_side():
    before = _core._known_memory()
    x, many = np.zeros(2), np.zeros(8)
    v = [engine.value(data) for data in ([x, x], [many[i : i + 1] for i in range(8)], {"a": x, "b": [x]})]
    w = [engine.value(data) for data in (x, many)]  # which looks where the others lie
    assert _core._known_memory() > before and w[0].var == v[0].var and w[1].var == v[1].var
    del v, w
    assert _core._known_memory() == before


def test_a_callback_of_a_dying_value_may_ask_whose_memory_something_is():
    made = []
    for _ in range(100):
        v = engine.value(np.zeros(3))
        weakref.finalize(v, lambda: made.append(engine.value(np.ones(3))))
        del v
    gc.collect()
    assert len(made) == 100 and all(np.array_equal(v.get(), np.ones(3)) for v in made)
