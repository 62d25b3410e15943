"""What the dependencies of a program of programs.py allow. Called by suite.py with the same arguments as programs.py, and cases behind
them; each case is answered with a line of JSON:

    allows.py --variant ours --workers 2 wide_forward

us_per_step    what a step's ops take on one thread
two_workers    how much faster two workers run the ops that take the oldest that is ready
at_most        how much faster two workers can be by any choice (bound.py)

An op's dependencies are those that a trace shows; its time is the median over steps that run one op after the other. So the result
depends little on what else the machine does."""

import json
import sys

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
    """What ops took on one thread."""
    engine.set_policy("inline")
    measured = [(event.name, event.end - event.begin) for event in traced(case, MEASURED)]
    engine.set_policy("threaded")
    return measured


for name in CASES:
    case = programs.CASES[name]()
    case(3)
    measured = alone(case)
    case(1)
    events = traced(case, STEPS)
    place = {event.op: i for i, event in enumerate(events)}
    seconds = bound.seconds_of((event.name for event in events), measured, MEASURED)
    ops = [(event.name, took, [place[op] for op in event.after if op in place]) for event, took in zip(events, seconds)]
    total = sum(seconds)
    print(json.dumps({"case": name, "us_per_step": total / STEPS * 1e6,
                      "two_workers": total / bound.oldest_first(ops, 2), "at_most": total / bound.at_least(ops, 2)}),
          flush=True)  # fmt: skip
