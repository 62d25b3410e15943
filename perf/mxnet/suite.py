#!/usr/bin/env python3
"""MXNet's own programs on MXNet's engine and on ours, in interleaved rounds: ./run perf mxnet.

    suite.py --build BUILD --python PYTHON [--quick] [--only CASE ...] [--json FILE]

Both sides have the same numbers of worker and of OpenMP threads. Rounds come in looks: both processes are started anew for
each half of a look, because two processes differ by how they lie in memory, and take turns in short rounds. After a look the
paired ratio is judged by the goal of its group; what is undecided gets another look, up to LOOKS. Each look's interval is
that much wider (Bonferroni) that all of them together are right in 95 %.

The exit status is 1 if something is below its goal beyond doubt, that is, with the whole interval."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
from harness import machine  # noqa: E402
from harness.process import Runner  # noqa: E402
from harness.stats import paired_ratio, spread  # noqa: E402

GOALS = {"engine ops": 5.0, "programs": 0.98, "wide": 1.3}  # MXNet's time, divided by ours
SPENT = ("work", "longer", "ready", "nothing")  # the time of the workers of the wide net (programs.py)
NEAR = 0.95  # the wide net, where 1.3 cannot be: of what its ops allow
# What a row reaches that cannot reach its goal: see net() and near().
BESIDE = {"engine ops": "reached but for libmxnet itself", "programs": "", "wide": "at the bound"}
ENGINE_OPS = ("a_independent", "a_own_var", "b_chain", "c_fan", "d_dag", "pushers4_disjoint")  # of ../peers/mxnet.cc
PROGRAMS = ("nd_chain", "nd_in_place", "nd_fan", "nd_each_read", "mlp_eager", "mlp_hybrid", "mlp_static", "lenet_eager",
            "lenet_hybrid", "lenet_static", "lstm_eager", "lstm_hybrid", "lstm_cell_eager", "lstm_cell_hybrid",
            "lstm_cell_static", "wide_eager", "wide_hybrid", "wide_static", "feed_loader", "feed_iterator",
            "feed_images")  # fmt: skip
WIDE = ("wide_forward", "wide_hybrid", "wide_static")  # with two workers
TIMEOUT = 120.0
LOOKS = 8  # at most


class Suite:
    def __init__(self, args: argparse.Namespace):
        self.args, self.rows, self.below = args, [], 0
        self.looks, self.rounds, self.seconds = (1, 6, 0.06) if args.quick else (LOOKS, 12, 0.15)
        self.confidence = 1 - 0.05 / self.looks
        self.runners: list[Runner] = []
        self.allowed: list[dict] = []

    # --- who runs

    def program(self, variant: str, workers: int) -> Runner:
        return self._runner([f"PYTHONPATH={self.args.build}/python", "OMP_NUM_THREADS=1", str(self.args.python),
                             str(HERE / "programs.py"), "--variant", variant, "--workers", str(workers)])  # fmt: skip

    def c_api(self, preload: str = "") -> Runner:
        find = "import importlib.util as u; print(u.find_spec('mxnet').origin)"
        origin = subprocess.run([str(self.args.python), "-c", find], capture_output=True, text=True, check=True).stdout.strip()
        first = [f"LD_PRELOAD={self.args.build}/{preload}"] if preload else []
        return self._runner([*first, f"ENGINE_PERF_MXNET={Path(origin).parent}/libmxnet.so", str(self.args.build / "perf/mxnet"),
                             "--workers", str(self.args.workers)])  # fmt: skip

    def _runner(self, arguments: list[str]) -> Runner:
        runner = Runner(Path("/usr/bin/env"), arguments, self.args.build / "perf/mxnet-suite.log")
        self.runners.append(runner)
        return runner

    def close(self) -> None:
        for runner in self.runners:
            runner.close()

    # --- one case

    def steps(self, case: str, metric: str, runner: Runner) -> int | str:
        """So many that a round takes `seconds`; or why the case cannot be run."""
        n = 2000 if metric == "ns_per_op" else 2
        told = runner.ask(case, n, TIMEOUT)
        if "skip" in told:
            return told["skip"]
        each = told[metric] * (1e-9 if metric == "ns_per_op" else 1e-6)
        return max(2, int(self.seconds / each)) if metric != "ns_per_op" else max(20_000, int(self.seconds / each))

    def look(self, case: str, n: int, metric: str, sides: dict[str, Runner], values: dict[str, list]) -> str:
        """Adds a look's figures to `values`; or says why not."""
        for half in range(2):
            for runner in sides.values():
                runner.close()
            for _ in range(2):  # starts and warms
                for side, runner in sides.items():
                    told = runner.ask(case, n, TIMEOUT)
                    if "skip" in told:
                        return f"{side}: {told['skip']}"
            for i in range(self.rounds // 2):
                told = {}
                for side in list(sides)[:: 1 if (i + half) % 2 else -1]:
                    told[side] = sides[side].ask(case, n, TIMEOUT)
                    if told[side].get(metric) is None:
                        return f"{side}: {told[side].get('skip', 'no figure')}"
                if "allowed" in values:  # of the process that has just been measured
                    told["allowed"] = sides["ours"].ask(f"allowed:{case}", 3 * n, TIMEOUT)  # the last ones run when all are pushed
                    if "skip" in told["allowed"]:
                        return f"ours, allowed: {told['allowed']['skip']}"
                for side in told:
                    values[side].append(told[side])
        return ""

    def compare(self, group: str, case: str, metric: str, sides: dict[str, Runner]) -> None:
        goal = GOALS[group]
        row = {"suite": "mxnet", "group": group, "case": case, "metric": metric, "ours_name": "MXNet on this engine",
               "peer_name": "MXNet", "goal": goal, "confidence": self.confidence}  # fmt: skip
        self.rows.append(row)
        n = self.steps(case, metric, sides["theirs"])
        told: dict[str, list] = {side: [] for side in (*sides, *(["allowed"] if group == "wide" else []))}
        why, verdict, busy = (n, "", 0.0) if isinstance(n, str) else ("", "undecided", machine.busy())
        for _ in range(self.looks if not why else 0):
            why = self.look(case, n, metric, sides, told)
            if why:
                break
            values = {side: [answer[metric] for answer in told[side]] for side in told}
            ratio = paired_ratio(values["ours"], values["theirs"], confidence=self.confidence)
            low, high = ratio["ci"]
            near = self.near(row, told) if "allowed" in told else self.net(row, values) if "floor" in sides else False
            verdict = "reached" if low >= goal else BESIDE[group] if near else "undecided"
            if high < goal and near is False:
                verdict = "BELOW"
            if verdict != "undecided":
                break
        if why:
            row["skip"] = why
            self.below += why.startswith("ours")
            print(f"{group:11} {case:18} - {why}", flush=True)
            return
        row |= {"n": n, "ours": statistics.median(values["ours"]), "peer": statistics.median(values["theirs"]),
                "ratio": ratio["ratio"], "ratio_ci": ratio["ci"], "ours_spread": list(spread(values["ours"])),
                "peer_spread": list(spread(values["theirs"])), "rounds": len(values["ours"]), "verdict": verdict,
                "others_busy": max(busy, machine.busy())}  # fmt: skip
        for side in ("ours", "peer"):
            cpu = [answer["cpu_us"] for answer in told["theirs" if side == "peer" else "ours"] if "cpu_us" in answer]
            if cpu:
                row[f"{side}_cpu_us"] = statistics.median(cpu)
        self.below += verdict == "BELOW"
        beside = (f"  {row['of_bound'][0]:.2f}-{row['of_bound'][1]:.2f} of the {row['allowed_us']:.0f} that its ops allow" if "of_bound" in row else
                  f"  beside libmxnet's own {row['floor']:.0f}: x{row['net'][0]:.1f}-{row['net'][1]:.1f}" if "net" in row else "")  # fmt: skip
        print(f"{group:11} {case:18} MXNet {row['peer']:10.1f}  ours {row['ours']:10.1f}  x{row['ratio']:.2f} "
              f"[{low:.2f}, {high:.2f}]  goal {goal}: {verdict} in {row['rounds']} rounds{beside}"
              + (f"  (others busy {row['others_busy']:.0%})" if row["others_busy"] > 0.1 else ""), flush=True)  # fmt: skip

    def near(self, row: dict, told: dict[str, list]) -> bool | None:
        """Whether we are as fast as the ops and their pushes allow (programs.py), in the same process and round. None: undecided."""
        ours, allowed = ([answer["us_per_step"] for answer in told[side]] for side in ("ours", "allowed"))
        share = paired_ratio(ours, allowed, confidence=self.confidence)
        row |= {f"{what}_us": statistics.median(answer[what] for answer in told["allowed"]) for what in ("pushes", "at_least", *SPENT)}
        row |= {"allowed_us": statistics.median(allowed), "of_bound": share["ci"]}
        return True if share["ci"][0] >= NEAR else False if share["ci"][1] < NEAR else None

    def net(self, row: dict, values: dict[str, list[float]]) -> bool | None:
        """Whether the engines alone are as far apart as they are to be: without what libmxnet.so takes by itself, which is measured with an
        engine that does nothing (floor.cc) and no engine can change. None: undecided."""
        floor = statistics.median(values["floor"])
        low, high = paired_ratio([t - floor for t in values["ours"]], [t - floor for t in values["theirs"]],
                                 confidence=self.confidence)["ci"]  # fmt: skip
        row |= {"floor": floor, "net": [low, high]}
        return True if low >= row["goal"] else False if high < row["goal"] else None

    # --- all

    def wanted(self, *names: str) -> bool:
        return not self.args.only or bool(set(names) & set(self.args.only))

    def group(self, group: str, cases: tuple[str, ...], metric: str, sides: dict[str, Runner]) -> None:
        for case in cases:
            if self.wanted(group, case):
                self.compare(group, case, metric, sides)
        self.close()
        self.runners.clear()

    def run(self) -> None:
        if self.wanted("engine ops", *ENGINE_OPS):
            print("through the C API: ns an op")
            sides = {"theirs": self.c_api(), "ours": self.c_api("python/mxnet/libengine_mxnet.so"),
                     "floor": self.c_api("perf/libmxnet_floor.so")}  # fmt: skip
            self.group("engine ops", ENGINE_OPS, "ns_per_op", sides)
        if self.wanted("programs", *PROGRAMS):
            print("programs, one worker: us a step")
            self.group("programs", PROGRAMS, "us_per_step", {"theirs": self.program("theirs", 1), "ours": self.program("ours", 1)})
        if self.wanted("wide", *WIDE):
            print("two workers: us a step")
            self.group("wide", WIDE, "us_per_step", {"theirs": self.program("theirs", 2), "ours": self.program("ours", 2)})
        if self.wanted("allows"):
            self.allows()

    def dependencies(self, **env: str) -> dict[str, dict]:
        """What the order of its ops allows each wide program (allows.py)."""
        env = os.environ | {"PYTHONPATH": f"{self.args.build}/python", "OMP_NUM_THREADS": "1"} | env
        said = subprocess.run([str(self.args.python), str(HERE / "allows.py"), "--variant", "ours", "--workers", "2", *WIDE], env=env,
                              capture_output=True, text=True, check=True).stdout  # fmt: skip
        return {row["case"]: row for row in map(json.loads, said.splitlines())}

    def allows(self) -> None:
        """With scratch memory of each thread's own, and with several numbers of spaces that all share (python/mxnet/options.h)."""
        print("by the order of ops alone: how much faster two workers run a step's ops that take the oldest, and in brackets how much "
              "faster any two can, by the number of shared spaces of scratch memory")  # fmt: skip
        for spaces in ("own", "4", "16", "32", "64"):
            allowed = self.dependencies(**({} if spaces == "own" else {"ENGINE_MXNET_SCRATCH": "shared", "MXNET_CPU_TEMP_COPY": spaces}))
            print(f"  {spaces:>3}: " + "  ".join(f"{case} {order['two_workers']:.2f} [{order['at_most']:.2f}]" for case, order in allowed.items()), flush=True)
            self.allowed.append({"spaces": spaces, **allowed})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1, help="workers of the engine ops (default: 1, MXNet's)")
    parser.add_argument("--quick", action="store_true", help="one look, of a few short rounds")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="cases, or groups: " + ", ".join(GOALS) + ", allows")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.build, args.python = args.build.absolute(), args.python.absolute()
    suite = Suite(args)
    header = machine.header(args.build, HERE, args.workers, suite.rounds)
    print(*(f"{key}: {value}" for key, value in header.items()), sep="\n", end="\n\n")
    begin = time.monotonic()
    try:
        suite.run()
    finally:
        suite.close()
    verdicts = [row.get("verdict", "left out") for row in suite.rows]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ("reached", *filter(None, BESIDE.values()), "undecided", "BELOW", "left out") if v in verdicts)
    print(f"mxnet: {len(verdicts)} cases in {time.monotonic() - begin:.0f} s: {counts}")
    if args.json:
        args.json.write_text(json.dumps({"header": header, "rows": suite.rows, "allowed": suite.allowed}, indent=1) + "\n")
    return 1 if suite.below else 0


if __name__ == "__main__":
    sys.exit(main())
