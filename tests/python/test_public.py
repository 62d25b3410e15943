"""What editors, `help` and a prompt show: signatures, docstrings, reprs with state."""

import inspect
import pathlib
import re
import types

import pytest

import engine

MODULES = [engine, engine.data, engine.comm, engine.testing]
NOT_MADE_BY_PROGRAMS = {"Done", "HeldOp", "Operator", "Placement", "Plan", "PolicyBlock", "Run", "Value"}


def public():
    """(name, callable) of everything that a program may call."""
    for module in MODULES:
        for name in getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")]):
            thing = getattr(module, name)
            if isinstance(thing, types.ModuleType) or not callable(thing):
                continue
            if not inspect.isclass(thing):
                yield f"{module.__name__}.{name}", thing
                continue
            if issubclass(thing, BaseException):
                continue
            yield f"{module.__name__}.{name}", thing
            for method, fn in vars(thing).items():
                if not method.startswith("_") and callable(fn):
                    yield f"{module.__name__}.{name}.{method}", fn


THINGS = dict(public())


@pytest.mark.parametrize("name", THINGS)
def test_everything_public_has_a_signature(name):
    assert isinstance(inspect.signature(THINGS[name]), inspect.Signature)


@pytest.mark.parametrize("name", sorted(NOT_MADE_BY_PROGRAMS))
def test_what_programs_do_not_make_says_so(name):
    assert str(inspect.signature(getattr(engine, name))) == "() -> 'NoReturn'"
    with pytest.raises(TypeError):
        getattr(engine, name)()


def test_a_value_says_how_values_are_made():
    for args in ((), (1,), (1, None)):
        with pytest.raises(TypeError, match=r"engine.value\(data\) and calls of ops"):
            engine.Value(*args)


def test_the_signature_of_a_done_is_that_of_its_call():
    seen = []
    engine.push_async(lambda done: (seen.append(inspect.signature(done)), done()))
    engine.wait_all()
    assert list(seen[0].parameters) == []


def test_the_signature_of_push_is_the_documented_one():
    signature = inspect.signature(engine.push)
    assert list(signature.parameters) == ["fn", "reads", "updates", "writes", "priority", "name", "place", "run_always",
                                          "cancel", "graph_key"]  # fmt: skip
    assert signature.parameters["priority"].kind is inspect.Parameter.KEYWORD_ONLY
    assert signature.parameters["priority"].default == 0 and signature.return_annotation == "None"
    assert list(inspect.signature(engine.Engine.push).parameters)[:2] == ["self", "fn"]
    assert list(inspect.signature(engine.default().push).parameters)[0] == "fn"
    assert "workers" in inspect.signature(engine.Engine).parameters


def test_the_signature_of_an_op_is_that_of_its_function():
    def scaled(x, by=2):
        return x * by

    assert inspect.signature(engine.op(scaled)) == inspect.signature(scaled) == inspect.signature(engine.hybridize(scaled))


def test_an_engine_shows_its_state(gate):
    with engine.Engine(workers=1) as eng:
        assert repr(eng) == "<engine.Engine: 1 workers, threaded, 0 ops pending>"
        eng.push(gate)
        gate.wait_until_entered()
        eng.push(lambda: None)
        assert repr(eng) == "<engine.Engine: 1 workers, threaded, 2 ops pending>"
        gate.open()
    assert repr(eng) == "<engine.Engine: shut down>"


def test_placements_are_shown_as_they_are_written():
    with engine.Engine(workers=1, pools={"decode": 1}) as eng:
        assert repr(eng.pool("decode")).startswith("<engine.Placement: pool ")
    for text in ("cpu()", "io()", "copy_in(0)", "copy_out(1)", "gpu(0)", "gpu(1, lane=2)"):
        assert repr(eval(f"engine.{text}")) == f"engine.{text}"


def test_a_scope_and_a_plan_show_their_state():
    scope = engine.CancelScope()
    assert repr(scope) == "<engine.CancelScope: open>"
    scope.cancel()
    assert repr(scope) == "<engine.CancelScope: cancelled>"
    double = engine.op(lambda x: x + x)
    twice = engine.hybridize(lambda x: double(double(x)))
    twice.record(1)
    assert "2 nodes" in repr(twice.plan)


def test_the_reference_names_everything_that_the_package_has():
    page = (pathlib.Path(__file__).parents[2] / "docs/reference.md").read_text()
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", page.partition("## What `import engine` has")[2]))))
    public = {n for n in engine.__all__ if not (inspect.isclass(thing := getattr(engine, n)) and issubclass(thing, BaseException))}
    assert not public - named
