"""Constants: bools, None, numbers and texts, which are part of a recording; and what code names, so that they may be found."""

from __future__ import annotations

import dis
import enum
import numbers
import sys
import types
from typing import Any, Iterator

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), numbers.Number, enum.Enum)


def is_constant(kind: type) -> bool:
    """Whether its objects are bools, None, numbers or texts, NumPy's scalars and members of Enums among them. They lead nowhere."""
    numpy = sys.modules.get("numpy")
    return issubclass(kind, _CONSTANTS) or numpy is not None and issubclass(kind, numpy.generic)


def same(one: Any, other: Any) -> bool:
    """Whether nobody can tell these constants apart. (0.0 is -0.0, and Decimal("1.0") is Decimal("1.00"), for those who ask ``==``.)"""
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    return getattr(type(one), "__repr__") is object.__repr__ or repr(one) == repr(other)


def names_of(code: types.CodeType) -> Iterator[str]:
    """What the code names, with the functions that are written inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_of(constant)


Chain = tuple[str, ...]  # a global, a variable of a closure, or "" for a parameter; then attributes of attributes


class Named:
    """What some code names: ``read``, and among that ``plain``, which are globals and variables of closures.

    What the code sets itself, such as a counter, is no reason to record it anew, so ``reads`` says no to that.
    """

    def __init__(self) -> None:
        self.read, self.plain = set[str](), set[str]()
        self._set = set[Chain]()
        self._set_somewhere = set[str]()  # attributes, of who knows what

    def add(self, code: types.CodeType, begins: bool = True) -> None:
        """``begins``: its parameters are what chains begin with."""
        scope: dict[str, Chain] = {name: (name,) for name in code.co_freevars}
        if begins:
            scope.update({name: ("",) for name in _parameters(code)})
        self._add(code, scope)

    def reads(self, chain: Chain) -> bool:
        """Whether the code may read this, and sets neither it nor what leads to it."""
        if not self.read.issuperset(chain[not chain[0] :]) or not self._set_somewhere.isdisjoint(chain[1:]):
            return False
        return all(chain[:end] not in self._set for end in range(1, len(chain) + 1))

    def _add(self, code: types.CodeType, scope: dict[str, Chain]) -> None:
        """``scope``: what variables stand for."""
        steps = list(dis.get_instructions(code))
        for step in steps:
            if step.opname.startswith("STORE_FAST"):  # a parameter that is something else now
                stored = step.argval if isinstance(step.argval, tuple) else (step.argval,)  # two instructions may be one
                for name in stored if step.opname != "STORE_FAST_LOAD_FAST" else stored[:1]:
                    scope.pop(name, None)
        self.read.update(name for name in (*code.co_names, *code.co_freevars) if not name.startswith("__"))
        self.plain.update(code.co_freevars)
        for at, step in enumerate(steps):
            how, _, what = step.opname.partition("_")
            if step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")):
                self.plain.add(step.argval)
            elif how not in ("STORE", "DELETE"):
                continue
            elif what == "GLOBAL":
                self._set.add((step.argval,))
            elif what == "DEREF" and scope.get(step.argval) == (step.argval,):
                self._set.add((step.argval,))
            elif what == "ATTR":
                holder = _chain(steps, at, step.argval, scope)
                if holder is None:
                    self._set_somewhere.add(step.argval)
                else:
                    self._set.add((*holder, step.argval))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add(constant, {name: scope[name] for name in constant.co_freevars if name in scope})


def _parameters(code: types.CodeType) -> Chain:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _chain(steps: list[dis.Instruction], at: int, name: str, scope: dict[str, Chain]) -> Chain | None:
    """Whose attribute ``name`` the instruction number ``at`` sets; None if that is not plain."""
    if steps[at - 1].opname in ("SWAP", "ROT_TWO"):  # x.name += 1: x is twice on the stack, and the second one is read
        twice = [i for i in range(1, at) if steps[i].opname == "LOAD_ATTR" and steps[i].argval == name
                 and steps[i - 1].opname in ("COPY", "DUP_TOP")]  # fmt: skip
        if not twice:
            return None
        at = twice[-1] - 1
    if steps[at].is_jump_target:  # (x if y else z).name = 1
        return None
    attributes: Chain = ()
    for step in reversed(steps[:at]):
        if step.opname == "LOAD_ATTR" and not step.is_jump_target:
            attributes = (step.argval, *attributes)
            continue
        variable = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
        root: Chain | None = None
        if step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")):
            root = (variable,)
        elif step.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "STORE_FAST_LOAD_FAST")):
            root = scope.get(variable)
        return None if root is None else (*root, *attributes)
    return None
