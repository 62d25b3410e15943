"""Shared by the Python tests: gates instead of sleeps, seeds that are printed, programs in a process of their own."""

import importlib.util
import logging
import os
import pathlib
import random
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import engine

# A shell that starts the tests in the background makes them and their children ignore SIGINT, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)

# perf/ has folders of these names, and a test puts perf/ on the path. Where the modules are not installed, tests shall skip.
for name in ("torch", "mxnet"):
    if importlib.util.find_spec(name) is None:
        sys.modules[name] = None  # type: ignore[assignment]

PATIENCE = 20  # seconds; reached only when something hangs


class Gate:
    """Something that ops wait at until the test opens it."""

    def __init__(self):
        self._open, self._entered = threading.Event(), threading.Semaphore(0)

    def __call__(self):
        """The body of an op: says that it runs, and waits."""
        self._entered.release()
        assert self._open.wait(PATIENCE), "nobody opened the gate"

    def open(self):
        self._open.set()

    def wait_until_entered(self, times=1):
        for _ in range(times):
            assert self._entered.acquire(timeout=PATIENCE), "no op came to the gate"


@pytest.fixture
def gate():
    """Opened at the end in any case, so that a failing test doesn't hang the next."""
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def rng():
    """Random numbers; the seed is printed, and ENGINE_TEST_SEED repeats it."""
    seed = int(os.environ.get("ENGINE_TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"ENGINE_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(autouse=True, scope="session")
def no_trace_of_torch():
    """pytest gives handlers to each logger that does not propagate, that of torch's own trace among them; and while that has one, torch
    puts into words all that it traces, each thing with a traceback. This is a third of a capture's time."""
    trace = logging.getLogger("torch.__trace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "handlers", [])
        patch.setattr(trace, "addHandler", lambda handler: None)
        yield


@pytest.fixture(autouse=True)
def quiet_engine():
    """Every test ends with nothing pending, and no error left for the next to see."""
    yield
    for _ in range(1000):
        try:
            if engine.wait_all(PATIENCE):
                return
        except BaseException:
            continue
        pytest.fail("ops were still pending:\n" + engine.describe_pending())


PRELUDE = """\
import os, sys, threading
import engine
until_exit = threading.main_thread().join
"""


class Finished:
    def __init__(self, process):
        self.code, self.out, self.err = process.returncode, process.stdout, process.stderr

    def __repr__(self):
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def environment():
    """For child processes: they import the same engine."""
    package = str(pathlib.Path(engine.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def run_python(tmp_path):
    """Runs a program in a fresh interpreter; a hang is a failure."""

    def run(program, timeout=60, **env):
        path = tmp_path / "program.py"
        path.write_text(PRELUDE + textwrap.dedent(program))
        process = subprocess.run([sys.executable, "-X", "faulthandler", str(path)], capture_output=True, text=True,
                                 timeout=timeout, env={**environment(), **env})  # fmt: skip
        return Finished(process)

    return run


@pytest.fixture
def mxnet_library():
    """The library that programs in C++ preload to run MXNet on this engine, beside the package."""
    folder = pathlib.Path(engine.__file__).parent
    found = [*folder.glob("libengine_mxnet.so"), *folder.glob("../mxnet/libengine_mxnet.so")]
    assert found, f"no libengine_mxnet.so near {folder}"
    return str(found[0].resolve())


def line_of(marker):
    """Where the calling test's source says ``# marker``: (file, line)."""
    frame = sys._getframe(1)
    lines = pathlib.Path(frame.f_code.co_filename).read_text().splitlines()
    (line,) = [i for i, text in enumerate(lines, 1) if text.endswith(f"# {marker}")]
    return frame.f_code.co_filename, line
