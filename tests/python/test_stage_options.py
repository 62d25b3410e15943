"""Options of stages: their defaults, and those that are refused."""

import pytest

import engine
from conftest import PATIENCE


def counting(n):
    yield from range(n)


def test_names_and_defaults_are_those_of_the_pages():
    """Of tf.staged and tf.SmartStageOptions, but for the name of the end of data."""
    import dataclasses
    import inspect

    page = {"capacity": 1, "num_threads": 1, "timeout": None, "closed_exception_types": (StopIteration, engine.EndOfData),
            "ignored_exception_types": (), "use_stage_subgraph_thread_pool": False, "stage_subgraph_thread_pool_id": 0,
            "stage_subgraph_stream_id": 0, "name": None}  # fmt: skip
    staged = {name: p.default for name, p in inspect.signature(engine.data.staged).parameters.items()}
    assert page.items() <= staged.items() and list(staged)[:2] == ["features", "feed_dict"] and "num_client" in staged
    smart = dataclasses.asdict(engine.data.SmartStageOptions())
    assert {**page, "num_clients": 1, "graph": None}.items() <= smart.items()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": 1.5}, "capacity is a float"),
        ({"capacity_bytes": -1}, "capacity_bytes is -1"),
        ({"num_threads": 0}, "num_threads is 0"),
        ({"num_clients": 0}, "num_clients is 0"),
        ({"num_clients": 2, "num_client": 3}, "num_client is 3"),
        ({"timeout": -1}, "timeout is -1"),
        ({"take_timeout": float("nan")}, "take_timeout is nan"),
        ({"on_timeout": "retry"}, "on_timeout is 'retry'"),
        ({"closed_exception_types": ("EOFError",)}, "closed_exception_types"),
        ({"ignored_exception_types": [3]}, "ignored_exception_types"),
        ({"use_stage_subgraph_thread_pool": True, "stage_subgraph_thread_pool_id": 99}, "stage_subgraph_thread_pool_id is 99"),
        ({"stage_subgraph_thread_pool_id": 1}, "needs use_stage_subgraph_thread_pool"),
        ({"stage_subgraph_stream_id": 1}, "only 0, the main lane"),
        ({"stage_subgraph_stream_id": -1}, "stage_subgraph_stream_id is -1; 0 … "),
        ({"stage_subgraph_thread_pool_id": -1}, "stage_subgraph_thread_pool_id is -1; 0 … "),
        ({"capacity": -1}, "capacity is -1; 1 … 1073741824"),
        ({"num_threads": -1}, "num_threads is -1; 1 … 1024"),
        ({"num_clients": -1}, "num_clients is -1; 1 … 1048576"),
        ({"ignored_budget": -1}, "ignored_budget is -1; 0 … "),
        ({"max_capacity": -1}, "max_capacity is -1; 0 … "),
        ({"max_threads": -1}, "max_threads is -1; 0 … "),
        ({"max_threads": 2**63}, "max_threads is 9223372036854775808; 0 … "),
        ({"name": 5}, "staged: name is an int; a text or None is expected"),
        ({"engine": "x"}, "staged: engine is a str; an Engine or None is expected"),
        ({"ordered": "no"}, "staged: ordered is a str; True or False is expected"),
        ({"autotune": "false"}, "staged: autotune is a str; True or False is expected"),
        ({"use_stage_subgraph_thread_pool": 1}, "staged: use_stage_subgraph_thread_pool is an int; True or False is expected"),
        ({"feed_dict": 5}, "staged: feed_dict is an int; a dict of names of parameters is expected"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_honoured_are_refused(options, message):
    with pytest.raises((TypeError, engine.UsageError), match=message):
        engine.data.staged(counting(3), **options)


def test_times_and_names_that_cannot_be_are_refused():
    stage = engine.data.staged(range(3))
    with pytest.raises(TypeError, match="take: timeout is a str; seconds or None are expected"):
        stage.take("x")
    with pytest.raises(engine.UsageError, match="take: timeout is not a number"):
        stage.take(float("nan"))
    with pytest.raises(TypeError, match="restart: timeout is a list"):
        stage.restart(timeout=[])
    with pytest.raises(TypeError, match="stage_pool: inter_op_threads_num is a str; an int is expected"):
        engine.data.stage_pool("p", inter_op_threads_num="2")
    with pytest.raises(TypeError, match="stage_pool: global_name is an int; a text is expected"):
        engine.data.stage_pool(5)
    assert stage.take(PATIENCE) == 0


def test_a_bound_in_bytes_may_be_larger_than_two_gigabytes():
    assert list(engine.data.staged(counting(3), capacity_bytes=2**40)) == [0, 1, 2]
