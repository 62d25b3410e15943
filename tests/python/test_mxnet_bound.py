"""What two cores allow MXNet's wide net (perf/mxnet/bound.py), beside which ./run perf mxnet judges it."""

import importlib.util
import pathlib
import statistics

import pytest

_PATH = pathlib.Path(__file__).resolve().parent.parent.parent / "perf/mxnet/bound.py"
_SPEC = importlib.util.spec_from_file_location("bound", _PATH)
bound = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bound)


def test_a_better_choice_than_the_oldest_op_is_allowed():
    ops = [("a", 1.0, []), ("b", 1.0, []), ("long", 2.0, [])]
    assert bound.oldest_first(ops, 2) == 3.0
    assert bound.at_least(ops, 2) == 2.0


def test_ops_behind_each_other_take_as_long_as_their_longest_path():
    chain = [("a", 1.0, []), ("b", 2.0, [0]), ("beside", 1.0, [0]), ("c", 1.0, [1, 2])]
    assert bound.at_least(chain, 2) == bound.oldest_first(chain, 2) == 4.0
    assert bound.at_least([], 2) == 0.0


def test_who_pushes_has_a_core_while_there_is_something_to_push():
    four = [("a", 1.0, []), ("b", 1.0, []), ("c", 1.0, []), ("d", 1.0, [])]
    assert bound.scheduled(four, [0.0] * 4, workers=2, cores=2) == 2.0
    # Two pushes end, then one core runs a while the other pushes c and d; b, c and d are left at 5 for two cores.
    assert bound.scheduled(four, [1.0, 1.0, 1.0, 1.0], workers=2, cores=2) == 5.0
    assert bound.scheduled(four, [0.5, 0.5, 0.5, 0.5], workers=2, cores=2) == 3.5
    assert bound.scheduled(four, [0.5, 0.5, 0.5, 0.5], workers=1, cores=2) == 4.5
    assert bound.scheduled([], [], workers=2, cores=2) == 0.0


def test_the_longest_path_goes_first_and_an_op_waits_for_those_before_it():
    ops = [("short", 1.0, []), ("short", 1.0, []), ("head", 1.0, []), ("tail", 3.0, [2])]
    assert bound.scheduled(ops, [0.0] * 4, workers=2, cores=2) == pytest.approx(4.0)
    chain = [("a", 1.0, []), ("b", 2.0, [0]), ("beside", 1.0, [0]), ("c", 1.0, [1, 2])]
    assert bound.scheduled(chain, [0.0] * 4, workers=2, cores=2) == bound.at_least(chain, 2)


def test_no_schedule_is_shorter_than_what_the_order_and_the_work_allow():
    ops = [("op", 1.0 + i % 3, [i - 4] if i % 2 and i >= 4 else []) for i in range(40)]
    with_pushes = bound.scheduled(ops, [0.1] * 40, workers=2, cores=2)
    assert with_pushes >= max(bound.at_least(ops, 2), (sum(op[1] for op in ops) + 4.0) / 2)


def test_a_place_in_a_step_has_the_median_of_all_steps():
    assert bound.by_place(statistics.median, [1.0, 10.0, 3.0, 30.0, 2.0, 20.0], steps=3) == [2.0, 20.0] * 3


def test_only_what_counts_is_typical_unless_nothing_does():
    counted = [False, False, True, True, True, False]
    assert bound.by_place(statistics.fmean, [9.0, 9.0, 3.0, 30.0, 2.0, 20.0], 3, counted) == [2.5, 30.0] * 3
    assert bound.by_place(statistics.fmean, [9.0, 1.0, 3.0, 3.0], 2, [True, False, True, False]) == [6.0, 2.0] * 2  # none of the second counts


def test_ops_of_one_name_keep_their_own_times():
    steps = [("dot", 5.0), ("dot", 1.0), ("delete", 0.1), ("dot", 7.0), ("dot", 1.0), ("dot", 6.0), ("dot", 1.0)]
    names = ["dot", "dot", "delete", "dot", "dot", "unseen"]
    assert bound.seconds_of(names, steps, steps=3) == [6.0, 1.0, 0.1, 6.0, 1.0, 0.0]


def test_the_time_of_two_workers_is_that_of_ops_of_waits_for_a_worker_and_of_waits_for_ops():
    # One op from 0 to 4. Another is ready at 1 and begins at 3, though a worker is free; a third is ready only when it ends.
    ops = [(0.0, 0.0, 4.0), (1.0, 3.0, 5.0), (5.0, 5.0, 6.0)]
    assert bound.time_of_workers(ops, 2) == {"running": 7.0, "ready": 2.0, "nothing": 3.0}
    assert bound.time_of_workers([], 2) == {"running": 0.0, "ready": 0.0, "nothing": 0.0}


def test_an_op_waits_for_no_worker_while_all_run():
    assert bound.time_of_workers([(0.0, 0.0, 2.0), (0.0, 2.0, 3.0)], 1) == {"running": 3.0, "ready": 0.0, "nothing": 0.0}
