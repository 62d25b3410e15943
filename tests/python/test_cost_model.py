"""The policy cost_model from Python: windows, explanations, cost files, refusals."""

import numpy as np
import pytest

import engine


@pytest.fixture(autouse=True)
def restore():
    yield
    engine.set_policy("threaded")


def make_step():
    state = engine.value(np.zeros(1), "state")

    @engine.op
    def dense(x):
        return x + 1

    @engine.op(updates="to")
    def add(to, a, b):
        to += a.sum() + b.sum()

    @engine.hybridize
    def step(x):
        add(state, dense(x), dense(x))

    return step, state


def test_it_measures_compares_and_decides_and_results_stay_the_same():
    results = []
    for policy, parameters in (("threaded", {}), ("cost_model", {"start_step": 2, "stop_step": 5})):
        step, state = make_step()
        with engine.policy(policy, **parameters):
            for i in range(70):
                step(np.full(3, float(i)))
            results.append(state.get().tolist())
            if policy == "cost_model":
                assert engine.default().policy == (policy, {**parameters, "smart_stage": True})
                for _ in range(1000):
                    if engine.explain(step).model["state"] in ("scheduled", "went back"):
                        break
                    step(np.zeros(3))
                    state.get()
    assert results[0] == results[1]
    told = engine.explain(step)
    assert "24 pairs" in told.model["said"]
    assert told.model["keys"] == ["dense#1", "dense#2", "add"]
    assert told.path[-1] == 2 and told.bound == max(told.work / told.workers, told.critical)
    assert all(n >= 3 for n in told.model["samples"])
    assert "run as under threaded" in str(told) and "color=red" in told.dot


def test_the_picture_marks_the_critical_path(tmp_path):
    pytest.importorskip("matplotlib")
    step, _ = make_step()
    with engine.policy("cost_model", start_step=0, stop_step=2):
        for _ in range(4):
            step(np.zeros(3))
        step.profile(np.zeros(3))
    engine.explain(step).picture(tmp_path / "gantt.png")
    assert (tmp_path / "gantt.png").read_bytes().startswith(b"\x89PNG")


def test_shapes_are_measured_by_themselves():
    step, _ = make_step()
    with engine.policy("cost_model", start_step=0, stop_step=2):
        for _ in range(2):
            step(np.zeros(3))
        engine.wait_all()  # a step tells the model of itself when all of it has ended, which may be after `state` is there
        small = engine.explain(step).model["samples"]
        step(np.zeros(50))
        engine.wait_all()
        assert engine.explain(step).model["samples"] == [1, 1, 1] and small == [2, 2, 2]


def test_costs_are_saved_loaded_and_refused_with_the_line(tmp_path):
    step, _ = make_step()
    file = tmp_path / "costs.txt"
    with engine.policy("cost_model", start_step=0, stop_step=2):
        for _ in range(2):
            step(np.zeros(3))
        engine.wait_all()
        step.plan.save_costs(file)
        assert "dense#1" in file.read_text()
        other, state = make_step()
        other.record(np.zeros(3))
        other.plan.load_costs(file)
        other(np.zeros(3))
        state.get()
        assert engine.explain(other).model["state"] == "comparing"
        other.plan.remeasure()
        other(np.zeros(3))
        assert engine.explain(other).model["state"] == "measuring"
    file.write_text("engine-costs 1\nwhat is this\n")
    with pytest.raises(engine.UsageError, match="line 2"):
        other.plan.load_costs(file)
    with pytest.raises(engine.UsageError, match="cannot read"):
        other.plan.load_costs(tmp_path / "missing")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"start_step": 9, "stop_step": 9}, "start_step = 9 and stop_step = 9"),
        ({"start_step": 500}, "stop_step = 200"),
        ({"start_step": -5}, "start_step is '-5'; an integer from -1 to 16777215 is allowed"),
        ({"step": 1}, "it takes start_step"),
    ],
)
def test_windows_that_are_none_are_refused(parameters, said):
    with pytest.raises(engine.UsageError, match=said):
        engine.set_policy("cost_model", **parameters)
    assert engine.default().policy == ("threaded", {"smart_stage": True})
