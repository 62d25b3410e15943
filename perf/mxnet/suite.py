#!/usr/bin/env python3
"""MXNet's own programs on MXNet's engine and on ours, in interleaved rounds: ./run perf mxnet.

    suite.py --build BUILD --python PYTHON [--quick] [--rounds N] [--only CASE ...] [--json FILE]

Both sides have the same numbers of worker and of OpenMP threads. Each figure is judged by what must be reached: see GOALS.
The exit status is 1 if something is below its goal beyond doubt, that is, with the whole 95 % interval."""

import argparse
import json
import statistics
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness import machine  # noqa: E402
from harness.process import Runner  # noqa: E402
from harness.stats import paired_ratio, spread  # noqa: E402

GOALS = {"engine ops": 5.0, "programs": 0.98, "wide": 1.3}  # MXNet's time, divided by ours
ENGINE_OPS = {  # of ../peers/mxnet.cc, through the C API: n
    "a_independent": 200_000, "a_own_var": 200_000, "b_chain": 200_000, "c_fan": 200_000, "d_dag": 100_000,
    "pushers4_disjoint": 100_000,
}  # fmt: skip
PROGRAMS = {  # of programs.py: steps a round
    "nd_chain": 2000, "nd_in_place": 2000, "nd_fan": 2000, "nd_each_read": 500,
    "mlp_eager": 40, "mlp_hybrid": 60, "mlp_static": 60, "lenet_eager": 10, "lenet_hybrid": 10, "lenet_static": 10,
    "lstm_eager": 20, "lstm_hybrid": 20, "lstm_cell_eager": 6, "lstm_cell_hybrid": 10, "lstm_cell_static": 10,
    "wide_eager": 3, "wide_hybrid": 4, "wide_static": 4, "feed_loader": 64, "feed_iterator": 128,
}  # fmt: skip
WIDE = {"wide_forward": 12, "wide_hybrid": 4, "wide_static": 4}  # with two workers
TIMEOUT = 120.0


class Suite:
    def __init__(self, args: argparse.Namespace):
        self.args, self.rows, self.below = args, [], 0
        self.runners: list[Runner] = []

    def program(self, variant: str, workers: int) -> Runner:
        return self._runner([f"PYTHONPATH={self.args.build}/python", "OMP_NUM_THREADS=1", str(self.args.python),
                             str(HERE / "programs.py"), "--variant", variant, "--workers", str(workers)])  # fmt: skip

    def c_api(self, ours: bool, *arguments: str) -> Runner:
        library = subprocess.run([str(self.args.python), "-c", "import importlib.util as u; print(u.find_spec('mxnet').origin)"],
                                 capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
        library = str(Path(library).parent / "libmxnet.so")
        preload = [f"LD_PRELOAD={self.args.build}/python/mxnet/libengine_mxnet.so"] if ours else []
        return self._runner([*preload, f"ENGINE_PERF_MXNET={library}", str(self.args.build / "perf/mxnet"), "--workers",
                             str(self.args.workers), *arguments])  # fmt: skip

    def _runner(self, arguments: list[str]) -> Runner:
        runner = Runner(Path("/usr/bin/env"), arguments, self.args.build / "perf/mxnet-suite.log")
        self.runners.append(runner)
        return runner

    def compare(self, group: str, case: str, n: int, metric: str, sides: dict[str, Runner], goal: float) -> dict:
        """Medians of both sides, and the paired ratio with its interval."""
        figures: dict[str, list] = {side: [] for side in sides}
        row = {"suite": "mxnet", "group": group, "case": case, "metric": metric, "ours_name": "MXNet on this engine",
               "peer_name": "MXNet", "n": n, "goal": goal}  # fmt: skip
        for side, runner in sides.items():  # warmed
            told = runner.ask(case, n, TIMEOUT)
            if "skip" in told:
                row["skip"] = f"{side}: {told['skip']}"
                print(f"{group:11} {case:18} - {row['skip']}", flush=True)
                self.rows.append(row)
                return row
        busy = machine.busy()
        for i in range(self.args.rounds):
            for side in list(sides)[:: 1 if i % 2 else -1]:
                figures[side].append(sides[side].ask(case, n, TIMEOUT))
        values = {side: [f.get(metric) for f in told] for side, told in figures.items()}
        for side in sides:
            if None in values[side]:
                row["skip"] = f"{side}: died in a round"
                self.rows.append(row)
                self.below += side == "ours"
                print(f"{group:11} {case:18} - {row['skip']}", flush=True)
                return row
        ratio = paired_ratio(values["ours"], values["theirs"])
        cpu = [statistics.median(f["cpu_us"] for f in figures[side]) for side in sides if "cpu_us" in figures[side][0]]
        row |= {"ours": statistics.median(values["ours"]), "peer": statistics.median(values["theirs"]),
                "ratio": ratio["ratio"], "ratio_ci": ratio["ci"], "ours_spread": list(spread(values["ours"])),
                "peer_spread": list(spread(values["theirs"])), "rounds": self.args.rounds,
                "others_busy": max(busy, machine.busy())}  # fmt: skip
        if len(cpu) == 2:
            row["ours_cpu_us"], row["peer_cpu_us"] = cpu[list(sides).index("ours")], cpu[list(sides).index("theirs")]
        low, high = ratio["ci"]
        verdict = "reached" if low >= goal else "BELOW" if high < goal else "undecided"
        row["verdict"] = verdict
        self.below += verdict == "BELOW" and group != "wide"  # judged beside its bound
        print(f"{group:11} {case:18} MXNet {row['peer']:10.1f}  ours {row['ours']:10.1f}  x{row['ratio']:.2f} "
              f"[{low:.2f}, {high:.2f}]  goal {goal}: {verdict}"
              + (f"  (others busy {row['others_busy']:.0%})" if row["others_busy"] > 0.1 else ""), flush=True)
        self.rows.append(row)
        return row

    def wanted(self, *names: str) -> bool:
        return not self.args.only or bool(set(names) & set(self.args.only))

    def run(self) -> None:
        scale = 4 if self.args.quick else 1
        if self.wanted("engine ops", *ENGINE_OPS):
            print("through the C API: ns an op")
            sides = {"theirs": self.c_api(False), "ours": self.c_api(True)}
            for case, n in ENGINE_OPS.items():
                if self.wanted("engine ops", case):
                    self.compare("engine ops", case, n // scale, "ns_per_op", sides, GOALS["engine ops"])
            self.close()
        print("programs, one worker: us a step")
        sides = {"theirs": self.program("theirs", 1), "ours": self.program("ours", 1)}
        for case, n in PROGRAMS.items():
            if self.wanted("programs", case):
                self.compare("programs", case, max(2, n // scale), "us_per_step", sides, GOALS["programs"])
        self.close()
        if self.wanted("wide", *WIDE):
            self.wide(scale)

    def wide(self, scale: int) -> None:
        """Two workers on each side, beside what two processes make of the kernels alone."""
        alone, other = self.program("theirs", 1), self.program("theirs", 1)
        for runner in (alone, other):  # started by this thread: they end with the thread that starts them
            runner.ask("kernels_alone", 3, TIMEOUT)
        speedups = []
        for _ in range(self.args.rounds + 1):
            one = alone.ask("kernels_alone", 12 // scale + 2, TIMEOUT)
            both = [{}, {}]

            def ask(i: int, runner: Runner) -> None:
                both[i] = runner.ask("kernels_alone", 12 // scale + 2, TIMEOUT)

            threads = [threading.Thread(target=ask, args=pair) for pair in enumerate((alone, other))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            speedups.append(2 * one["us_per_step"] / max(b["us_per_step"] for b in both))
        bound = statistics.median(speedups[1:])
        print(f"two workers: us a step; two processes make the kernels alone {bound:.2f} times as fast as one")
        self.close()
        sides = {"theirs": self.program("theirs", 2), "ours": self.program("ours", 2)}
        single = self.program("ours", 1)
        for case, n in WIDE.items():
            row = self.compare("wide", case, max(2, n // scale), "us_per_step", sides, GOALS["wide"])
            if "skip" in row:
                continue
            lone = [single.ask(case, max(2, n // scale), TIMEOUT) for _ in range(max(3, self.args.rounds // 2))]
            speedup = statistics.median(f["us_per_step"] for f in lone[1:]) / row["ours"]
            row |= {"bound": bound, "speedup": speedup}
            near = speedup >= 0.95 * bound
            print(f"{'':11} {'':18} our second worker makes it {speedup:.2f} times as fast; the kernels' bound is {bound:.2f}"
                  f"{': within 5 %' if near else ''}", flush=True)
        self.close()

    def close(self) -> None:
        for runner in self.runners:
            runner.close()
        self.runners.clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1, help="workers of the engine ops (default: 1, MXNet's)")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.build, args.python = args.build.absolute(), args.python.absolute()
    args.rounds = args.rounds or (3 if args.quick else 11)
    header = machine.header(args.build, HERE, args.workers, args.rounds)
    print(*(f"{key}: {value}" for key, value in header.items()), sep="\n", end="\n\n")
    suite = Suite(args)
    try:
        suite.run()
    finally:
        suite.close()
    if args.json:
        args.json.write_text(json.dumps({"header": header, "rows": suite.rows}, indent=1) + "\n")
    return 1 if suite.below else 0


if __name__ == "__main__":
    sys.exit(main())
