"""Runs one file of MXNet's tests on one engine, in pieces: each is a process that runs tests for a while and leaves the rest
to the next one. So no file is too long, a crash costs the test that crashed, and a run that is cut goes on where it was.

What is known lies in a file of lines of JSON, which the plugin and we append to: {"test", "begin"}, {"test", "outcome"},
{"ended"} behind each process, {"all"} when no test is left.
"""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SEED = "20230126"
HUNG = 4  # times a test's limit, after which a process without a new line hangs, and is ended


class Results:
    """What the lines of a file of results say."""

    def __init__(self, path: pathlib.Path):
        self.outcomes: dict[str, dict] = {}
        self.ended: list[int | str] = []
        self.all = False
        self.ran = False  # not all of it was known before
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for line in lines:
            if "ended" in line:
                self.ended.append(line["ended"])
            elif "all" in line:
                self.all = True
            elif "outcome" in line:
                # A test whose end fails is not passed, whatever its call was.
                if self.outcomes.get(line["test"], {}).get("outcome") != "failed":
                    self.outcomes[line["test"]] = line
            elif "begin" in line:
                self.outcomes[line["test"]] = {"outcome": "began", "text": "the process ended in it"}
        # Ended by whoever ended us: the test that it was in is run again.
        if lines and "ended" not in lines[-1] and not self.all:
            self.outcomes = {test: what for test, what in self.outcomes.items() if what["outcome"] != "began"}

    @property
    def passed(self) -> set[str]:
        return {test for test, what in self.outcomes.items() if what["outcome"] == "passed"}

    @property
    def clean(self) -> bool:
        """Whether each process ended by itself, whatever became of the tests."""
        return all(code in (0, 1, 5) for code in self.ended)


def append(path: pathlib.Path, **what) -> None:
    with path.open("a") as file:
        file.write(json.dumps(what) + "\n")


def stopped(pid: int) -> bool:
    """Whether somebody has stopped the process, as those do who measure."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def process(engine: str, tests: str, path: pathlib.Path, arguments) -> tuple[int | str, str]:
    """One process: how it ended, and the end of what it said."""
    environment = dict(
        os.environ,
        MXNET_TESTS_ENGINE=engine,
        MXNET_TESTS_RESULTS=str(path),
        MXNET_TESTS_SECONDS=str(arguments.seconds),
        MXNET_TESTS_PIECE=str(arguments.piece_seconds),
        MXNET_TEST_SEED=SEED,
        MXNET_MODULE_SEED=SEED,
        MXNET_STORAGE_FALLBACK_LOG_VERBOSE="0",
        DMLC_LOG_STACK_TRACE_DEPTH="0",
        OMP_NUM_THREADS=str(arguments.omp),
        PYTHONPATH=os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        PYTHONWARNINGS="ignore",
    )
    folder = path.with_suffix(".folder")  # some tests write files
    folder.mkdir(exist_ok=True)
    command = [*arguments.through.split(), sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider", "-c",
               os.devnull, "--rootdir", str(pathlib.Path(tests).parent), "--no-header", "--tb=line", tests]  # fmt: skip
    said = path.with_suffix(".out")
    with said.open("wb") as out:
        child = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        began = seen = path.stat().st_size if path.exists() else 0
        waited = 0  # seconds in which it could have gone on
        while True:
            try:
                code: int | str = child.wait(1)
                break
            except subprocess.TimeoutExpired:
                size = path.stat().st_size if path.exists() else 0
                # Before its first line it may wait for its turn, in what it is run through; and it may be stopped for a while.
                waited = 0 if size != seen or seen == began else waited + (not stopped(child.pid))
                seen = size
                if waited > HUNG * arguments.seconds:
                    code = "hung"
                    break
    finally:
        if child.poll() is None:
            os.killpg(child.pid, 9)
            child.wait()
    return code, said.read_text(errors="replace")[-600:]


def run(engine: str, file: pathlib.Path, path: pathlib.Path, arguments) -> Results:
    """The outcomes of all tests of `file`; those that `path` has already are not run again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    results = Results(path)
    ran = not results.all
    while not results.all:
        before = len(results.outcomes)
        code, said = process(engine, str(file), path, arguments)
        if code in (3, 4):  # not a test's fault
            raise SystemExit(f"pytest itself failed: {said}")
        append(path, ended=code)
        results = Results(path)
        if not results.all and len(results.outcomes) == before:  # it ended before its first test
            append(path, test="(collection)", outcome="failed", text=said)
            append(path, all=True)
            results = Results(path)
    results.ran = ran
    return results


def alone(engine: str, file: pathlib.Path, test: str, path: pathlib.Path, arguments) -> bool:
    """Whether one test, asked by itself, passes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    process(engine, f"{file}::{test.split('::', 1)[1]}", path, arguments)
    return test in Results(path).passed
