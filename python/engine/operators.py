"""Operators and indexing of Values: each is an op, named after its operator. NumPy's ufuncs on a Value are ops, too."""

from __future__ import annotations

import operator
from typing import Any

from .ops import Op
from .values import Value

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift")
_UNARY = ("neg", "pos", "abs", "invert")


def _made(name: str, fn: Any, outputs: int = 1) -> Op[Any, Any]:
    return Op(fn, (), outputs, {"name": name})


def _binary(name: str, one: Op[Any, Any]) -> None:
    def forward(self: Value[Any], other: Any) -> Any:
        return one(self, other)

    def backward(self: Value[Any], other: Any) -> Any:
        return one(other, self)

    setattr(Value, f"__{name}__", forward)
    setattr(Value, f"__r{name}__", backward)


for _name in _BINARY:
    _binary(_name.rstrip("_"), _made(_name.rstrip("_"), getattr(operator, _name)))
for _name in _UNARY:
    setattr(Value, f"__{_name}__", (lambda one: lambda self: one(self))(_made(_name, getattr(operator, _name))))

_getitem = _made("getitem", operator.getitem)
_round = _made("round", round)
_ufuncs: dict[str, Op[Any, Any]] = {}


def _getitem_of(self: Value[Any], key: Any) -> Any:
    return _getitem(self, key)


def _ufunc_of(self: Value[Any], ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    if kwargs.get("out") is not None:
        return NotImplemented  # to change an array in place is the business of an op that says so
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    if name not in _ufuncs:
        outputs = ufunc.nout if method == "__call__" else 1
        _ufuncs[name] = _made(name, getattr(ufunc, method), outputs)
    return _ufuncs[name](*inputs, **kwargs)


for _name, _fn in {"getitem": _getitem_of, "array_ufunc": _ufunc_of, "round": lambda self, digits=None: _round(self, digits)}.items():
    setattr(Value, f"__{_name}__", _fn)
Value.__iter__ = None  # type: ignore[attr-defined]  # indexing would make it look like an endless sequence
