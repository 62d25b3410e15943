"""SmartStage: what is staged and why, the same results whichever way steps run, ends, errors, positions, switches."""

import collections
import itertools
import threading
import time

import pytest

import engine
from conftest import PATIENCE

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}  # staged from the first step on
NEVER = {"profile_steps": 0, "guard_steps": 10**6}  # cut, and never staged


@engine.op
def parse(row):
    if row == "bad":
        raise ValueError("malformed row in line 4")
    return [float(x) for x in row.split(",")]


@engine.op
def look_up(table, row):
    return [table[int(x) % len(table)] for x in row]


@engine.op(updates="weights", outputs=1)
def train(weights, row, rate=1.0):
    weights[0] += rate * sum(row)
    return weights[0]


ROWS = [f"{i},{i + 1},{i * i}" for i in range(40)]


class Model:
    def __init__(self):
        self.table = engine.value([0.5, 1.25, 7.0], name="table")
        self.weights = engine.value([0.0], name="weights")

    def step(self, row):
        return train(self.weights, look_up(self.table, parse(row)))


def losses(rows=ROWS, then=lambda: None, **options):
    """What all steps return, and the steps. `then` is called when a step has returned."""
    model = Model()
    steps = engine.data.smart_stage(model.step, iter(rows), **options)
    return [(loss.get(), then())[0] for loss in steps], steps


EXPECTED = losses(do_smart_stage=False)[0]


@pytest.mark.parametrize("options", [{}, AT_ONCE, NEVER, {"capacity": 4, "num_threads": 3, "max_levels": 3, **AT_ONCE},
                                     {"autotune": True, "profile_steps": 2, "guard_steps": 2}])  # fmt: skip
def test_steps_are_the_same_whichever_way_they_run(options):
    seen, steps = losses(**options)
    assert seen == EXPECTED
    assert steps.position == len(ROWS)
    with pytest.raises(StopIteration):
        next(steps)
    with pytest.raises(engine.EndOfData, match="no more data"):
        steps.step()


def test_explain_names_what_is_staged_and_why_the_rest_is_not():
    steps = losses(name="rows", **AT_ONCE)[1]
    text = steps.explain()
    assert "smart stage 'rows': 2 of 3 nodes staged, in 1 level" in text
    assert "staged parse\nstaged look_up\n" in text
    assert steps.report["boundary"] == [("look_up", 0)]
    assert ("parse", "") in steps.report["nodes"]


def test_profile_measures_costs_and_bytes():
    # All ends of steps are told, so 200 steps decide, however slow the workers are.
    steps = losses(ROWS * 5, then=engine.wait_all, profile_steps=4, guard_steps=3)[1]
    report = steps.report
    assert report["decided"]
    assert report["whole_seconds"] > 0
    if report["levels"]:  # else the cut was not worth it here and now, and it says so
        assert report["measured_whole_seconds"] > 0
        assert report["boundary"][0][1] > 0
    else:
        assert "nothing is staged" in report["text"]


def test_a_table_that_the_step_changes_is_not_read_ahead():
    table = engine.value([0.0, 0.0, 0.0], name="table")

    @engine.op(updates="table")
    def bump(table, row):
        table[int(row[0]) % 3] += 1

    def step(row):
        row = parse(row)
        found = look_up(table, row)
        bump(table, row)
        return found

    def run(**options):
        table.get()[:] = [0.0] * 3
        steps = engine.data.smart_stage(step, iter(ROWS), **options)
        return [found.get() for found in steps], steps

    staged, steps = run(capacity=8, **AT_ONCE)
    assert staged == run(do_smart_stage=False)[0]
    assert dict(steps.report["nodes"])["look_up"] == "reads Var 'table', which 'bump' changes"


@pytest.mark.parametrize("own", [False, True])
def test_only_state_of_the_input_is_changed_ahead(own):
    counter = engine.value([0], name="counter")

    @engine.op(updates="counter", outputs=1)
    def draw(counter, row):
        counter[0] += 1
        return counter[0]

    steps = engine.data.smart_stage(lambda row: draw(counter, row), iter(ROWS), num_threads=3,
                               input_state=[counter] if own else [], **AT_ONCE)  # fmt: skip
    assert [drawn.get() for drawn in steps] == list(range(1, len(ROWS) + 1))
    reason = dict(steps.report["nodes"])["draw"]
    assert reason == ("" if own else "changes Var 'counter', which is no input_state: others may look at it between steps")


@pytest.mark.parametrize("options", [{"do_smart_stage": False}, AT_ONCE])
def test_an_op_without_inputs_runs_once_a_step(options):
    total, calls = engine.value([0], name="total"), itertools.count()

    @engine.op
    def config():
        return next(calls)

    @engine.op
    def prepare(x, made):
        return x, made

    @engine.op(updates="total", outputs=1)
    def train(total, prepared, made):
        return *prepared, made

    def step(x):
        made = config()
        return train(total, prepare(x, made), made)

    steps = engine.data.smart_stage(step, iter(range(4)), **options)
    assert [done.get() for done in steps] == [(i, i, i) for i in range(4)]


def test_marked_targets_stay():
    model = Model()

    def step(row):
        found = look_up(model.table, parse(row))
        engine.data.mark_target_node([found])
        return found

    steps = engine.data.smart_stage(step, iter(ROWS), **AT_ONCE)
    assert len(list(steps)) == len(ROWS)
    assert dict(steps.report["nodes"]) == {"parse": "", "look_up": "is a marked target"}
    assert step("1,2").get() == [1.25, 7.0]  # outside of recordings there is nothing to mark
    with pytest.raises(TypeError, match="mark_target_node: a str is no Value"):
        engine.data.mark_target_node("parse")


def test_several_sources_by_name_and_arguments_of_each_step():
    model = Model()

    def step(row, label, rate):
        return train(model.weights, parse(row), rate), label

    for options in (AT_ONCE, {"do_smart_stage": False}):
        model.weights.get()[0] = 0.0
        steps = engine.data.smart_stage(step, {"row": iter(ROWS), "label": iter(range(100, 200))}, **options)
        for i in range(5):
            loss, label = steps.step(rate=2.0)
            assert label.get() == 100 + i
        assert loss.get() == 2 * sum(sum(map(float, row.split(","))) for row in ROWS[:5])
        with pytest.raises(engine.UsageError, match=r"\['rate'\] is expected"):
            steps.step()
        steps.cancel()


def test_keywords_may_come_in_any_order():
    items = [{"row": 5, "weight": 1}, {"weight": 2, "row": 9}]
    less = engine.op(lambda row, weight: row - weight)
    steps = engine.data.smart_stage(lambda row, weight: less(row, weight), iter(items))
    assert [value.get() for value in steps] == [4, 7]


def test_a_step_that_raises_stop_iteration_does_not_end_the_loop():
    def step(row):
        next(iter(()))

    with pytest.raises(RuntimeError, match="smart stage 'rows': the step raised StopIteration"):
        list(engine.data.smart_stage(step, iter(range(3)), name="rows"))


def test_a_stage_by_hand_is_extended():
    rows = engine.data.staged(iter(ROWS), capacity=3, name="by hand")
    seen, steps = losses(rows, **AT_ONCE)
    assert seen == EXPECTED
    assert rows.stats()["delivered"] == len(ROWS)


def test_a_recorded_function_as_a_source():
    at = engine.value([0])

    @engine.op(updates="at", outputs=1)
    def read(at):
        at[0] += 1
        return ROWS[at[0] - 1]

    @engine.hybridize
    def reader():
        return read(at)

    steps = engine.data.smart_stage(Model().step, reader, **AT_ONCE)
    assert [steps.step().get() for _ in range(5)] == EXPECTED[:5]
    steps.cancel()


@pytest.mark.parametrize("options", [AT_ONCE, NEVER, {"do_smart_stage": False}])
def test_an_op_that_raises_fails_its_step_and_no_other(options):
    model = Model()
    steps = engine.data.smart_stage(lambda row: look_up(model.table, parse(row)), iter(["1,2", "bad", "2"]), **options)
    first, second, third = list(steps)
    assert (first.get(), third.get()) == ([1.25, 7.0], [7.0])
    with pytest.raises(ValueError, match="malformed row in line 4"):
        second.get()


@pytest.mark.parametrize("options", [AT_ONCE, NEVER])
def test_ignored_rows_are_left_out_and_counted(options):
    rows = [*ROWS[:7], "bad", *ROWS[7:]]
    seen, steps = losses(rows, ignored_exception_types=ValueError, capacity=2, **options)
    assert seen == EXPECTED
    assert steps.stats()["skipped"] == 1


def test_persistent_errors_are_left_out_and_count_while_steps_run_whole():
    class Rows:
        left = 11

        def __iter__(self):
            return self

        def __next__(self):
            self.left -= 1
            if self.left < 0:
                return ROWS[0]
            raise ValueError("bad row")

    steps = engine.data.smart_stage(Model().step, Rows(), ignored_exception_types=ValueError, do_smart_stage=False)
    assert steps.step().get() == EXPECTED[0]
    assert steps.stats()["skipped"] == 11
    assert steps.position == 12  # rows that the source skips count, too


@pytest.mark.parametrize("options", [AT_ONCE, {"do_smart_stage": False}])
def test_a_truncated_file_comes_as_itself_after_the_steps_before_it(options):
    def read():
        yield from ROWS[:3]
        raise EOFError("rows.csv ends in line 4, in the middle of a row")

    steps = engine.data.smart_stage(Model().step, read(), capacity=8, **options)
    assert [steps.step().get() for _ in range(3)] == EXPECTED[:3]
    for _ in range(2):
        with pytest.raises(EOFError, match="line 4"):
            steps.step()


@pytest.mark.parametrize("options", [AT_ONCE, {"do_smart_stage": False}])
def test_a_source_that_blocks_for_ever_is_named_and_loses_nothing(gate, options):
    def read():
        yield ROWS[0]
        gate()
        yield ROWS[1]

    steps = engine.data.smart_stage(Model().step, read(), take_timeout=0.2, name="reader", **options)
    assert steps.step().get() == EXPECTED[0]
    with pytest.raises(engine.StageTimeoutError, match="stage 'reader': no item within 200 ms"):
        steps.step()
    gate.open()
    while True:
        try:
            assert steps.step().get() == EXPECTED[1]
            break
        except engine.StageTimeoutError:
            pass


class Sized:
    asked = 0

    @property
    def nbytes(self):
        Sized.asked += 1
        return 1000


@engine.op
def unpack(row):
    return Sized()


@engine.op(updates="count", outputs=1)
def counted(count, item):
    count[0] += 1
    return count[0]


@pytest.mark.parametrize("bound, ahead", [(2500, 2), (0, 20)])
def test_bytes_bound_what_is_ahead_and_are_counted_for_that_alone(bound, ahead):
    count, Sized.asked = engine.value([0]), 0
    rows = iter(range(40))
    steps = engine.data.smart_stage(lambda row: counted(count, unpack(row)), rows, capacity=20, capacity_bytes=bound, **AT_ONCE)
    assert next(steps).get() == 1
    while not (stage := steps.stats()["stage"])["waiting"] or stage["fill"] < ahead:  # of which nothing else tells
        time.sleep(0)
    assert (stage["fill"], stage["fill_bytes"]) == (ahead, bound and 1000 * ahead)
    assert bool(Sized.asked) == bool(bound)
    assert [loss.get() for loss in steps] == list(range(2, 41))


def test_cancel_ends_a_waiting_step(gate):
    def read():
        yield ROWS[0]
        gate()

    steps = engine.data.smart_stage(Model().step, read(), **AT_ONCE)
    steps.step().get()
    caught = []

    def ask():
        try:
            steps.step()
        except BaseException as error:
            caught.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    gate.wait_until_entered()
    steps.cancel()
    asking.join(PATIENCE)
    assert isinstance(caught[0], engine.CancelledError)


def test_resuming_from_the_position_repeats_and_loses_nothing():
    for stop in (1, 5, 13):
        model, seen, position = Model(), [], 0
        while position < len(ROWS):
            options = {"capacity": 3, "profile_steps": 2, "guard_steps": 2}
            with engine.data.smart_stage(model.step, iter(ROWS[position:]), **options) as steps:
                for _ in range(min(stop, len(ROWS) - position)):
                    seen.append(steps.step().get())
                position += steps.position
        assert seen == EXPECTED


def test_the_policy_says_whether_steps_are_cut():
    with engine.policy("threaded", smart_stage=False):
        whole = losses(**AT_ONCE)[1]
        assert whole.report["decided"] and "off" in whole.explain()
        assert losses(do_smart_stage=True, **AT_ONCE)[1].report["on"]
    assert losses(**AT_ONCE)[1].report["on"]
    name, parameters = engine.set_policy("inline", smart_stage=False)
    try:
        assert (name, parameters) == ("threaded", {"smart_stage": True})
        assert engine.default().policy == ("inline", {"intra_op_threads": 1, "smart_stage": False})
        assert not losses(**AT_ONCE)[1].report["on"]
    finally:
        engine.set_policy(name, **parameters)
    assert losses(**AT_ONCE)[1].report["on"]
    with engine.Engine(workers=1, policy_options={"smart_stage": False}) as whole:
        assert whole.policy == ("threaded", {"smart_stage": False})


@pytest.mark.parametrize("policy", ["threaded", "inline", "naive"])
def test_under_every_policy(policy):
    with engine.policy(policy):
        assert losses(capacity=3, **AT_ONCE)[0] == EXPECTED


def test_what_cannot_be_honoured_is_refused():
    step = Model().step
    for unknown in ("capacty", "ordered", "targets"):
        with pytest.raises(TypeError, match=f"smart_stage: '{unknown}' is unknown; capacity, num_threads, .*guard_steps, engine are allowed"):
            engine.data.smart_stage(step, iter(ROWS), **{unknown: 3})
    for wrong in ({"profile_steps": 1.5}, {"capacity": 0}, {"timeout": "1"}, {"on_timeout": "wait"}, {"ignored_exception_types": 3},
                  {"closed_exception_types": 3}, {"stage_subgraph_thread_pool_id": -1}):  # fmt: skip
        with pytest.raises((TypeError, engine.UsageError), match=f"^smart_stage: {min(wrong)} "):
            engine.data.smart_stage(step, iter(ROWS), **wrong)
    with pytest.raises(engine.UsageError, match="capacity is 0"):
        engine.data.smart_stage(step, iter(ROWS), capacity=0)
    with pytest.raises(TypeError, match="a list is no function"):
        engine.data.smart_stage(ROWS, step)
    with pytest.raises(engine.UsageError, match="another function than its step"):
        engine.data.smart_stage(step, iter(ROWS), engine.data.SmartStageOptions(graph=parse))
    with pytest.raises(engine.UsageError, match="max_levels is 0"):
        engine.data.smart_stage(step, iter(ROWS), max_levels=0).step()


def test_what_a_source_gives_is_not_given_again():
    total = engine.op(lambda x, rate: x + rate)
    for source, others in (({"x": iter([1, 2])}, {"rate": 2}), (iter([(1, 2)]), {})):
        steps = engine.data.smart_stage(lambda x, rate: total(x, rate), source, name="given", **AT_ONCE)
        with pytest.raises(engine.UsageError, match="smart stage 'given': a step is given 'x', which comes from a source; do not give it"):
            steps.step(x=3, **others)
        assert steps.step(**others).get() == 3
        steps.cancel()


def test_explain_takes_a_smart_stage():
    steps = engine.data.smart_stage(Model().step, iter(ROWS), **AT_ONCE)
    next(steps).get()
    assert engine.explain(steps) == steps.explain() and "staged parse" in engine.explain(steps)
    steps.cancel()


def test_collectives_stay():
    @engine.op(collective=True)
    def gather(row):
        return sum(row)

    steps = engine.data.smart_stage(lambda row: gather(parse(row)), iter(ROWS), **AT_ONCE)
    assert [total.get() for total in steps] == [sum(map(float, row.split(","))) for row in ROWS]
    assert dict(steps.report["nodes"]) == {
        "parse": "", "gather": "is a collective: every process must run it in the same order"
    }  # fmt: skip
    assert gather([1, 2]).get() == 3  # outside of a recording it is an op as others are


@pytest.mark.parametrize("option, value, least", [("max_levels", 0, 1), ("max_levels", -1, 1), ("profile_steps", -1, 0),
                                                  ("guard_steps", -1, 0), ("guard_steps", 2**63, 0)])  # fmt: skip
def test_a_count_that_cannot_be_is_refused_when_the_stage_is_made(option, value, least):
    with pytest.raises(engine.UsageError, match=f"{option} is {value}; {least} … 2147483647 is expected"):
        engine.data.smart_stage(lambda x: x, iter([1]), **{option: value})


def test_containers_of_values_are_items_and_arguments_of_steps():
    total = engine.op(lambda *parts: sum(sum(part) if isinstance(part, (tuple, list)) else part for part in parts))
    pair = collections.namedtuple("Pair", "a b")
    steps = engine.data.smart_stage(lambda batch: total(batch), (pair(total(i, 1), i) for i in range(3)), **AT_ONCE)
    assert [value.get() for value in steps] == [1, 3, 5]
    params = [engine.value(10), engine.value(20)]
    steps = engine.data.smart_stage(lambda x, params, rate: total(x, params, rate), iter(range(5)), **AT_ONCE)
    assert [steps.step(params=list(params), rate=1).get() for _ in range(3)] == [31, 32, 33]
    for other in ([engine.value(10), params[1]], [*params, params[0]], [10, 20]):
        with pytest.raises(engine.UsageError, match=r"params"):
            steps.step(params=other, rate=1)
    with pytest.raises(engine.UsageError, match="'rate' was an int when the step was recorded, and is a Value now"):
        steps.step(params=params, rate=params[0])
    assert steps.step(params=params, rate=2).get() == 35
    steps.cancel()


def test_what_the_step_names_must_stay_what_it_was():
    model, scaled = Model(), engine.op(lambda x, k: x * k)
    model.rate, model.tables = 1.0, [model.table]

    def step(row):
        return look_up(model.tables[0], parse(row)), scaled(2, model.rate)

    steps = engine.data.smart_stage(step, iter(ROWS), **AT_ONCE)
    next(steps)
    model.rate = 2.0
    with pytest.raises(engine.UsageError, match="'model.rate' of 'step' was 1.0 when it was recorded, and is 2.0 now.*recorded once"):
        next(steps)
    model.rate, model.tables = 1.0, [model.table]  # another list with the same in it
    first = steps.step()
    assert first[0].get() == [1.25, 7.0, 1.25] and first[1].get() == 2.0
    model.tables = [engine.value([0.0])]
    with pytest.raises(engine.UsageError, match=r"'model.tables\[0\]' of 'step' stood for .* and for something else now"):
        next(steps)
    steps.cancel()


def test_steps_of_no_data_end_whatever_they_are_given():
    with pytest.raises(engine.EndOfData):
        engine.data.smart_stage(lambda x, rate: parse(x), iter([])).step(rate=1)


@pytest.mark.parametrize("state", [[3], "w", 3])
def test_what_is_no_var_is_no_input_state(state):
    with pytest.raises(TypeError, match="smart_stage of .*input_state.*(a Var or a Value|Vars, Values)"):
        engine.data.smart_stage(lambda x: x, iter([1]), input_state=state)
