"""NumPy's arrays of objects are containers: what their items are and share is found as in lists."""

import numpy as np
import pytest

import engine
from engine import alias, extents

PAIRS = np.dtype([("number", int), ("object", object)])


def array_of(*items):
    array = np.empty(len(items), object)
    for at, item in enumerate(items):
        array[at] = item
    return array


def pair_of(item):
    array = np.empty(1, PAIRS)
    array[0] = (1, item)
    return array


KINDS = {"objects": (array_of, lambda a: a[0]), "structures": (pair_of, lambda a: a["object"][0])}
both_kinds = pytest.mark.parametrize("make,item", KINDS.values(), ids=KINDS)


def shares(one, other):
    return alias.overlap(alias.memory_of(one), alias.memory_of(other))


@both_kinds
def test_an_array_that_an_op_returns_has_copies_of_arguments_and_other_outputs(make, item):
    x = engine.value(np.zeros(3))

    def new_and_given(x):
        new = x + 1
        return make(new), new, make(x)

    new, alone, given = engine.op(new_and_given, outputs=3)(x)
    assert item(new.get()).tolist() == alone.get().tolist() == [1, 1, 1] and item(given.get()).tolist() == [0, 0, 0]
    assert not shares(new.get(), alone.get()) and not shares(given.get(), x.get())


def test_what_somebody_else_has_is_copied():
    everybodys = np.zeros(3)
    array, view = (engine.op(lambda part=part: array_of(part))() for part in (everybodys, everybodys[1:]))
    assert not shares(array.get(), everybodys) and not shares(view.get(), everybodys)


def test_what_an_op_keeps_in_order_stays_itself():
    x = engine.value(np.zeros(3))
    y = engine.op(lambda x: array_of(x), alias="order")(x)
    assert y.get()[0] is x.get()
    assert engine.op(lambda a: a[0], alias="order")(y).get() is x.get()


@both_kinds
def test_values_of_an_array_and_of_its_items_have_one_var(make, item):
    w = np.zeros(3)
    first, of_item, again = engine.value(make(w)), engine.value(w), engine.value(make(w[1:]))
    assert first.var == of_item.var == again.var
    assert engine.value(make(np.zeros(3))).var != first.var


def test_items_that_an_op_put_there_are_found_afterwards():
    kept = np.zeros(3)
    c = engine.value(array_of(None))
    engine.value(np.zeros(1))  # which looks where the others lie
    engine.op(lambda c: c.__setitem__(0, kept), updates="c")(c)
    c.wait()
    assert engine.value(kept).var == c.var


def test_arrays_of_texts_and_what_nobody_else_has_are_not_asked_about():
    asked = []
    engine._core._set_unshared(lambda *all: asked.append(all) or alias.unshared(*all))
    try:
        words = array_of("a", None, 2)
        for made in (lambda: array_of("a", "b"), lambda: array_of(np.zeros(2), [1]), lambda: words.copy(), lambda: words[:1].copy()):
            engine.op(made)().wait()
        assert asked == []
        engine.op(lambda: words)().wait()
        assert len(asked) == 1
    finally:
        engine._core._set_unshared(alias.unshared)


@both_kinds
def test_values_in_an_array_are_given_as_their_data(make, item):
    x = engine.value(np.ones(2))
    given = make(x)
    total = engine.op(lambda pair: (type(pair[0]).__name__, item(pair[1]).sum(), type(item(pair[1])).__name__))
    assert total([3, given]).get() == ("int", 2, "ndarray")
    assert isinstance(item(given), engine.Value)  # the argument itself stays what it was

    @engine.hybridize
    def step(a, array):
        return engine.op(lambda array, a: item(array) * a)(array, a)

    for by in (2, 3):
        assert step(by, make(engine.value(np.ones(2)))).get().tolist() == [by, by]


def test_arrays_of_values_are_ordered_by_them():
    x, seen = engine.value(np.zeros(1)), []
    read = engine.op(lambda both: float(both[0, 1][0]))
    grow = engine.op(lambda x: np.add(x, 1, out=x) is None, updates="x", outputs=1)
    for _ in range(20):
        array = np.empty((1, 2), object)
        array[0, 1] = x
        seen.append(read(array))
        grow(x)
    assert [one.get() for one in seen] == list(range(20))


def test_recorded_functions_take_arrays_of_values_by_their_shape():
    @engine.hybridize
    def step(array):
        return engine.op(lambda array: (array.shape, float(array[-1, -1])))(array)

    for shape in ((1, 2), (2, 1), (1, 2)):
        array = np.empty(shape, object)
        array[...] = 1.0
        array[-1, -1] = engine.value(5.0)
        assert step(array).get() == (shape, 5.0)


def test_recorded_functions_return_arrays_of_values():
    double = engine.op(lambda x: 2 * x)
    step = engine.hybridize(lambda x: array_of(double(x), "name"))
    for by in (1, 2):
        made = step(by)
        assert made[0].get() == 2 * by and made[1] == "name"


def test_one_of_an_arrays_structures_is_memory_of_the_array():
    array = np.zeros(2, [("x", int), ("y", float)])
    value = engine.value(array)
    assert engine.value(array[1]).var == value.var
    for made in (engine.op(lambda array: array[0])(value), engine.op(lambda: array[0])()):
        made.get()["x"] = 7
        assert type(made.get()) is np.void and array["x"].tolist() == [0, 0]


@pytest.mark.skipif(not hasattr(getattr(np, "dtypes", None), "StringDType"), reason="this NumPy has no texts of any length")
def test_arrays_of_texts_of_any_length_have_no_objects():
    words = np.array(["a", "b" * 100], np.dtypes.StringDType())
    assert extents.objects_in(words) is None and engine.op(lambda a: a[1:])(words).get().tolist() == ["b" * 100]
    v = engine.value(words)
    assert engine.value(words[:1]).var == v.var
