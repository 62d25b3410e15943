#!/usr/bin/env python3
"""Whole training steps of PyTorch models, eager, by Inductor and by us, in interleaved rounds: ./run perf torch.

    suite.py --build BUILD [--quick] [--rounds N] [--only MODEL ...] [--peers NAME ...] [--json FILE]

Rounds take turns among the contenders, a block of steps each; the first steps of a block do not count, because OpenMP's
threads of the block before still spin. Losses must be equal. Ratios are paired by rounds: the other's time divided by
ours, the median with its 95 % interval. `compile` is torch.compile with our backend, `dynamo` with
torch's backend "eager", which no backend that runs eagerly can beat, `gradients` a step without its optimizer, `in turn` our plan without workers,
`ours inductor` compile_step where the whole step compiled by Inductor is one more mode, `ours fast` compile_step where
products of matrices may differ from eager's in the last bits. The last lines say which mode was
chosen, and why, and what torch's kernels alone take (bound.py): in turn on one thread, in turn on all, in a list schedule, and
what no schedule of them can go below; `at most` is that bound as ratios, which no way that calls these kernels can exceed.
All contenders keep the memory that they free, as a compiled step does for its process."""

import argparse
import json
import statistics
import sys
import time
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import bound as torch_bound  # noqa: E402
import steps as torch_steps  # noqa: E402
import torch  # noqa: E402
from engine.torch.memory import keep_freed_memory  # noqa: E402
from harness import machine  # noqa: E402
from harness.stats import paired_ratio  # noqa: E402

GRADIENTS = " gradients"  # how the names of steps without an optimizer end
SETTLE = 400  # steps at most until a compiled step has decided
NO_INDUCTOR = {"tables1000_b128"}  # unless --only names it: it compiles for a quarter of an hour
QUICK_INDUCTOR = {"mlp_b64"}  # with --quick, for this one alone: it compiles for up to minutes a model
NOT_QUICK = {"tables1000_b128": {"compile 2", "compile 2 gradients"}}  # torch itself takes a minute for the graphs of a thousand tables


def settle(of: torch_steps.Contender, seconds: float) -> None:
    end = time.perf_counter() + seconds
    for i in range(SETTLE):
        of.step()
        if i >= 5 and of.decided() or time.perf_counter() > end:
            return


def block(step, threads: int, count: int) -> float:
    """Milliseconds a step."""
    torch.set_num_threads(threads)
    for _ in range(2):
        step()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - begin) / count * 1e3


def measure(case: str, args: argparse.Namespace) -> dict:
    torch._dynamo.reset()  # it stops compiling a function after eight kinds of arguments, and each model is some
    made, losses = {}, {}
    for name in args.peers or torch_steps.CONTENDERS:
        if "inductor" in name and (case in NO_INDUCTOR and case not in args.only or args.quick and case not in QUICK_INDUCTOR and not args.peers):
            continue
        if args.quick and not args.peers and name in NOT_QUICK.get(case, ()):
            continue
        try:
            of = torch_steps.contender(name, case, args.workers)
            torch.set_num_threads(of.threads)
            losses[name] = of.step().item()
            settle(of, args.settle)
            made[name] = of
        except Exception as error:  # one that cannot be had must not keep the others away
            print(f"-- {case}: {name} is left out: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    assert len({round(v, 4) for v in losses.values()}) == 1, f"{case}: losses differ: {losses}"
    each = {name: block(of.step, of.threads, 3) for name, of in made.items()}
    counts = {name: max(3, int(args.block / each[name])) for name in made}
    rounds = {name: [] for name in made}
    for i in range(args.rounds):
        for name in list(made)[:: 1 if i % 2 else -1]:
            rounds[name].append(block(made[name].step, made[name].threads, counts[name]))
    row = {"case": case, "ms": {n: statistics.median(r) for n, r in rounds.items()}, "ratios": {}}
    for name in rounds:
        if name != "ours" and "ours" in rounds and not name.endswith(GRADIENTS):
            row["ratios"][name] = paired_ratio(rounds["ours"], rounds[name])
    gradients(row, rounds, made.get(f"compile 2{GRADIENTS}"))
    compiled = made["ours"].compiled if "ours" in made else None
    if compiled is not None and compiled.last:
        row["mode"], row["why"] = compiled.last.choice.decided, compiled.last.choice.why
        row["nodes"] = compiled.last.program.steps
        bounded(row, made["ours"], args.workers)
    elif compiled is not None:
        row["mode"], row["why"] = "eager", compiled.why_eager
    return row


def gradients(row: dict, rounds: dict[str, list[float]], compiled: torch_steps.Contender | None) -> None:
    """Adds forward and backward alone: torch.compile with our backend against the better eager one."""
    eager = [name for name in rounds if name.startswith("eager") and name.endswith(GRADIENTS)]
    if compiled is None or not eager:
        return
    better = min(eager, key=lambda name: row["ms"][name])
    row["gradients"] = {"eager": better} | paired_ratio(rounds[f"compile 2{GRADIENTS}"], rounds[better])
    if dynamo := rounds.get(f"dynamo 2{GRADIENTS}"):
        row["gradients"]["dynamo"] = paired_ratio(dynamo, rounds[better])
    row["gradients"]["modes"] = compiled.modes()


def bounded(row: dict, ours: torch_steps.Contender, workers: int) -> None:
    """Adds what the kernels alone take, and the ratios that it allows."""
    torch.set_num_threads(ours.threads)
    bound = torch_bound.bound_of(ours.compiled, ours.inputs, workers)
    if bound:
        row["bound_ms"] = bound._asdict()
        row["at_most"] = {name: ms / bound.bound for name, ms in row["ms"].items() if not name.endswith(GRADIENTS)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], metavar="MODEL")
    parser.add_argument("--peers", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.rounds = args.rounds or (5 if args.quick else 15)
    args.block, args.settle = (40, 20) if args.quick else (150, 60)  # milliseconds; seconds
    warnings.simplefilter("ignore")
    keep_freed_memory()
    known = list(torch_steps.MODELS)
    if unknown := set(args.only) - set(known):
        print(f"no such model: {', '.join(sorted(unknown))}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    header = machine.header(args.build, HERE, args.workers, args.rounds) | {"torch": torch.__version__}
    print(*(f"{key}: {value}" for key, value in header.items()), sep="\n", end="\n\n", flush=True)
    rows = []
    for case in args.only or known:
        begin = time.monotonic()
        try:
            row = measure(case, args)
        except ImportError as error:
            print(f"{case}: left out: {error}", flush=True)
            continue
        rows.append(row)
        times = ", ".join(f"{n} {ms:.3f}" for n, ms in row["ms"].items())
        ratios = ", ".join(f"{r['ratio']:.2f} ({r['ci'][0]:.2f}-{r['ci'][1]:.2f}) of {n}" for n, r in row["ratios"].items())
        print(f"{case}: ms a step: {times}\n  ours is faster by {ratios}\n  {row.get('nodes', 0)} nodes, "
              f"{row.get('mode')}: {row.get('why')}", flush=True)  # fmt: skip
        if "gradients" in row:
            found = row["gradients"]
            print(f"  forward and backward by torch.compile: faster by {found['ratio']:.2f} ({found['ci'][0]:.2f}-{found['ci'][1]:.2f}) than "
                  f"{found['eager']}; {', '.join(found['modes'])}", flush=True)
            if "dynamo" in found:
                print(f"  by Dynamo, run eagerly: {found['dynamo']['ratio']:.2f} ({found['dynamo']['ci'][0]:.2f}-{found['dynamo']['ci'][1]:.2f})")  # fmt: skip
        if "bound_ms" in row:
            most = ", ".join(f"{ratio:.2f} of {name}" for name, ratio in row["at_most"].items())
            print("  kernels alone, ms: " + ", ".join(f"{n} {ms:.3f}" for n, ms in row["bound_ms"].items()) +
                  f"\n  at most {most}", flush=True)  # fmt: skip
        if args.json:
            args.json.write_text(json.dumps({"header": header, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
