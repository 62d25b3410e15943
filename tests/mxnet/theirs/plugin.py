"""A pytest plugin for one process of pieces.py.

Loads our engine first where MXNET_TESTS_ENGINE says `ours`. Leaves out the tests whose outcome MXNET_TESTS_RESULTS has, writes
a line there for each test that begins and ends, at once, so that a crash loses nothing; begins no more tests after
MXNET_TESTS_PIECE seconds, and fails a test that takes more than MXNET_TESTS_SECONDS of the processors' time.
"""

import json
import os
import pathlib
import signal
import time

from pieces import Results

ours = os.environ["MXNET_TESTS_ENGINE"] == "ours"
known = Results(pathlib.Path(os.environ["MXNET_TESTS_RESULTS"])).outcomes
results = open(os.environ["MXNET_TESTS_RESULTS"], "a", buffering=1)
limit = int(os.environ["MXNET_TESTS_SECONDS"])


def write(**what):
    results.write(json.dumps(what) + "\n")


write(process=os.getpid())
if ours:
    import engine.mxnet
import mxnet  # noqa: E402 - after ours
import pytest  # noqa: E402

mxnet.nd.ones(1).wait_to_read()
assert not ours or engine.mxnet.active()
end = None  # the time from which on no test begins
left = False  # tests for the next process


class TooLong(BaseException):
    pass


def too_long(signum, frame):
    raise TooLong(f"longer than {limit} s")


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.nodeid.split("/")[-1] not in known]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    global left, end
    end = end or time.monotonic() + int(os.environ["MXNET_TESTS_PIECE"])
    left = left or time.monotonic() > end
    return left or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        return (yield)
    except TooLong as error:
        pytest.fail(str(error))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def pytest_runtest_logstart(nodeid, location):
    write(test=nodeid.split("/")[-1], begin=time.time())


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        text = "" if report.outcome == "passed" else str(report.longrepr)[-600:]
        write(test=report.nodeid.split("/")[-1], outcome=report.outcome, seconds=report.duration, text=text)


def pytest_sessionfinish(session, exitstatus):
    if not left and exitstatus in (0, 1, 5):
        write(all=True)
