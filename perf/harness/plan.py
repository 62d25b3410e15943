"""What is measured against what: contenders, cases, and the groups that bring them together. Data only."""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Contender:
    """A runner executable with its arguments; `in_case` gives other arguments for single cases."""

    binary: str
    args: tuple[str, ...] = ()
    workers: int | None = None  # None: as asked on the command line
    in_case: dict[str, tuple[str, ...]] = field(default_factory=dict)
    without: str = ""  # a mechanism that its library lacks (perf/mechanisms)
    before: bool = False  # its runner is that of the other build tree (--before)


@dataclass(frozen=True)
class Case:
    """One question. Every metric is better when lower."""

    name: str
    title: str
    metric: str = "ns_per_op"  # what the table compares; the others go into the JSON, and beside it
    n: int = 1_000_000
    quick_n: int = 200_000
    scaled: bool = True  # contenders that would take too long get fewer operations
    fresh: bool = False  # a new process for each measurement, for figures of a first run
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
BULK15 = ("--variant", "bulk15")

CONTENDERS = {
    "ours": Contender("ours", in_case={"bytes_pending": UNBOUNDED}),
    "ours, 1 worker": Contender("ours", workers=1),
    "ours, unbounded": Contender("ours", UNBOUNDED),
    "ours, naive": Contender("ours", NAIVE),
    "plan": Contender("plans"),
    "plan, 1 worker": Contender("plans", workers=1),
    "plan, each waited for": Contender("plans", ("--variant", "waits")),
    "plan with Vars": Contender("plans", ("--variant", "vars")),
    "plan inline": Contender("plans", ("--variant", "inline")),
    "loop": Contender("plans", ("--variant", "loop")),
    "plan inline, static": Contender("plans", ("--variant", "inline_static")),
    "inline": Contender("serving"),
    "inline, with a Var": Contender("serving", ("--variant", "vars")),
    "threaded serving": Contender("serving", ("--variant", "threaded")),
    "kernels in a loop": Contender("serving", ("--variant", "loop")),
    "onnxruntime sequential": Contender("onnxruntime", ("--variant", "sequential")),
    "onnxruntime parallel": Contender("onnxruntime", ("--variant", "parallel")),
    "onnxruntime parallel, spinning": Contender("onnxruntime", ("--variant", "parallel_spins")),
    "taskflow graph, 1 worker": Contender("taskflow_graph", workers=1),
    "tbb flow graph, 1 thread": Contender("tbb_flow", ("--variant", "alone"), workers=1),
    "ours, bulk 15": Contender("ours", BULK15),
    "cost_model": Contender("makespan_ours"),
    "threaded": Contender("makespan_ours", ("--variant", "threaded")),
    "cost_model, wide nodes": Contender("makespan_ours", ("--variant", "wide")),
    "taskflow makespan": Contender("makespan_taskflow"),
    "tbb makespan": Contender("makespan_tbb"),
    "ranked queue": Contender("makespan_queue"),
    "nodes in turn": Contender("makespan_queue", ("--variant", "turn")),
    "taskflow dynamic": Contender("taskflow_dynamic"),
    "taskflow graph": Contender("taskflow_graph"),
    "tbb task_group": Contender("tbb_task_group"),
    "tbb flow graph": Contender("tbb_flow"),
    "libgomp depend": Contender("libgomp"),
    "libomp depend": Contender("libomp"),
    "starpu": Contender("starpu"),
    "mxnet": Contender("mxnet"),
    "mxnet bulk 15": Contender("mxnet", BULK15),
    "mxnet naive": Contender("mxnet", NAIVE),
    "stage": Contender("stages"),
    "hand-written queue": Contender("stages", ("--variant", "queue")),
    "no stage": Contender("stages", ("--variant", "serial")),
    "engine.staged": Contender("stages_python"),
    "queue.Queue": Contender("stages_python", ("--variant", "queue")),
    "no stage in Python": Contender("stages_python", ("--variant", "serial")),
    "DataLoader": Contender("stages_python", ("--variant", "loader0")),
    "DataLoader, 1 worker": Contender("stages_python", ("--variant", "loader1")),
    "DataLoader, 2 workers": Contender("stages_python", ("--variant", "loader2")),
}

# The library without one mechanism each: who is measured with and without it, and on what.
MECHANISMS = ("tiny_regime", "takes_many", "prefetch_tails", "keeps_successor", "spins", "spins_beside", "sends_away", "sorts_many")
for _name in MECHANISMS:
    CONTENDERS[f"without {_name}"] = Contender("ours", without=_name)
CONTENDERS["demo"] = Contender("demo")
for _name in MECHANISMS:
    CONTENDERS[f"demo without {_name}"] = Contender("demo", without=_name)
# Those that act on runs of plans only: replays in a row, each waited for, and recorded training steps.
OF_RUNS = ("spins", "spins_beside")
for _name in OF_RUNS:
    CONTENDERS[f"plan without {_name}"] = Contender("plans", ("--variant", "waits"), without=_name)
    CONTENDERS[f"step without {_name}"] = Contender("makespan_ours", without=_name)

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
    Case("steps_64", "steps of 64 independent updates, each waited for", beside=("wakeups_per_op",)),
    Case("bytes_pending", "memory of one op that is held back", "bytes_per_op", 200_000, 200_000, False, True,
         beside=("held",)),
    Case("pushers4_disjoint", "4 pushing threads, each d on 250 Vars of its own"),
    Case("pushers4_overlap", "4 pushing threads, each d on the same 1,000 Vars"),
)
ALONE = tuple(
    Case(f"alone_{case.name}", f"both sides on one thread, in the cache: {case.title}", quick_n=100_000, scaled=False,
         beside=("push_ns", "run_ns"))
    for case in THROUGHPUT
)
FLOORS = tuple(
    Case(f"floor_{shape}", f"one thread: push, run and complete one op, {shape.replace('operator', '1w2r, registered once')}", quick_n=100_000, scaled=False,
         beside=("mutex_pair_ns", "ratio_to_mutex_pair"))
    for shape in ("1w", "1w1r", "1w2r", "operator")
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
# For mechanisms: ops with many Vars, chains whose ops do something, and steps so short that a wake shows.
CHAINS = (
    Case("chains_2_64", "two chains, each op over its chain's 64 bytes"),
    Case("chains_1_65536", "one chain, each op over its 65,536 bytes", n=5000, quick_n=2000),
)
MANY_VARS = tuple(
    Case(f"many_vars_{count}", f"each op reads {count} of 1,000 Vars and updates one", n=n, quick_n=n // 4)
    for count, n in ((20, 50_000), (40, 25_000), (320, 2500))
)
SHORT_STEPS = (
    Case("short_steps", "a plan of 30 nodes of 5 us, each run waited for, 30 us of something else between them", "step_us", 5000, 1000, False,
         beside=("wakeups_per_step",)),
)
JOINS = tuple(
    Case(f"joins_{rounds}", f"four ops, one behind them, and so on; bodies of {rounds:,} rounds", n=n, quick_n=n // 4, beside=("wakeups_per_op",))
    for rounds, n in ((20_000, 20_000), (200_000, 4000))
)
DEMO = (Case("demo", "the demo's training on 336,776 flights, an epoch", "epoch_ms", 1, 1, False),)
STARTS = (
    Case("startup", "from Start until the outputs are there: a plan of one node with 8 inputs, 8 outputs and 8 Vars",
         n=200_000, quick_n=20_000),
)
# The wide-and-deep model: how long an answer takes and what it costs, for several numbers of clients and rates.
SERVED = ("p50_us", "p90_us", "us_per_request", "cpu_us_per_request", "switches_per_request")
CLOSED = tuple(
    Case(f"closed_{clients}", f"{clients} clients, each asks again as soon as it was answered", "p99_us", 100_000,
         10_000, beside=SERVED)
    for clients in (1, 2, 4, 8, 16, 32, 64)
)
OPEN = tuple(
    Case(f"open_{rate}", f"{rate:,} requests a second, Poisson, 32 threads", "p99_us", rate * 2, rate // 2, False,
         beside=SERVED)
    for rate in (1000, 4000, 8000)
)
IDLE = (Case("idle", "processor time in the second after one request", "idle_cpu_us", 1, 1, False),)
# What a stage costs if there is nothing to overlap; then pipelines that at best take as long as their slower side.
HANDOVER = (
    Case("handover", "one thread hands items to itself", n=2_000_000),
    Case("stream", "an empty source on a thread, nothing to compute", n=1_000_000, quick_n=100_000),
)
LOADS = (
    ("wait_half", "input waited for, half of compute"),
    ("parse_half", "input parsed, half of compute"),
    ("parse_most", "input parsed, 0.9 of compute"),
    ("parse_more", "input parsed, 1.2 of compute"),
    ("copy_half", "input copied, half of compute"),
    ("all_even", "waited for, parsed and copied, 0.8 of compute"),
    ("autotuned", "input parsed, 0.8 of compute, capacity from 1 by autotune"),
)
PIPELINES = tuple(
    Case(f"{load}_{jitter}", f"{title}; jitter {jitter} %", "over_best", 1500, 300, False,
         beside=("step_us", "stage_us", "compute_us", "capacity", "least_capacity"))
    for load, title in LOADS
    for jitter in (0, 50, 100)
)
SMART = (
    Case("smart", "SmartStage, guarded, over the whole step: 12 random steps in pairs", "over_whole", 15, 5, False,
         beside=("low95", "high95", "steps_lost", "steps_staged", "best_over_whole")),
)
# DeepRec's five models, with the times of input and compute that it published; the device is a software device.
MODELS = tuple(
    Case(f"model_{name}", f"SmartStage, guarded, over the whole step: input and compute of {title}", "over_whole", n,
         n // 4, False, beside=("gain", "allowed", "of_allowed", "published", "staged"))
    for name, title, n in (
        ("dlrm_cpu", "DLRM on a CPU", 300),
        ("dien", "DIEN on a GPU", 60),
        ("din", "DIN on a GPU", 300),
        ("dlrm", "DLRM on a GPU", 300),
        ("dssm", "DSSM on a GPU", 300),
        ("deepfm", "DeepFM on a GPU", 300),
    )
)
IN_PYTHON = tuple(
    Case(f"py_{load}", title, "step_us", n, n // 4, False, True, beside=("compute_us", "first_ms", "grown_mb"))
    for load, title, n in (
        ("wait", "input waited for, 2 ms; 2 ms of compute", 600),
        ("parse", "CSV parsed by Python, 0.6 ms; 1.5 ms of compute", 600),
        ("spell", "made by Python code alone, 9 ms; 3 ms of compute", 100),
        ("copy", "4 MiB copied, 2 ms; 2 ms of compute", 600),
        ("mixed", "waited for, parsed and copied, 2 ms; 2.5 ms of compute", 600),
        ("stream", "an empty source, nothing to compute", 100_000),
    )
)

HOST_BULKS = tuple(
    Case(f"bulk_host_{case.name}", f"one thread: an op for the host inside a bulk of 15, beside the same op outside: {case.title}",
         "ratio_to_no_bulk", quick_n=100_000, scaled=False, beside=("ns_per_op", "no_bulk_ns"))
    for case in THROUGHPUT
)
CLOSURES = (
    Case("bulk_closures", "one thread: an op of a bulk above its registration, in a chain of closures",
         "ratio_to_mutex_pair", quick_n=100_000, scaled=False,
         beside=("ns_above_registration", "registration_ns", "ns_per_op", "mutex_pair_ns")),
)

# Graphs whose nodes take known times; `kept`: the share of the seeds in which the schedule was kept.
MAKESPANS = tuple(
    Case(f"{shape}_{grain}", f"{title}; nodes of about {grain} us", "over_best", n, n // 4, False,
         beside=("over_bound", "step_us", "kept"))
    for grain, n in ((50, 20), (5, 100))
    for shape, title in (
        ("dien", "a step of DIEN"),
        ("fork_join", "8 times 15 nodes and a join"),
        ("cholesky", "Cholesky of 8 x 8 tiles"),
        ("lu", "LU of 6 x 6 tiles"),
        ("layered", "random layers, costs over three decades"),
    )
)

# Training steps of PyTorch models, recorded as costs and edges (policies/graphs).
RECORDED = tuple(
    Case(name, title, "over_best", n, max(5, n // 4), False, beside=("least", "over_bound", "step_us", "kept"))
    for name, n, title in (
        ("tables26_b128", 60, "26 tables, batch 128"),
        ("towers26_b128", 40, "26 tables with a tower each, batch 128"),
        ("tables26_b512", 20, "26 tables, batch 512"),
        ("tables26_b2048", 10, "26 tables, batch 2,048"),
        ("tables1000_b128", 10, "1,000 tables, batch 128"),
        ("branches128_b64", 100, "8 branches, 128 wide, batch 64"),
        ("branches256_b512", 10, "8 branches, 256 wide, batch 512"),
        ("bert_tiny", 50, "a tiny BERT"),
        ("gpt2_tiny", 40, "a tiny GPT-2"),
        ("mlp_b64", 200, "a multilayer perceptron, batch 64"),
    )
)

# The patterns of Task Bench, with bodies of nothing and of some 0.3 us.
TASK_BENCH = tuple(
    Case(f"task_bench_{pattern}_{rounds}", f"Task Bench: {pattern}; bodies of {rounds} rounds", n=400_000, quick_n=100_000)
    for rounds in (0, 1000)
    for pattern in ("no_comm", "stencil", "dom", "tree", "fft", "nearest", "spread")
)

SUITES = {
    "mechanisms": (
        Group("ops", "ours", tuple(f"without {name}" for name in MECHANISMS), THROUGHPUT + CHAINS + JOINS + MANY_VARS + (REST[1], REST[3], REST[5]) + TASK_BENCH),
        Group("runs", "plan, each waited for", tuple(f"plan without {name}" for name in OF_RUNS), REPLAYS + SHORT_STEPS),
        Group("steps", "cost_model", tuple(f"step without {name}" for name in OF_RUNS), RECORDED),
        Group("demo", "demo", tuple(f"demo without {name}" for name in MECHANISMS), DEMO),
    ),
    "stages": (
        Group("stage", "stage", ("hand-written queue", "no stage"), HANDOVER + PIPELINES),
        Group("smart", "stage", (), SMART),
        Group("models", "stage", (), MODELS),
        Group("python", "engine.staged",
              ("queue.Queue", "no stage in Python", "DataLoader", "DataLoader, 1 worker", "DataLoader, 2 workers"),
              IN_PYTHON),
    ),
    "bulk": (
        Group("bulk", "ours, bulk 15", ("mxnet bulk 15", "ours"), THROUGHPUT[2:]),
        Group("host", "ours", (), HOST_BULKS),
        Group("closures", "ours", (), CLOSURES),
    ),
    "core": (
        Group("peers", "ours", PEERS, THROUGHPUT + REST),
        Group("modes", "ours", ("ours, 1 worker", "ours, unbounded"), THROUGHPUT),
        Group("naive", "ours, naive", ("mxnet naive",), THROUGHPUT),
        Group("floor", "ours, naive", (), FLOORS),
        Group("alone", "ours", (), ALONE),
    ),
    "plans": (
        Group("one worker", "plan, 1 worker", ("taskflow graph, 1 worker", "tbb flow graph, 1 thread"), REPLAYS),
        Group("all workers", "plan", ("taskflow graph", "tbb flow graph"), REPLAYS),
        Group("modes", "plan inline", ("loop", "plan", "plan, each waited for", "plan with Vars"), REPLAYS),
        Group("start", "plan inline, static", ("plan inline", "plan"), STARTS),
    ),
    "policies": (
        Group("makespan", "cost_model", ("threaded", "taskflow makespan", "tbb makespan"), MAKESPANS),
        Group("recorded, cost_model", "cost_model",
              ("ranked queue", "taskflow makespan", "tbb makespan", "nodes in turn", "cost_model, wide nodes"), RECORDED),
        Group("recorded, threaded", "threaded",
              ("ranked queue", "taskflow makespan", "tbb makespan", "nodes in turn"), RECORDED),
        Group("serving", "inline",
              ("onnxruntime sequential", "onnxruntime parallel", "onnxruntime parallel, spinning", "threaded serving",
               "inline, with a Var"),
              CLOSED + OPEN + IDLE),
        Group("overhead", "inline", ("kernels in a loop",),
              (replace(CLOSED[0], metric="p50_us", beside=("us_per_request",)),)),
    ),
}


def second_pusher(suite: str) -> bool:
    """Whether the suite has runs of core_ours.cc, each of which begins with an op that a second thread pushes."""
    return any(CONTENDERS[group.ours].binary == "ours" for group in SUITES[suite])


def beside_before(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """The same cases, with each group's first contender beside itself as another build tree has it."""
    for group in groups:
        CONTENDERS.setdefault(f"{group.ours}, before", replace(CONTENDERS[group.ours], before=True))
    return tuple(replace(group, peers=(f"{group.ours}, before",)) for group in groups)
