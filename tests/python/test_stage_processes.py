"""Stages when the interpreter ends, and in the child of a fork."""

import os

import pytest

# Each program, and what its last lines must be. All must exit with 0 and say nothing of a fatal error.
PROGRAMS = {
    "never started": ("s = engine.data.staged(iter([1]))\nprint('end')", ["end"]),
    "drained": ("print(list(engine.data.staged(iter('ab'))))", ["['a', 'b']"]),
    "full, its producers without room": ("s = engine.data.staged(lambda: 1, num_threads=3)\nprint(next(s))", ["1"]),
    "a source that blocks in Python": (
        "s = engine.data.staged(threading.Event().wait)\ns.start()\nprint('end')",
        ["end"],
    ),
    "a source that blocks in a system call": (
        "r, w = os.pipe()\ns = engine.data.staged(lambda: os.read(r, 1))\ns.start()\nprint('end')",
        ["end"],
    ),
    "a source that is busy for ever": (
        """
        busy = threading.Event()
        def forever():
            while True: busy.set()
        s = engine.data.staged(forever)
        s.start(); busy.wait()
        print('end')
        """,
        ["end"],
    ),
    "sources that wake each other while the interpreter ends": (
        """
        import queue
        turns = queue.SimpleQueue()
        turns.put(None)
        s = engine.data.staged(lambda: turns.put(turns.get()), num_threads=4, capacity=1000000)
        next(s)
        print('end')
        """,
        ["end"],
    ),
    "a consumer that is a daemon thread": (
        """
        entered = threading.Semaphore(0)
        s = engine.data.staged(lambda: (entered.release(), threading.Event().wait()))
        def consume():
            try: next(s)
            except engine.CancelledError: pass
        threading.Thread(target=consume, daemon=True).start()
        entered.acquire()
        print('end')
        """,
        ["end"],
    ),
    "producers that wait for a source that blocks": (
        """
        entered, waits = threading.Event(), threading.Event()
        def source():
            yield 1
            entered.set()
            waits.wait()
        s = engine.data.staged(source(), num_threads=3)
        next(s); entered.wait()
        print('end')
        """,
        ["end"],
    ),
    "a daemon thread that joins it": (
        """
        entered = threading.Event()
        s = engine.data.staged(lambda: (entered.set(), threading.Event().wait()))
        def join():
            try: s.join()
            except engine.ShutdownError: pass
        s.start(); entered.wait()
        threading.Thread(target=join, daemon=True).start()
        print('end')
        """,
        ["end"],
    ),
    "daemon threads of which one waits until the other has its step": (
        """
        entered = threading.Event()
        def source():
            entered.set()
            threading.Event().wait()
            yield 1
        @engine.op
        def same(x): return x
        steps = engine.data.smart_stage(lambda x: same(x), source(), num_clients=2)
        def ask():
            try: next(steps)
            except engine.CancelledError: pass
        for _ in range(2): threading.Thread(target=ask, daemon=True).start()
        entered.wait()
        print('end')
        """,
        ["end"],
    ),
    "a consumer that is a thread of the program": (
        """
        s = engine.data.staged(range(100))
        def consume():
            until_exit()
            print(sum(s))
        threading.Thread(target=consume).start()
        """,
        ["4950"],
    ),
    "ops that take from it still pending": (
        """
        v, got = engine.Var('v'), []
        s = engine.data.staged(range(1000), capacity=3)
        for i in range(1000):
            engine.push(lambda i=i: print(next(s)) if i == 999 else next(s), updates=[v])
        """,
        ["999"],
    ),
    "an error that nobody took": ("s = engine.data.staged(lambda: 1 / 0)\ns.start(); s.join()\nprint('end')", ["end"]),
    "cancelled": ("s = engine.data.staged(lambda: 1)\nnext(s); s.cancel()\nprint('end')", ["end"]),
    "made in an atexit hook": (
        """
        import atexit
        engine.default()
        atexit.register(lambda: print(list(engine.data.staged(range(3)))))
        """,
        ["[0, 1, 2]"],
    ),
    "stages that read from stages": (
        """
        a = engine.data.staged(lambda: 1, num_threads=2)
        b = engine.data.staged(lambda x: x, {'x': a}, num_threads=2)
        c = engine.data.staged(lambda x: x, {'x': b}, num_threads=2)
        print(next(c))
        """,
        ["1"],
    ),
    "kept in a cycle": (
        """
        class Holder: pass
        h = Holder(); h.self = h; h.stage = engine.data.staged(lambda: h.self and 1)
        print(next(h.stage))
        """,
        ["1"],
    ),
}


@pytest.mark.parametrize("state", PROGRAMS)
def test_exit_is_clean_with_a_stage(state, run_python):
    program, last = PROGRAMS[state]
    ended = run_python(program)
    assert ended.code == 0, ended
    assert ended.out.split("\n")[:-1][-len(last) :] == last, ended
    assert "Fatal" not in ended.err and "terminate called" not in ended.err and "Traceback" not in ended.err, ended


def test_ctrl_c_while_a_program_waits_for_a_source_that_blocks(run_python):
    ended = run_python("""
        import signal
        s = engine.data.staged(threading.Event().wait)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        next(s)
        """)
    assert ended.code != 0 and "KeyboardInterrupt" in ended.err and "Fatal" not in ended.err, ended


def test_ctrl_c_while_another_thread_waits_for_the_item_of_its_step(run_python):
    ended = run_python("""
        import signal
        entered = threading.Event()
        def source():
            entered.set()
            threading.Event().wait()
            yield 1
        @engine.op
        def same(x): return x
        steps = engine.data.smart_stage(lambda x: same(x), source(), num_clients=2)
        threading.Thread(target=steps.step, daemon=True).start()
        entered.wait()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        next(steps)
        """)
    assert ended.code != 0 and "KeyboardInterrupt" in ended.err and "Fatal" not in ended.err, ended


FORK = """
def child(check):
    import traceback, signal
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            check()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork(run_python):
    ended = run_python(FORK + """
s = engine.data.staged(range(50), capacity=2, num_threads=2, name='rows')
fresh = engine.data.staged(range(5))
assert next(s) == 0
def check():
    try:
        next(s)
    except engine.ForkedWhilePending as error:
        assert "stage 'rows'" in str(error), error
    else:
        raise AssertionError('no error')
    s.cancel()
    s.restart()
    assert list(s) == list(range(50))
    assert list(engine.data.staged(range(7))) == list(range(7))
for _ in range(5):
    assert child(check) == 0
assert list(s) == list(range(1, 50)) and list(fresh) == list(range(5))
print('ok')
""")
    assert ended.code == 0 and ended.out == "ok\n", ended


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("clients", [1, 2])
def test_a_fork_while_a_thread_waits_for_the_item_of_its_step(clients, run_python):
    ended = run_python(FORK + f"""
entered, gate = threading.Event(), threading.Event()
def source():
    entered.set()
    gate.wait()
    yield from range(3)
@engine.op
def same(x): return x
steps = engine.data.smart_stage(lambda x: same(x), source(), num_clients={clients}, name='rows')
first = threading.Thread(target=steps.step)
first.start(); entered.wait()
def check():
    try:
        next(steps)
    except engine.ForkedWhilePending as error:
        assert "smart stage 'rows': a thread was asking it for a step" in str(error), error
    else:
        raise AssertionError('no error')
    steps.cancel()
assert child(check) == 0
gate.set(); first.join()
print([step.get() for step in steps])
""")
    assert ended.code == 0 and ended.out == "[1, 2]\n", ended


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("block", ["s", "engine.data.make_prefetch_hook()", "contextlib.nullcontext()"])
def test_a_child_that_ends_as_python_does(block, run_python):
    ended = run_python(f"""
import contextlib
s = engine.data.staged(lambda: 1, num_threads=2)
with {block}:
    next(s)
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    print(next(s))
""")
    assert ended.code == 0 and ended.out == "1\n", ended
