"""Bools, None, numbers and texts that a recorded function names are part of its recording: where one has changed, there is another."""

import enum
import fractions
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
