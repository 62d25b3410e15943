"""A pytest plugin for one run of one file of MXNet's tests.

Loads our engine first where MXNET_TESTS_ENGINE says `ours`. Writes a line of JSON a test, at once, so that a crash loses
nothing, and fails a test that takes longer than MXNET_TESTS_SECONDS.
"""

import json
import os
import signal
import time

ours = os.environ["MXNET_TESTS_ENGINE"] == "ours"
if ours:
    import engine.mxnet
import mxnet  # noqa: E402 - after ours
import pytest  # noqa: E402

results = open(os.environ["MXNET_TESTS_RESULTS"], "a", buffering=1)
limit = int(os.environ["MXNET_TESTS_SECONDS"])
mxnet.nd.ones(1).wait_to_read()
assert not ours or engine.mxnet.active()


def write(**what):
    results.write(json.dumps(what) + "\n")


class TooLong(BaseException):
    pass


def too_long(signum, frame):
    raise TooLong(f"longer than {limit} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(limit)
    try:
        return (yield)
    except TooLong as error:
        pytest.fail(str(error))
    finally:
        signal.alarm(0)


def pytest_runtest_logstart(nodeid, location):
    write(test=nodeid.split("/")[-1], begin=time.time())


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        text = "" if report.outcome == "passed" else str(report.longrepr)[-600:]
        write(test=report.nodeid.split("/")[-1], outcome=report.outcome, seconds=report.duration, text=text)
