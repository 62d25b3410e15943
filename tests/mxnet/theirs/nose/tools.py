"""nose.tools: unittest's assertions as functions, and decorators."""

import functools
import re
import unittest

_case = unittest.TestCase()
__all__ = ["eq_", "make_decorator", "nottest", "ok_", "raises", "timed", "with_setup"]
for _name in dir(_case):
    if _name.startswith("assert") and "_" not in _name:
        _snake = re.sub("([A-Z])", lambda m: "_" + m[1].lower(), _name)
        globals()[_snake] = getattr(_case, _name)
        __all__.append(_snake)


def ok_(expression, message=None):
    assert expression, message


def eq_(a, b, message=None):
    assert a == b, message or f"{a!r} != {b!r}"


def make_decorator(function):
    """Makes what it decorates look like `function`."""

    def decorate(new):
        new.__dict__.update(function.__dict__)
        new.__name__, new.__doc__, new.__module__ = function.__name__, function.__doc__, function.__module__
        return new

    return decorate


def raises(*exceptions):
    def decorate(function):
        @functools.wraps(function)
        def test(*args, **kwargs):
            try:
                function(*args, **kwargs)
            except exceptions:
                return
            raise AssertionError(f"{function.__name__} did not raise {exceptions}")

        return test

    return decorate


def nottest(function):
    function.__test__ = False
    return function


def with_setup(setup=None, teardown=None):
    def decorate(function):
        @functools.wraps(function)
        def test(*args, **kwargs):
            if setup:
                setup()
            try:
                return function(*args, **kwargs)
            finally:
                if teardown:
                    teardown()

        return test

    return decorate


def timed(limit):
    return lambda function: function
