"""Runs Python callables asynchronously, in the order that the variables they touch ask for.

    import engine, numpy as np

    @engine.op
    def dense(x, w): return x @ w

    @engine.op(updates="w")
    def sgd(w, g, rate): w -= rate * g

    x, w = engine.value(batch), engine.value(weights)
    y = dense(x, w)              # returns at once
    sgd(w, gradient, 0.1)        # ordered after dense, which reads w
    np.asarray(y)                # waits; an error shows the op and the line that called it

    v = engine.Var("v")          # the bare engine below: callables, and the Vars they touch
    engine.push(work, reads=[v], priority=1)
    engine.wait_all()

Beside this: ``engine.data`` (stages), ``engine.comm`` (collectives), ``engine.testing``.

Workers run what releases the GIL in parallel: NumPy's larger calls, I/O, compression, extension modules.
"""

import atexit as _atexit
import os as _os
import threading as _threading

from . import _core, comm, data, errors, testing
from ._core import (
    CancelScope,
    DeviceArray,
    Done,
    Engine,
    GraphKey,
    Placement,
    Plan,
    PolicyBlock,
    Run,
    Var,
    __version__,
    cancelled,
    copy_in,
    copy_out,
    cpu,
    cuda_stream,
    default,
    defer_sync,
    gpu,
    io,
    policies,
    push,
    push_async,
)
from .bulk import bulk, set_bulk_size
from .defaults import (
    clear_error,
    describe_pending,
    device_stats,
    init,
    policy,
    pool,
    set_policy,
    start,
    stats,
    stop,
    wait,
    wait_all,
)
from .errors import (
    BackPressureError,
    CancelledError,
    CommunicatorError,
    CompletionError,
    EndOfData,
    Error,
    ForkedWhilePending,
    OpError,
    ShutdownError,
    StageTimeoutError,
    UsageError,
)
from .explanation import Explanation, explain
from .graphs import Hybrid, graph, hybridize
from .ops import Op, op
from .tracing import Trace, TraceEvent, trace
from .values import Value, value

__all__ = [
    "BackPressureError", "CancelScope", "CancelledError", "CommunicatorError", "CompletionError", "DeviceArray",
    "Done", "EndOfData", "Engine", "Error", "Explanation", "ForkedWhilePending", "GraphKey", "Hybrid", "Op",
    "OpError", "Placement", "Plan", "PolicyBlock", "Run", "ShutdownError", "StageTimeoutError", "Trace",
    "TraceEvent", "UsageError", "Value", "Var", "__version__", "bulk", "cancelled", "clear_error", "comm", "copy_in",
    "copy_out", "cpu", "cuda_stream", "data", "default", "defer_sync", "describe_pending", "device_stats", "errors",
    "explain", "gpu", "graph", "hybridize", "init", "io", "op", "policies", "policy", "pool", "push", "push_async",
    "set_bulk_size", "set_policy", "start", "stats", "stop", "testing", "trace", "value", "wait", "wait_all",
]  # fmt: skip

_core._configure(errors, _os.path.dirname(_os.path.abspath(__file__)) + _os.sep, _threading.main_thread().ident or 0)
# Exit: drain and join while Python still runs; afterwards nothing calls into it. Registered late, so that it runs
# before the hooks of what was imported earlier, and after threading has joined the program's own threads.
_atexit.register(_core._shut_down_all)
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_core._after_fork_in_child)
