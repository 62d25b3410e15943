"""engine.op and engine.value: calls return at once, order comes from the data, results are new."""

import collections.abc
import copy
import pickle
import threading

import numpy as np
import pytest

import engine
from conftest import PATIENCE, line_of


@engine.op
def dense(x, w):
    return x @ w


@engine.op(updates="w")
def sgd(w, g, rate):
    w -= rate * g


def test_a_call_returns_a_value_at_once(gate):
    @engine.op
    def slow():
        gate()
        return 3

    v = slow()
    assert isinstance(v, engine.Value) and not v.wait(0)
    gate.open()
    assert v.get() == 3


def test_a_step_gives_what_numpy_gives():
    x, w, g = np.arange(6.0).reshape(2, 3), np.ones((3, 2)), np.full((3, 2), 0.5)
    xv, wv = engine.value(x), engine.value(w.copy())
    before = dense(xv, wv)
    sgd(wv, g, 0.1)
    after = dense(xv, wv)
    assert np.array_equal(before, x @ w)
    assert np.array_equal(np.asarray(after), x @ (w - 0.1 * g))
    assert wv.var.version == 1


def test_an_update_waits_for_earlier_readers(gate):
    @engine.op
    def read(w):
        gate()
        return w.copy()

    w = engine.value(np.zeros(3))
    seen = read(w)
    sgd(w, np.ones(3), 1.0)
    gate.open()
    assert np.array_equal(seen, np.zeros(3)) and np.array_equal(w, -np.ones(3))


def test_several_outputs_come_as_a_tuple():
    @engine.op(outputs=2)
    def split(x):
        return x[:1], x[1:]

    first, rest = split(engine.value([1, 2, 3]))
    assert (first.get(), rest.get()) == ([1], [2, 3])


def test_an_op_that_updates_may_have_outputs_too():
    @engine.op(updates="total", outputs=1)
    def add(total, x):
        total += x
        return float(total[0])

    total = engine.value(np.zeros(1))
    assert [add(total, 2).get(), add(total, 3).get()] == [2, 5]


def test_a_container_may_make_its_values_anew_each_time_that_it_is_asked():
    class Lazy(dict):
        def items(self):
            return [("x", engine.value(np.ones(2)))]

    @engine.op
    def total(parts):
        return sum(part.sum() for _, part in sorted(dict.items(parts)))

    assert all(total(Lazy()).get() == 2.0 for _ in range(50))


def test_values_inside_containers_are_read():
    @engine.op
    def add(items, more):
        return sum(items) + sum(more.values())

    one, two = engine.value(1), engine.value(2)
    assert add([one, two, 3], more={"a": two}).get() == 8


def test_an_output_never_shares_memory_with_an_argument():
    for fn in (lambda x: x, lambda x: x[1:], lambda x: x.T):
        x = engine.value(np.arange(4.0))
        out = engine.op(fn)(x)
        sgd(x, np.ones(4), 1.0)
        assert np.array_equal(out.get(), fn(np.arange(4.0)))


@pytest.mark.parametrize("data, wanted", [([], False), ([0], True), (0, False), (2.5, True), (None, False), (np.zeros(1), False)])
def test_the_truth_of_a_value_is_that_of_its_data(data, wanted, gate):
    v = engine.op(lambda: (gate(), data)[1])()
    gate.open()
    assert bool(v) is wanted


def test_length_and_numbers_of_a_value_are_those_of_its_data(gate):
    v, n = engine.op(lambda: (gate(), [1, 2])[1])(), engine.op(lambda: 2.5)()
    gate.open()
    assert len(v) == 2 and int(n) == 2 and float(n) == 2.5
    with pytest.raises(ValueError, match="ambiguous"):
        bool(engine.value(np.zeros(2)))
    failed = engine.op(lambda: 1 / 0)()
    for ask in (bool, len, int, float):
        with pytest.raises(ZeroDivisionError):
            ask(failed)
    with pytest.raises(TypeError):
        len(engine.value(3))


@pytest.mark.parametrize("data, spec", [(1 / 3, ".3f"), (3, "5d"), ("text", ">7"), (np.float32(0.5), ".2e"), (np.array(2.0), ".1f")])
def test_a_value_is_formatted_as_its_data_if_there_is_a_format(data, spec, gate):
    loss = engine.op(lambda: (gate(), data)[1])()
    gate.open()
    assert f"{loss:{spec}}" == format(data, spec)
    assert f"{loss}" == str(loss) and str(loss).startswith("<engine.Value")
    with pytest.raises(ZeroDivisionError):
        format(engine.op(lambda: 1 / 0)(), spec)


@pytest.mark.parametrize("ask", [bool, len, int, float])
def test_what_a_value_is_asked_while_a_function_is_recorded_is_refused(ask):
    state = engine.value(1)
    with pytest.raises(engine.UsageError, match="record"):
        engine.hybridize(lambda x: ask(state) or engine.op(lambda x: x)(x))(1)


def test_what_the_data_have_and_a_value_has_not_says_where_it_is(gate):
    v = engine.op(lambda: gate() or np.ones(2))()
    for name in ("shape", "T", "sum"):
        with pytest.raises(AttributeError, match=rf"a Value has no '{name}'.* v.get\(\).{name} .*data.{name}"):
            getattr(v, name)
    for change in (lambda: v.__setitem__(0, 1), lambda: v.__delitem__(0)):
        with pytest.raises(TypeError, match="items of a Value cannot be set.*updates=.*overwrite"):
            change()
    assert not v.done()  # nothing has waited
    assert not any(hasattr(v, name) for name in ("shape", "__array_interface__", "__cuda_array_interface__", "__fspath__", "_repr_html_"))
    assert [name for name in dir(np.ndarray) if name[0] != "_" and hasattr(v, name)] == ["var"]  # which is the Var
    assert not isinstance(v, collections.abc.Iterable)
    gate.open()
    assert np.mean(v) == 1 and np.sort(v).tolist() == [1, 1] and copy.copy(v) is v and copy.deepcopy(v).get().tolist() == [1, 1]
    with pytest.raises(TypeError, match="belongs to this process"):
        pickle.dumps(v)


def test_methods_can_be_ops():
    class Model:
        scale = 3

        @engine.op
        def run(self, x):
            return self.scale * x

    assert Model().run(engine.value(2)).get() == 6


def test_errors_arrive_where_the_result_is_used_and_name_the_call():
    x = engine.value(np.ones(2))
    y = dense(x, np.ones((3, 3)))  # called here
    z = dense(y, np.ones(3))
    file, line = line_of("called here")
    for use in (z.get, lambda: np.asarray(z), z.wait):
        with pytest.raises(ValueError) as error:
            use()
        assert f"op 'dense' pushed at {file}:{line}" in error.value.__notes__[-1]


def test_updates_must_be_parameters():
    with pytest.raises(engine.UsageError, match="'op_name'.*'weights'|'fn'.*'weights'"):

        @engine.op(updates="weights")
        def fn(w):
            pass


def test_what_is_updated_must_be_a_value():
    with pytest.raises(TypeError, match="op 'sgd': it updates 'w', which is an ndarray; a Value is expected"):
        sgd(np.ones(3), 1, 1)


def test_calls_with_wrong_arguments_are_refused_where_that_is_known():
    with pytest.raises(TypeError, match="op 'sgd': missing a required argument: '"):
        sgd(engine.value(1))
    with pytest.raises(TypeError, match="'prio' is unknown"):
        engine.op(prio=3)
    with pytest.raises(TypeError, match="no function"):
        engine.op(3)
    with pytest.raises(TypeError, match="Value already"):
        engine.value(engine.value(3))


def test_a_result_of_the_wrong_shape_fails_the_op():
    @engine.op(outputs=2)
    def pair():
        return 1, 2, 3

    first, second = pair()
    for v in (first, second):
        with pytest.raises(TypeError, match="op 'pair' returned a tuple of 3; 2 outputs are expected"):
            v.get()


def test_a_lost_result_fails_the_op():
    @engine.op(updates="w")
    def careless(w):
        return w + 1

    w = engine.value(np.ones(1))
    careless(w)
    with pytest.raises(TypeError, match="although it only updates"):
        w.get()


def test_coroutine_functions_are_refused():
    with pytest.raises(TypeError, match="coroutine"):

        @engine.op
        async def fn():
            pass


def test_get_times_out(gate):
    @engine.op
    def slow():
        gate()

    with pytest.raises(TimeoutError):
        slow().get(0.01)


def test_array_conversion_follows_numpy():
    v = engine.value(np.arange(3))
    assert np.asarray(v) is v.get()
    assert np.asarray(v, dtype=float).dtype == float
    assert np.array(v) is not v.get()


def test_values_of_another_engine_run_there():
    with engine.Engine(workers=1, thread_name="other") as other:
        v = dense(engine.value(np.ones((1, 1)), engine=other), np.ones((1, 1)))
        assert v.var.engine == other
        assert np.array_equal(v, [[1.0]])
        with pytest.raises(engine.UsageError):
            dense(v, engine.value(np.ones((1, 1))))


def test_values_can_be_used_from_many_threads():
    total, threads = engine.value(np.zeros(1)), []
    for _ in range(4):
        threads.append(threading.Thread(target=lambda: [sgd(total, -np.ones(1), 1.0) for _ in range(100)]))
        threads[-1].start()
    for t in threads:
        t.join(PATIENCE)
    assert total.get()[0] == 400


def test_numpy_asks_for_no_copy_and_gets_none():
    array = np.arange(3)
    for data in (array, bytearray(b"abc")):
        assert np.shares_memory(engine.value(data).__array__(copy=False), np.asarray(data))
    for data, dtype in (([1, 2], None), (array, np.float32), (1.5, None)):
        with pytest.raises(ValueError, match="cannot become an array.* without a copy"):
            engine.value(data).__array__(dtype, copy=False)
    assert np.asarray(engine.value([1, 2])).tolist() == [1, 2]
