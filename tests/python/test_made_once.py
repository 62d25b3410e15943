"""What a recorded function makes once, and an eager one in each call, means the same in both, or is refused with its line."""

import asyncio

import numpy as np
import pytest

import engine

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}


@engine.op(updates="w")
def add_to(w, x):
    w += x


@engine.op(updates="items")
def put(items, x):
    items.append(x)


total = engine.op(lambda w, x: float(np.sum(w)) + x)
doubled = engine.op(lambda x: x * 2)
initial = np.zeros(2)


@pytest.fixture(autouse=True, params=["threaded", "inline", "naive", "cost_model"])
def policy(request):
    with engine.policy(request.param):
        yield


def got(result):
    """The data of what a call returned: a list."""
    return [value.get() for value in (result if isinstance(result, tuple) else (result,)) if value is not None]


def by_graph(fn, *items):
    plan = engine.graph(fn, items[0])
    runs = [(plan.start([x]), len(got(fn(x)))) for x in items]
    return [[run.output(i) for i in range(outputs)] for run, outputs in runs]


def calls(call, *items):
    return [got(result) for result in [call(x) for x in items]]


WAYS = {"recorded": lambda fn, *items: calls(engine.hybridize(fn), *items),
        "static": lambda fn, *items: calls(engine.hybridize(static_shape=True)(fn), *items),
        "staged": lambda fn, *items: [got(result) for result in list(engine.data.smart_stage(fn, iter(items), **AT_ONCE))],
        "graph": by_graph}  # fmt: skip


@pytest.fixture(params=list(WAYS))
def recorded(request):
    """Records a function, calls it with each of the items, and returns the data of the results of each call."""
    return WAYS[request.param]


def made(x):
    w = engine.value(np.zeros(1))
    add_to(w, x)
    return total(w, 0)


def returned(x):
    w = engine.value(np.zeros(1))
    return w, doubled(x)


def returned_view(x):
    w = engine.value(np.zeros(2))
    return engine.op(lambda w: w[1:], alias="order")(w), doubled(x)


def pushed(x):
    w = engine.value([0])
    engine.push(lambda: None, updates=[w])
    return doubled(x)


def overwritten(x):
    w = engine.value(None, name="w")
    w.overwrite(np.zeros(1))
    return total(w, x)


@pytest.mark.parametrize("fn", [made, returned, returned_view, pushed, overwritten])
def test_a_value_that_the_function_makes_is_only_read(recorded, fn):
    at = fn.__code__.co_firstlineno + 1
    with pytest.raises(engine.UsageError, match=f"'{fn.__name__}' calls engine.value at {__file__}:{at}, which makes one Value for all calls"):
        recorded(fn, 1)


def test_the_refusal_of_a_value_names_both_lines_and_what_to_do():
    with pytest.raises(engine.UsageError) as refused:
        engine.hybridize(made)(1)
    at = made.__code__.co_firstlineno
    assert f"{__file__}:{at + 1}, which makes" in str(refused.value) and f"op 'add_to' at {__file__}:{at + 2} changes it" in str(refused.value)
    assert "make the Value outside of the function" in str(refused.value)


def test_values_that_are_read_and_those_that_ops_make_go_on(recorded):
    def step(x):
        table = engine.value(np.ones(2))
        y = doubled(np.zeros(1))
        add_to(y, x)
        return total(table, 1), y

    assert [(three, y.tolist()) for three, y in recorded(step, 1, 2, 3)] == [(3, [1]), (3, [2]), (3, [3])]


class Lazy:
    """State that the first call makes."""

    def __init__(self):
        self.sum, self.calls = None, 0

    def run(self, x):
        self.calls += 1
        if self.sum is None:
            self.sum = engine.value(np.zeros(1))
        add_to(self.sum, x)
        return self.sum


def test_state_that_the_first_call_makes_stays():
    eager, model = Lazy(), Lazy()
    step = engine.hybridize(model.run)
    for x in (1, 2, 3, 4):
        assert step(x) is model.sum and eager.run(x) is eager.sum
    assert model.sum.get().tolist() == eager.sum.get().tolist() == [10]
    assert model.calls == 2  # the second call has recorded what all later ones replay

    with pytest.raises(engine.UsageError, match="which makes one Value for all calls"):
        engine.graph(Lazy().run, 1)
    with pytest.raises(engine.UsageError, match="which makes one Value for all calls"):
        WAYS["staged"](Lazy().run, 1)


def test_state_that_each_call_makes_is_refused_in_the_second():
    class Holder:
        pass

    holder = Holder()

    def step(x):
        holder.sum = engine.value(np.zeros(1))
        add_to(holder.sum, x)
        return total(holder.sum, 0)

    call = engine.hybridize(step)
    assert call(1).get() == 1
    for _ in range(2):
        with pytest.raises(engine.UsageError, match="'step' calls engine.value at .* and op 'add_to' at "):
            call(2)
    assert total(holder.sum, 0).get() == 0  # nothing ran


def test_one_line_may_make_state_for_several_keys():
    """The second call makes the second, because a flag has changed."""

    class Model:
        def __init__(self):
            self.states, self.training = {}, False

        def state(self, name):
            if name not in self.states:
                self.states[name] = engine.value(np.zeros(1), name=name)
            return self.states[name]

        def run(self, x):
            add_to(self.state("sum"), x)
            if self.training:
                add_to(self.state("statistics"), x)
            return total(self.state("sum"), 0)

    eager, model = Model(), Model()
    step = engine.hybridize(model.run)
    for x, training in ((1, False), (2, True), (3, True), (4, False), (5, True)):
        eager.training = model.training = training
        assert step(x).get() == eager.run(x).get()
    assert model.states["statistics"].get() == eager.states["statistics"].get() == 10


def test_with_a_fallback_it_runs_eagerly():
    with pytest.warns(UserWarning, match="runs eagerly from now on, because 'made' calls engine.value at"):
        call = engine.hybridize(fallback="eager")(made)
        assert [call(x).get() for x in (1, 2, 3)] == [1, 2, 3]


def test_a_recorded_value_is_no_data_of_a_value():
    def inside(x):
        return total(engine.value([x, 1]), 0)

    w = engine.value(None, name="w")

    def given(x):
        w.overwrite([x])
        return total(w, 0)

    for fn, what in ((inside, "engine.value at"), (given, "overwrite of 'w' at")):
        with pytest.raises(engine.UsageError, match=f"{what} .* is given a recorded value"):
            engine.hybridize(fn)(1)


def test_each_run_overwrites_with_data_of_its_own(recorded):
    w, items = engine.value(np.zeros(1), name="w"), engine.value([], name="items")

    def step(x):
        w.overwrite(np.zeros(1))
        add_to(w, x)
        items.overwrite([[0]])
        put(items, x)
        return total(w, 0), engine.op(list)(items)

    assert recorded(step, 1, 2, 3) == [[x, [[0], x]] for x in (1, 2, 3)]
    assert w.get().tolist() == [3]


@pytest.mark.parametrize("data", [lambda: initial, lambda: initial[1:], lambda: [initial], lambda: {"a": initial}])
def test_data_that_the_function_finds_again_is_refused(recorded, data):
    w = engine.value(np.zeros(2), name="w")

    def step(x):
        w.overwrite(data())
        return doubled(x)

    at = step.__code__.co_firstlineno + 1
    with pytest.raises(engine.UsageError, match=rf"overwrite of 'w' at {__file__}:{at} is given data that 'step' finds by a name, too"):
        recorded(step, 1)
    owner = engine.value(initial)  # whose data an eager call copies, too
    expected = recorded(step, 1, 2)
    assert expected == [[2], [4]] and w.get() is not None and owner.get() is initial
    number = engine.hybridize(lambda x: (w.overwrite(3.0), total(w, x))[1])
    assert [number(x).get() for x in (1, 2)] == [4, 5]


def changed(x):
    add_to(x, 1)


def accumulated(x):
    np.add.at(x, 0, 1)


@pytest.mark.parametrize("fn, op", [(changed, "add_to"), (accumulated, "at")])
def test_a_raw_argument_that_an_op_changes_is_refused_as_it_is_eagerly(recorded, fn, op):
    given = np.zeros(1)
    at = fn.__code__.co_firstlineno + 1
    with pytest.raises(engine.UsageError, match=rf"argument 0 of '{fn.__name__}' is an ndarray and no Value, and op '.*{op}' at {__file__}:{at} changes"):
        recorded(fn, given)
    assert given.tolist() == [0]


def test_arguments_that_are_values_are_changed_in_their_order():
    w, times = engine.value(np.zeros(1)), 10
    call = engine.hybridize(lambda w, x: add_to(w, x))
    for _ in range(times):
        call(w, np.ones(1))
    assert w.get().tolist() == [times]
    with pytest.raises(engine.UsageError, match="argument 0 of '<lambda>' is not the Value .*give one Value") as refused:
        call(engine.value(np.zeros(1)), np.ones(1))
    assert "data instead" not in str(refused.value)
    with pytest.raises(engine.UsageError, match="argument 0 of '<lambda>' is an ndarray and no Value"):
        call(np.zeros(1), np.ones(1))
    with pytest.raises(engine.UsageError, match="argument 'w' of"):
        engine.hybridize(lambda *, w: add_to(w, 1))(w=np.zeros(1))
    with pytest.raises(engine.UsageError, match="item 1 of the arguments of"):
        engine.hybridize(lambda pair: add_to(pair[1], 1))([w, np.zeros(1)])


def test_a_function_that_goes_on_behind_the_refusal_is_refused():
    def step(x):
        try:
            add_to(x, 1)
        except Exception:
            pass
        return doubled(x)

    with pytest.raises(engine.UsageError, match="is an ndarray and no Value"):
        engine.hybridize(step)(np.zeros(1))


def test_a_view_of_a_raw_argument_is_a_copy_that_may_change(recorded):
    tail = engine.op(lambda x: x[1:], alias="order")

    def step(x):
        end = tail(x)
        add_to(end, 5)
        return total(end, 0)

    given = np.zeros(3)
    assert step(given).get() == 10
    assert recorded(step, given, given, given) == [[10]] * 3
    assert given.tolist() == [0, 0, 0]


def test_on_an_event_loop_too():
    w = engine.value(np.zeros(1))

    @engine.hybridize
    def step(x):
        w.overwrite(np.zeros(1))
        add_to(w, x)
        return total(w, 0)

    async def main():
        return [await step(x) for x in (1, 2, 3)]

    assert asyncio.run(main()) == [1, 2, 3]
