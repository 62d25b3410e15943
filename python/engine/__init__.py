"""Runs Python callables asynchronously. The variables that they touch decide the order.

    import engine, numpy as np

    @engine.op
    def dense(x, w): return x @ w

    @engine.op(updates="w")
    def sgd(w, g, rate): w -= rate * g

    x, w = engine.value(batch), engine.value(weights)
    y = dense(x, w)              # returns at once
    sgd(w, gradient, 0.1)        # ordered after dense, which reads w
    np.asarray(y)                # waits; an error shows the op and the line that called it

    v = engine.Var("v")          # the plain engine below it: callables, and the Vars that they touch
    engine.push(work, reads=[v], priority=1)
    engine.wait_all()

Also here: ``engine.data`` (stages), ``engine.comm`` (collectives), ``engine.testing``.

Workers run in parallel whatever releases the GIL: NumPy's larger calls, I/O, compression, extension modules.
"""

import atexit as _atexit
import os as _os
import threading as _threading

from ._interpreter import refuse_missing_gil, refuse_sub_interpreter

refuse_sub_interpreter()  # before the extension is loaded, which would end the process there

from . import _core, errors

refuse_missing_gil()

# Before the other modules are imported, so that no op is ever reported as pushed at a line of this package.
_core._configure(errors, _os.path.dirname(_os.path.abspath(__file__)) + _os.sep, _threading.main_thread().ident or 0)

from . import comm, data, testing
from ._core import (
    CancelScope,
    DeviceArray,
    Done,
    Engine,
    GraphKey,
    HeldOp,
    Operator,
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
    new_operator,
    policies,
    push,
    push_async,
    push_held,
    try_push,
    version,
)
from .bulk import bulk, set_bulk_size
from .defaults import (
    clear_error,
    describe_pending,
    device_stats,
    policy,
    pool,
    set_policy,
    start,
    stats,
    stop,
    wait,
    wait_all,
)
from .errors import *  # noqa: F403 - its __all__: the kinds of errors
from .explanation import Explanation, TraceEvent, TraceExplanation, TraceWait, explain
from .futures import Executor, as_completed, map
from .graphs import Hybrid, graph, hybridize
from .logs import log_to
from .monitoring import live, metrics
from .ops import Op, op
from . import operators as _operators  # adds the operators to Value
from . import signatures as _signatures  # inspect.signature for the extension's functions
from .options import init
from .tracing import Trace, trace
from .values import MISSING, Value, value

__all__ = [
    "CancelScope", "DeviceArray", "Done", "Engine", "Executor", "Explanation", "GraphKey", "HeldOp", "Hybrid",
    "MISSING", "Op", "Operator", "Placement", "Plan", "PolicyBlock", "Run", "Trace", "TraceEvent", "TraceExplanation",
    "TraceWait", "Value", "Var", "as_completed", "bulk", "cancelled", "clear_error", "comm", "copy_in", "copy_out", "cpu",
    "cuda_stream", "data", "default", "defer_sync", "describe_pending", "device_stats", "errors", "explain", "gpu",
    "graph", "hybridize", "init", "io", "live", "log_to", "map", "metrics", "new_operator", "op", "policies", "policy",
    "pool", "push", "push_async", "push_held", "set_bulk_size", "set_policy", "start", "stats", "stop", "testing",
    "trace", "try_push", "value", "version", "wait", "wait_all", "__version__",
]  # fmt: skip
__all__ += errors.__all__

# At exit the engines drain and join their threads while Python still runs; afterwards no thread of theirs calls into
# Python. Registered at the end of the import, so it runs before the hooks of modules that were imported earlier, and
# after threading has joined the program's own threads.
_atexit.register(_core._shut_down_all)
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_core._after_fork_in_child)
