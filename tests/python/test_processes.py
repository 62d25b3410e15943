"""fork and spawn: the child has an engine that works; what the parent had pending stays the parent's."""

import os
import sys

import pytest

import engine

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

CHILD = """
def child(check):
    # Runs check() in a forked child; its exit code says whether it held.
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

def works():
    v, ran = engine.Var('w'), []
    engine.push(lambda: ran.append(os.getpid()), writes=[v])
    assert v.wait(10) and ran == [os.getpid()]
    engine.wait_all(10)
"""


def held(ended):
    assert ended.code == 0 and ended.out.endswith("ok\n"), ended


def test_a_child_can_push_again(run_python):
    held(run_python(CHILD + "works(); assert child(works) == 0; works(); print('ok')"))


def test_a_child_of_a_process_that_never_pushed(run_python):
    held(run_python(CHILD + "assert child(works) == 0; works(); print('ok')"))


def test_a_child_of_a_child(run_python):
    held(run_python(CHILD + "works(); assert child(lambda: (works(), child(works) and 1 / 0)) == 0; print('ok')"))


def test_fork_while_ops_run(run_python):
    held(run_python(CHILD + """
gate, v = threading.Event(), engine.Var('v')
engine.push(gate.wait, writes=[v])
engine.push(lambda: None, updates=[v])
def check():
    works()
    try:
        v.wait(10)
    except engine.ForkedWhilePending as error:
        assert 'forked' in str(error)
    else:
        raise AssertionError('no error')
    engine.push(lambda: None, writes=[v])
    assert v.wait(10)
code = child(check)
gate.set()
assert code == 0 and v.wait(10) and v.version == 2
print('ok')
"""))


def test_fork_while_other_threads_push_and_wait(run_python):
    held(run_python(CHILD + """
stop = threading.Event()
def busy():
    v = engine.Var('b')
    while not stop.is_set():
        engine.push(lambda: None, updates=[v])
        v.wait()
threads = [threading.Thread(target=busy) for _ in range(3)]
for t in threads: t.start()
try:
    codes = [child(works) for _ in range(20)]
finally:
    stop.set()
for t in threads: t.join()
assert codes == [0] * 20, codes
print('ok')
"""))


def test_fork_with_an_error_pending(run_python):
    held(run_python(CHILD + """
v = engine.Var('v')
engine.push(lambda: 1 / 0, writes=[v])
try: v.wait()
except ZeroDivisionError: pass
def check():
    try: v.wait(10)
    except ZeroDivisionError: pass
    else: raise AssertionError
    works()
assert child(check) == 0
check()
print('ok')
"""))


def test_a_child_that_ends_as_python_does(run_python):
    held(run_python(CHILD + """
gate = threading.Event()
engine.push(gate.wait)
pid = os.fork()
if pid == 0:
    works()
    engine.push(lambda: os.write(1, b'child '))
    sys.exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
gate.set()
engine.wait_all()
assert code == 0
print('ok')
"""))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(run_python, method):
    held(run_python(f"""
import multiprocessing
def square(x):
    out, v = [], engine.Var('v')
    engine.push(lambda: out.append(x * x), writes=[v])
    v.wait()
    return out[0]
if __name__ == '__main__':
    square(1)
    with multiprocessing.get_context('{method}').Pool(2) as pool:
        assert pool.map(square, range(10)) == [x * x for x in range(10)]
    print('ok')
"""))


def test_subprocesses_can_be_started_while_ops_run(gate):
    import subprocess

    engine.push(gate)
    gate.wait_until_entered()
    assert subprocess.run([sys.executable, "-c", "print('ok')"], capture_output=True).stdout == b"ok\n"


def test_an_op_may_fork(run_python):
    held(run_python("""
def body():
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
v = engine.Var('v')
engine.push(body, writes=[v])
assert v.wait(20)
print('ok')
"""))


def test_forks_beside_threads_that_make_and_drop_engines(run_python):
    """Workers that enter Python for the first time hold a lock of the interpreter, which the child of a fork needs."""
    ended = run_python(
        """
    import select
    over = False
    def churn():
        while not over:
            with engine.Engine(workers=2) as own:
                for _ in range(5):
                    own.push(lambda: None)
                own.wait_all()
    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    right = 0
    for _ in range(60):
        seen, says = os.pipe()
        child = os.fork()
        if child == 0:
            with engine.Engine(workers=1) as own:
                own.push(lambda: os.write(says, b"ran"))
                own.wait_all()
            os._exit(0)
        if not select.select([seen], [], [], 20)[0]:
            os.kill(child, 9)
        right += os.read(seen, 3) == b"ran" if select.select([seen], [], [], 0)[0] else 0
        os.waitpid(child, 0)
        os.close(seen), os.close(says)
    over = True
    for thread in threads:
        thread.join()
    print(right)
    """
    )
    assert ended.out == "60\n", ended


def test_a_child_may_record_what_another_thread_is_recording(run_python):
    held(run_python(CHILD + """
parent = os.getpid()
begun, go = threading.Event(), threading.Event()
same = engine.op(lambda x: x)

@engine.hybridize
def step(x):
    if os.getpid() == parent:
        begun.set()
        go.wait(20)
    return same(x)

thread = threading.Thread(target=step, args=(1,))
thread.start()
begun.wait(20)
def check():
    assert step(2).get() == 2
assert child(check) == 0
go.set()
thread.join()
with engine.metrics.serve() as served:
    assert child(served.close) == 0
print('ok')
"""))
