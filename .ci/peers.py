"""The README's table of this engine beside other libraries: a text that tables.py writes, from the newest perf/results/core-DATE.json."""

from results import newest

CASES = {
    "a_independent": "independent, no variables",
    "a_own_var": "independent, a variable each",
    "b_chain": "chain on one variable",
    "c_fan": "1 writer, 100 readers",
    "d_dag": "random DAG, 2 reads 1 update",
}
PEERS = {
    "taskflow dynamic": "Taskflow dynamic",
    "taskflow graph": "Taskflow build + run",
    "tbb flow graph": "oneTBB flow graph",
    "libgomp depend": "libgomp",
    "libomp depend": "libomp",
    "starpu": "StarPU",
    "mxnet": "MXNet",
}


def times(row: dict | None) -> str:
    """With its interval where that contains 1, because then the figure decides nothing."""
    if row is None or "ratio" not in row:
        return "–"
    low, high = row["ratio_ci"]
    ratio = f"{row['ratio']:.0f}×" if row["ratio"] >= 99.5 else f"{row['ratio']:.1f}×"
    return f"{ratio} [{low:.1f}, {high:.1f}]" if low <= 1 <= high else ratio


def heads() -> list[str]:
    return ["workload", "ours, ns an op", *PEERS.values()]


def lines() -> list[list[str]]:
    rows = [r for r in newest("core")[1]["rows"] if r["group"] == "peers" and r.get("metric", "ns_per_op") == "ns_per_op"]
    made = []
    for case, title in CASES.items():
        beside = {r["peer_name"]: r for r in rows if r["case"] == case}
        ours = next(r["ours"] for r in beside.values() if "ours" in r)
        made.append([title, f"{ours:.0f}", *(times(beside.get(name)) for name in PEERS)])
    return made


def said() -> str:
    name, found = newest("core")
    header = found["header"]
    cases = header.get("measured_again", "").partition(" of the group")[0]
    again = f" ({cases.replace('_', ' ')[2:].replace(' and b ', ' and ')} were measured once more, as the machine had been busy)" if cases else ""
    return (f"{header['cores']} cores of {header['cpu']}, commit {header['commit'][:7]}, {header['date'][:10]}; medians of {header['rounds']} interleaved "
            f"rounds of 10⁶ ops on an otherwise idle machine{again} ([the rows, with spreads](perf/results/{name})):")  # fmt: skip
