"""A recorded value refuses every question that the data would answer, also where C code or an object of the program asks; and a
function with ``fallback="eager"`` runs eagerly then."""

import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import io
import itertools
import json
import os
import re
import types
import warnings

import numpy as np
import pytest

import engine
from conftest import line_of

same = engine.op(lambda x: x)
Color = enum.Enum("Color", "RED GREEN")
Record = dataclasses.make_dataclass("Record", ["a"])
Pair = collections.namedtuple("Pair", "a b")


class Thing:
    """An object whose attributes have names that a Value, too, has."""

    index, called, brought, wait, var = [7, 8], 1, 2, 3, 4
    _index, _called, _brought, _data, _shares, _meta = 5, 6, 7, 8, 9, 10


def with_item(array, item):
    array[0] = item
    return array[0]


def read_or_raise(x):
    try:
        return same(int(x))
    except Exception:
        raise RuntimeError("is no number")


NAMES = ("__len__", "__iter__", "__float__", "__array__", "__array_interface__", "__dlpack__", "__await__", "__call__", "_fields", "__doc__", "index")
ATTRIBUTES = ("index", "called", "brought", "wait", "var", "_index", "_called", "_brought", "_data", "_shares", "_meta")


@pytest.mark.parametrize("given", [3, np.ones(2), Pair(1, 2), "text"])
@pytest.mark.parametrize("name", NAMES)
def test_whether_data_have_an_attribute_is_refused_whatever_its_name(name, given):
    with pytest.raises(engine.UsageError, match="while the function is recorded"):
        engine.hybridize(lambda x: same(hasattr(x, name)))(given)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_data_are_refused_also_where_a_recorded_value_has_some_of_that_name(name):
    for read in (lambda x: same(getattr(x, name)), lambda x: same(getattr(x, name, None)), lambda x: setattr(x, name, 1) or same(x)):
        with pytest.raises(engine.UsageError, match=rf"while the function is recorded.*sets? .*'{name}'|while the function is recorded.*(asks|reads)"):
            engine.hybridize(read)(Thing())


def test_an_attribute_that_is_set_does_not_make_an_argument_another_one():
    def step(x, y):
        x.index = x._index = 1
        return same(x)

    with pytest.raises(engine.UsageError, match="sets its 'index'"):
        engine.hybridize(step)(types.SimpleNamespace(), 99)


def test_functions_of_numpy_still_find_the_other_way_that_they_have():
    assert engine.hybridize(lambda x: np.sum(x) + np.max(x))(np.ones(3)).get() == 4
    with pytest.raises(engine.UsageError, match="reads it|asks for its"):
        engine.hybridize(lambda x: same(np.mean(x)))(np.ones(3))


EAGER = {  # what works eagerly: (function, argument, result)
    "join": (lambda x: same(",".join([x])), "s", "s"),
    "memoryview": (lambda x: same(memoryview(x).nbytes), np.ones(2), 16),
    "in a text": (lambda x: same(x in "abc"), "a", True),
    "startswith": (lambda x: same("abc".startswith(x)), "a", True),
    "open": (lambda x: same(open(x).close()), os.devnull, None),
    "fspath": (lambda x: same(os.fspath(x)), "/etc", "/etc"),
    "var": (lambda x: same(x.var()), np.ones(2), 0),
    "re": (lambda x: same(bool(re.match("a", x))), "abc", True),
    "hashlib": (lambda x: same(hashlib.sha256(x).digest_size), b"abc", 32),
    "frombuffer": (lambda x: same(np.frombuffer(x, "u1").sum()), b"\x01\x02", 3),
    "Decimal": (lambda x: same(decimal.Decimal(x)), 4, 4),
    "timedelta": (lambda x: same(datetime.timedelta(seconds=x).seconds), 4, 4),
    "BytesIO": (lambda x: same(io.BytesIO(x).read()), b"a", b"a"),
    "eval": (lambda x: same(eval(x)), "1+1", 2),
    "islice": (lambda x: same(list(itertools.islice([1, 2], x))), 1, [1]),
    "a private attribute": (lambda x: same(x._meta), Thing(), 10),
    "vars": (lambda x: same(vars(x)["q"]), types.SimpleNamespace(q=7), 7),
    "a closure": (lambda x: engine.op(lambda: x + 1)(), 1, 2),
    "a default": (lambda x: engine.op(lambda y=x: y + 1)(), 1, 2),
    "a partial": (lambda x: engine.op(lambda f: f())(functools.partial(max, x, 3)), 1, 3),
    "a namespace": (lambda x: engine.op(lambda s: s.a + 1)(types.SimpleNamespace(a=x)), 1, 2),
    "an iterator": (lambda x: engine.op(sum)(iter([x])), 1, 1),
    "a generator": (lambda x: engine.op(sum)(y for y in [x]), 1, 1),
    "a view of a dict": (lambda x: engine.op(sum)({"a": x}.values()), 1, 1),
    "a mapping proxy": (lambda x: engine.op(lambda m: m["a"])(types.MappingProxyType({"a": x})), 1, 1),
    "json": (lambda x: same(json.dumps(x)), [1], "[1]"),
    "copy": (lambda x: same(copy.copy(x)), [1], [1]),
    "Fraction": (lambda x: same(fractions.Fraction(x)), 2, 2),
    "Counter": (lambda x: same(collections.Counter([x])), 2, {2: 1}),
    "an enumeration": (lambda x: same(Color(x).name), 1, "RED"),
    "replace": (lambda x: same(dataclasses.replace(x, a=2).a), Record(1), 2),
    "an item of an array": (lambda x: same(with_item(np.zeros(2), x)), 3, 3),
    "fill": (lambda x: same(np.zeros(2).fill(x)), 3, None),
    "an error of the program instead": (read_or_raise, "3", 3),
    "an executor": (lambda x: same(engine.Executor().submit(pow, 2, 3).result(20)), 1, 8),
}


@pytest.mark.parametrize("use", EAGER)
def test_what_works_eagerly_does_so_with_a_fallback(use):
    fn, given, expected = EAGER[use]
    step = engine.hybridize(fallback="eager")(fn)
    with pytest.warns(UserWarning, match="runs eagerly from now on") as warned:
        for _ in range(2):
            result = step(given).get()
            assert (result.get() if isinstance(result, engine.Value) else result) == expected
    assert len(warned) == 1


TOLD = ("json", "copy", "Fraction", "Counter", "an enumeration", "fill")
TOLD += ("join", "memoryview", "in a text", "startswith", "open", "fspath", "var", "frombuffer", "Decimal", "timedelta", "BytesIO", "a closure", "an iterator")


@pytest.mark.parametrize("use", TOLD)
def test_without_a_fallback_it_is_refused_with_the_line(use):
    fn, given, _ = EAGER[use]
    with pytest.raises(engine.UsageError, match=rf"(?s){re.escape(__file__)}:{fn.__code__.co_firstlineno}.*fallback"):
        engine.hybridize(fn)(given)


def test_errors_of_the_program_itself_stay_what_they_are():
    def step(x):
        raise ValueError("mine")

    for option in (None, "eager"):
        with warnings.catch_warnings(), pytest.raises(ValueError, match="^mine$"):
            warnings.simplefilter("error")
            engine.hybridize(fallback=option)(step)(1)
    with pytest.raises(TypeError, match="unsupported operand"):
        engine.hybridize(lambda x: same(1 + "a"))(1)


def test_the_warning_says_that_the_beginning_ran_twice():
    ran = []

    @engine.hybridize(fallback="eager")
    def step(x):
        ran.append(1)
        return same(x) == 1  # compared here

    file, line = line_of("compared here")
    with pytest.warns(UserWarning, match=rf"{file}:{line} compares it.*In this call its lines up to there run twice"):
        step(1)
    step(1)
    assert len(ran) == 3


def test_slices_and_deques_of_values_are_looked_into():
    a, total = np.arange(5.0), engine.op(np.sum)
    part = engine.op(lambda s: a[s].sum())
    assert engine.value(a)[engine.value(3) :].get().tolist() == [3, 4]
    assert engine.value(a)[1:3].get().tolist() == [1, 2]
    assert part(slice(0, engine.value(2))).get() == 1
    step = engine.hybridize(lambda x, n: total(x[:n]))
    assert [step(a, n).get() for n in (2, 3, 4)] == [1, 3, 6]
    assert [engine.hybridize(lambda n: part(slice(1, n, 2)))(n).get() for n in (2, 4)] == [1, 4]
    assert engine.op(lambda d: d[0] + d[1])(collections.deque([engine.value(1), 2])).get() == 3
    step = engine.hybridize(lambda x: collections.deque([same(x), 7], maxlen=2))
    for given in (1, 2):
        made = step(given)
        assert type(made) is collections.deque and made.maxlen == 2 and made[0].get() == given and made[1] == 7
    step = engine.hybridize(lambda items: same(items[0]) + items[1])
    assert [step(collections.deque([engine.value(n), engine.value(1)])).get() for n in (1, 2)] == [2, 3]


def test_pow_with_a_modulus_is_an_op():
    assert pow(engine.value(4), 2, 5).get() == 1
    step = engine.hybridize(lambda x: pow(x, 2, 5))
    assert [step(n).get() for n in (3, 4)] == [4, 1]


@pytest.mark.parametrize("made", [lambda y: types.SimpleNamespace(a=y), lambda y: (i for i in [y]), lambda y: iter([y]), lambda y: lambda: y])
def test_results_that_no_run_could_fill_are_refused(made):
    with pytest.raises(engine.UsageError, match="while the function is recorded|no replay would put data there"):
        engine.hybridize(lambda x: made(same(x)))(1)
    with pytest.warns(UserWarning, match="runs eagerly"):
        engine.hybridize(fallback="eager")(lambda x: made(same(x)))(1)


def test_what_asks_the_engine_for_data_is_refused_at_once():
    state = engine.value(1)
    with engine.Executor() as pool, engine.data.staged(iter(range(9))) as stage:
        uses = {
            "submitted to an Executor": lambda x: pool.submit(pow, 2, 3) and same(x),
            "as_completed": lambda x: [*engine.as_completed([state]), same(x)],
            "an item of stage": lambda x: same(next(stage)),
            "an item of .*asked": lambda x: same(stage.take()),
        }
        for said, use in uses.items():
            with pytest.raises(engine.UsageError, match=f"{said}.* while the function is recorded, at {re.escape(__file__)}"):
                engine.hybridize(use)(1)
        with pytest.warns(UserWarning, match="runs eagerly"):
            step = engine.hybridize(fallback="eager")(lambda x: same(next(stage)))
            assert [step(1).get() for _ in range(3)] == [0, 1, 2]


def test_what_python_asks_nobody_for_is_as_the_pages_say():
    """No object is asked for these, so a recorded value cannot refuse them."""
    kind = enum.Enum("kind", "one")
    answers = engine.hybridize(lambda x: same((isinstance(x, engine.Value), x is kind.one, type(x) is kind)))(kind.one).get()
    assert answers == (True, False, False)


def probed(x):
    try:
        return 1 if len(x) else 2
    except Exception:  # whatever it is that has no length
        return 3


@pytest.mark.parametrize("looks", [
    lambda x: 1 if np.array_equal(x, np.ones(2)) else 10, lambda x: 1 if np.array_equiv(x, 1) else 10, probed])  # fmt: skip
def test_a_refusal_that_somebody_catches_is_one_all_the_same(looks):
    times = engine.op(lambda x, k: x * k)
    with pytest.raises(engine.errors.Unreadable):
        engine.hybridize(lambda x: times(x, looks(x)))(np.ones(2))
    with pytest.warns(UserWarning, match="runs eagerly"):
        eager = engine.hybridize(lambda x: times(x, looks(x)), fallback="eager")(np.ones(2))
    assert np.array_equal(eager.get(), [1, 1])


def test_the_error_of_an_op_is_not_lost_in_a_comparison():
    bad = engine.op(lambda: 1 / 0)()
    with pytest.raises(ZeroDivisionError):
        np.array_equal(bad, np.ones(2))
