"""What the dependencies of a program of programs.py allow. Called by suite.py with the same arguments as programs.py, and cases behind
them; each case is answered with a line of JSON:

    allows.py --variant ours --workers 2 wide_forward

us_per_step    what a step's ops take on one thread
share          that by the one thread's whole time for the step, in which it also pushes them
two_workers    how much faster two workers run the ops that take the oldest that is ready
at_most        how much faster two workers can be by any choice (bound.py)

An op's dependencies are those that a trace shows; its time is the median over steps that run one op after the other. So the result
depends little on what else the machine does."""

import json
import statistics
import sys
import time

CASES = sys.argv[5:]
del sys.argv[5:]
import bound  # noqa: E402
import programs  # noqa: E402 - loads MXNet by the arguments

import engine  # noqa: E402

STEPS = 4  # together: the next step may begin before one ends
MEASURED = 5


def traced(case, n):
    with engine.trace() as trace:
        case(n)
    return sorted(trace.events, key=lambda event: event.op)


def alone(case):
    """What ops took on one thread, and its own time for a step without a trace: without what other processes took of the core."""
    engine.set_policy("inline")
    measured = [(event.name, event.end - event.begin) for event in traced(case, MEASURED)]
    steps = []
    for _ in range(MEASURED):
        begin = time.thread_time()
        case(1)
        steps.append(time.thread_time() - begin)
    engine.set_policy("threaded")
    return measured, statistics.median(steps)


for name in CASES:
    case = programs.CASES[name]()
    case(3)
    measured, step = alone(case)
    case(1)
    events = traced(case, STEPS)
    place = {event.op: i for i, event in enumerate(events)}
    seconds = bound.seconds_of((event.name for event in events), measured, MEASURED)
    ops = [(event.name, took, [place[op] for op in event.after if op in place]) for event, took in zip(events, seconds)]
    total = sum(seconds)
    print(json.dumps({"case": name, "us_per_step": total / STEPS * 1e6, "share": min(1.0, total / STEPS / step),
                      "two_workers": total / bound.oldest_first(ops, 2), "at_most": total / bound.at_least(ops, 2)}),
          flush=True)  # fmt: skip
