"""The functions of the module that act on the default engine, which is made when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from . import _core

if TYPE_CHECKING:
    from .values import Value

    VarLike = Union[_core.Var, Value[Any]]


def init(**options: Any) -> None:
    """Makes the default engine with these options, before anything has used it; UsageError afterwards.

    workers (-1: one a core; 0: ops run inside waits), intra_op_threads, io_threads, cpus, pools ({name: threads} or
    {name: dict(threads=, cpus=, on_start=, on_end=)}), thread_name; max_pending, hard_max_pending, max_spare_threads;
    devices (["cuda:0"], ["software"]; else the CUDA devices of the machine), streams_per_device; spin, drain_timeout,
    stall_timeout (seconds); on_start(worker), on_end(worker), on_stall(report), on_unobserved(exception);
    policy, smart_stage, raise_at_push; start_step, stop_step (of cost_model). Others keep the default, or what ENGINE_* variables say.
    """
    _core.init(**options)


def wait(*vars: VarLike, timeout: float | None = None) -> bool:
    """Waits for each Var or Value in turn; False once one took longer than ``timeout`` seconds. See Var.wait."""
    return all(_var(v).wait(timeout) for v in vars)


def _var(given: Any) -> _core.Var:
    var = getattr(given, "var", given)
    if not isinstance(var, _core.Var):
        raise TypeError(f"wait: argument is a {type(given).__name__}; a Var or a Value is expected")
    return var


def wait_all(timeout: float | None = None) -> bool:
    """Waits for every push that returned before. Then raises the first error that nobody has seen yet.

    False after ``timeout`` seconds. Refused (UsageError) inside an op. Ctrl-C works.
    """
    return _core.default().wait_all(timeout)


def clear_error(var: VarLike) -> None:
    """Clears the error of a Var or Value in order, keeping its value: a failed step need not lose the weights."""
    _core.default().clear_error(var)


def set_policy(name: str, **parameters: bool | int) -> tuple[str, dict[str, bool | int]]:
    """Who runs what: ``set_policy("inline", intra_op_threads=2)``; ``engine.policies()`` lists what there is.

    ``smart_stage`` (True), which every policy takes: whether smart stages that do not say so themselves cut their steps.

    For pushes from now on that are in no ``policy`` block; returns what was in force, as (name, parameters).
    UsageError, with what is allowed, for an unknown name or parameter or a value out of range.
    """
    return _core.default().set_policy(name, **parameters)


def policy(name: str, **parameters: bool | int) -> _core.PolicyBlock:
    """``with engine.policy("inline"):`` is the policy of what this thread pushes in the block. Blocks nest."""
    return _core.default().policy_block(name, **parameters)


def stop() -> None:
    """Workers finish what they are running and end; pushes queue up until start(). May be repeated."""
    _core.default().stop()


def start() -> None:
    """Goes on after stop()."""
    _core.default().start()


def stats() -> dict[str, int]:
    """Counters since the engine was made: pushed, completed, skipped, stolen, wakeups, unseen_errors and more."""
    return _core.default().stats()


def device_stats() -> dict[str, int]:
    """What the engine asked of its devices since it was made: issued, retired, records, waits, graph_launches and more."""
    return _core.default().device_stats()


def pool(name: str) -> _core.Placement:
    """The placement of a pool that init(pools=...) named. UsageError, listing the pools there are, otherwise."""
    return _core.default().pool(name)


def describe_pending() -> str:
    """What is pending and why: blocked Vars, the ops that own them and wait for them, missing completions."""
    return _core.default().describe_pending()
