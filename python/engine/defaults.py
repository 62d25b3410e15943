"""The functions that act on the default engine, which is made when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

from . import _core
from .errors import an

if TYPE_CHECKING:
    from .values import Value

    VarLike = Union[_core.Var, Value[Any]]


def wait(*vars: VarLike, timeout: float | None = None) -> bool:
    """Waits for each Var or Value in turn; False as soon as one takes longer than ``timeout`` seconds. See Var.wait."""
    return all(_waits(v).wait(timeout) for v in vars)


def _waits(given: Any) -> VarLike:
    if isinstance(given, _core.ValueBase):
        return given  # type: ignore[return-value]  # with what it shares memory with
    var = getattr(given, "var", given)
    if not isinstance(var, _core.Var):
        raise TypeError(f"wait: argument is {an(type(given))}; a Var or a Value is expected")
    return var


def wait_all(timeout: float | None = None) -> bool:
    """Waits for every push that returned before this call. Then raises the first error that nobody has seen yet.

    Returns False after ``timeout`` seconds. UsageError inside an op. Ctrl-C interrupts the wait.
    """
    return _core.default().wait_all(timeout)


def clear_error(var: VarLike) -> None:
    """Clears the error of a Var or Value, in order, and keeps the value: a failed step need not lose the weights."""
    _core.default().clear_error(var)


def set_policy(name: str, **parameters: bool | int) -> tuple[str, dict[str, bool | int]]:
    """Sets the policy of later pushes outside of ``policy`` blocks: ``set_policy("inline", intra_op_threads=2)``.

    ``engine.policies()`` lists the policies. Returns the policy before, as (name, parameters).
    ``smart_stage``, a parameter of every policy (default: True): whether smart stages without a ``do_smart_stage`` of
    their own cut their steps.
    UsageError, which says what is allowed, for an unknown name or parameter or a value out of range.
    """
    return _core.default().set_policy(name, **parameters)


def policy(name: str, **parameters: bool | int) -> _core.PolicyBlock:
    """``with engine.policy("inline"):`` sets the policy of what this thread pushes in the block. Blocks nest."""
    return _core.default().policy_block(name, **parameters)


def stop() -> None:
    """Stops the workers: they finish what they run and end. Pushes queue up until start(). May be repeated."""
    _core.default().stop()


def start() -> None:
    """Starts the workers again after stop()."""
    _core.default().start()


def stats() -> dict[str, int]:
    """Counters since the engine was made: pushed, completed, skipped, stolen, wakeups, unseen_errors and more."""
    return _core.default().stats()


def device_stats() -> dict[str, int]:
    """Counters of what the engine asked of its devices: issued, retired, records, waits, graph_launches and more."""
    return _core.default().device_stats()


def pool(name: str) -> _core.Placement:
    """The placement of a pool that init(pools=...) named. UsageError, which lists the pools, for another name."""
    return _core.default().pool(name)


def describe_pending() -> str:
    """Says what is pending and why: blocked Vars, the ops that own them and wait for them, missing completions."""
    return _core.default().describe_pending()
