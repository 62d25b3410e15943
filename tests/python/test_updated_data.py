"""What an op may update: data that can be changed in place."""

import dataclasses
import datetime
import decimal
import fractions
import functools
from typing import ClassVar, NamedTuple

import numpy as np
import pytest

import engine


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object


@dataclasses.dataclass(frozen=True)
class FrozenWithSlots:
    __slots__ = ("a",)
    a: object


@dataclasses.dataclass(frozen=True)
class FrozenAndShared(Frozen):
    known: ClassVar[dict] = {}


class NoDataclass(Frozen):
    """Its instances may have attributes that are not frozen."""


@dataclasses.dataclass(frozen=True)
class Cached(Frozen):
    @functools.cached_property
    def rows(self):
        return [1]


@dataclasses.dataclass(frozen=True)
class Empty:
    pass


@dataclasses.dataclass
class Open:
    a: object


class Pair(NamedTuple):
    a: object


def with_rows():
    data = Cached(1)
    assert data.rows == [1]
    return data


FROZEN = [
    decimal.Decimal(1),
    fractions.Fraction(1),
    datetime.timedelta(1),
    datetime.date(2026, 1, 1),
    datetime.datetime(2026, 1, 1),
    datetime.time(1),
    Frozen(1),
    Frozen(None),
    Frozen((1, Frozen("a"), decimal.Decimal(1))),
    Frozen(frozenset({1})),
    FrozenWithSlots(1),
    Cached(1),
]


@pytest.mark.parametrize("data", FROZEN, ids=repr)
@pytest.mark.parametrize("recorded", [False, True])
def test_what_no_op_can_change_is_refused_when_it_runs(data, recorded):
    v = engine.value(data)

    @engine.op(updates="w")
    def increased(w):
        w += 1

    if recorded:
        engine.hybridize(lambda: increased(v))()
    else:
        increased(v)
    with pytest.raises(TypeError, match="cannot be changed in place"):
        v.get()


def nested(depth):
    data = 1
    for _ in range(depth):
        data = Frozen(data)
    return data


MAY_CHANGE = [
    Frozen(np.zeros(1)),
    Frozen((np.zeros(1),)),
    Frozen((1, (2, [3]))),
    Frozen(Pair(np.zeros(1))),
    Frozen(frozenset({engine.Value})),
    FrozenWithSlots([]),
    FrozenAndShared(1),
    NoDataclass(1),
    with_rows(),
    nested(100),
    Empty(),
    Open(1),
    np.array(1.0),
    object(),
    None,
]


@pytest.mark.parametrize("data", MAY_CHANGE, ids=lambda data: type(data).__name__)
def test_what_may_have_been_changed_is_allowed(data):
    v = engine.value(data)
    engine.op(updates="w")(lambda w: None)(v)
    assert v.get() is data


def test_a_frozen_dataclass_of_itself_ends():
    data = Frozen(1)
    object.__setattr__(data, "a", (data,))
    v = engine.value(data)
    engine.op(updates="w")(lambda w: None)(v)
    assert v.get() is data
