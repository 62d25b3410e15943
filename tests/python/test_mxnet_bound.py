"""What two cores allow MXNet's wide net (perf/mxnet/bound.py), beside which ./run perf mxnet judges it."""

import importlib.util
import pathlib

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


@pytest.mark.parametrize("gain", [1.3, 1.7, 2.0])
def test_with_nothing_in_order_two_cores_give_what_they_gain(gain):
    assert bound.two_cores(gain, ordered=2.0, share=1.0) == pytest.approx(gain)


def test_two_whole_cores_are_bound_by_the_order_and_a_chain_by_itself():
    assert bound.two_cores(2.0, ordered=1.5, share=1.0) == pytest.approx(1.5)
    assert bound.two_cores(1.6, ordered=1.0, share=1.0) == pytest.approx(1.0)


def test_both_bounds_together_are_less_than_the_smaller_one():
    # Work 1, longest path 1 / 1.5: two thirds of the work are shared, and take 2 / 3 / 1.6 then; one third is done alone.
    assert bound.two_cores(1.6, ordered=1.5, share=1.0) == pytest.approx(1 / (1 / 3 + 2 / 3 / 1.6))
    assert bound.two_cores(1.6, ordered=1.5, share=1.0) < 1.5


def test_pushing_lies_beside_the_ops():
    # Half of one thread's time is pushing: the ops are a chain, and yet two cores can be twice as fast.
    assert bound.two_cores(2.0, ordered=1.0, share=0.5) == pytest.approx(2.0)
    assert bound.two_cores(2.0, ordered=1.0, share=0.8) == pytest.approx(1.25)


def test_ops_of_one_name_keep_their_own_times():
    steps = [("dot", 5.0), ("dot", 1.0), ("delete", 0.1), ("dot", 7.0), ("dot", 1.0), ("dot", 6.0), ("dot", 1.0)]
    names = ["dot", "dot", "delete", "dot", "dot", "unseen"]
    assert bound.seconds_of(names, steps, steps=3) == [6.0, 1.0, 0.1, 6.0, 1.0, 0.0]
