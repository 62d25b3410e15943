"""What an op puts into a container that it updates: it shares no memory with other arguments."""

import collections
import dataclasses
import gc

import numpy as np
import pytest

import engine
from engine import alias


@dataclasses.dataclass
class Fields:
    x: object = None
    rest: object = None


class Slots:
    __slots__ = ("x",)


@dataclasses.dataclass
class FieldsInSlots(Slots):
    __slots__ = ("rest",)
    rest: object


class Numbers(list):
    pass


class Bounded(collections.deque):
    pass


def by_key(container, item):
    container["x"] = item


def by_name(container, item):
    container.x = item


def array_of(*items):
    array = np.empty(len(items), object)
    for at, item in enumerate(items):
        array[at] = item
    return array


def put_alone(array, item):
    array.reshape(1)[0] = item


# What an op puts an item into, how it does that, and what finds it there afterwards.
CONTAINERS = {
    "list": (lambda: [0], list.append, lambda c: c[-1]),
    "an item of a list": (lambda: [0, 1], lambda c, item: c.__setitem__(0, item), lambda c: c[0]),
    "a list that was cleared": (lambda: [0, 1], lambda c, item: c.__setitem__(slice(None), [item]), lambda c: c[0]),
    "the front of a list": (lambda: [[0], [1]], lambda c, item: c.insert(0, item), lambda c: c[0]),
    "a class of lists": (lambda: Numbers([0]), list.append, lambda c: c[-1]),
    "dict": (lambda: {"y": 0}, by_key, lambda c: c["x"]),
    "OrderedDict": (lambda: collections.OrderedDict(y=0), by_key, lambda c: c["x"]),
    "defaultdict": (lambda: collections.defaultdict(list), lambda c, item: c["x"].append(item), lambda c: c["x"][0]),
    "deque": (lambda: collections.deque([0], maxlen=4), collections.deque.appendleft, lambda c: c[0]),
    "a class of deques": (lambda: Bounded([0]), collections.deque.append, lambda c: c[-1]),
    "dataclass": (Fields, by_name, lambda c: c.x),
    "a list in a dict": (lambda: {"x": []}, lambda c, item: c["x"].append(item), lambda c: c["x"][0]),
    "a dict in a list": (lambda: [{}], lambda c, item: by_key(c[0], item), lambda c: c[0]["x"]),
    "a list in a tuple": (lambda: [([],)], lambda c, item: c[0][0].append(item), lambda c: c[0][0][0]),
    "a deque in a dataclass": (
        lambda: Fields(rest=collections.deque()), lambda c, item: c.rest.append(item), lambda c: c.rest[0]),
    "a dataclass in a list": (lambda: [Fields()], lambda c, item: by_name(c[0], item), lambda c: c[0].x),
    "an array of objects": (lambda: np.zeros(2, object), lambda c, item: c.__setitem__(1, item), lambda c: c[1]),
    "an array of objects with two dimensions": (
        lambda: np.zeros((2, 3), object).T, lambda c, item: c.__setitem__((2, 0), item), lambda c: c[2, 0]),
    "an array of one object": (lambda: np.zeros((), object), put_alone, lambda c: c[()]),
    "a list in an array of objects": (lambda: array_of([], 1), lambda c, item: c[0].append(item), lambda c: c[0][0]),
    "a field of an array of structures": (
        lambda: np.zeros(2, [("n", int), ("x", object)]), lambda c, item: c["x"].__setitem__(1, item), lambda c: c["x"][1]),
    "a structure in a structure": (
        lambda: np.zeros(1, [("in", [("x", object)])]), lambda c, item: c["in"]["x"].__setitem__(0, item), lambda c: c["in"]["x"][0]),
    "an array of objects in a list": (lambda: [array_of(1, 2)], lambda c, item: c[0].__setitem__(0, item), lambda c: c[0][0]),
    "a field in slots": (lambda: FieldsInSlots([]), lambda c, item: c.rest.append(item), lambda c: c.rest[0]),
}  # fmt: skip
ITEMS = {
    "itself": lambda x: x,
    "a slice": lambda x: x[1:],
    "a transpose": lambda x: x.reshape(2, 2).T,
    "a memoryview": lambda x: memoryview(x),
    "a new list with it": lambda x: [x[:1], x],
    "a tuple with it": lambda x: ("name", x),
    "a new dict with it": lambda x: {"x": [x]},
}


@engine.op(updates="x")
def fill(x, by):
    x[...] = by


def plain(thing):
    if isinstance(thing, dict):
        return {key: plain(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [plain(each) for each in thing]
    return np.asarray(thing).tolist() if isinstance(thing, (np.ndarray, memoryview)) else thing


def shares(container, x):
    return alias.overlap(alias.memory_of(container), alias.memory_of(x))


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("kind", CONTAINERS)
def test_what_an_op_puts_into_a_container_does_not_change_with_the_argument(kind, item):
    make, put, found = CONTAINERS[kind]
    c, x = engine.value(make()), engine.value(np.arange(4.0))
    engine.op(lambda c, x: put(c, ITEMS[item](x)), updates="c")(c, x)
    fill(x, 9.0)
    assert plain(found(c.get())) == plain(ITEMS[item](np.arange(4.0)))
    assert not shares(c.get(), x.get())
    assert type(c.get()) is type(make())


@pytest.mark.parametrize("policy", ["threaded", "inline", "naive"])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_nodes_of_recorded_functions_do_so_too(kind, policy):
    make, put, found = CONTAINERS[kind]
    c = engine.value(make())
    stored = engine.op(lambda c, x: put(c, x[1:]), updates="c")
    doubled = engine.op(lambda x: 2 * x)

    @engine.hybridize
    def step(x):
        y = doubled(x)
        stored(c, y)
        fill(y, 9.0)
        return y

    with engine.policy(policy):
        y = step(np.arange(4.0))
        assert plain(y.get()) == [9.0] * 4
        assert plain(found(c.get())) == [2.0, 4.0, 6.0]
        assert not shares(c.get(), y.get())


class Interface:
    """What can be hashed, and says where its memory is."""

    __array_interface__ = property(lambda self: self.of.__array_interface__)

    def __init__(self, of):
        self.of = of


def test_a_set_gets_a_copy():
    c, x = engine.value({1}), engine.value(np.arange(4.0))
    engine.op(lambda c, x: c.add(Interface(x)), updates="c")(c, x)
    fill(x, 9.0)
    (part,) = c.get() - {1}
    assert part.of.tolist() == [0, 1, 2, 3] and len(c.get()) == 2


def test_raw_arguments_count():
    raw, first, second = np.zeros(2), engine.value([]), engine.value({})
    put = engine.op(lambda c, x: c.append(x) if isinstance(c, list) else by_key(c, x), updates="c")
    put(first, raw)
    put(second, raw)
    assert not shares(first.get(), raw) and not shares(second.get(), raw)
    assert plain(first.get()) == [[0, 0]] and plain(second.get()) == {"x": [0, 0]}


def test_parts_of_lists_and_bytearrays_of_other_values_are_copied():
    part = [1]
    for data, item in (([part], lambda x: x[0]), ([part], lambda x: x), ({"a": part}, lambda x: x["a"]), (bytearray(b"ab"), lambda x: x)):
        c, x = engine.value([]), engine.value(data)
        engine.op(lambda c, x, item=item: c.append(item(x)), updates="c")(c, x)
        x.wait()
        assert c.get() == [item(data)] and c.get()[0] is not item(data)


def test_what_was_there_before_stays_itself():
    w, kept = np.zeros(2), [1]
    c, x = engine.value([w, kept, {"w": w}]), engine.value(w)  # one Var
    y = engine.value(np.ones(2))

    @engine.op(updates="c")
    def moved(c, x, y):
        c.insert(0, y)
        c[3]["again"] = c[2]
        c.append(c.pop(1))

    moved(c, x, y)
    data = c.get()
    assert data[0] is not y.get() and data[0].tolist() == [1, 1]
    assert data[-1] is w and data[1] is kept and data[2]["w"] is w and data[2]["again"] is kept


def test_what_nobody_else_has_stays_itself():
    made = []

    @engine.op(updates="c")
    def put(c, x):
        own = x + 1
        made.append(id(own))
        c.append(own)
        c.append(own[1:])

    c, x = engine.value([]), engine.value(np.zeros(4))
    put(c, x)
    first, second = c.get()
    assert id(first) == made[0] and second.base is first


def test_an_argument_that_is_the_container_itself_is_no_other_one():
    c = engine.value([np.zeros(2)])

    @engine.op(updates="c")
    def view(c, again):
        c.append(again[0][1:])

    view(c, c)
    assert c.get()[1].base is c.get()[0]


def test_two_containers_that_get_one_array_get_two():
    a, b, x = engine.value([]), engine.value({}), engine.value(np.zeros(2))

    @engine.op(updates="a,b")
    def both(a, b, x):
        a.append(x)
        b["x"] = a[0]

    @engine.op(updates="a,b")
    def one_that_is_new(a, b):
        a.append(np.ones(2))
        b["y"] = a[-1]

    both(a, b, x)
    one_that_is_new(a, b)
    assert not shares(a.get(), b.get()) and not shares(a.get(), x.get()) and not shares(b.get(), x.get())
    assert a.get()[1].tolist() == b.get()["y"].tolist() == [1, 1]


@pytest.mark.parametrize("recorded", [False, True])
def test_what_a_function_put_there_before_it_failed_is_a_copy(recorded):
    c, x = engine.value([]), engine.value(np.zeros(2))

    @engine.op(updates="c")
    def fails(c, x):
        c.append(x)
        raise ValueError("afterwards")

    if recorded:
        engine.hybridize(lambda: fails(c, x))()
    else:
        fails(c, x)
    assert isinstance(c.exception(), ValueError)
    c.var.engine.clear_error(c)
    assert not shares(c.get(), x.get()) and c.get()[0].tolist() == [0, 0]


def test_arguments_by_name_and_in_containers_count():
    c, x, y = engine.value({}), engine.value(np.zeros(2)), engine.value(np.ones(2))

    @engine.op(updates="into")
    def put(pair, *, into):
        into["x"], into["y"] = pair

    put([x, y], into=c)
    assert not shares(c.get(), x.get()) and not shares(c.get(), y.get())
    assert plain(c.get()) == {"x": [0, 0], "y": [1, 1]}


def test_an_item_that_is_taken_out_and_returned_is_not_copied():
    c, x = engine.value([np.zeros(1000)]), engine.value(np.zeros(2))
    at = c.get()[0].ctypes.data
    out = engine.op(lambda c, x: c.pop(), updates="c", outputs=1)(c, x)
    assert out.get().ctypes.data == at


def test_nothing_is_asked_of_memory_where_nothing_was_put(monkeypatch):
    asked = []

    def noted(parts, arguments):
        asked.append([part for _, _, part in parts])
        alias.separated(parts, arguments)

    engine._core._set_separated(noted)
    try:
        x, w, c = engine.value(np.zeros(2)), engine.value(np.zeros(2)), engine.value([np.zeros(2), [1.0]])

        @engine.op(updates="w")
        def step(w, x):
            w += x

        @engine.op(updates="c")
        def each(c, x):
            c[0] += x
            c[1].append(float(x[0]))
            c.append(x.copy())

        step(w, x)
        each(c, x)
        engine.op(lambda c, n: c.append(n), updates="c")(c, engine.value(3))
        engine.wait_all()
        assert asked == []
        engine.op(lambda c, x: c.append(x), updates="c")(c, x)
        c.wait()
        assert len(asked) == 1
    finally:
        engine._core._set_separated(alias.separated)


def test_nothing_stays_alive():
    class Kept:
        alive = 0

        def __init__(self):
            Kept.alive += 1

        def __del__(self):
            Kept.alive -= 1

    c, x = engine.value([Kept(), Kept()]), engine.value(np.zeros(2))

    @engine.op(updates="c")
    def put(c, x):
        c[0] = x
        c.append(x)

    put(c, x)
    c.wait()
    gc.collect()
    assert Kept.alive == 1
