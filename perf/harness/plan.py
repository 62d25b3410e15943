"""What is measured against what: contenders, cases, and the groups that bring them together. Data only."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contender:
    """A runner executable with its arguments; `in_case` gives other arguments for single cases."""

    binary: str
    args: tuple[str, ...] = ()
    workers: int | None = None  # None: as asked on the command line
    in_case: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One question. Every metric is better when lower."""

    name: str
    title: str
    metric: str = "ns_per_op"  # what the table compares; the others go into the JSON, and beside it
    n: int = 1_000_000
    quick_n: int = 200_000
    scaled: bool = True  # fewer operations for contenders that would take too long
    fresh: bool = False  # a new process each time, for what only its first run can show
    beside: tuple[str, ...] = ("wakeups_per_op",)


@dataclass(frozen=True)
class Group:
    """Cases in which `ours` meets `peers`."""

    name: str
    ours: str
    peers: tuple[str, ...]
    cases: tuple[Case, ...]


UNBOUNDED = ("--variant", "unbounded")
NAIVE = ("--variant", "naive")

CONTENDERS = {
    "ours": Contender("ours", in_case={"bytes_pending": UNBOUNDED}),
    "ours, 1 worker": Contender("ours", workers=1),
    "ours, unbounded": Contender("ours", UNBOUNDED),
    "ours, naive": Contender("ours", NAIVE),
    "plan": Contender("plans"),
    "plan, 1 worker": Contender("plans", workers=1),
    "plan with Vars": Contender("plans", ("--variant", "vars")),
    "plan inline": Contender("plans", ("--variant", "inline")),
    "loop": Contender("plans", ("--variant", "loop")),
    "taskflow graph, 1 worker": Contender("taskflow_graph", workers=1),
    "tbb flow graph, 1 thread": Contender("tbb_flow", ("--variant", "alone"), workers=1),
    "taskflow dynamic": Contender("taskflow_dynamic"),
    "taskflow graph": Contender("taskflow_graph"),
    "tbb task_group": Contender("tbb_task_group"),
    "tbb flow graph": Contender("tbb_flow"),
    "libgomp depend": Contender("libgomp"),
    "libomp depend": Contender("libomp"),
    "starpu": Contender("starpu"),
    "mxnet": Contender("mxnet"),
    "mxnet bulk 15": Contender("mxnet", ("--variant", "bulk15")),
    "mxnet naive": Contender("mxnet", NAIVE),
}

PEERS = (
    "taskflow dynamic",
    "taskflow graph",
    "tbb task_group",
    "tbb flow graph",
    "libgomp depend",
    "libomp depend",
    "starpu",
    "mxnet",
    "mxnet bulk 15",
)

THROUGHPUT = tuple(
    Case(name, title, beside=("wakeups_per_op", "rerun_ns_per_op"))
    for name, title in (
        ("a_independent", "independent ops, no Vars"),
        ("a_own_var", "independent ops, each updates a Var of its own"),
        ("b_chain", "chain: each op updates one Var"),
        ("c_fan", "1 writer, then 100 readers, of one Var"),
        ("d_dag", "random DAG: 2 reads, 1 update of 1,000 Vars"),
    )
)
REST = (
    Case("push_latency", "the push call alone, on d", "push_p50_ns", beside=("push_p99_ns",)),
    Case("roundtrip_warm", "one op: push until its wait has returned, back to back", "trip_p50_us", 2000, 1000, False,
         beside=("trip_p99_us",)),
    Case("roundtrip_cold", "the same, after 50 ms of sleep", "trip_p50_us", 10, 5, False, beside=("trip_p99_us",)),
    Case("bytes_pending", "memory of one op that is held back", "bytes_per_op", 200_000, 200_000, False, True,
         beside=("held",)),
    Case("pushers4_disjoint", "4 pushing threads, each d on 250 Vars of its own"),
    Case("pushers4_overlap", "4 pushing threads, each d on the same 1,000 Vars"),
)
FLOORS = tuple(
    Case(f"floor_{shape}", f"one thread: push, run and complete one op, {shape}", quick_n=100_000, scaled=False,
         beside=("mutex_pair_ns", "ratio_to_mutex_pair"))
    for shape in ("1w", "1w1r", "1w2r")
)

REPLAYS = tuple(
    Case(f"replay_{program}", f"4,096 nodes, replayed: {title}")
    for program, title in (
        ("grid", "64 x 64 grid, each after its left and upper neighbour"),
        ("a_independent", "independent"),
        ("a_own_var", "independent, each with a Var of its own"),
        ("b_chain", "chain"),
        ("c_fan", "1 writer, then 100 readers, repeated"),
        ("d_dag", "random DAG: 2 reads, 1 update of 1,000 Vars"),
    )
)

SUITES = {
    "core": (
        Group("peers", "ours", PEERS, THROUGHPUT + REST),
        Group("modes", "ours", ("ours, 1 worker", "ours, unbounded"), THROUGHPUT),
        Group("naive", "ours, naive", ("mxnet naive",), THROUGHPUT),
        Group("floor", "ours, naive", (), FLOORS),
    ),
    "plans": (
        Group("one worker", "plan, 1 worker", ("taskflow graph, 1 worker", "tbb flow graph, 1 thread"), REPLAYS),
        Group("all workers", "plan", ("taskflow graph", "tbb flow graph"), REPLAYS),
        Group("modes", "plan inline", ("loop", "plan", "plan with Vars"), REPLAYS),
    ),
}
