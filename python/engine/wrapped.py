"""Functions behind others: what methods, partials and decorators call, and whether a decorator passes its arguments on."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from typing import Any, Iterator

from . import _core

_BEFORE_A_CALL = ("PUSH_NULL", "LIST_EXTEND", "LIST_TO_TUPLE", "CALL_INTRINSIC_1", "DICT_MERGE", "PRECALL", "CACHE", "EXTENDED_ARG")


def behind(source: Any) -> Iterator[Any]:
    """``source``, then what it calls if it is a method, a partial or wraps a function (``__wrapped__``), and so on. It ends at an
    op, whose body runs later."""
    seen = set[int]()
    while source is not None and id(source) not in seen:
        seen.add(id(source))
        yield source
        kind = type(source)
        if issubclass(kind, _core.OpBase):
            return
        if issubclass(kind, types.MethodType):
            source = source.__func__
        elif issubclass(kind, functools.partial):
            source = source.func
        else:
            attributes = getattr(source, "__dict__", None)
            source = attributes.get("__wrapped__") if isinstance(attributes, dict) else None


def signature_of(fn: Any) -> inspect.Signature:
    """As ``inspect.signature``, which takes it that a decorator's function has the parameters of what it wraps. One that gives
    arguments of its own has not: it has those that it shows itself."""
    follow = True
    for one in behind(fn):
        if hasattr(one, "__signature__"):
            break
        follow = follow and not (isinstance(one, types.FunctionType) and hasattr(one, "__wrapped__") and not _passes_on(one))
    return inspect.signature(fn, follow_wrapped=follow)


def _passes_on(fn: types.FunctionType) -> bool:
    """Whether the function, or one inside of it, makes a call with just its own arguments: ``wrapped(self, *args, **kwargs)``."""
    code = fn.__code__
    if not code.co_flags & inspect.CO_VARARGS:
        return list(inspect.signature(fn, follow_wrapped=False).parameters) == list(inspect.signature(fn).parameters)
    wrapped = {name for name, cell in zip(code.co_freevars, fn.__closure__ or ()) if _contents(cell) is getattr(fn, "__wrapped__")}
    first = code.co_argcount + code.co_kwonlyargcount
    last = first + 1 + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    single, starred = code.co_varnames[: code.co_argcount], code.co_varnames[first:last]
    codes = [code]
    for code in codes:
        codes += (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        steps = list(dis.get_instructions(code))
        for number, step in enumerate(steps):
            if step.opname == "CALL_FUNCTION_EX" and _gives(steps[:number], single, starred, wrapped):
                return True
    return False


def _gives(before: list[dis.Instruction], single: tuple[str, ...], starred: tuple[str, ...], wrapped: set[str]) -> bool:
    """Whether a call behind these instructions is given the variables ``single``, then ``*`` and ``**`` of ``starred``, and no more
    than that. The wrapped function, given to what calls it (``context.run``), may come first."""
    names, items, lists = list[str](), 0, 0  # items: of the list that begins with them; lists: what is added to that
    for step in reversed(before):
        if step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            names[:0] = step.argval if isinstance(step.argval, tuple) else [step.argval]
        elif step.opname == "BUILD_LIST":
            items = step.arg or 0
        elif step.opname == "LOAD_CONST":
            return False
        elif step.opname not in _BEFORE_A_CALL and (step.opname, step.arg) != ("BUILD_MAP", 0):
            break
        lists += step.opname == "LIST_EXTEND"
    plain = names[: -len(starred)]
    given = [name for name in plain[max(0, len(plain) - items) :] if name not in wrapped] if items else []
    return lists <= 1 and len(plain) >= items and tuple(given) == single and tuple(names[-len(starred) :]) == starred


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is bound later
        return None
