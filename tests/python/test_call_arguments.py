"""How the arguments of a call of an op reach its function."""

import collections
import contextvars
import dataclasses
import functools

import pytest

import engine


def test_a_call_by_name_asks_the_signature_once_for_each_shape(monkeypatch):
    asked, complain = [], engine.Op._complain

    def counted(self, args, kwargs):
        asked.append((len(args), *kwargs))
        complain(self, args, kwargs)

    monkeypatch.setattr(engine.Op, "_complain", counted)
    step = engine.op(lambda x, rate=1, times=1: x * rate * times)
    for _ in range(3):
        assert step(2, rate=3).get() == 6
        assert step(2, times=3, rate=2).get() == 12
        assert step(x=2).get() == 2
    assert asked == [(1, "rate"), (1, "times", "rate"), (0, "x")]
    with pytest.raises(TypeError, match="wrong"):
        step(2, wrong=3)


def test_a_method_that_is_an_op_is_bound_as_methods_are():
    class Model:
        @engine.op
        def scaled(self, x, by=2):
            """Scales."""
            return self.factor * x * by

    model = Model()
    model.factor = 5
    bound = model.scaled
    assert model.scaled(engine.value(3)).get() == 30 and bound(3, by=1).get() == 15
    assert Model.scaled(model, 1).get() == 10 and bound.__self__ is model and bound.__doc__ == "Scales."


def test_values_in_containers_are_replaced_and_other_containers_are_passed_on():
    seen = engine.op(lambda x: seen_.append(x))
    seen_, v = [], engine.value(1)
    plain = [2, {"a": (3,)}]
    seen([v, (v, "b"), {"c": [v], "d": plain}, plain]).get()
    seen(plain).get()
    assert seen_[0] == [1, (1, "b"), {"c": [1], "d": plain}, plain]
    assert seen_[0][3] is plain and seen_[0][2]["d"] is plain and seen_[1] is plain
    seen((v, range(3), [v], [])).get()
    assert seen_[2] == (1, range(3), [1], [])


def test_a_container_in_itself_is_refused_and_harms_nothing():
    ring = [engine.value(1)]
    ring.append(ring)
    with pytest.raises(RecursionError):
        engine.op(lambda x: None)(ring)


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.defaultdict])
@pytest.mark.parametrize("key", ["itself", "in a tuple", "in a frozen dataclass"])
def test_values_in_keys_of_dicts_are_refused(kind, key):
    frozen = dataclasses.make_dataclass("Frozen", ["value"], frozen=True)
    v = engine.value(1)
    given = kind() if kind is not collections.defaultdict else kind(int)
    given[{"itself": v, "in a tuple": (1, v), "in a frozen dataclass": frozen(v)}[key]] = 2
    plain, size = engine.op(len), lambda x, *more: engine.op(lambda x, *more: len(x))(x, *more)
    calls = [lambda: plain(given), lambda: plain([[given]]), lambda: engine.hybridize(size)(given), lambda: engine.hybridize(size)([v], given)]
    for call in calls:
        with pytest.raises(engine.UsageError, match="a dict has a Value as a key, or in one.*list of pairs"):
            call()
    assert plain({(1, "a"): v, frozen(2): 3}).get() == 2


def test_values_in_keys_of_what_a_recorded_function_uses_itself_are_no_arguments():
    v, w = engine.value(1), engine.value(2)
    known = {v: w}
    step = engine.hybridize(lambda x: known[v] + x)
    assert step(1).get() == step(1).get() == 3


def test_a_counter_of_values_is_given_with_their_data():
    assert engine.op(lambda c: dict(c))(collections.Counter(a=engine.value(2), b=1)).get() == {"a": 2, "b": 1}


@pytest.mark.parametrize("item", [lambda v: (v, 1), lambda v: frozenset([v]), lambda v: (1, (2, v))])
def test_sets_with_values_deep_inside_are_refused(item):
    with pytest.raises(engine.errors.UsageError, match="a set has Values"):
        engine.op(lambda s: s)({item(engine.value(2))})


def given(first):
    """A decorator that gives the function an argument of its own."""

    def decorator(fn):
        @functools.wraps(fn)
        def call(*args, **kwargs):
            return fn(first, *args, **kwargs)

        return call

    return decorator


def passing(fn):
    @functools.wraps(fn)
    def call(*args, **kwargs):
        return contextvars.copy_context().run(fn, *args, **kwargs)

    return call


def test_a_decorator_may_give_an_argument_of_its_own():
    def load(connection, key):
        return f"{connection} {key}"

    assert engine.op(given("c")(load))("k").get() == "c k"
    assert engine.op(functools.partial(given("c")(load), "k"))().get() == "c k"
    assert engine.op(passing(given("c")(load)))(key="k").get() == "c k"
    with pytest.raises(TypeError, match="missing a required argument: 'key'"):
        engine.op(passing(load))("c")


def test_what_an_op_updates_is_found_behind_a_decorator_that_passes_on_and_else_refused():
    def add(w, g):
        w += g

    w = engine.value([1])
    engine.op(updates="w")(passing(add))(w, [2])
    engine.op(updates="w")(passing(passing(add)))(g=[3], w=w)
    assert w.get() == [1, 2, 3]
    with pytest.raises(engine.UsageError, match="'w', which is not one of its parameters; a decorator stands before them"):
        engine.op(updates="w")(given("lock")(lambda lock, w, g: None))


def test_a_default_that_is_a_value_is_refused():
    w = engine.value(1)
    for fn in (lambda x, w=w: x, lambda x, *, w=[w]: x, functools.partial(lambda x, w: x, w=w)):
        with pytest.raises(engine.UsageError, match="the default of 'w' is or has a Value"):
            engine.op(fn)
