"""Ctrl-C ends what the main thread does, wherever it is: in a push that waits for room, in an op that runs inside a push,
at any moment of a recording."""

import pytest

INTERRUPT = """
    import signal, time, itertools
    def soon(seconds=0.05):
        signal.setitimer(signal.ITIMER_REAL, seconds)
    def interrupt(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
"""


PUSHES = {
    "push": "engine.push(nothing)",
    "push_async": "engine.push_async(lambda done: done())",
    "push_held": "engine.push_held(nothing)",
    "an Operator": "operator.push()",
    "a call": "double(1)",
    "a recorded function": "recorded(1)",
    "a plan": "plan.start([1])",
    "overwrite": "value.overwrite(1)",
}
READY = """
    engine.init(workers=1, max_pending=4)
    nothing = lambda: None
    double = engine.op(lambda x: 2 * x)
    value, operator, plan = engine.value(1), engine.new_operator(nothing), engine.graph(lambda x: double(x), 1)
    recorded = engine.hybridize(lambda x: double(x))
    recorded(1).get()
    engine.wait_all()
"""


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
def test_a_push_that_waits_for_room_can_be_interrupted(run_python, push):
    ended = run_python(
        INTERRUPT
        + READY
        + f"""
    gate = threading.Event()
    engine.push(gate.wait)
    soon()
    pushed = 0
    try:
        for pushed in range(1000):
            {push}
    except KeyboardInterrupt:
        print("interrupted", pushed < 10)
    gate.set()
    engine.wait_all()
    """
    )
    assert ended.out == "interrupted True\n", ended


@pytest.mark.parametrize("push", PUSHES.values(), ids=PUSHES)
@pytest.mark.parametrize("full", ["of ops that wait for the main thread", "and stopped"])
def test_a_push_of_the_main_thread_goes_on_where_nothing_else_can(run_python, push, full):
    """As one of any other thread does: a wait would be for itself."""
    ended = run_python(
        READY
        + f"""
    stopped = {full == "and stopped"}
    held = engine.push_held(nothing, writes=[value])
    if stopped:
        engine.default().stop()
    else:
        for _ in range(4):
            engine.push(nothing, updates=[value])
    for _ in range(10):
        {push}
    held.release()
    if stopped:
        engine.default().start()
    engine.wait_all()
    print("went on")
    """
    )
    assert ended.out == "went on\n", ended


@pytest.mark.parametrize("policy", ["inline", "naive"])
def test_an_op_inside_its_push_can_be_interrupted_and_the_program_hears_of_it(run_python, policy):
    ended = run_python(
        INTERRUPT
        + f"""
    engine.set_policy("{policy}")
    x = engine.value(1)
    slow = engine.op(lambda x: [time.sleep(0.01) for _ in range(10)])
    soon()
    try:
        for number in range(100):
            slow(x)
        print("went on")
    except KeyboardInterrupt:
        print("interrupted")
    try:
        engine.wait_all()
    except KeyboardInterrupt:
        pass
    sys.stdout.flush()
    os._exit(0)
    """
    )
    assert ended.out == "interrupted\n", ended


def test_a_recording_that_is_interrupted_leaves_nothing_behind(run_python):
    ended = run_python(
        INTERRUPT
        + """
    double = engine.op(lambda x: x + x)
    def body(x):
        for _ in range(20):
            x = double(x)
        return x
    wrong = hits = 0
    for i in range(300):
        try:
            soon(0.00002 * (i % 60) + 0.00001)
            engine.hybridize(body)(1)
            with engine.bulk(4), engine.policy("inline"):
                double(1)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            hits += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            wrong += type(double(1)).__name__ != "Value" or engine.default().policy[0] != "threaded"
        except KeyboardInterrupt:
            pass
    engine.set_bulk_size(0)
    print(wrong, hits > 20)
    """,
        timeout=100,
    )
    assert ended.out == "0 True\n", ended


def test_a_recording_may_be_interrupted_at_each_call_of_a_function(run_python):
    ended = run_python(
        """
    double = engine.op(lambda x: x + x)
    def body(x):
        return double(double(x))
    def raising_at(number):
        def trace(frame, event, arg):
            nonlocal number
            number -= event == "call"
            if number == 0 and event == "call":
                raise KeyboardInterrupt
        return trace
    wrong = interrupted = number = 0
    while True:
        number += 1
        hybrid = engine.hybridize(body)
        sys.settrace(raising_at(number))
        try:
            hybrid(1)
        except KeyboardInterrupt:
            sys.settrace(None)
            interrupted += 1
        else:
            sys.settrace(None)
            break
        wrong += type(double(1)) is not engine.Value
    print(wrong, interrupted > 20)
    """
    )
    assert ended.out == "0 True\n", ended


def test_interrupts_at_any_moment_leave_no_bulk_and_no_cancelled_scope_behind(run_python):
    ended = run_python(
        INTERRUPT
        + """
    double = engine.op(lambda x: x + x)
    wrong = hits = 0
    for i in range(300):
        try:
            soon(0.00001 * (i % 60) + 0.00001)
            for _ in range(20):
                with engine.bulk(4), engine.policy("inline"), engine.CancelScope() as scope:
                    double(1)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            hits += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            wrong += engine.set_bulk_size(0) != 0
            wrong += double(2).get() != 4
        except KeyboardInterrupt:
            pass
    print(wrong, hits > 20)
    """,
        timeout=100,
    )
    assert ended.out == "0 True\n", ended


def test_a_smart_stage_that_is_interrupted_goes_on(run_python):
    ended = run_python(
        INTERRUPT
        + """
    double = engine.op(lambda x: x + x)
    hits, seen, rows, armed = 0, [], 0, False
    def interrupt(*_):
        if armed:  # what failed by an earlier interrupt may end an attempt before its timer has
            raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    def read():
        global rows
        while True:
            rows += 1
            yield rows
    steps = engine.data.smart_stage(lambda x: double(double(x)), read(), profile_steps=2, guard_steps=3, capacity=2)
    for i in range(300):
        try:
            armed = True
            soon(0.00001 * (i % 60) + 0.00001)
            for _ in range(5):
                seen.append(next(steps).get())
            armed = False
        except KeyboardInterrupt:
            armed = False
            hits += 1
        except (StopIteration, engine.EndOfData):
            armed = False
            break  # the interrupt came while the source was read, and a generator ends with what it raises
        signal.setitimer(signal.ITIMER_REAL, 0)
    print(seen == sorted(seen), all(s % 4 == 0 for s in seen), hits > 0)
    """,
        timeout=100,
    )
    assert ended.out == "True True True\n", ended


def test_a_trace_may_be_interrupted_at_each_line_and_the_next_one_runs(run_python):
    ended = run_python(
        """
    f = engine.op(lambda x: x + 1)
    f(1).get()
    def raising_at(number):
        def trace(frame, event, arg):
            nonlocal number
            if "tracing.py" in frame.f_code.co_filename:
                number -= 1
                if number == 0:
                    raise KeyboardInterrupt
            return trace
        return trace
    stuck = interrupted = number = 0
    while True:
        number += 1
        sys.settrace(raising_at(number))
        try:
            with engine.trace() as t:
                f(1).get()
        except KeyboardInterrupt:
            sys.settrace(None)
            interrupted += 1
        else:
            sys.settrace(None)
            break
        try:
            with engine.trace() as t:
                f(1).get()
            stuck += not t.events
        except engine.UsageError:
            stuck += 1
    print(stuck, interrupted > 5)
    """
    )
    assert ended.out == "0 True\n", ended


def test_signals_at_any_moment_leave_no_trace_running(run_python):
    ended = run_python(
        INTERRUPT
        + """
    f = engine.op(lambda x: x + 1)
    stuck = hits = tries = 0
    armed = False
    def interrupt(*_):
        if armed:
            raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    begin = time.perf_counter()
    for i in range(20):
        with engine.trace():
            f(1).get()
    once = (time.perf_counter() - begin) / 20
    while hits < 60:  # at moments all over such a block, however fast the machine is
        tries += 1
        try:
            armed = True
            soon(0.00001 + once * (tries % 60) / 50)
            with engine.trace():
                f(1).get()
            armed = False
        except KeyboardInterrupt:
            armed = False
            hits += 1
        except engine.UsageError:
            armed = False
            stuck += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(stuck)
    """,
        timeout=100,
    )
    assert ended.out == "0\n", ended
