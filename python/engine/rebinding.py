"""Rebinding: ``w = w - g`` in an op that updates ``w`` changes nothing outside of the function, so such a function is refused.

What is found is a new object that gets the parameter's name: arithmetic, a ufunc of NumPy, ``dataclasses.replace``, a copy that
is changed afterwards; also through a tuple, a condition, a walrus or another name. A view (``w = w[0]``) may be changed in place,
so it is allowed. Without the source, which a prompt may not have, only arithmetic is found.
"""

from __future__ import annotations

import ast
import dis
import inspect
import types
from typing import Any, Iterator

from .errors import UsageError

_COPIES = ("copy", "clone", "deepcopy")


def refuse_rebinding(fn: Any, parameter: str, op: str) -> None:
    """UsageError, with the line, if ``fn`` gives a new object the name of ``parameter``."""
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    body = _source(code)
    line = _line_in_code(code, parameter) if body is None else _Scan(fn, parameter, body).line()
    if line is not None:
        raise UsageError(
            f"op '{op}' updates '{parameter}', but line {line} of {code.co_filename} computes a new object and gives "
            f"it that name, which changes nothing outside; change it in place: {parameter}[...] = or {parameter} -="
        )


def _line_in_code(code: types.CodeType, parameter: str) -> int | None:
    before, line = None, code.co_firstlineno
    for step in dis.get_instructions(code):
        if step.starts_line is not None and step.starts_line is not False:
            line = getattr(step, "line_number", None) or (step.starts_line if step.starts_line is not True else line)
        stored = step.argval[0] if isinstance(step.argval, tuple) else step.argval  # 3.13 has instructions that store and load
        if step.opname.startswith(("STORE_FAST", "STORE_DEREF")) and stored == parameter and before is not None:
            arithmetic = before.opname.startswith("BINARY_") and before.opname not in ("BINARY_SUBSCR", "BINARY_SLICE")
            if before.argrepr == "[]":  # 3.14 indexes with BINARY_OP
                arithmetic = False
            if arithmetic and not before.argrepr.endswith("=") or before.opname in ("UNARY_NEGATIVE", "UNARY_INVERT"):
                return line
        if step.opname not in ("CACHE", "EXTENDED_ARG", "COPY", "DUP_TOP"):
            before = step
    return None


def _source(code: types.CodeType) -> list[ast.stmt] | None:
    """The statements of a function that ``def`` made, with their lines in the file; None if there is no source."""
    try:
        lines, first = inspect.getsourcelines(code)
        nested = lines[0][:1].isspace()
        tree = ast.parse("if 1:\n" * nested + "".join(lines))
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None
    ast.increment_lineno(tree, first - 1 - nested)
    top = tree.body[0] if tree.body else None
    if nested and isinstance(top, ast.If):
        top = top.body[0]
    return top.body if isinstance(top, (ast.FunctionDef, ast.AsyncFunctionDef)) and top.name == code.co_name else None


def _walk(nodes: list[Any]) -> Iterator[ast.AST]:
    """The nodes by their places in the source, without those of functions and classes in the function."""
    for node in nodes:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield node
            yield from _walk(list(ast.iter_child_nodes(node)))


def _pairs(target: ast.AST, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """(name, what it is given) of an assignment."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        if len(target.elts) == len(value.elts) and not any(isinstance(e, ast.Starred) for e in (*target.elts, *value.elts)):
            for one, part in zip(target.elts, value.elts):
                yield from _pairs(one, part)


class _Scan:
    def __init__(self, fn: Any, parameter: str, body: list[ast.stmt]) -> None:
        self._fn, self._parameter = fn, parameter
        self._given: list[tuple[int, str, ast.expr]] = []  # (line, name, value) of each assignment
        self._changes: list[int] = []  # lines that change the parameter in place
        for node in _walk(body):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._given += [(node.lineno, *pair) for pair in _pairs(target, node.value)]
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                self._given += [(node.lineno, *pair) for pair in _pairs(node.target, node.value)]
            if isinstance(node, ast.AugAssign):
                changed: Any = node.target
            elif isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
                changed = node
            else:
                continue
            while isinstance(changed, (ast.Subscript, ast.Attribute)):
                changed = changed.value
            if isinstance(changed, ast.Name) and changed.id == parameter:
                self._changes.append(node.lineno)

    def line(self) -> int | None:
        if any(isinstance(value, ast.Name) and value.id == self._parameter != name for _, name, value in self._given):
            return None  # another name has the object, too
        for line, name, value in self._given:
            if name != self._parameter:
                continue
            if self._is_new(value):
                return line
            if any(change < line for change in self._changes):
                continue  # what it had to change, it has changed
            if self._is_copy(value) and any(change > line for change in self._changes):
                return line
            if isinstance(value, ast.Name):
                others = [other for _, of, other in self._given if of == value.id]
                if others and value.id not in inspect.signature(self._fn).parameters and all(map(self._is_new, others)):
                    return line
        return None

    def _is_new(self, value: ast.expr) -> bool:
        """Whether it is an object that no view of the parameter can be."""
        if isinstance(value, ast.NamedExpr):
            return self._is_new(value.value)
        if isinstance(value, ast.IfExp):
            return self._is_new(value.body) or self._is_new(value.orelse)
        if isinstance(value, ast.Call):
            called = self._called(value.func)
            if (getattr(called, "__module__", None), getattr(called, "__name__", None)) == ("dataclasses", "replace"):
                return True
            ufunc = type(called).__name__ == "ufunc" and type(called).__module__ == "numpy"
            plain = not any(word.arg in ("out", None) for word in value.keywords)
            plain = plain and not any(isinstance(argument, ast.Starred) for argument in value.args)
            return ufunc and plain and len(value.args) <= getattr(called, "nin")  # more: one of them is `out`
        return isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Compare))

    def _is_copy(self, value: ast.expr) -> bool:
        return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _COPIES

    def _called(self, func: ast.expr) -> Any:
        """What a name, or the attribute of a module, is now; None for anything else."""
        if isinstance(func, ast.Attribute):
            of = self._called(func.value)
            return vars(of).get(func.attr) if isinstance(of, types.ModuleType) else None
        if not isinstance(func, ast.Name):
            return None
        for name, cell in zip(self._fn.__code__.co_freevars, self._fn.__closure__ or ()):
            if name == func.id:
                try:
                    return cell.cell_contents
                except ValueError:  # it is bound later
                    return None
        return self._fn.__globals__.get(func.id)
