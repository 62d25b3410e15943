"""Operators and indexing of Values: each is an op, named after its operator. NumPy's ufuncs on a Value are ops, too; its other
functions take the data, as `numpy.asarray` does. What a Value has not, though its data may, says where it is."""

from __future__ import annotations

import functools
import operator
from typing import Any, NoReturn

from .ops import Op
from .values import Value

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift")
_COMPARISONS = ("lt", "le", "gt", "ge")  # `==` compares Values, so that a Value may be a key
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
for _name in _COMPARISONS:
    setattr(Value, f"__{_name}__", (lambda one: lambda self, other: one(self, other))(_made(_name, getattr(operator, _name))))
for _name in _UNARY:
    setattr(Value, f"__{_name}__", (lambda one: lambda self: one(self))(_made(_name, getattr(operator, _name))))

_power = _made("pow", pow)


def _pow_of(self: Value[Any], exponent: Any, modulus: Any = None) -> Any:
    return _power(self, exponent) if modulus is None else _power(self, exponent, modulus)


_getitem = _made("getitem", operator.getitem)
_round = _made("round", round)


def _getitem_of(self: Value[Any], key: Any) -> Any:
    return _getitem(self, key)


def _ufunc_of(self: Value[Any], ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    if kwargs.get("out") is not None:
        raise TypeError(f"{ufunc.__name__} with a Value would change an array (out=, or an array on the left of +=), which nothing "
                        "orders; change a Value's array in an op that says so: engine.op(updates=...)")  # fmt: skip
    return _op_of(ufunc, method)(*inputs, **kwargs)


@functools.lru_cache(maxsize=256)  # by the ufunc itself: those of numpy.frompyfunc have one name
def _op_of(ufunc: Any, method: str) -> Op[Any, Any]:
    if method == "__call__":
        return _made(ufunc.__name__, ufunc, ufunc.nout)
    name = f"{ufunc.__name__}.{method}"
    if method != "at":
        return _made(name, getattr(ufunc, method))

    def at(a: Any, indices: Any, *b: Any) -> None:
        ufunc.at(a, indices, *b)

    return Op(at, ("a",), 0, {"name": name})  # it changes `a` in place


# `var` asks for a method of this name, and a Value has its Var there. The others answer no if a Value cannot be read.
_READ_FIRST = ("var", "array_equal", "array_equiv")


def _function_of(self: Value[Any], function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    if function.__name__ in _READ_FIRST:
        import numpy as np

        args = tuple(np.asarray(arg) if isinstance(arg, Value) else arg for arg in args)
        kwargs = {name: np.asarray(arg) if isinstance(arg, Value) else arg for name, arg in kwargs.items()}
    return function._implementation(*args, **kwargs)


# What programs ask arrays, lists and dicts for.
_OF_THE_DATA = """T all any argmax argmin argpartition argsort astype base byteswap choose clip compress conj conjugate copy ctypes cumprod cumsum
    data diagonal dot dtype dump dumps fill flags flat flatten imag item itemsize mT max mean min nbytes ndim nonzero partition prod put ravel
    real repeat reshape resize round searchsorted setfield setflags shape size sort squeeze std strides sum swapaxes take to_device tobytes
    tofile tolist trace transpose var view append clear extend items keys pop update values backward cpu detach device grad numel numpy"""


class _OfTheData:
    """An attribute that a Value has not. No ``__getattr__`` says so, which would double the time of every look-up of the others."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name

    def __get__(self, value: Value[Any] | None, owner: Any = None) -> NoReturn:
        raise AttributeError(f"a Value has no '{self._name}'. If its data have one: v.get().{self._name} waits for them, and an op, whose function "
                             f"gets the data, does not: engine.op(lambda data: data.{self._name})(v)")  # fmt: skip


def _not_changed(self: Value[Any], *_: Any) -> NoReturn:
    raise TypeError("the items of a Value cannot be set or deleted: nothing would order that. Change the data in an op that says so, "
                    "engine.op(updates=...), or replace all of them by v.overwrite(data)")  # fmt: skip


_METHODS = {"pow": _pow_of, "getitem": _getitem_of, "array_ufunc": _ufunc_of, "array_function": _function_of,
            "setitem": _not_changed, "delitem": _not_changed}  # fmt: skip
for _name, _fn in {**_METHODS, "round": lambda self, digits=None: _round(self, digits)}.items():
    setattr(Value, f"__{_name}__", _fn)
# Indexing would make it look like an endless sequence. None, and no function that says so: by that, libraries that go through nested
# containers know that it is no container.
Value.__iter__ = None  # type: ignore[attr-defined]
for _name in _OF_THE_DATA.split():
    if not hasattr(Value, _name):
        setattr(Value, _name, _missing := _OfTheData())
        _missing.__set_name__(Value, _name)
