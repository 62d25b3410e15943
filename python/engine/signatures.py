"""Signatures of the extension's functions, for ``inspect.signature``, ``help`` and editors."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

from . import _core
from .values import Value


class _Default:
    """A default that has no text in Python."""

    def __repr__(self) -> str:
        return "..."


def of_function(fn: Any) -> inspect.Signature:
    """What nanobind's text says: ``def push(fn: Callable[[], object], reads: Vars = ()) -> None``."""
    text = fn.__nb_signature__[0][0].strip().splitlines()[-1]
    (made,) = ast.parse(re.sub(r"\\\d+", "...", text) + ": ...").body
    assert isinstance(made, ast.FunctionDef)
    given, kind, parameters = made.args, inspect.Parameter, []

    def add(arg: ast.arg, how: Any, default: ast.expr | None = None) -> None:
        value = kind.empty if default is None else _value(default)
        parameters.append(kind(arg.arg, how, default=value, annotation=_annotation(arg.annotation)))

    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + given.defaults
    for number, (arg, default) in enumerate(zip(positional, defaults)):
        add(arg, kind.POSITIONAL_ONLY if number < len(given.posonlyargs) else kind.POSITIONAL_OR_KEYWORD, default)
    if given.vararg:
        add(given.vararg, kind.VAR_POSITIONAL)
    for arg, default in zip(given.kwonlyargs, given.kw_defaults):
        add(arg, kind.KEYWORD_ONLY, default)
    if given.kwarg:
        add(given.kwarg, kind.VAR_KEYWORD)
    return inspect.Signature(parameters, return_annotation=_annotation(made.returns))


def of_method(method: Any) -> inspect.Signature:
    """As of_function, for a method of an object."""
    signature = of_function(method.__func__)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _value(default: ast.expr) -> Any:
    try:
        return ast.literal_eval(default)
    except ValueError:
        return _Default()


def _annotation(given: ast.expr | None) -> Any:
    return inspect.Signature.empty if given is None else ast.unparse(given)


_core._set_signature_property(type(_core.push), property(of_function))
_core._set_signature_property(type(_core.Engine.push), property(of_function))
_core._set_signature_property(type(_core.CancelScope().cancel), property(of_method))


class _Refused:
    """The signature of a class that programs do not call. Its objects, which may be called, have their own."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return inspect.Signature(return_annotation="NoReturn")


for _cls in (Value, _core.Plan, _core.Run, _core.Placement, _core.PolicyBlock, _core.Operator, _core.HeldOp, _core.Done):
    setattr(_cls, "__signature__", _Refused())
