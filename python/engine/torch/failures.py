"""Failures that a step handles itself, with `try` or `with`.

In a run of a plan an operator fails outside of the step's code, which then handles nothing. So a step is not captured that
would handle the failure of an operator that it calls. Which operators fail for some data, and with what, is known by name;
those of the program's own may fail with anything. An exception that the step handles while it is captured may be one that
eager does not raise, so such a step is not captured either."""

from __future__ import annotations

import contextlib
import dis
import inspect
import itertools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from .calls import OWN_NAMESPACES
from .lines import is_torch
from .refusals import Unsupported

Kinds = tuple[type[BaseException], ...]

_MATRIX: Kinds = (torch.linalg.LinAlgError, RuntimeError)  # the latter of torch.linalg.lu_factor
_INDEX: Kinds = (IndexError,)
_NUMBER: Kinds = (RuntimeError, ValueError)
_ANY: Kinds = (IndexError, *_NUMBER)
FAIL: dict[str, Kinds] = {f"aten::{name}": kinds for kinds, names in {
    _MATRIX: "_linalg_check_errors _linalg_eigh linalg_eig linalg_eigvals _linalg_eigvals _linalg_svd linalg_lstsq linalg_inv_ex "
             "linalg_cholesky_ex linalg_lu_factor_ex linalg_ldl_factor_ex linalg_solve_ex _linalg_solve_ex cholesky cholesky_inverse "
             "linalg_inv linalg_solve linalg_pinv",
    _INDEX: "embedding nll_loss_forward",
    _NUMBER: "multinomial bernoulli bernoulli_ poisson binomial normal normal_ binary_cross_entropy masked_scatter masked_scatter_ "
             "_assert_async _functional_assert_async _assert_scalar lu_unpack searchsorted floor_divide floor_divide_ remainder remainder_ "
             "fmod fmod_ div div_ bincount histc",
    _ANY: "embedding_renorm_ _embedding_bag _embedding_bag_forward_only index _unsafe_index index_put index_put_ _unsafe_index_put "
          "_index_put_impl_ index_select index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_reduce index_reduce_ "
          "gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ take put put_ nll_loss2d_forward "
          "multi_margin_loss multilabel_margin_loss_forward _ctc_loss one_hot repeat_interleave segment_reduce max_unpool2d max_unpool3d "
          "_pack_padded_sequence _validate_sparse_coo_tensor_args",
}.items() for name in names.split()}  # fmt: skip
_DIVIDE = ("floor_divide", "remainder", "fmod", "div")  # these fail for integers only
_CHECKED = "_ex"  # operators of this ending fail only if they are told to check
_SKIPPED = ("CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME")


def look_at_classes(tensor: torch.Tensor, num_classes: int = -1) -> None:
    """one_hot makes other calls while it is traced, which do not fail for a class that is out of range. So the graph gets a look."""
    if num_classes > 0:
        torch._assert_async((tensor >= 0).all(), "Class values must be non-negative.")
        torch._assert_async((tensor < num_classes).all(), "Class values must be smaller than num_classes.")


def raised_by(node: Node) -> Kinds:
    """With what a call of the graph may fail for some data; () if with nothing."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace == "engine_torch":
        return ()
    if target.namespace not in OWN_NAMESPACES:
        return (Exception,)
    name = target._schema.name
    kinds = FAIL.get(name, ())
    plain = name.removeprefix("aten::").rstrip("_")
    if plain.endswith(_CHECKED) and not (node.kwargs.get("check_errors") or True in node.args):
        return ()
    if plain in _DIVIDE:
        made = node.meta.get("val")
        return kinds if isinstance(made, torch.Tensor) and not made.is_floating_point() and not made.is_complex() else ()
    return kinds


def refuse_if_handled(node: Node, frame: Any, outside: types.CodeType) -> None:
    """Unsupported where a function between the operator and the step handles what the operator may raise. ``frame``: what calls the
    operator; ``outside``: the code of what calls the step."""
    raised = raised_by(node)
    while raised and frame is not None and frame.f_code is not outside:
        if not is_torch(frame.f_code.co_filename) and handles(frame, frame.f_lasti, raised):
            raise Unsupported(f"it handles an exception of {node.target} itself, at {frame.f_code.co_filename}:{frame.f_lineno}, and in a run "
                              "of its plan nothing would; leave that operator, or the try around it, out of the step")  # fmt: skip
        frame = frame.f_back


def handles(frame: Any, at: int, raised: Kinds) -> bool:
    """Whether the code of a frame handles an exception of one of these kinds that comes from the instruction."""
    code = frame.f_code
    if not hasattr(dis.Bytecode(code), "exception_entries"):
        return _handles_310(frame, at, raised)
    entries = dis.Bytecode(code).exception_entries
    seen: set[int] = set()
    while True:
        handler = next((e.target for e in entries if e.start <= at < e.end), None)
        if handler is None or handler in seen:
            return False
        if _catches(frame, handler, raised):
            return True
        seen.add(handler)
        at = handler


def _handles_310(frame: Any, at: int, raised: Kinds) -> bool:
    """The same on Python 3.10, whose instructions enter and leave blocks. Which classes a clause `except` names is not looked at."""
    instructions = list(dis.get_instructions(frame.f_code))
    first = {i.offset: i.opname for i in instructions}
    blocks: list[tuple[str, int]] = []
    for i in itertools.takewhile(lambda i: i.offset < at, instructions):
        blocks = [block for block in blocks if block[1] > i.offset]
        if i.opname.startswith("SETUP_"):
            blocks.append((i.opname, i.argval))
        elif i.opname == "POP_BLOCK" and blocks:
            blocks.pop()
    return any(first[target] in ("DUP_TOP", "POP_TOP") or kind == "SETUP_WITH" and any(_swallows(m, raised) for m in _named(frame))
               for kind, target in blocks)  # fmt: skip


def _catches(frame: Any, handler: int, raised: Kinds) -> bool:
    """Whether the handler that begins at an offset is a clause `except` for one of these kinds, or a `with` that may swallow one. It is
    none where it belongs to a `finally`."""
    instructions = [i for i in dis.get_instructions(frame.f_code) if i.opname not in _SKIPPED]
    places = {i.offset: number for number, i in enumerate(instructions)}
    number = places.get(handler, len(instructions))
    if number == len(instructions) or instructions[number].opname != "PUSH_EXC_INFO":
        return False
    number += 1
    held: list[Any] = []
    while number < len(instructions):
        name, value = instructions[number].opname, instructions[number].argval
        number += 1
        if name == "POP_TOP" and not held:
            return True  # of a clause that names no class
        if name == "WITH_EXCEPT_START":
            return any(_swallows(manager, raised) for manager in _named(frame))
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            held.append(frame.f_globals.get(value, frame.f_builtins.get(value, Exception)))
        elif name.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
            held.append(frame.f_locals.get(value, Exception))
        elif name == "LOAD_ATTR":
            held[-1:] = [getattr(held[-1], value, Exception)]
        elif name == "BUILD_TUPLE":
            held[-value:] = [tuple(held[-value:])]
        elif name == "CHECK_EXC_MATCH" and held:
            if _meets(held.pop(), raised):
                return True
            number = places.get(instructions[number].argval, len(instructions))  # of the next clause
        else:
            return name == "CHECK_EG_MATCH"
    return False


def _meets(caught: Any, raised: Kinds) -> bool:
    kinds = caught if isinstance(caught, tuple) else (caught,)
    return Exception in raised or any(not isinstance(kind, type) or issubclass(r, kind) for kind in kinds for r in raised)


def _named(frame: Any) -> Iterator[Any]:
    """What the names in the code of a frame may stand for: variables, globals, and attributes of these."""
    names = frame.f_code.co_names
    for held in [*frame.f_locals.values(), *(frame.f_globals[n] for n in names if n in frame.f_globals)]:
        yield held
        if isinstance(held, types.ModuleType) or _of_the_program(inspect.getmodule(type(held))):
            yield from (inspect.getattr_static(held, n, None) for n in names)


def _of_the_program(module: types.ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    return not is_torch(file) if file else getattr(module, "__name__", "") == "__main__"


def _swallows(manager: Any, raised: Kinds) -> bool:
    """Whether an object, or what a class or function makes, may swallow an exception as the manager of a `with`."""
    if isinstance(manager, contextlib.suppress):
        return _meets(manager._exceptions, raised)
    if manager is contextlib.suppress or isinstance(manager, contextlib.ExitStack) or manager is contextlib.ExitStack:
        return True
    made = inspect.unwrap(manager) if isinstance(manager, types.FunctionType) else getattr(manager, "func", None)
    if isinstance(made, types.FunctionType):
        code = made.__code__
        if is_torch(code.co_filename) or not inspect.isgeneratorfunction(made):
            return False
        return any(i.opname in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "JUMP_IF_NOT_EXC_MATCH") for i in dis.get_instructions(code))
    end = inspect.getattr_static(manager if isinstance(manager, type) else type(manager), "__exit__", None)
    if not isinstance(end, types.FunctionType) or is_torch(end.__code__.co_filename):
        return False
    return _returns_more_than_none(end.__code__)


def _returns_more_than_none(code: types.CodeType) -> bool:
    before: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST" and instruction.argval:
            return True
        if instruction.opname == "RETURN_VALUE" and not (before.opname == "LOAD_CONST" and not before.argval):
            return True
        before = instruction
    return False
