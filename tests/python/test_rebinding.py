"""An op that updates a parameter and gives its name to another object changes nothing, and is refused where it is defined."""

import dataclasses

import numpy as np
import pytest

import engine


def subtracted(w, g):
    w = np.subtract(w, g)


def by_a_tuple(w, g):
    w, k = w - g, 1


def by_another_name(w, g):
    new = w - g
    w = new


def negated(w, g):
    w = -w


def by_a_walrus(w, g):
    if (w := w - g) is None:
        pass


def in_a_condition(w, g):
    w = w @ g if g is not None else w


def changed_in_a_copy(w, g):
    w = w.copy()
    w -= g


def assigned_in_a_copy(w, g):
    w = w.copy()
    w[0] = g


def replaced(w, g):
    w = dataclasses.replace(w, a=g)


def annotated(w, g):
    w: object = w - g


def in_a_branch(w, g):
    """Says
nothing."""
    for _ in range(3):
        if g:
            w = w * g


REFUSED = [subtracted, by_a_tuple, by_another_name, negated, by_a_walrus, in_a_condition, changed_in_a_copy, assigned_in_a_copy,
           replaced, annotated, in_a_branch]  # fmt: skip


@pytest.mark.parametrize("fn", REFUSED, ids=lambda fn: fn.__name__)
def test_a_new_object_for_what_is_updated_is_refused(fn):
    with pytest.raises(engine.UsageError, match=r"line \d+ of .*test_rebinding.py computes a new object"):
        engine.op(updates="w")(fn)


def test_the_line_is_that_of_the_assignment():
    first = in_a_branch.__code__.co_firstlineno
    with pytest.raises(engine.UsageError, match=f"line {first + 5} of"):
        engine.op(updates="w")(in_a_branch)


def test_functions_without_source_are_looked_at_too():
    for text in ("w = w - g", "w = -w", "print(w := w - g)"):
        names = {}
        exec(f"def lost(w, g):\n    {text}", names)
        with pytest.raises(engine.UsageError, match="computes a new object"):
            engine.op(updates="w")(names["lost"])
    with pytest.raises(engine.UsageError, match="computes a new object"):
        engine.op(updates="w")(lambda w, g: print(w := w - g))


def a_view(w, g):
    w = w[1:]
    w -= g


def another_view(w, g):
    w, g = w.reshape(-1), g + 1
    w[0] = g


def as_an_array(w, g):
    w = np.asarray(w)
    w -= g


def into_itself(w, g):
    w = np.subtract(w, g, out=w)


def changed_first(w, g):
    w[0] = g
    w = w.copy()
    w[1] = g


def with_a_second_name(w, g):
    old = w
    w = w - g
    old[...] = w


def inside(w, g):
    def f(w):
        w = w - 1
        return w

    w[...] = f(w)


def augmented(w, g):
    new = w - g
    w[...] = new


@pytest.mark.parametrize("fn", [a_view, another_view, as_an_array, into_itself, changed_first, with_a_second_name, inside, augmented],
                         ids=lambda fn: fn.__name__)  # fmt: skip
def test_what_changes_the_object_is_allowed(fn):
    w = engine.value(np.ones(4))
    engine.op(updates="w")(fn)(w, 2)
    assert w.get().tolist() != [1, 1, 1, 1]
