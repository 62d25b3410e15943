"""Contract 3: what an op raises keeps its type, its attributes and its traceback, and travels with the Vars."""

import dataclasses
import re
import sys
import threading
import traceback

import numpy as np
import pytest

import engine
from conftest import PATIENCE, line_of


class Odd(Exception):
    """An exception whose constructor can't be called with its args."""

    calls = 0

    def __init__(self, code, *, detail):
        super().__init__(f"code {code}")
        Odd.calls += 1
        self.code, self.detail = code, detail


class Slotted(OSError):
    __slots__ = ("extra",)


def failing(error):
    def body():
        raise error

    return body


def failed(error, **options):
    v = engine.Var("v")
    engine.push(failing(error), writes=[v], **options)
    return v


def notes(error):
    return "\n".join(getattr(error, "__notes__", []))


def test_an_exception_keeps_its_type_text_and_traceback():
    v = engine.Var("v")

    def inner():
        raise ValueError("bad value")  # raised here

    def body():
        inner()

    engine.push(body, writes=[v])
    with pytest.raises(ValueError, match="bad value") as error:
        v.wait()
    assert str(error.value) == "bad value"  # the note is beside the text, not in it
    names = [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
    assert names[0] == "test_an_exception_keeps_its_type_text_and_traceback"
    assert names[-2:] == ["body", "inner"]
    assert traceback.extract_tb(error.value.__traceback__)[-1].lineno == line_of("raised here")[1]


def test_the_note_names_the_op_and_where_it_was_pushed():
    v = engine.Var("v")
    engine.push(failing(KeyError("k")), writes=[v], name="load")  # pushed here
    with pytest.raises(KeyError) as error:
        v.wait()
    file, line = line_of("pushed here")
    assert f"op 'load' pushed at {file}:{line} failed" in notes(error.value)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older tracebacks show no notes")
def test_a_printed_traceback_shows_the_note():
    with pytest.raises(KeyError) as error:
        failed(KeyError("k"), name="load").wait()
    assert "engine: op 'load' pushed at" in "".join(traceback.format_exception(error.value))


def test_the_note_names_the_ops_that_the_error_came_through():
    a, b, c = (engine.Var(n) for n in "abc")
    engine.push(failing(ValueError("first")), writes=[a], name="origin")
    engine.push(lambda: None, reads=[a], writes=[b], name="middle")
    engine.push(lambda: None, reads=[b], writes=[c], name="last")
    with pytest.raises(ValueError, match="first") as error:
        c.wait()
    text = notes(error.value)
    assert text.index("'origin'") < text.index("'middle'") < text.index("'last'")
    assert text.count("test_errors.py") == 3


def test_dependents_of_a_failed_op_do_not_run():
    a, ran = failed(ValueError()), []
    engine.push(lambda: ran.append(1), reads=[a])
    engine.push(lambda: ran.append(2), updates=[a])
    with pytest.raises(ValueError):
        a.wait()
    assert ran == []


def test_a_write_clears_the_error():
    v = failed(ValueError())
    with pytest.raises(ValueError):
        v.wait()
    engine.push(lambda: None, writes=[v])
    assert v.wait()


def test_clear_error_keeps_the_value_and_the_order():
    v, ran = failed(ValueError()), []
    engine.clear_error(v)
    engine.push(lambda: ran.append(1), updates=[v])
    assert v.wait()
    assert ran == [1]


def test_every_wait_raises_again_with_its_own_traceback():
    v = failed(ValueError("again"), name="once")
    caught = []

    def first_place():
        v.wait()

    def second_place():
        v.wait()

    for place in (first_place, second_place, first_place):
        with pytest.raises(ValueError, match="again") as error:
            place()
        caught.append(error.value)
    assert len({id(e) for e in caught}) == 3
    tracebacks = [[frame.name for frame in traceback.extract_tb(e.__traceback__)] for e in caught]
    assert "second_place" not in tracebacks[0] + tracebacks[2]
    assert "second_place" in tracebacks[1] and "first_place" not in tracebacks[1]
    assert all(names[-1] == "body" for names in tracebacks)
    assert len(tracebacks[0]) == len(tracebacks[2])  # nothing piles up
    assert all(notes(e).count("engine: op") == 1 for e in caught)


def test_threads_that_wait_for_one_failed_var_get_their_own_exception(gate):
    v, caught = engine.Var("v"), []

    def body():
        gate()
        raise ValueError("shared")

    def waiter():
        try:
            v.wait()
        except ValueError as error:
            caught.append(error)

    engine.push(body, writes=[v])
    threads = [threading.Thread(target=waiter) for _ in range(4)]
    for t in threads:
        t.start()
    gate.open()
    for t in threads:
        t.join(PATIENCE)
    assert len({id(e) for e in caught}) == 4


def test_attributes_survive_and_no_constructor_runs_again():
    original = Odd(7, detail={"a": 1})
    calls = Odd.calls
    with pytest.raises(Odd) as error:
        failed(original).wait()
    assert error.value.code == 7 and error.value.detail is original.detail and str(error.value) == "code 7"
    assert Odd.calls == calls


def test_fields_of_builtin_exceptions_survive():
    slotted = Slotted(2, "no such thing", "file.txt")
    slotted.extra = "more"
    with pytest.raises(Slotted) as error:
        failed(slotted).wait()
    assert (error.value.errno, error.value.filename, error.value.extra) == (2, "file.txt", "more")
    with pytest.raises(ConnectionError, match="lost") as error:
        failed(ConnectionError("lost")).wait()
    assert str(error.value) == "lost"
    with pytest.raises(UnicodeDecodeError) as error:
        failed(UnicodeDecodeError("utf8", b"x", 0, 1, "why")).wait()
    assert error.value.reason == "why" and error.value.start == 0
    with pytest.raises(ImportError) as error:
        failed(ImportError("no", name="module")).wait()
    assert error.value.name == "module"


def test_the_cause_survives():
    v = engine.Var("v")

    def body():
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner

    engine.push(body, writes=[v])
    with pytest.raises(ValueError) as error:
        v.wait()
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration(5), GeneratorExit()])
def test_exceptions_of_any_type_are_caught_and_raised_again(error):
    with pytest.raises(type(error)) as caught:
        failed(error).wait()
    assert caught.value.args == error.args
    assert getattr(caught.value, "code", None) == getattr(error, "code", None)
    assert getattr(caught.value, "value", None) == getattr(error, "value", None)


def test_wait_all_raises_what_nobody_has_seen_also_of_ops_that_write_nothing():
    engine.push(failing(ValueError("unseen")))
    with pytest.raises(ValueError, match="unseen"):
        engine.wait_all()
    assert engine.wait_all()


def test_run_always_runs_behind_an_error_and_clears_what_it_writes():
    a, b, ran = failed(ValueError()), engine.Var("b"), []
    engine.push(lambda: ran.append(1), reads=[a], writes=[b], run_always=True)
    assert b.wait()
    assert ran == [1]
    with pytest.raises(ValueError):
        a.wait()


def test_an_error_inside_an_op_that_waits_tells_both_stories():
    a, b = engine.Var("a"), engine.Var("b")
    engine.push(failing(ValueError("deep")), writes=[a], name="inner")
    engine.push(lambda: a.wait(), writes=[b], name="outer")
    with pytest.raises(ValueError, match="deep") as error:
        b.wait()
    assert "'inner'" in notes(error.value) and "'outer'" in notes(error.value)
    with pytest.raises(ValueError):
        a.wait()


def test_a_coroutine_function_is_not_silently_forgotten():
    v = engine.Var("v")

    async def body():
        pass

    engine.push(body, writes=[v])
    with pytest.raises(TypeError, match="'body' is a coroutine function"):
        v.wait()


def test_an_exception_being_handled_becomes_the_context():
    v = failed(ValueError("op"))
    with pytest.raises(ValueError) as error:
        try:
            raise KeyError("mine")
        except KeyError:
            v.wait()
    assert isinstance(error.value.__context__, KeyError)
    with pytest.raises(ValueError) as error:
        v.wait()
    assert error.value.__context__ is None  # the first wait left no trace


def test_no_message_names_a_line_of_the_engines_own_sources(gate):
    with engine.Engine(workers=2, devices=["software"], on_unobserved=lambda error: None) as on:
        gone, held, array = engine.Var("gone", on), engine.Var("held", on), np.ones(3)
        gone.delete()
        on.push(gate, writes=[held])
        gate.wait_until_entered()
        fail = engine.op(lambda x: 1 / 0)
        twice = engine.hybridize(lambda x: fail(x) + 1)
        x = engine.value(array, engine=on)

        def said(call):
            try:
                return str(call())
            except Exception as error:
                return "\n".join([str(error), *getattr(error, "__notes__", [])])

        texts = [
            said(call)
            for call in (
                lambda: on.push(lambda: None, writes=[gone]),
                gone.wait,
                gone.wait_to_write,
                lambda: on.clear_error(gone),
                on.describe_pending,
                lambda: (twice(x) + 1).get(),
                lambda: engine.DeviceArray(array, 7, on),
                lambda: engine.DeviceArray(array, 0, on).from_host(np.ones(4)),
                lambda: on.push(held.wait, updates=[held], name="own"),
                lambda: on.push(on.wait_all),
                lambda: next(engine.data.staged(lambda: 1 / 0, engine=on)),
                lambda: engine.hybridize(lambda x: x.get())(x),
            )
        ]
        gate.open()
        texts += [said(on.wait_all) for _ in range(4)]
    assert "\n".join(texts).count(f"{__name__}.py:") >= 10  # they do name lines
    assert not [text for text in texts if re.search(r"\.(cc|h):\d", text)]


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    key: str


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots(Exception):
    key: str


@pytest.mark.parametrize("kind", [Frozen, FrozenSlots])
def test_an_exception_whose_attributes_cannot_be_set_is_raised_with_its_note(kind):
    def body():
        try:
            raise KeyError("cause")
        except KeyError as error:
            raise kind("k") from error

    for _ in range(2):
        value = engine.op(body)()
        with pytest.raises(kind) as caught:
            value.get()
        assert caught.value.key == "k" and notes(caught.value).count("op 'body' pushed at") == 1
        assert isinstance(caught.value.__cause__, KeyError) and value.exception() is not caught.value


def test_a_chain_of_causes_may_be_as_long_as_the_stack_is_deep():
    def deep(n):
        try:
            deep(n + 1)
        except Exception as error:
            raise ValueError(n) from error

    with engine.Executor() as pool:
        error = pool.submit(deep, 0).exception(PATIENCE)
    assert str(error) == "0" and isinstance(error, ValueError)
    length = 0
    while error is not None:
        error, length = error.__cause__, length + 1
    assert length > 100
