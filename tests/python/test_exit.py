"""Contract 8: an interpreter that ends with ops in any state ends cleanly, with what it promised done."""

import pytest

# Each program, and what its last lines must be. All must exit with 0 unless a third item says otherwise.
# `until_exit()` returns when the interpreter has begun to end, before its atexit hooks: a gate that exit opens.
PROGRAMS = {
    "nothing was used": ("print('end')", ["end"]),
    "engine idle": ("engine.push(print, name='p'); engine.wait_all(); print('end')", ["end"]),
    "ops pending": (
        """
        v = engine.Var('v')
        for i in range(1000):
            engine.push(lambda i=i: print(i) if i == 999 else None, updates=[v])
        """,
        ["999"],
    ),
    "an op running": ("engine.push(lambda: (until_exit(), print('ran')))", ["ran"]),
    "a running op pushes": ("engine.push(lambda: engine.push(lambda: print('inner')))", ["inner"]),
    "async op never completed": (
        """
        engine.init(drain_timeout=0.1)
        kept = []
        v = engine.Var('v')
        engine.push_async(kept.append, writes=[v], name='never')
        """,
        [],
    ),
    "async op completed by a daemon thread too late": (
        """
        engine.init(drain_timeout=0)
        v, started = engine.Var('v'), threading.Event()
        def body(done):
            threading.Thread(target=lambda: (until_exit(), done()), daemon=True).start()
            started.set()
        engine.push_async(body, writes=[v])
        started.wait()  # from Python 3.12 on, an interpreter that ends starts no threads
        """,
        [],
    ),
    "exception never seen": ("engine.push(lambda: 1 / 0, name='lost')", []),
    "exception in flight": (
        """
        v = engine.Var('v')
        engine.push(lambda: (until_exit(), 1 / 0), writes=[v])
        for _ in range(100):
            engine.push(lambda: None, updates=[v])
        """,
        [],
    ),
    "main thread raises": (
        "engine.push(until_exit)\nengine.push(lambda: print('ran'))\nraise KeyError",
        ["ran"],
        1,
    ),
    "main thread exits": ("engine.push(lambda: print('ran'))\nsys.exit(3)", ["ran"], 3),
    "sys.exit inside an op": ("engine.push(lambda: sys.exit(5))\nengine.stop()\nengine.start()\nprint('end')", ["end"]),
    "values alive in globals": (
        """
        @engine.op
        def f(x): return x + 1
        a = f(engine.value(1)); b = [f(a) for _ in range(10)]
        """,
        [],
    ),
    "engines alive in globals": (
        "mine = engine.Engine(workers=2)\nv = engine.Var('v', mine)\nmine.push(lambda: print('ran'), writes=[v])",
        ["ran"],
    ),
    "engine dropped by its own op": (
        """
        mine = engine.Engine(workers=2)
        mine.push(until_exit)
        mine.push(lambda held=mine: until_exit())
        mine.push(lambda: (until_exit(), print('ran')))
        del mine
        """,
        ["ran"],
    ),
    "engine alive in a cycle": ("mine = engine.Engine(workers=1)\nc = [mine]; c.append(c); del mine, c", []),
    "daemon thread waits": (
        """
        kept = []
        engine.init(drain_timeout=0.1)
        v = engine.Var('v')
        engine.push_async(kept.append, writes=[v])
        for _ in range(4):
            threading.Thread(target=v.wait, daemon=True).start()
        """,
        [],
    ),
    "daemon thread pushes": (
        """
        v, busy = engine.Var('v'), threading.Event()
        def forever():
            while True: engine.push(lambda: busy.set() if v.version > 1000 else None, updates=[v])
        for _ in range(2):
            threading.Thread(target=forever, daemon=True).start()
        busy.wait()
        """,
        [],
    ),
    "daemon thread loops over waits": (
        """
        v, busy = engine.Var('v'), threading.Event()
        def forever():
            while True:
                engine.push(lambda: busy.set() if v.version > 1000 else None, updates=[v]); v.wait()
        for _ in range(2):
            threading.Thread(target=forever, daemon=True).start()
        busy.wait()
        """,
        [],
    ),
    "stopped": ("engine.stop()\nengine.push(lambda: print('ran'))", ["ran"]),
    "no workers": ("engine.init(workers=0)\nengine.push(lambda: print('ran'))", ["ran"]),
    "naive": ("engine.set_policy('naive')\nengine.push(lambda: print('ran'))", ["ran"]),
    "tracing": ("engine.trace().__enter__()\nengine.push(lambda: print('ran'))", ["ran"]),
    "pushed by an atexit hook": (
        "import atexit\nengine.default()\natexit.register(lambda: engine.push(lambda: print('ran')))",
        ["ran"],
    ),
    "pushed after the engine has ended": (
        """
        import atexit
        def late():
            try:
                engine.push(lambda: print('never'))
            except engine.Error as error:
                print(type(error).__name__)
        atexit.unregister(engine._core._shut_down_all)
        atexit.register(late)
        atexit.register(engine._core._shut_down_all)
        engine.push(lambda: None)
        """,
        ["UsageError"],
    ),
    "waited for after the engine has ended": (
        """
        import atexit
        v = engine.Var('v')
        atexit.unregister(engine._core._shut_down_all)
        atexit.register(lambda: print(v.wait(), v.version))
        atexit.register(engine._core._shut_down_all)
        engine.push(lambda: None, writes=[v])
        """,
        ["True 1"],
    ),
    "destructor of a module global uses the engine": (
        """
        class Late:
            def __del__(self):
                try: engine.push(lambda: None)
                except engine.Error: pass
        late = Late()
        engine.push(lambda: None)
        """,
        [],
    ),
    "a thread of the program still works": (
        """
        def work():
            until_exit()
            v = engine.Var('v'); engine.push(lambda: print('ran'), writes=[v]); v.wait()
        threading.Thread(target=work).start()
        """,
        ["ran"],
    ),
    "an event loop that never finished": (
        """
        import asyncio
        kept = []
        engine.init(drain_timeout=0.1)
        v = engine.Var('v')
        async def main():
            engine.push_async(kept.append, writes=[v])
            asyncio.ensure_future(wait())
            await asyncio.sleep(0)
        async def wait(): await v
        asyncio.run(main())
        """,
        [],
    ),
}


@pytest.mark.parametrize("state", PROGRAMS)
def test_exit_is_clean_with(state, run_python):
    program, last, *code = PROGRAMS[state]
    ended = run_python(program)
    assert ended.code == (code[0] if code else 0), ended
    assert ended.out.split("\n")[:-1][-len(last) or None :] == last or not last, ended
    assert "Fatal" not in ended.err and "terminate called" not in ended.err, ended


def test_errors_that_nobody_saw_are_reported_at_exit(run_python):
    ended = run_python("engine.push(lambda: 1 / 0, name='lost')")
    assert "lost" in ended.err and "ZeroDivisionError" in ended.err and "program.py" in ended.err, ended


def test_ctrl_c_while_exit_waits_ends_the_process(run_python):
    ended = run_python("""
        import signal
        engine.push(threading.Event().wait)
        def interrupt():
            until_exit()
            while True:  # the first may come before the hook that waits
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(0.05)
        threading.Thread(target=interrupt, daemon=True).start()
        """)
    assert ended.code == 130 and "interrupted while ops were pending" in ended.err, ended
