"""Policies change where and when an op runs, never what comes out."""

import threading

import pytest

import engine


@pytest.fixture(autouse=True)
def restore():
    yield
    engine.set_policy("threaded")


def test_naive_runs_each_op_inside_its_push():
    v, where = engine.Var("v"), []
    with engine.policy("naive"):
        engine.push(lambda: where.append(threading.current_thread()), writes=[v])
        assert where == [threading.current_thread()]


def test_naive_ops_whose_inputs_are_not_there_yet_run_in_a_later_wait(gate):
    v, w, seen = engine.Var("v"), engine.Var("w"), []
    engine.push(gate, writes=[v])
    gate.wait_until_entered()
    with engine.policy("naive"):
        engine.push(lambda: seen.append(1), reads=[v], writes=[w])
        assert seen == []
    threading.Thread(target=gate.open).start()
    assert w.wait() and seen == [1]


def test_raise_at_push_shows_the_error_where_it_was_pushed_and_poisons():
    v = engine.Var("v")

    def body():
        raise ValueError("here")

    with engine.policy("naive", raise_at_push=True):
        with pytest.raises(ValueError, match="here"):
            engine.push(body, writes=[v])
    with pytest.raises(ValueError, match="here"):
        v.wait()


def test_without_raise_at_push_errors_wait_for_the_wait():
    v = engine.Var("v")
    with engine.policy("naive"):
        engine.push(lambda: 1 / 0, writes=[v])
    with pytest.raises(ZeroDivisionError):
        v.wait()


def test_set_policy_returns_the_previous_and_the_context_restores_it():
    naive = ("naive", {"raise_at_push": True, "smart_stage": True})
    assert engine.set_policy("naive", raise_at_push=True) == ("threaded", {"smart_stage": True})
    with engine.policy("inline", intra_op_threads=2):
        assert engine.default().policy == ("inline", {"intra_op_threads": 2, "smart_stage": True})
        with engine.policy("threaded"):
            assert engine.default().policy == ("threaded", {"smart_stage": True})
    assert engine.default().policy == naive
    assert engine.set_policy("threaded") == naive


def test_a_policy_block_is_of_its_thread():
    seen = []
    with engine.policy("inline"):
        other = threading.Thread(target=lambda: seen.append(engine.default().policy[0]))
        other.start()
        other.join()
    assert seen == ["threaded"]
    block = engine.policy("naive")
    with block, pytest.raises(engine.UsageError, match="entered already"):
        block.__enter__()
    assert engine.default().policy[0] == "threaded"


def test_inline_runs_a_push_on_the_calling_thread():
    v, where = engine.Var("v"), []
    with engine.policy("inline"):
        engine.push(lambda: where.append(threading.current_thread()), writes=[v])
    assert where == [threading.current_thread()]


def test_a_refused_policy_changes_nothing():
    for name, parameters, allowed in [
        ("fast", {}, "'threaded', 'inline', 'naive'"),
        ("threaded", {"raise_at_push": True}, r"takes no 'raise_at_push' \(that is for 'naive'\); it takes smart_stage: true or false"),
        ("inline", {"intra_op_threads": 0}, "an integer from 1 to 255 is allowed"),
        ("inline", {"intra_op_threads": "some"}, "intra_op_threads is 'some'; an integer from 1 to 255"),
        ("naive", {"raise_at_puhs": True}, "it takes raise_at_push: true or false, default false"),
    ]:
        with pytest.raises(engine.UsageError, match=allowed):
            engine.set_policy(name, **parameters)
        with pytest.raises(engine.UsageError, match=allowed):
            engine.policy(name, **parameters)
    assert engine.default().policy == ("threaded", {"smart_stage": True})


def test_policies_come_with_help_and_parameters():
    for policy in engine.policies().values():
        assert policy["help"] and all(": " in text for text in policy["parameters"].values())
    parameters = {name: policy["parameters"] for name, policy in engine.policies().items()}
    assert parameters["inline"]["intra_op_threads"].startswith("int, optional, default='1'")
    assert parameters["inline"]["smart_stage"].startswith("true or false, default true: ")
    assert parameters["naive"]["raise_at_push"].startswith("true or false, default false: ")


@pytest.mark.parametrize("policy", ["threaded", "inline", "naive"])
def test_results_and_errors_are_the_same_under_every_policy(policy):
    results = []
    with engine.policy(policy):
        a, b = engine.value([1], "a"), engine.value([2], "b")

        @engine.op(updates="to")
        def add(to, other):
            if other[0] > 100:
                raise OverflowError(other[0])
            to[0] += other[0]

        for _ in range(20):
            add(a, b)
            add(b, a)
    for v in (a, b):
        try:
            results.append(v.get())
        except OverflowError as error:
            results.append((error.args, error.__notes__[0].split(" pushed")[0]))
    assert results == [((144,), "engine: op 'add'")] * 2 or results == [((233,), "engine: op 'add'")] * 2


def test_a_run_outside_of_bodies_gives_the_gil_up_because_it_may_run_what_other_runs_left(run_python):
    finished = run_python("""
        hold_began, opened, w = threading.Event(), threading.Event(), engine.value([])

        @engine.op(updates="x")
        def hold(x):
            hold_began.set()
            opened.wait()

        @engine.op(updates="x", place="io")
        def elsewhere(x):
            x.append(1)

        same = engine.op(lambda x: x)
        late = engine.hybridize(lambda: elsewhere(w))
        plain = engine.hybridize(lambda x: same(x))
        late.record()
        plain.record(1)
        hold(w)
        hold_began.wait()
        with engine.policy("naive"):
            late()  # cannot begin yet, so it is left for a thread that pushes or waits outside of bodies
        opened.set()
        while "is ready, not started" not in engine.describe_pending():
            pass
        with engine.policy("inline"):
            print(plain(2).get())  # runs `late` as well, which waits for the I/O pool's thread, and that for the GIL
        print(w.get())
    """)
    assert finished.out.split() == ["2", "[1]"], finished
