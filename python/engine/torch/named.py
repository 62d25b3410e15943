"""The names by which code reads globals, attributes and modules, and whose code it is."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

MATCHES = "match statement"  # among the names: classes are asked for __match_args__
SETTERS = {"setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars"}  # by these it sets attributes that it does not name
_PACKAGES = {"site-packages", "dist-packages"}  # folders of packages; the second is Debian's
_BY_TEXT = {"getattr", "hasattr", "attrgetter", "__dict__", "vars"}  # by these the code names attributes in texts


@functools.cache
def standard(root: str) -> bool:
    return root in sys.stdlib_module_names and root != "__main__" or root == "engine"


@functools.cache
def installed(module: str | None) -> bool:
    """Whether a module is torch's, of the standard library or of an installed package, and not the program's."""
    root = (module or "").partition(".")[0]
    package = sys.modules.get(root)
    files = [getattr(package, "__file__", None) or "", *getattr(package, "__path__", ())]  # a namespace package is no file
    return standard(root) or root == "torch" or any(not _PACKAGES.isdisjoint(file.split("/")) for file in files)


def names_of(code: Any) -> Iterator[str]:
    for part in codes_of(code):
        yield from part.co_names
        yield from asked_by(part)
        if any(i.opname == "MATCH_CLASS" for i in dis.get_instructions(part)):  # which has the names of attributes in a tuple
            yield MATCHES
            yield from (name for constant in part.co_consts if type(constant) is tuple for name in constant if type(name) is str)


def asked_by(code: Any) -> Iterator[str]:
    """The names of attributes that stand in texts of the code itself, as in ``getattr(o, "name", 1)``: an object may have none."""
    if not _BY_TEXT.isdisjoint(code.co_names):
        yield from (constant for constant in code.co_consts if type(constant) is str and constant.isidentifier())


def imported_by(function: types.FunctionType) -> Iterator[types.ModuleType]:
    """The modules that a function imports when it is called, so that no global has them."""
    package = function.__globals__.get("__package__") or ""
    bases = [""] + [".".join(package.split(".")[: n + 1]) + "." for n in range(package.count(".") + 1) if package]
    for code in codes_of(function.__code__):
        for name in (i.argval for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME"):
            parts = name.split(".")
            for path in (base + ".".join(parts[: n + 1]) for base in bases for n in range(len(parts))):
                if isinstance(module := sys.modules.get(path.rstrip(".")), types.ModuleType):
                    yield module


def codes_of(code: Any) -> Iterator[Any]:
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from codes_of(constant)


def globals_of(code: Any) -> set[str]:
    """The names that are globals in the code, and not attributes."""
    how = ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME", "DELETE_GLOBAL")
    return {i.argval for part in codes_of(code) for i in dis.get_instructions(part) if i.opname in how}
