"""While a function is recorded, whatever would look at data is refused, with the line and what to do instead."""

import contextlib
import copy
import math
import operator
import pathlib
import pickle
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
    "<": lambda x, w: x if x < 1 else w,
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
    "the version of its Var": lambda x, w: x.var.version,
    "hasattr": lambda x, w: hasattr(x, "shape"),
    "getattr with a default": lambda x, w: getattr(x, "ndim", 0),
    "an attribute": lambda x, w: x.shape[0],
    "a method": lambda x, w: x.sum(),
    "setting an attribute": lambda x, w: setattr(x, "shape", (1, 2)),
    "setting an item": lambda x, w: x.__setitem__(0, 1),
    "deleting an item": lambda x, w: operator.delitem(x, 0),
    "repr": lambda x, w: repr(x),
    "!r": lambda x, w: f"{x!r}",
    "a text of a list": lambda x, w: str([x]),
    "wait for it": lambda x, w: engine.wait(x),
    "divmod": lambda x, w: divmod(x, 2),
    "floor": lambda x, w: math.floor(x),
    "with": lambda x, w: contextlib.ExitStack().enter_context(x),
    "next": lambda x, w: next(x),
    "reversed": lambda x, w: reversed(x),
    "copy": lambda x, w: copy.copy(x),
    "pickle": lambda x, w: pickle.dumps(x),
    "np.mean": lambda x, w: np.mean(x),
    "np.var": lambda x, w: np.var(x),
    "out=": lambda x, w: np.add(x, 1, out=np.zeros(2)),
    "done of state": lambda x, w: w.done(),
    "settled of state": lambda x, w: w.var.settled,
    "version of state": lambda x, w: w.var.version,
    "repr of state": lambda x, w: repr(w),
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


@pytest.mark.parametrize("use", USES)
def test_a_function_that_looks_at_data_runs_eagerly_if_it_may(use):
    w, ran = engine.value(np.ones(2)), []

    @engine.hybridize(fallback="eager")
    def step(x):
        y = double(x)
        ran.append(y)
        if len(ran) == 1:  # the recording; later calls give a Value, for which these uses are no business of this test
            USES[use](y, w)
        return y

    with pytest.warns(UserWarning, match="runs eagerly from now on") as warned:
        for _ in range(3):
            assert step(np.ones(2)).get().tolist() == [2, 2]
    assert len(warned) == 1 and len(ran) == 4


def test_a_function_of_containers_that_runs_eagerly_does_so_from_its_first_warning():
    ran = []

    @engine.hybridize(fallback="eager")
    def step(items):
        ran.append(items)
        return double(double(items[0]) if items[1] == 1 else items[1])

    step([engine.value(1), engine.value(1)])
    with pytest.warns(UserWarning, match="'step' runs eagerly from now on") as warned:
        for _ in range(3):  # ever new Values, so these are not state
            assert step([engine.value(1), engine.value(1)]).get() == 2
            assert step([engine.value(1)] * 3).get() == 2
    assert len(warned) == 1 and len(ran) == 2 + 6 and warned[0].filename == __file__


def test_what_has_no_plan_because_it_runs_eagerly_says_so():
    @engine.hybridize(fallback="eager")
    def step(x):
        return double(x) if x == 1 else x

    with pytest.warns(UserWarning, match="runs eagerly"), pytest.raises(engine.UsageError, match="profile: 'step' runs eagerly.*compares it"):
        step.profile(1)
    for use in (step.profile, step.record, lambda _: engine.explain(step), lambda x: engine.graph(step, x)):
        with pytest.raises(engine.UsageError, match="'step' runs eagerly and has no plan, because .* compares it.*engine.trace"):
            use(1)
    assert step(1).get() == 2


def test_functions_whose_call_runs_nothing_are_refused():
    async def waits(x):
        return double(x)

    def yields(x):
        yield double(x)

    async def both(x):
        yield double(x)

    for fn, kind in ((waits, "coroutine"), (yields, "generator"), (both, "generator")):
        with pytest.raises(TypeError, match=f"hybridize: '{fn.__name__}' is a {kind} function"):
            engine.hybridize(fn)
        with pytest.raises(TypeError, match=kind):
            engine.hybridize(static_shape=True)(fn)


def test_arguments_answer_by_their_type_whether_a_pattern_may_match_and_whether_they_can_be_called():
    taken = []

    def step(x):
        match x:
            case [_, _]:
                taken.append("sequence")
            case {"a": _}:
                taken.append("mapping")
            case _:
                taken.append("other")
        taken.append(callable(x))
        return double(1)

    matched_by_a_pattern, not_matched = [[1, 2], (1, 2), {"a": 1}], [3, len]
    of_sequences = 1 << 5  # in a type's flags; arrays have it from NumPy 2.5 on
    (matched_by_a_pattern if np.ndarray.__flags__ & of_sequences else not_matched).append(np.ones(2))
    for given in not_matched:
        taken.clear()
        engine.hybridize(step)(given)
        assert taken == ["other", given is len]
    for given in matched_by_a_pattern:
        with pytest.raises(engine.UsageError, match="while the function is recorded"):
            engine.hybridize(step)(given)
    with pytest.raises(engine.UsageError, match="while the function is recorded.*counts its items"):
        engine.hybridize(lambda x: step(double(x)))(1)
    with pytest.raises(engine.UsageError, match="while the function is recorded.*calls it"):
        engine.hybridize(lambda f: f(double(1)))(len)


def test_an_operator_that_changes_an_argument_in_place_is_refused():
    def step(x):
        y = x
        y += 1  # changed here
        return double(x)

    file, line = line_of("changed here")
    with pytest.raises(engine.UsageError, match=rf"{file}:{line} changes it by an operator \(add=\).*updates="):
        engine.hybridize(step)(np.ones(1))
    with pytest.warns(UserWarning, match="runs eagerly"):
        assert engine.hybridize(fallback="eager")(step)(np.ones(1)).get() == 4


def test_an_operator_that_changes_what_an_op_made_makes_another_value_as_without_a_recording():
    def step(x):
        y = z = double(x)
        y += 1
        return y, z

    assert [v.get() for v in engine.hybridize(step)(1)] == [v.get() for v in step(1)] == [3, 2]


def test_functions_of_numpy_that_are_ufuncs_are_recorded():
    step = engine.hybridize(lambda x: np.sum(x) + np.max(x) + np.add.reduce(np.sqrt(x)))
    assert step(np.array([1.0, 4.0])).get() == step(np.array([1.0, 4.0])).get() == 5 + 4 + 3


def test_the_line_is_the_users_also_in_a_folder_whose_name_begins_like_the_packages(tmp_path):
    folder = pathlib.Path(engine.__file__).parent
    source = "def step(x):\n    return x == 1\n"
    made = {}
    exec(compile(source, f"{folder}_of_mine/model.py", "exec"), made)
    with pytest.raises(engine.UsageError, match="engine_of_mine/model.py:2 compares it"):
        engine.hybridize(made["step"])(1)


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
    less = engine.hybridize(lambda x: (x < 2, 1 >= x))
    assert [part.get().tolist() for part in less(np.arange(3))] == [[True, True, False]] + [[True, True, False]]


def test_an_error_cannot_be_cleared_while_a_function_is_recorded():
    """It would be cleared once, and by no run."""
    state = engine.value(1)

    @engine.hybridize
    def step(x):
        engine.clear_error(state)
        return double(x)

    with pytest.raises(engine.UsageError, match=r"clear_error at .*test_traced.py:\d+ while the function is recorded: no run would do that"):
        step(1)
