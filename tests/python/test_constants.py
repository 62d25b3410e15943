"""Bools, None, numbers and texts that a recorded function names are part of its recording: where one has changed, there is another."""

import collections
import dataclasses
import decimal
import enum
import fractions
import functools
import math
import types

import numpy as np
import pytest

import engine

scale = engine.op(lambda x, k: x * k)
config = types.ModuleType("config_of_the_program")
rate = 0.5
mode = None
counted = 0


class Size(enum.IntEnum):
    SMALL, LARGE = 1, 10


class Grain(enum.Enum):
    FINE, COARSE = 0.5, 2.0


class Model:
    factor = 3

    def __init__(self):
        self.training, self.name, self.inner, self.steps = True, "big", types.SimpleNamespace(k=2), 0

    def step(self, x):
        self.steps += 1  # what the function sets itself is no reason to record it anew
        return scale(x, 10 if self.training else 1)

    def named(self, x):
        return scale(x, 10 if self.name == "big" else 1)

    def as_a_variable(self, x):
        training = self.training
        return scale(x, (lambda: 10 if training else 1)())

    def of_the_class(self, x):
        return scale(x, self.factor)

    def deep(self, x):
        return scale(x, self.inner.k)


@pytest.mark.parametrize(("method", "path", "other", "expected"), [
    ("step", "training", False, (10, 1)), ("as_a_variable", "training", False, (10, 1)), ("named", "name", "small", (10, 1)), ("of_the_class", "factor", 5, (3, 5)),
    ("deep", "inner.k", 7, (2, 7)), ("deep", "inner", types.SimpleNamespace(k=7), (2, 7)),
])  # fmt: skip
def test_an_attribute_that_has_changed_counts(method, path, other, expected):
    model = Model()
    step = engine.hybridize(getattr(model, method))
    assert [step(1).get(), step(1).get()] == [expected[0]] * 2
    holder = model
    *before, last = path.split(".")
    for part in before:
        holder = getattr(holder, part)
    setattr(holder, last, other)
    assert [step(1).get(), step(1).get()] == [expected[1]] * 2


def test_a_global_and_a_variable_of_a_closure_count(monkeypatch):
    bias = 1

    @engine.hybridize
    def step(x):
        return scale(x, rate if mode is None else 100) + bias

    assert step(2).get() == 2
    monkeypatch.setitem(globals(), "rate", 3)
    assert step(2).get() == 7
    monkeypatch.setitem(globals(), "mode", "other")
    assert step(2).get() == 201
    bias = 5
    assert step(2).get() == 205


def test_a_module_of_the_program_counts_and_one_of_python_does_not():
    config.rate = 2
    step = engine.hybridize(lambda x: scale(x, config.rate) + math.pi * 0)
    assert step(1).get() == 2
    config.rate = 4
    assert step(1).get() == 4
    assert [binding.path.text for binding in step._last.constants] == ["config.rate"]


def test_an_object_that_is_called_counts():
    class Called:
        def __init__(self):
            self.training = True

        def __call__(self, x):
            return scale(x, 10 if self.training else 1)

    called = Called()
    step = engine.hybridize(called)
    assert step(1).get() == 10
    called.training = False
    assert step(1).get() == 1


def test_what_has_been_before_is_recorded_once():
    model = Model()
    step = engine.hybridize(model.step)
    for i in range(300):
        model.training = i % 2 == 0
        assert step(1).get() == (10 if i % 2 == 0 else 1)
    assert model.steps == 2


def test_another_object_of_the_same_value_is_the_same():
    model = Model()
    model.inner.k = 12345.5
    step = engine.hybridize(model.deep)
    first = [step(2).get(), step.plan]
    model.inner.k = float("12345.5")
    assert step(2).get() == first[0] and step.plan is first[1]
    model.inner.k = math.nan
    assert math.isnan(step(2).get()) and step.plan is not first[1]
    model.inner.k = True
    assert step(2).get() == 2
    model.inner.k = 1
    plan = step.plan
    assert step(2).get() == 2 and step.plan is not plan


def test_what_the_function_sets_itself_does_not_record_it_anew():
    def step(x, flag):
        global counted
        counted += 1
        return scale(x, counted)

    recorded = engine.hybridize(step)
    assert [recorded(1, flag).get() for flag in (True, False, True, False)] == [1, 2, 1, 2]


def test_a_value_that_differs_in_each_call_is_refused_in_the_end_and_named():
    model = Model()
    step = engine.hybridize(model.deep)
    with pytest.raises(engine.UsageError, match=r"the attribute 'self.inner.k' of 'deep' was \d+ when it was recorded, and is \d+ now.*argument"):
        for i in range(200):
            model.inner.k = i
            assert step(1).get() == i
    assert 60 < i < 70


def test_static_shape_checks_none_of_them():
    model = Model()
    step = engine.hybridize(static_shape=True)(model.step)
    assert step(1).get() == 10
    model.training = False
    assert step(1).get() == 10


@pytest.mark.parametrize(("was", "now"), [
    (np.float64(0.5), np.float64(3)), (np.int64(2), np.int64(3)), (np.bool_(True), np.bool_(False)),
    (fractions.Fraction(1, 2), fractions.Fraction(3)), (Size.SMALL, Size.LARGE), (Grain.FINE, Grain.COARSE)])  # fmt: skip
def test_scalars_of_numpy_fractions_and_members_of_enums_count(was, now):
    holder = types.SimpleNamespace(rate=was)
    step = engine.hybridize(lambda x: scale(x, float(getattr(holder.rate, "value", holder.rate))))
    for holder.rate in (was, now, was):
        assert step(2.0).get() == 2.0 * float(getattr(holder.rate, "value", holder.rate))


def test_keywords_may_come_in_any_order():
    say = engine.op(lambda x, text: f"{x} {text}")

    @engine.hybridize
    def said(x, *, train, mask):
        return say(x, "train" if train else "mask" if mask else "none")

    assert said(1, train=True, mask=False).get() == "1 train"
    assert said(1, mask=True, train=False).get() == "1 mask"
    assert said(1, mask=False, train=True).get() == "1 train"
    assert len(said._recordings) == 2


Rates = collections.namedtuple("Rates", "rate")


@dataclasses.dataclass(slots=True)
class Slots:
    mask: float | None = None


class Attributes(dict):
    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__


class Property:
    shared = types.SimpleNamespace(k=1.0)

    def __init__(self):
        self._rate = 2.0

    @property
    def rate(self):
        return self._rate * self.shared.k

    @property
    def once(self):
        if not hasattr(self, "_once"):
            self._once = 2.0  # which is no reason to record it anew
        return self._once

    @rate.setter
    def rate(self, rate):
        self._rate = rate

    def step(self, x, flag):
        self.rate += 1
        return scale(x, self.rate)


ATTRIBUTES = {
    "a property": (lambda h: scale(1.0, h.p.rate), lambda h: setattr(h.p, "_rate", 3.0)),
    "what a property names": (lambda h: scale(1.0, h.p.rate), lambda h: setattr(h.p, "shared", types.SimpleNamespace(k=1.5))),
    "a slot": (lambda h: scale(1.0, 2.0 if h.slots.mask is None else h.slots.mask), lambda h: setattr(h.slots, "mask", 3.0)),
    "a named tuple": (lambda h: scale(1.0, h.rates.rate), lambda h: setattr(h, "rates", Rates(3.0))),
    "a dict with attributes": (lambda h: scale(1.0, h.table.rate), lambda h: setattr(h.table, "rate", 3.0)),
    "what a class inherits": (lambda h: scale(1.0, h.kind.rate), lambda h: setattr(h.kind.__mro__[1], "rate", 3.0)),
}


@pytest.mark.parametrize("way", ATTRIBUTES)
def test_attributes_of_every_kind_count(way):
    use, change = ATTRIBUTES[way]
    kind = type("Mine", (type("Parent", (), {"rate": 2.0}),), {})
    holder = types.SimpleNamespace(p=Property(), slots=Slots(), rates=Rates(2.0), table=Attributes(rate=2.0), kind=kind)
    step = engine.hybridize(functools.partial(use, holder))
    assert [step().get(), step().get()] == [2.0, 2.0]
    change(holder)
    assert [step().get(), step().get()] == [3.0, 3.0]


def test_a_property_that_is_set_meanwhile_does_not_record_it_anew():
    made = Property()
    step = engine.hybridize(lambda x, flag: scale(x, made.once))
    assert [step(1.0, flag).get() for flag in (True, False, True, False)] == [2.0] * 4 and len(step._recordings) == 2
    first = step.plan
    assert step(1.0, False).get() == 2.0 and step.plan is first
    step = engine.hybridize(made.step)
    assert [step(1.0, flag).get() for flag in (True, False, True, False)] == [3.0, 4.0, 3.0, 4.0]


def test_an_object_counts_by_each_name_that_leads_to_it():
    shared = types.SimpleNamespace(rate=2.0, half=0.5)
    one, two = types.SimpleNamespace(part=shared), types.SimpleNamespace(part=shared)

    def halved(x):
        return scale(x, shared.half)

    step = engine.hybridize(lambda x: scale(scale(halved(x), one.part.rate), two.part.rate))
    assert step(1.0).get() == 2.0
    shared.rate = 4.0
    assert step(1.0).get() == 8.0
    two.part = types.SimpleNamespace(rate=1.0)
    assert step(1.0).get() == 2.0


def logged(fn):
    @functools.wraps(fn)
    def call(*args, **kwargs):
        return fn(*args, **kwargs)

    return call


class Decorated(Model):
    @logged
    def step(self, x):
        return scale(x, self.inner.k)


@logged
def by_global(x, k=7.0):
    return scale(x, rate if mode is None else k)


def test_what_is_behind_decorators_partials_and_methods_counts(monkeypatch):
    model = Decorated()
    steps = [engine.hybridize(fn) for fn in (model.step, functools.partial(model.step), functools.partial(Decorated.step, model))]
    assert [step(1.0).get() for step in steps] == [2, 2, 2]
    model.inner.k = 3
    assert [step(1.0).get() for step in steps] == [3, 3, 3]
    steps = [engine.hybridize(fn) for fn in (by_global, functools.partial(by_global, k=8.0))]
    assert [step(1.0).get() for step in steps] == [0.5, 0.5]
    monkeypatch.setitem(globals(), "mode", "other")
    assert [step(1.0).get() for step in steps] == [7.0, 8.0]


def test_what_another_object_is_given_has_a_name_of_its_own(monkeypatch):
    told, model = types.SimpleNamespace(), Model()
    model.out = types.SimpleNamespace(k=0)

    @engine.hybridize
    def step(x):
        told.rate = rate
        model.out.k += 1
        return scale(scale(x, rate), model.inner.k)

    assert step(1.0).get() == 1.0
    monkeypatch.setitem(globals(), "rate", 3)
    assert step(1.0).get() == 6.0
    model.inner.k = 5
    assert step(1.0).get() == 15.0
    plan, told.rate, model.out.k = step.plan, 0, 100
    assert step(1.0).get() == 15.0 and step.plan is plan


@pytest.mark.parametrize(("was", "now"), [(0.0, -0.0), (decimal.Decimal("1.0"), decimal.Decimal("1.00")), (0j, -0j)])
def test_what_is_equal_and_can_be_told_apart_is_another_value(was, now):
    holder, say = types.SimpleNamespace(k=was), engine.op(lambda x, k: repr(k))
    step = engine.hybridize(lambda x: say(x, holder.k))
    assert step(1).get() == repr(was)
    holder.k = now
    assert step(1).get() == repr(now)
