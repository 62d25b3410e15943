"""Nothing is kept for ever: not what a failed op was given, not threads of a failed pipeline, not objects that reach
themselves through the engine."""

import asyncio
import builtins
import gc
import threading
import time
import traceback
import weakref

import pytest

import engine
from conftest import PATIENCE


class Big:
    """Stands for data that must go."""

    alive = weakref.WeakSet()

    def __init__(self):
        Big.alive.add(self)


@pytest.fixture(autouse=True)
def nothing_stays():
    Big.alive.clear()
    yield
    gone()


def settle():
    while True:
        try:
            return engine.wait_all(PATIENCE)
        except (ValueError, KeyError):
            continue


def gone():
    for _ in range(200):
        settle()
        engine.push(lambda: None)
        settle()
        gc.collect()
        if not Big.alive:
            return
        time.sleep(0.01)  # a producer thread may be about to end
    pytest.fail(f"{len(Big.alive)} objects are still alive")


@engine.op
def fail(x, *more):
    local = x  # noqa: F841
    raise ValueError("no")


@engine.op
def same(x):
    return 1


@pytest.mark.parametrize("waited", [False, True])
def test_a_failed_op_keeps_none_of_its_arguments(waited):
    values = [fail(Big(), engine.value(Big())) for _ in range(20)]
    skipped = [same([v, Big()]) for v in values]
    if waited:
        for v in (*values, *skipped):
            with pytest.raises(ValueError):
                v.get()
    engine.describe_pending()
    try:
        engine.wait_all()
    except ValueError:
        pass
    gone()
    assert all(v.done() for v in values)  # the failed Values are still here


def test_the_frames_of_an_error_may_be_asked_for_their_locals():
    given = 3

    @engine.op
    def uses_what_it_closes_over(x):
        cell = x
        return [lambda: cell, given / 0]

    error = uses_what_it_closes_over(1).exception(PATIENCE)
    names = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names.append((frame.f_code.co_name, dict(frame.f_locals)))
    assert names == [("uses_what_it_closes_over", {})]
    text = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    assert "return [lambda: cell, given / 0]" in text


def inner(big):
    local = big  # noqa: F841
    raise ValueError("inner")


def caught(big):
    try:
        inner(big)
    except ValueError as error:
        return error


class Holder(Exception):
    def __init__(self, cause):
        super().__init__("holds one")
        self.cause = cause


def nested_group(big):
    Group = builtins.ExceptionGroup
    raise Group("outer", [caught(big), Group("inner", [caught(big), Group("innermost", [caught(big)])])])


def missing_attribute(big):
    return big.nothing


def error_as_argument(big):
    raise ValueError("told by", caught(big), [caught(big)])


def error_as_attribute(big):
    raise Holder(caught(big))


def error_in_a_circle(big):
    error = caught(big)
    error.args = (error,)
    error.__cause__ = Holder(error)
    raise error


@pytest.mark.parametrize("body", [nested_group, missing_attribute, error_as_argument, error_as_attribute, error_in_a_circle])
def test_no_error_that_an_error_refers_to_keeps_the_arguments(body):
    if body is nested_group and not hasattr(builtins, "ExceptionGroup"):
        pytest.skip("this Python has no ExceptionGroup")
    failed = engine.op(body)(Big())
    for _ in range(2):
        error = failed.exception(PATIENCE)
        assert error.__traceback__ is not None
    gone()
    assert failed.exception(PATIENCE) is not None  # the error is still here


def test_a_group_of_errors_keeps_their_texts_types_and_lines():
    if not hasattr(builtins, "ExceptionGroup"):
        pytest.skip("this Python has no ExceptionGroup")
    error = engine.op(nested_group)(Big()).exception(PATIENCE)
    assert type(error) is ExceptionGroup and error.message == "outer"  # noqa: F821
    text = "".join(traceback.format_exception(error))
    assert text.count("ValueError: inner") == 3 and 'raise ValueError("inner")' in text and "innermost" in text


def test_a_failed_push_keeps_nothing_of_its_closure():
    kept = []
    for _ in range(20):
        v, big = engine.Var("v"), Big()

        def body(v=v, big=big):
            inner = [v, big]  # noqa: F841
            raise KeyError("no")

        engine.push(body, writes=[v])
        kept.append(v)
        del body, big
    gone()
    for v in kept:
        with pytest.raises(KeyError):
            v.wait()


def test_a_failed_op_that_reaches_its_own_var_goes():
    for _ in range(20):
        big, cell = Big(), {}

        @engine.op
        def body():
            raise KeyError(str(bool(cell and big)))

        cell["result"] = body()
        with pytest.raises(KeyError):
            cell["result"].get()
        del body, big, cell
    gone()


def test_an_awaited_failure_keeps_nothing():
    async def main():
        for _ in range(10):
            with pytest.raises(ValueError):
                await fail(Big())

    asyncio.run(main())
    gone()


def test_a_failing_run_keeps_nothing():
    step = engine.hybridize(lambda x: fail(x))
    for _ in range(10):
        with pytest.raises(ValueError):
            step(Big()).get()
    gone()


def test_causes_and_contexts_keep_nothing_and_are_still_shown():
    @engine.op
    def chained(x):
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner

    v = chained(Big())
    with pytest.raises(ValueError, match="outer") as error:
        v.get()
    assert isinstance(error.value.__cause__, KeyError)
    text = "".join(traceback.format_exception(error.value))
    assert 'raise KeyError("inner")' in text and 'raise ValueError("outer")' in text
    del error
    gone()
    assert v.done()


def test_a_failed_stage_keeps_nothing():
    def read():
        yield Big()
        big = Big()  # noqa: F841
        raise ValueError("no more")

    stage = engine.data.staged(read())
    stage.take(PATIENCE)
    with pytest.raises(ValueError):
        stage.take(PATIENCE)
    gone()


def test_threads_of_a_pipeline_end_when_its_outer_stage_fails():
    def bad(x):
        raise ValueError("no")

    before = threading.active_count()
    for _ in range(10):
        inner = engine.data.staged(iter(range(1000)), capacity=2)
        outer = engine.data.staged(lambda x: bad(x), {"x": inner})
        with pytest.raises(ValueError):
            outer.take(PATIENCE)
        del inner, outer
    for _ in range(500):
        gc.collect()
        if threading.active_count() <= before:
            break
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_method_op_does_not_keep_its_object():
    class Model(Big):
        @engine.op
        def run(self, x):
            return x

        @engine.op
        def broken(self):
            raise ValueError("no")

    for _ in range(5):
        model = Model()
        model.last = model.run(engine.value(1))
        model.worst = model.broken()
        del model
    gone()


def test_a_hybridized_bound_method_does_not_keep_its_object():
    class Model(Big):
        def __init__(self):
            super().__init__()
            self.w = engine.value([1])
            self.step = engine.hybridize(self._step)

        @engine.op
        def add(self, x):
            return x

        def _step(self, x):
            return same(self.add(x))

    for _ in range(5):
        assert Model().step(1).get() == 1
    gone()


def test_a_stage_on_self_does_not_keep_its_object():
    class Reader(Big):
        def __init__(self):
            super().__init__()
            self.stage = engine.data.staged(self.read)

        def read(self):
            return 1

    for _ in range(5):
        assert Reader().stage.take(PATIENCE) == 1
    gone()


@pytest.mark.parametrize("cancels", [True, False])
def test_a_smart_stage_over_its_objects_generator_does_not_keep_it(cancels):
    class Trainer(Big):
        def __init__(self):
            super().__init__()
            self.steps = engine.data.smart_stage(self.step, self.batches())

        def batches(self):
            yield from range(1000)

        def step(self, x):
            return doubled(x)

    doubled = engine.op(lambda x: 2 * x)
    for _ in range(5):
        trainer = Trainer()
        assert [next(trainer.steps).get() for _ in range(4)] == [0, 2, 4, 6]
        if cancels:
            trainer.steps.cancel()
        del trainer
    gone()


def test_new_names_are_not_kept_for_ever(run_python):
    ended = run_python(
        """
    import resource
    for i in range(20_000):
        engine.Var(f"name {i}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(100_000):
        engine.Var(f"other name {i} {'x' * 100}")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 6000)  # KiB
    """
    )
    assert ended.out == "True\n", ended


def test_views_and_values_in_containers_are_freed_without_the_collector():
    import numpy as np

    class Array(np.ndarray):
        pass

    made = []

    def note(array):
        made.append(weakref.ref(array))
        return array

    view = engine.op(lambda x: note(x[1:].view(Array)))
    passed = engine.op(lambda items: [note(items["a"][0].view(Array))])
    gc.collect()
    gc.disable()
    try:
        view(np.ones(100)).get()
        passed({"a": [engine.value(np.ones(9))], "b": range(3)}).get()
        engine.wait_all()
        assert [ref() for ref in made] == [None, None]
    finally:
        gc.enable()


def test_a_model_goes_whose_recorded_function_calls_its_own_op():
    class Model:
        def __init__(self):
            self.step = engine.hybridize(lambda x: self.add(x))

        @engine.op
        def add(self, x):
            return x + 1

    model = Model()
    assert model.step(1).get() == 2
    engine.wait_all()  # a worker that has set a value may hold the op for a moment
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
