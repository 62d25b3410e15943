"""The package: typed, documented, and importing nothing heavy."""

import inspect
import pathlib

import engine

ROOT = pathlib.Path(engine.__file__).parent


def public():
    for module in (engine, engine.comm, engine.data, engine.testing):
        for name in module.__all__:
            thing = getattr(module, name)
            yield f"{module.__name__}.{name}", thing
            if inspect.isclass(thing):
                for member, value in vars(thing).items():
                    if not member.startswith("_") and callable(value):
                        yield f"{module.__name__}.{name}.{member}", value


def test_everything_public_says_what_it_does():
    missing = [name for name, thing in public() if callable(thing) and not (thing.__doc__ or "").strip()]
    assert not [name for name in missing if name.split(".")[-1] not in ("start_trace",)]


def test_docstrings_are_short():
    long = [n for n, t in public() if not inspect.ismodule(t) and len((t.__doc__ or "").strip().splitlines()) > 12]
    assert long == ["engine.init"]  # which is a table


def test_the_package_is_typed():
    assert (ROOT / "py.typed").exists()
    stub = (ROOT / "_core.pyi").read_text()
    for name in ("Var", "Engine", "CancelScope", "Done", "Placement"):
        assert f"class {name}" in stub
    compile(stub, "_core.pyi", "exec")


def test_importing_needs_no_numpy_and_starts_no_thread(run_python):
    ended = run_python(
        "assert 'numpy' not in sys.modules\nassert len(os.listdir('/proc/self/task')) == 1\nprint('ok')"
    )
    assert ended.out == "ok\n", ended


def test_default_options_come_from_the_environment(run_python):
    program = "print(engine.default().workers, engine.default().policy[0])"
    assert run_python(program, ENGINE_WORKERS="3", ENGINE_POLICY="naive").out == "3 naive\n"
    ended = run_python("engine.push(print)", ENGINE_WORKERS="many")
    assert "UsageError" in ended.err and "ENGINE_WORKERS" in ended.err, ended


def test_init_configures_the_default_engine(run_python):
    ended = run_python(
        "engine.init(workers=1, pools={'disk': 1})\nengine.pool('disk')\nprint(engine.default().workers)"
    )
    assert ended.out == "1\n", ended


def test_a_gil_that_is_forced_off_is_refused(run_python):
    ended = run_python(
        """
    for name in [name for name in sys.modules if name.split(".")[0] == "engine"]:
        del sys.modules[name]
    sys._is_gil_enabled = lambda: False
    try:
        import engine
    except ImportError as error:
        print("PYTHON_GIL=0" in str(error))
    sys.stdout.flush()
    os._exit(0)
    """
    )
    assert ended.out == "True\n", ended
