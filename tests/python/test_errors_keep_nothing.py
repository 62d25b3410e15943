"""An error keeps nothing of the frames that it came through, wherever it has exceptions, tracebacks and frames."""

import gc
import sys
import traceback

import pytest

import engine


class Big:
    alive = 0

    def __init__(self):
        Big.alive += 1

    def __del__(self):
        Big.alive -= 1


class Slotted(Exception):
    __slots__ = ("inner",)


def inner(big):
    try:
        raise KeyError("inner")
    except KeyError as error:
        return error


def with_attribute(name, value, cls=ValueError):
    error = cls("outer")
    setattr(error, name, value)
    return error


MADE = {
    "an argument": lambda big: ValueError(inner(big)),
    "a dict among the arguments": lambda big: ValueError({"field": inner(big)}),
    "a dict in a dict": lambda big: with_attribute("errors", {"field": {"a": [inner(big)]}}),
    "a key": lambda big: ValueError({inner(big): 1}),
    "a set": lambda big: ValueError({inner(big)}),
    "a tuple in a list": lambda big: ValueError([(1, inner(big))]),
    "a slot": lambda big: with_attribute("inner", inner(big), Slotted),
    "a field": lambda big: StopAsyncIteration(inner(big)),
    "a traceback": lambda big: with_attribute("tb", inner(big).__traceback__),
    "tracebacks": lambda big: ValueError([inner(big).__traceback__]),
    "a frame": lambda big: with_attribute("frame", sys._getframe()),
}


@pytest.mark.parametrize("where", MADE)
def test_an_error_keeps_no_argument_alive(where):
    def fails(big):
        raise MADE[where](big)

    failed = engine.op(fails)(Big())
    assert failed.exception() is not None
    try:
        engine.wait_all()
    except Exception:
        pass
    engine.push(int)
    engine.wait_all()
    gc.collect()
    assert Big.alive == 0


def test_what_an_error_has_in_containers_says_what_it_said():
    def fails():
        plain, loop = {"a": 1}, []
        loop.append(loop)
        error = ValueError({"field": [inner(1)]}, plain, loop)
        error.plain, error.tb, error.frame = plain, inner(1).__traceback__, sys._getframe()
        raise error

    error = engine.op(fails)().exception()
    (kept,) = error.args[0]["field"]
    assert kept.args == ("inner",) and traceback.extract_tb(kept.__traceback__)[-1].name == "inner"
    assert error.args[1] == {"a": 1} and error.plain is error.args[1] and error.args[2][0] is error.args[2]
    assert traceback.extract_tb(error.tb)[-1].name == "inner" and error.frame is None
