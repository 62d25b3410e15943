"""What an engine is made with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from . import _core


# <init: written by .ci/tables.py from include/engine/options.h>
def init(
    *,
    workers: int | None = None,
    intra_op_threads: int | None = None,
    io_threads: int | None = None,
    cpus: Iterable[int] | None = None,
    on_start: Callable[[int], object] | None = None,
    on_end: Callable[[int], object] | None = None,
    pools: dict[str, int | dict[str, Any]] | None = None,
    devices: Iterable[str] | None = None,
    streams_per_device: int | None = None,
    thread_name: str | None = None,
    max_pending: int | None = None,
    hard_max_pending: int | None = None,
    max_spare_threads: int | None = None,
    spin: float | None = None,
    drain_timeout: float | None = None,
    stall_timeout: float | None = None,
    on_stall: Callable[[str], object] | None = None,
    on_unobserved: Callable[[BaseException], object] | None = None,
    policy: str | None = None,
    policy_options: dict[str, bool | int] | None = None,
    start_step: int | None = None,
    stop_step: int | None = None,
    max_pending_bytes: int | None = None,
) -> None:
    """Makes the default engine with these options, before anything has used it; UsageError afterwards.

    None leaves an option at its default. Times are seconds. A pool is {name: threads}, or {name: dict(threads=2,
    cpus=[0, 1], on_start=hook, on_end=hook)}; a device is "cuda:0" or "software"; policies and their parameters are
    listed by engine.policies().

    workers: threads of the default pool; -1: one a core that the program may use, by affinity and quota; 0: ops
        run inside waits, bounded pushes and drains. Default: -1, or what ENGINE_WORKERS says.
    intra_op_threads: threads of ParallelFor inside an op of a pool; -1: as many as the pool has workers. Default:
        -1.
    io_threads: threads of the I/O pool, which is made on first use. Default: 4, or what ENGINE_IO_THREADS says.
    cpus: affinity of the default pool: thread i runs on cpus[i % size]; empty: anywhere.
    on_start: hook that each worker of the default pool calls before its first op.
    on_end: hook that each worker of the default pool calls after its last op, also where on_start threw.
    pools: named sets of threads beside the default pool, at most 32.
    devices: device i is Gpu(i), at most 8; empty: the CUDA devices of the machine, each made on first use.
    streams_per_device: streams that ops without a lane of their own are spread over; 1: a device runs everything
        in push order. Default: 4.
    thread_name: prefix of the names of threads, of which at most 9 characters are shown. Default: engine.
    max_pending: soft bound: a push from outside waits while more ops are pending and any can make progress.
        Default: 16384, or what ENGINE_MAX_PENDING says.
    hard_max_pending: hard bound, max_pending or more: any push beyond it throws BackPressureError. Default:
        67108864.
    max_spare_threads: threads that stand in for workers whose op waits; a wait that would need more throws.
        Default: 64.
    spin: how long an idle worker or a waiter spins before it sleeps; 0: not at all; more than a second is a
        second. Default: 0.00005 s, or what ENGINE_SPIN_US says.
    drain_timeout: how long a shutdown waits for completions that never come; then their ops fail with
        ShutdownError. Default: 30 s.
    stall_timeout: a watchdog reports after this long without progress; 0: no watchdog. Default: 0 s, or what
        ENGINE_STALL_TIMEOUT_MS says.
    on_stall: hook that gets the watchdog's report; none: stderr.
    on_unobserved: hook that gets, at shutdown, each error that no wait has shown; none: stderr.
    policy: who runs what (docs/policies.md). Default: threaded, or what ENGINE_POLICY says.
    policy_options: parameters of the policy, as set_policy takes them.
    start_step: cost_model, where its own parameters do not say: first run of a plan that is measured. Default:
        100, or what START_NODE_STATS_STEP says.
    stop_step: cost_model, likewise: first run of a plan that is not measured any more; it is more than
        start_step. Default: 200, or what STOP_NODE_STATS_STEP says.
    max_pending_bytes: soft bound, in bytes, on what pending calls of ops keep (Engine.max_pending_bytes); 0:
        none. Default: 0.
    """
    _core.init(**{name: value for name, value in locals().items() if value is not None})
# </init>
