"""Hybridized functions give what they give eagerly, and say what cannot be replayed."""

import dataclasses
import threading

import numpy as np
import pytest

import engine


@engine.op
def dense(x, w):
    return x @ w


@engine.op(updates="w")
def descend(w, g, rate):
    w -= rate * g


@engine.op(outputs=2)
def parts(x):
    return x + 1, x * 2


@pytest.fixture(autouse=True)
def restore():
    yield
    engine.set_policy("threaded")


def training(weights):
    def step(x, *, rate):
        y = dense(x, weights)
        a, b = parts(y)
        descend(weights, dense(x, a), rate)
        return {"y": y, "both": [a, b]}

    return step


@pytest.mark.parametrize("policy", ["threaded", "inline", "naive"])
def test_replays_give_what_eager_calls_give(rng, policy):
    start = np.array([[rng.random() for _ in range(3)] for _ in range(3)])
    batches = [np.array([[rng.random() for _ in range(3)] for _ in range(3)]) for _ in range(12)]
    eager, hybrid = engine.value(start.copy()), engine.value(start.copy())
    plain, step = training(eager), engine.hybridize(training(hybrid))
    with engine.policy(policy):
        expected = [plain(engine.value(b), rate=0.01) for b in batches]
        given = [step(b, rate=0.01) for b in batches]  # runs overlap as far as the weights allow
        for e, g in zip(expected, given):
            assert np.array_equal(e["y"].get(), g["y"].get())
            assert all(np.array_equal(p.get(), q.get()) for p, q in zip(e["both"], g["both"]))
        assert np.array_equal(eager.get(), hybrid.get())
    assert step.plan is not None and len(step.plan.nodes) == 4


def test_the_first_call_records_and_later_ones_do_not_run_the_function():
    calls, w = [], engine.value(np.ones(2))

    @engine.hybridize
    def step(x):
        calls.append(1)
        descend(w, x, 1.0)

    for _ in range(5):
        assert step(np.ones(2)) is None
    assert calls == [1] and w.get().tolist() == [-4, -4]


def test_pushes_are_recorded_with_their_vars(gate):
    v, seen = engine.Var("v"), []

    @engine.hybridize
    def step():
        engine.push(lambda: seen.append(1), updates=[v])
        engine.push_async(lambda done: (seen.append(2), done()), updates=[v])

    engine.push(gate, writes=[v])
    for _ in range(3):
        step()
    engine.push(lambda: seen.append(3), reads=[v])
    assert seen == []
    gate.open()
    engine.wait_all()
    assert seen == [1, 2] * 3 + [3]


def test_results_go_into_eager_ops_and_keep_their_run():
    @engine.hybridize
    def twice(x):
        return parts(x)[1]

    total = dense(twice(np.eye(2)), twice(np.eye(2)))
    assert total.get().tolist() == [[4, 0], [0, 4]]


def test_values_changed_in_place_are_ordered_after_their_earlier_readers():
    @engine.hybridize
    def step(x):
        a, _ = parts(x)
        before = dense(a, a)
        descend(a, a, 1.0)
        return before, a

    for _ in range(20):
        before, after = step(np.eye(2))
        assert before.get().tolist() == [[5, 4], [4, 5]] and after.get().tolist() == [[0, 0], [0, 0]]


def test_errors_show_the_op_and_poison_what_it_updates():
    w, fails = engine.value(np.ones(1)), [True]

    @engine.op(updates="w")
    def broken(w):
        if fails[0]:
            raise KeyError("broken")

    @engine.hybridize
    def step(x):
        y = parts(x)[0]
        broken(w)
        return y, dense(w, w)

    y, z = step(np.ones(1))
    with pytest.raises(KeyError, match="broken"):
        w.get()
    with pytest.raises(KeyError):
        z.get()
    fails[0] = False
    engine.clear_error(w)
    assert step(np.ones(1))[0].get().tolist() == [2]


def test_waits_and_decisions_while_recording_are_refused():
    for use in (lambda t: t.get(), bool, np.asarray, len):

        @engine.hybridize
        def step(x, use=use):
            use(parts(x)[0])

        with pytest.raises(engine.UsageError, match="while the function is recorded"):
            step(np.ones(2))
        assert parts(engine.value(np.ones(1)))[0].get().tolist() == [2]  # recording has ended

    with pytest.raises(engine.UsageError, match="calls no op"):
        engine.hybridize(lambda x: x)(1)


def test_calls_that_do_not_match_the_recording_are_refused():
    w = engine.value(np.ones(2))

    @engine.hybridize
    def step(weights, x):
        descend(weights, x, 1.0)

    step(w, np.ones(2))
    with pytest.raises(engine.UsageError, match="2 arguments"):
        step(w)
    with pytest.raises(engine.UsageError, match="argument 1 of 'step' was an ndarray .* is a list"):
        step(w, [1, 1])
    with pytest.raises(engine.UsageError, match="is not the Value that it was"):
        step(engine.value(np.ones(2)), np.ones(2))
    assert w.get().tolist() == [0, 0]


def test_a_name_bound_anew_is_refused_unless_shapes_are_static():
    w = engine.value(np.ones(2))

    def body(x):
        descend(w, x, 1.0)

    step, trusting = engine.hybridize(body), engine.hybridize(body, static_shape=True)
    step(np.ones(2))
    trusting(np.ones(2))
    first, w = w, engine.value(np.ones(2))
    with pytest.raises(engine.UsageError, match="variable 'w' of 'body'"):
        step(np.ones(2))
    trusting(np.ones(2))
    assert first.get().tolist() == [-2, -2] and w.get().tolist() == [1, 1]


def test_inline_runs_on_the_calling_thread_of_each_client():
    seen = []

    @engine.op
    def who(x):
        seen.append(threading.current_thread())
        return x

    step = engine.hybridize(lambda x: who(who(x)))
    step.record(0)

    def client():
        with engine.policy("inline"):
            for i in range(20):
                assert step(i).get() == i

    threads = [threading.Thread(target=client) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(seen) == 160 and len(set(seen)) == 4


def test_graph_records_without_running_and_nests():
    ran = []
    note = engine.op(lambda x: ran.append(x) or x)
    inner = engine.hybridize(lambda x: note(note(x)))
    plan = engine.graph(lambda x: note(inner(x)), 0)
    assert ran == [] and [name for name, _, _ in plan.nodes] == ["<lambda>"] * 3
    run = plan.start([7])
    assert run.output(0) == 7 and ran == [7, 7, 7] and run.done
    with pytest.raises(engine.UsageError, match="takes 1 inputs and was given 0"):
        plan.start()


def test_a_plan_waits_for_the_values_that_it_is_given(gate):
    @engine.op
    def held(x):
        gate()
        return x

    same = engine.op(lambda x: x)
    plan = engine.graph(lambda x: same(x), 1)
    run = plan.start([held(4)])
    gate.wait_until_entered()
    assert not run.done
    gate.open()
    assert run.output(0) == 4


def test_cancel_deadline_and_policy_of_one_run():
    scope = engine.CancelScope()
    plan = engine.graph(parts, 1)
    scope.cancel()
    with pytest.raises(engine.CancelledError):
        plan.start([1], cancel=scope).output(0)
    with pytest.raises(engine.DeadlineError, match="deadline") as late:
        plan.start([1], deadline=0.0).output(0)
    assert isinstance(late.value, TimeoutError) and isinstance(late.value, engine.OpError) and late.value.line > 0
    assert plan.start([1], policy="inline", priority=2).done
    with pytest.raises(engine.UsageError, match="no policy named 'fast'"):
        plan.start([1], policy="fast", timed=True)
    with pytest.raises(engine.UsageError, match="priority is 9; allowed: -2"):
        plan.start([1], priority=9)
    with pytest.raises(engine.UsageError, match="no policy named 'fast'"):
        plan.start([1], policy="fast")


def test_explain_tells_costs_slack_and_the_critical_path(tmp_path):
    @engine.hybridize
    def step(x):
        a, b = parts(x)
        return dense(dense(a, b), a)

    with pytest.raises(engine.UsageError, match="not recorded yet"):
        engine.explain(step)
    step(np.eye(2))
    assert "no costs" in str(engine.explain(step)) and "digraph" in engine.explain(step).dot
    step.profile(np.eye(2))
    told = engine.explain(step)
    assert told.path == [0, 1, 2] and told.critical <= told.work + 1e-12
    assert told.bound <= told.makespan * (1 + 1e-9)
    assert "critical path" in str(told) and str(told).count(" *") == 3
    pytest.importorskip("matplotlib")
    told.picture(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def late_reader():
    """An op that looks at x after `change` has been called, or when it is sure that this waits; and that event."""
    changed = threading.Event()

    @engine.op
    def late(x):
        changed.wait(0.2)
        return x.copy()

    @engine.op(updates="w")
    def change(w):
        w += 100
        changed.set()

    return late, change, changed


@pytest.mark.parametrize("shared", [False, True])
def test_an_argument_that_is_also_state_keeps_its_order(shared):
    late, change, changed = late_reader()
    own = engine.Engine(workers=2)
    state, *others = (engine.value(np.full(2, float(i)), engine=own) for i in range(3))
    same = engine.value(state.get()[::-1], engine=own) if shared else state

    @engine.hybridize
    def step(x):
        seen = late(x)
        change(state)
        return seen

    for given, seen in ((others[0], 1), (same, 100), (others[1], 2), (same, 300), (others[0], 1)):
        changed.clear()
        assert step(given).get().tolist() == [seen, seen]
    assert state.get().tolist() == [500, 500]
    own.shutdown()


def test_an_argument_that_is_what_another_argument_was_at_first_keeps_its_order():
    late, change, changed = late_reader()
    with engine.Engine(workers=2) as own:
        state, *others = (engine.value(np.full(2, float(i)), engine=own) for i in range(3))

        @engine.hybridize
        def step(x, y):  # each call gives `state` as y, so that it is part of the recording
            seen = late(x)
            change(state)
            return seen

        for given, seen in ((others[0], 1), (state, 100), (others[1], 2), (state, 300)):
            changed.clear()
            assert step(given, state).get().tolist() == [seen, seen]


@pytest.mark.parametrize("changes", [False, True])
def test_fresh_views_of_state_are_one_recording_and_keep_their_order(changes):
    half = engine.op(lambda w: w[:2], alias="order")
    late, change, changed = late_reader()
    with engine.Engine(workers=2) as own:
        state, other = engine.value(np.zeros(4), engine=own), engine.value(np.ones(2), engine=own)
        add = engine.op(lambda x, w: x.sum() + w.sum())
        recorded = []

        @engine.hybridize
        def step(x):
            recorded.append(1)
            if not changes:
                return None, add(x, state)
            before = late(x)
            change(state)
            return before, add(x, state)

        for i in range(100):
            if i < 5:
                changed.clear()  # so that `late` waits for what must not come before it
            before, after = step(half(state))
            at = 100 * (i + 1) if changes else 0
            assert after.get() == 2 * at + 4 * at
            assert before is None or before.get().tolist() == [at - 100] * 2
        assert len(recorded) <= 4
        assert step(other)[1].get() == 2 + 4 * state.get()[0]
        assert step(state)[1].get() == 8 * state.get()[0]


@engine.op
def total(items):
    return sum(each if isinstance(each, (int, float)) else each.sum() for each in items)


def test_containers_of_values_bring_data_and_wait_for_it(gate):
    waits = engine.op(lambda x: gate() or x)

    @engine.hybridize
    def summed(pair, *, more):
        return total([*pair, more["a"][0], more["b"]])

    a, b = engine.value(np.ones(3)), waits(np.full(3, 2.0))
    first = summed((a, b), more={"a": [5], "b": a})
    second = summed((b, a), more={"a": [7], "b": b})
    assert not first.done()
    gate.open()
    assert (first.get(), second.get()) == (3 + 6 + 5 + 3, 6 + 3 + 7 + 6)
    assert summed((np.ones(2), np.ones(2)), more={"a": [1], "b": a}).get() == 2 + 2 + 1 + 3
    assert summed((a, b, a), more={"a": [1], "b": a}).get() == 3 + 6 + 3 + 1 + 3
    assert summed.plan is not None and summed.plan.nodes[-1][0] == "total"


def test_a_value_in_a_container_that_is_changed_is_state():
    weights = [engine.value(np.ones(2)), engine.value(np.full(2, 2.0))]

    @engine.hybridize
    def step(weights, x):
        for w in weights:
            descend(w, x, 1.0)

    for _ in range(3):
        step(weights, np.ones(2))
    assert [w.get().tolist() for w in weights] == [[-2, -2], [-1, -1]]
    with pytest.raises(engine.UsageError, match="item 0 of the arguments of 'step', counted through their containers, is"):
        step([weights[1], np.ones(2)], np.ones(2))


def test_a_recorded_function_may_return_its_arguments():
    double = engine.op(lambda x: x + x)
    step = engine.hybridize(lambda x, y: (x, [double(y)], y))
    for x, y in ((engine.value(1), np.ones(2)), (engine.value(2), np.ones(2))):
        first, (twice,), second = step(x, y)
        assert first is x  # as the function returns it
        assert second.get() is not y and second.get().tolist() == [1, 1] and twice.get().tolist() == [2, 2]
    listed = [1]
    out, _ = engine.hybridize(lambda x: (x, double(x)))(listed)
    assert out.get() == [1] and out.get() is not listed


def test_the_times_of_a_recording_are_not_those_of_another():
    inc = engine.op(lambda x: x + 1)

    @engine.hybridize
    def step(x, deep):
        for _ in range(40 if deep else 2):
            x = inc(x)
        return x

    step.profile(1, False)
    step(1, True).get()
    assert len(engine.explain(step).nodes) == 40 and engine.explain(step).times == []
    step.profile(1, True)
    for deep, count in ((False, 2), (True, 40)):
        step(1, deep).get()
        assert len(engine.explain(step).times) == len(engine.explain(step).nodes) == count


@dataclasses.dataclass
class Batch:
    rows: object

    def __post_init__(self):
        self.size = 1  # no field


class Rows(list):
    __slots__ = ("size",)


class Named(dict):
    size = 1


@pytest.mark.parametrize("made", [Batch, lambda v: Rows([v]), lambda v: Named(rows=v)])
def test_attributes_of_containers_of_values_are_those_of_each_call(made):
    scaled, recorded = engine.op(lambda x, k: x * k), []

    @engine.hybridize
    def step(item):
        recorded.append(1)
        return scaled(item.rows if isinstance(item, Batch) else item[0] if isinstance(item, Rows) else item["rows"], item.size)

    for size in (1, 5, 1, 5.0):
        item = made(engine.value(2))
        item.size = size
        assert repr(step(item).get()) == repr(2 * size)
    assert len(recorded) == 4  # the third call shows that each brings another Value
    for number in range(70):  # the function does not name this one
        item = made(engine.value(2))
        item.size = 1
        if hasattr(item, "__dict__"):
            item.number, item.array = number, np.ones(1)
        assert step(item).get() == 2
    assert len(recorded) == 4


def test_a_dict_whose_items_are_its_attributes_is_recorded_once():
    class Named(dict):
        def __init__(self, **items):
            super().__init__(items)
            self.__dict__ = self

    recorded, scaled = [], engine.op(lambda x, k: x * k)
    step = engine.hybridize(lambda item: (recorded.append(1), scaled(item["x"], item["k"]))[1])
    assert [step(Named(x=engine.value(i), k=3)).get() for i in range(5)] == [0, 3, 6, 9, 12]
    assert len(recorded) <= 2


def test_static_shapes_take_another_value_in_each_call():
    step = engine.hybridize(lambda x, y: parts(x)[0], static_shape=True)
    assert [step(engine.value(i), 0).get() for i in (1, 2, 3)] == [2, 3, 4]
    assert step(5, 0).get() == 6
    w = engine.value(np.ones(1))
    step = engine.hybridize(lambda w: descend(w, w, 1.0), static_shape=True)
    step(w)
    with pytest.raises(engine.UsageError, match="is not the Value that it was"):
        step(engine.value(np.ones(1)))
