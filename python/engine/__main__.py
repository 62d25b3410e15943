"""``python -m engine``: explain a trace, show a demo, look at a program that runs."""

from __future__ import annotations

import argparse
import pathlib
import sys

from .errors import UsageError


def main(arguments: list[str] | None = None) -> int:
    """Runs one command, and returns the exit status: 2 for what the caller got wrong."""
    parser = argparse.ArgumentParser(prog="python -m engine", description="Look at what the engine did.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    explain = commands.add_parser("explain", help="what a trace file says: as text, and as a page with a timeline")
    explain.add_argument("trace", type=pathlib.Path, help="a file that engine.trace(path) wrote")
    explain.add_argument("--html", type=pathlib.Path, metavar="FILE", help="write the page there")
    demo = commands.add_parser("demo", help="run a small program, trace it, and explain it")
    demo.add_argument("--html", type=pathlib.Path, metavar="FILE", default=pathlib.Path("engine-demo.html"))
    demo.add_argument("--steps", type=int, default=24, metavar="N", help="default 24")
    top = commands.add_parser("top", help="watch a program that called engine.metrics.serve()")
    top.add_argument("address", help="what serve() returned: http://127.0.0.1:PORT")
    top.add_argument("--interval", type=float, default=1.0, metavar="SECONDS")
    top.add_argument(
        "--rounds", type=int, metavar="N", help="stop after so many looks; default: when it ends, or Ctrl-C"
    )
    args = parser.parse_args(arguments)
    try:
        return {"explain": _explain, "demo": _demo, "top": _top}[args.command](args)
    except (UsageError, OSError) as error:
        print(f"python -m engine {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _explain(args: argparse.Namespace) -> int:
    from .explanation import TraceExplanation

    told = TraceExplanation.of_file(args.trace)
    print(told, end="")
    if args.html:
        print(f"the timeline: {told.write(args.html).resolve().as_uri()}")
    return 0


def _demo(args: argparse.Namespace) -> int:
    from . import demo

    if args.steps < 1:
        raise UsageError(f"--steps is {args.steps}; 1 or more is expected")
    told = demo.run(args.steps)
    print(told, end="")
    print(f"the timeline: {told.write(args.html).resolve().as_uri()}")
    return 0


def _top(args: argparse.Namespace) -> int:
    from .monitoring import watching

    watching.watch(args.address, args.interval, args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
