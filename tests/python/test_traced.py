"""While a function is recorded, whatever would look at data is refused, with the line and what to do instead."""

import warnings

import numpy as np
import pytest

import engine
from conftest import line_of


@engine.op
def double(x):
    return x + x


USES = {
    "==": lambda x, w: x == 1,
    "!=": lambda x, w: x != 1,
    "<": lambda x, w: x < 1,
    "in a list": lambda x, w: x in [1, 2],
    "in it": lambda x, w: 1 in x,
    "isinstance": lambda x, w: isinstance(x, np.ndarray),
    "dict.get": lambda x, w: {1: 2}.get(x),
    "get": lambda x, w: x.get(),
    "done": lambda x, w: x.done(),
    "format": lambda x, w: f"{x}",
    "str": lambda x, w: str(x),
    "bool": lambda x, w: bool(x),
    "len": lambda x, w: len(x),
    "iteration": lambda x, w: list(x),
    "float": lambda x, w: float(x),
    "index": lambda x, w: [1, 2][x],
    "asarray": lambda x, w: np.asarray(x),
    "get of state": lambda x, w: w.get(),
    "asarray of state": lambda x, w: np.asarray(w),
    "wait_all": lambda x, w: engine.wait_all(),
    "wait": lambda x, w: engine.wait(w),
    "repr of state's data": lambda x, w: w.exception(),
    "the engine of its Var": lambda x, w: x.var.engine,
}


@pytest.mark.parametrize("use", USES)
def test_a_recorded_function_may_not_look_at_data(use):
    w = engine.value(np.ones(2))

    @engine.hybridize
    def step(x):
        y = double(x)
        USES[use](y, w)
        return y

    with pytest.raises(engine.UsageError, match="while the function is recorded"):
        step(np.ones(2))
    assert double(w).get().tolist() == [2, 2]  # the recording has ended


def test_the_refusal_names_the_line():
    @engine.hybridize
    def step(x):
        return double(x) == 1  # compared here

    file, line = line_of("compared here")
    with pytest.raises(engine.UsageError, match=f"{file}:{line} compares it.*fallback"):
        step(1)


def test_what_is_none_or_a_bool_is_recorded_once_for_each():
    @engine.hybridize
    def step(x, mask=None, *, train=False):
        y = double(x) if mask is None else x * mask
        return y + 100 if train else y + 0

    for _ in range(3):
        assert step(np.ones(1), None, train=True).get() == 102
        assert step(np.ones(1), None, train=False).get() == 2
        assert step(np.ones(1), np.full(1, 5.0), train=False).get() == 5
        assert step(np.ones(1), np.full(1, 6.0), train=True).get() == 106


def test_a_function_that_looks_at_data_may_run_eagerly():
    @engine.op
    def total(x):
        return float(x.sum())

    @engine.hybridize(fallback="eager")
    def step(x):
        return "big" if total(x).get() > 1 else "small"

    with pytest.warns(UserWarning, match="runs eagerly from now on"):
        assert step(np.ones(2)) == "big"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step(np.zeros(2)) == "small"
    with pytest.raises(engine.UsageError, match="'eager' or None"):
        engine.hybridize(fallback="never")


def test_an_attribute_bound_anew_is_refused():
    class Model:
        def __init__(self):
            self.w = engine.value(np.ones(1))

        def step(self, x):
            return double(self.w)

    model = Model()
    step = engine.hybridize(model.step)
    assert step(1).get() == 2
    model.w = engine.value(np.zeros(1))
    with pytest.raises(engine.UsageError, match="attribute 'self.w' of 'step'"):
        step(1)


def test_a_recorded_value_is_refused_outside_of_its_function():
    kept = []
    engine.hybridize(lambda x: kept.append(double(x)) or double(x))(1)
    with pytest.raises(engine.UsageError, match="outside of it"):
        double(kept[0])


def test_operators_and_indexing_are_recorded():
    step = engine.hybridize(lambda x: (-x + 2 * x)[1] - 1)
    assert [step(np.arange(3.0) + i).get() for i in range(3)] == [0, 1, 2]
