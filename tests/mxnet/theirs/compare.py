#!/usr/bin/env python3
"""MXNet's own Python tests on its engine and on ours, file by file, compared test by test.

    compare.py TESTS [FILE...] [--runs N] [--seconds N] [--file-seconds N] [--json OUT]

TESTS: the folder tests/python of MXNet at tag 1.9.1. Each file runs in a process of its own, first on MXNet's engine and then
N times on ours, with the same seeds. What passed there and does not pass here in every run is told, and makes the exit
status 1; so does a process of ours that does not end cleanly where MXNet's does. A test that differs is run once more on
MXNet's engine: one that fails there too, now and then, is told as unsteady and does not count.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(engine: str, file: pathlib.Path, arguments: argparse.Namespace, only: str = "") -> tuple[dict, int | str]:
    """The outcome of each test of `file`, and how the process ended."""
    with tempfile.TemporaryDirectory() as folder:
        results = pathlib.Path(folder) / "results"
        environment = dict(
            os.environ,
            MXNET_TESTS_ENGINE=engine,
            MXNET_TESTS_RESULTS=str(results),
            MXNET_TESTS_SECONDS=str(arguments.seconds),
            MXNET_TEST_SEED="20230126",
            MXNET_MODULE_SEED="20230126",
            MXNET_STORAGE_FALLBACK_LOG_VERBOSE="0",
            DMLC_LOG_STACK_TRACE_DEPTH="0",
            OMP_NUM_THREADS=str(arguments.omp),
            PYTHONPATH=os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            PYTHONWARNINGS="ignore",
        )
        command = [sys.executable, "-m", "pytest", "-q", "-x" if only else "-q", "-p", "plugin", "-p", "no:cacheprovider",
                   "-c", os.devnull, "--rootdir", str(file.parent), "--no-header", "--tb=line", str(file)]
        if only:
            command[-1] += "::" + only
        ended: int | str
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              start_new_session=True) as process:
            try:
                said = process.communicate(timeout=arguments.file_seconds)[0]
                ended = process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                said = process.communicate()[0]
                ended = "too long"
        outcomes: dict = {}
        lines = results.read_text().splitlines() if results.exists() else []
        for line in map(json.loads, lines):
            outcomes[line["test"]] = line if "outcome" in line else {"outcome": "began", "text": ""}
        if not outcomes and ended not in (0, 5):
            outcomes["(collection)"] = {"outcome": "failed", "text": said.decode(errors="replace")[-600:]}
    return outcomes, ended


def passed(outcomes: dict) -> set[str]:
    return {test for test, what in outcomes.items() if what["outcome"] == "passed"}


def known() -> dict[str, str]:
    """Patterns of tests that differ on purpose, with the reason."""
    lines = [line.split(None, 1) for line in (HERE / "known.txt").read_text().splitlines() if line and line[0] != "#"]
    return {pattern: reason.strip() for pattern, reason in lines}


def clean(ended: int | str) -> bool:
    return ended in (0, 1, 5)  # all passed, some failed, none there


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tests", type=pathlib.Path)
    parser.add_argument("files", nargs="*", help="names without test_ and .py; all of unittest/ otherwise")
    parser.add_argument("--runs", type=int, default=3, help="on our engine")
    parser.add_argument("--seconds", type=int, default=120, help="most for a test")
    parser.add_argument("--file-seconds", type=int, default=1800, help="most for a file; its tests that ran are compared")
    parser.add_argument("--omp", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    folder = arguments.tests / "unittest"
    files = [folder / f"test_{name}.py" for name in arguments.files] or sorted(folder.glob("test_*.py"))
    report, worse, total, on_purpose = {}, 0, 0, 0
    for file in files:
        theirs, ended = run("theirs", file, arguments)
        good = passed(theirs)
        print(f"{file.stem:32} MXNet's engine: {len(good):4} of {len(theirs):4} passed, ended {ended}", flush=True)
        entry: dict = {"theirs": len(good), "tests": len(theirs), "ended": ended, "ours": [], "lost": {}, "known": {}, "unsteady": []}
        total += len(good)
        for _ in range(arguments.runs):
            ours, ours_ended = run("ours", file, arguments)
            lost = good - passed(ours)
            if ended == "too long" or ours_ended == "too long":
                lost = {test for test in lost if ours.get(test, {}).get("outcome") == "failed"}
            for test in sorted(lost):
                reasons = [reason for pattern, reason in known().items() if fnmatch.fnmatch(test, pattern)]
                if reasons:
                    entry["known"][test] = reasons[0]
                    continue
                if test in entry["unsteady"] or test in entry["lost"]:
                    continue
                again, _ = run("theirs", file, arguments, test.split("::", 1)[1]) if "::" in test else ({}, 0)
                if again and test not in passed(again):
                    entry["unsteady"].append(test)
                else:
                    entry["lost"][test] = ours.get(test, {"text": "did not run"})["text"]
            unclean = clean(ended) and not clean(ours_ended)
            entry["ours"].append({"passed": len(passed(ours)), "ended": ours_ended})
            worse += unclean
            print(f"{'':32} ours:           {len(passed(ours)):4} of {len(ours):4} passed, ended {ours_ended}"
                  f"{'   NOT CLEAN' if unclean else ''}", flush=True)
        for test, text in entry["lost"].items():
            print(f"    LOST {test}: {' '.join(text.split())[-300:]}", flush=True)
        for test, reason in entry["known"].items():
            print(f"    known   {test}: {reason}", flush=True)
        for test in entry["unsteady"]:
            print(f"    unsteady on both: {test}", flush=True)
        worse += len(entry["lost"])
        on_purpose += len(entry["known"])
        report[file.stem] = entry
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=1))
    print(f"mxnet-tests: {total} tests pass on MXNet's engine; {worse} lost or not clean on ours, in {arguments.runs} runs;"
          f" {on_purpose} differ on purpose")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
