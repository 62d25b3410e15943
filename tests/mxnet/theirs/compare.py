#!/usr/bin/env python3
"""MXNet's own Python tests on its engine and on ours, file by file, compared test by test.

    compare.py TESTS [FILE...] [--runs N] [--seconds N] [--fresh] [--results FOLDER] [--through COMMAND]

TESTS: the folder tests/python of MXNet at tag 1.9.1. Each file runs in processes of its own (pieces.py), once on MXNet's
engine and N times on ours, with the same seeds. What passed there and does not pass here in every run is told, and makes the
exit status 1; so does a process of ours that does not end cleanly where MXNet's do. A test that differs is asked again on
MXNet's engine, by itself: one that fails there too, now and then, is told as unsteady and does not count.

Outcomes are kept in FOLDER: a run that was cut goes on where it was. Those of our engine count for the binary that they were
made with; --fresh forgets them all. FOLDER/table.txt has the outcome of each test in each run. Each run of a file is recorded
in record.jsonl, and their sum in docs/mxnet.md (record.py). All files: the small ones first, so that a run that is cut has
most of them.
"""

import argparse
import hashlib
import pathlib
import re
import shutil
import signal
import sys
import time

import pieces
import record

HERE = pathlib.Path(__file__).resolve().parent
AGAIN = 3  # times that a test which differs is asked on MXNet's engine
COMMIT = record.commit()  # at the start: the runs take hours


def stamp() -> str:
    """What our engine is made of, in a few letters: its libraries, as this process has them loaded."""
    import engine  # noqa: F401 - loads them

    maps = pathlib.Path("/proc/self/maps").read_text()
    paths = sorted(set(re.findall(r"(/\S+/(?:_core\S*|libengine\S*)\.so\S*)$", maps, re.M)))
    assert paths, "no library of the engine is loaded"
    digest = hashlib.sha256()
    for path in paths:
        digest.update(pathlib.Path(path).read_bytes())
    return digest.hexdigest()[:12]


class File:
    """One file of tests: what became of it in each run."""

    def __init__(self, path: pathlib.Path, results: pathlib.Path, mark: str, arguments: argparse.Namespace):
        self.path, self.folder, self.mark, self.arguments = path, results, mark, arguments
        self.lost: dict[str, str] = {}
        self.on_purpose: dict[str, str] = {}
        self.unsteady: set[str] = set()
        self.unclean = 0
        self.ours: list[pieces.Results] = []
        self.theirs = self.run("theirs")

    def run(self, engine: str, number: int = 0) -> pieces.Results:
        omp = f"omp{self.arguments.omp}"
        name = f"theirs-{omp}" if engine == "theirs" else f"ours-{self.mark}-{omp}-{number}"
        return pieces.run(engine, self.path, self.folder / name / f"{self.path.stem}.jsonl", self.arguments)

    def steady(self, test: str) -> bool:
        """Whether MXNet's engine passes the test each time."""
        path = self.folder / "again" / f"{self.path.stem}.jsonl"
        return "::" not in test or all(
            pieces.alone("theirs", self.path, test, path, self.arguments) for _ in range(AGAIN)
        )

    def compare(self, number: int) -> None:
        begin = time.monotonic()
        ours = self.run("ours", number)
        seconds = time.monotonic() - begin
        self.ours.append(ours)
        missing = self.theirs.passed - ours.passed
        for test in sorted(missing - self.unsteady - self.lost.keys() - self.on_purpose.keys()):
            if why := record.reason(test, "known.txt"):
                self.on_purpose[test] = why
            elif not record.reason(test, "unsteady.txt") and self.steady(test):
                self.lost[test] = ours.outcomes.get(test, {"text": "did not run"})["text"]
            else:
                self.unsteady.add(test)
        unclean = self.theirs.clean and not ours.clean
        self.unclean += unclean
        if ours.ran:
            self.record(ours, sorted(missing & self.lost.keys()), not unclean, seconds)
        print(f"{self.path.stem:34} MXNet's engine {len(self.theirs.passed):4} of {len(self.theirs.outcomes):4}   ours, run {number}: "
              f"{len(ours.passed):4} of {len(ours.outcomes):4}{f'   NOT CLEAN: {ours.ended}' if unclean else ''}", flush=True)  # fmt: skip

    def record(self, ours: pieces.Results, lost: list[str], clean: bool, seconds: float) -> None:
        outcomes = [what["outcome"] for what in ours.outcomes.values()]
        record.add(commit=COMMIT, binary=self.mark, date=time.strftime("%Y-%m-%d", time.gmtime()), omp=self.arguments.omp,
                   file=self.path.stem.removeprefix("test_"), tests=len(outcomes), theirs_passed=len(self.theirs.passed),
                   passed=outcomes.count("passed"), skipped=outcomes.count("skipped"),
                   failed=len(outcomes) - outcomes.count("passed") - outcomes.count("skipped"), lost=lost,
                   on_purpose=sorted(self.on_purpose), clean=clean, seconds=round(seconds))  # fmt: skip

    def tell(self) -> None:
        for test, text in self.lost.items():
            print(f"    LOST {test}: {' '.join(text.split())[-300:]}")
        for test, why in self.on_purpose.items():
            print(f"    on purpose {test}: {why}")
        for test in sorted(self.unsteady):
            print(f"    unsteady on both: {test}")

    def rows(self) -> list[str]:
        runs = [self.theirs, *self.ours]
        tests = sorted({test for run in runs for test in run.outcomes})
        return [" ".join([*(f"{run.outcomes.get(test, {'outcome': '-'})['outcome']:8}" for run in runs), test]) for test in tests]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tests", type=pathlib.Path)
    parser.add_argument("files", nargs="*", help="names without test_ and .py; all of unittest/ otherwise")
    parser.add_argument("--runs", type=int, default=3, help="on our engine (3); 0: MXNet's only")
    parser.add_argument("--seconds", type=int, default=300, help="most for a test (300)")
    parser.add_argument("--piece-seconds", type=int, default=90, help="after which a process begins no more tests (90)")
    parser.add_argument("--omp", type=int, default=1, help="OpenMP threads (1)")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path(".cache/mxnet-tests"))
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs found out")
    parser.add_argument("--through", default="", help="a command that each process is started through, such as nice")
    arguments = parser.parse_intermixed_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside; the same command goes on from here"))
    results = arguments.results.absolute()
    if arguments.fresh:
        shutil.rmtree(results, ignore_errors=True)
    folder = arguments.tests.absolute() / "unittest"
    every = sorted(folder.glob("test_*.py"), key=lambda path: path.stat().st_size)
    paths = [folder / f"test_{name}.py" for name in arguments.files] or every
    for path in paths:
        if not path.exists():
            parser.error(f"MXNet has no {path.name}")
    mark = stamp() if arguments.runs else ""
    names = [path.stem.removeprefix("test_") for path in every]
    files: dict[pathlib.Path, File] = {}
    for path in paths:  # MXNet's engine and the first run on ours, one file after the other
        files[path] = File(path, results, mark, arguments)
        if arguments.runs:
            files[path].compare(1)
            record.tell(names)
    for number in range(2, arguments.runs + 1):
        for path in paths:
            files[path].compare(number)
            record.tell(names)
    for file in files.values():
        file.tell()
    (results / "table.txt").write_text("\n".join(row for file in files.values() for row in file.rows()) + "\n")
    print(f"each test: {results / 'table.txt'}")
    total = sum(len(file.theirs.passed) for file in files.values())
    lost = sum(len(file.lost) for file in files.values())
    unclean = sum(file.unclean for file in files.values())
    on_purpose = sum(len(file.on_purpose) for file in files.values())
    unsteady = sum(len(file.unsteady) for file in files.values())
    print(f"mxnet-tests: of {total} tests of {len(files)} files that pass on MXNet's engine {lost} are lost on ours in {arguments.runs} runs, "
          f"{unclean} unclean ends; {on_purpose} differ on purpose, {unsteady} are unsteady on both")  # fmt: skip
    return 1 if lost or unclean else 0


if __name__ == "__main__":
    sys.exit(main())
