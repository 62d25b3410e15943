"""What a step computes from its item alone, learned from the step's own calls, so that it can run ahead of the step.

The step gets tensors of the class ``Staged``, which see each call of PyTorch that they are an argument of. A call whose
arguments all come from the item, or are constants, becomes a node of the ``Program``. For later items the program runs
first, on a stage's thread; where the step then makes the same call, it gets what the program made. A call that the program
lacks, or that differs, runs where it stands. So a step may do whatever it likes, and its results never change.

Threads: ``Program.run`` may be called by several threads at once; a step's calls come from one thread at a time.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Iterator

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .calls import changed
from .team import Team

_NUMBERS = (bool, int, float, complex)
_CONSTANTS = (str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.memory_format, torch.layout)
_MOST = 1024  # nodes
_MADE_ANEW = 4  # calls of a kind on tensors that no other step has: then the kind is not looked at any more
_GRADIENT = "takes a tensor with a gradient"
_KEPT = 2  # steps in a row that may leave a node's result alone before the node is dropped


class _Ref:
    """The place of a staged value in the arguments of a node: the number of a node or, below zero, of a leaf."""

    __slots__ = ("node", "part")

    def __init__(self, node: int, part: int | None) -> None:
        self.node, self.part = node, part


class _Node:
    __slots__ = ("func", "args", "kwargs", "name", "outside", "unused", "moves", "inputs")

    def __init__(self, func: Callable[..., Any], args: Any, kwargs: Any, outside: list[Tensor], moves: bool) -> None:
        self.inputs = {ref.node for ref in _refs((args, kwargs)) if ref.node >= 0}
        self.func, self.args, self.kwargs, self.outside, self.moves = func, args, kwargs, outside, moves
        self.name, self.unused = _name(func), 0


class _Effects(TorchDispatchMode):
    """Notes whether a call changes memory that it did not make, or draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()
        self.made: set[int] = set()
        self.random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        given = [args[i] if i < len(args) else kwargs.get(argument.name) for i, argument in enumerate(schema.arguments)]
        for value in changed(schema, given):
            self.written |= {_storage(t) for t in pytree.tree_leaves(value) if isinstance(t, Tensor)}
        self.random |= torch.Tag.nondeterministic_seeded in func.tags
        before = {_storage(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        made = func(*args, **kwargs)
        self.made |= {_storage(t) for t in pytree.tree_leaves(made) if isinstance(t, Tensor)} - before
        return made

    @property
    def outside(self) -> bool:
        return bool(self.written - self.made)


class Item:
    """One item on its way through a step. ``made``: by node, what the program made of it; None: nothing."""

    __slots__ = ("program", "leaves", "rest", "spec", "made", "versions", "used", "over")

    def __init__(self, program: Program, data: Any) -> None:
        flat, self.spec = pytree.tree_flatten(data)
        self.program, self.leaves = program, [t if _plain(t) else None for t in flat]
        self.rest, self.made, self.versions = flat, [], {}  # type: ignore[var-annotated]
        self.used: set[int] = set()
        # The step has changed something of the item, or the item has another structure than the first.
        self.over = not program.fits(self.spec)

    def data(self) -> Any:
        """The item for the step: its tensors are Staged."""
        if self.over:
            return pytree.tree_unflatten(self.rest, self.spec)
        flat = [
            _staged(leaf, self, -1 - i, None) if leaf is not None else self.rest[i]
            for i, leaf in enumerate(self.leaves)
        ]
        return pytree.tree_unflatten(flat, self.spec)

    def end(self) -> None:
        """The step is over: what it did not use is noted, and nothing of the item is kept."""
        if not self.over:
            self.program.noted(self)
        self.over, self.made, self.leaves, self.rest = True, [], [], []


class Program:
    """The nodes, in the order in which they were learned, which is an order in which they can run."""

    def __init__(self) -> None:
        self.nodes: list[_Node | None] = []  # None: dropped
        self.refused: dict[Any, str] = {}  # by key or kind: why calls stay in the step
        self._keys: dict[Any, int] = {}
        self._ends: set[Any] = set()  # kinds of calls that change something of the item
        self._plainly: set[Any] = set()  # functions that do not, where they are given a tensor with a gradient
        # By key: calls on tensors from outside that one step made, with these tensors and the kind of the call.
        self._seen: dict[Any, tuple[list[Tensor], Any]] = {}
        self._forgotten: dict[Any, int] = {}  # by kind: how many of them no other step made
        self._once: set[Any] = set()  # those of them that the step before the last made
        self._spec: Any = None
        self._lock = threading.Lock()

    def fits(self, spec: Any) -> bool:
        """Whether items of this structure are those that the program is for. The first item decides."""
        with self._lock:
            self._spec = self._spec or spec
        return bool(spec == self._spec)

    def run(self, item: Item, moved: Callable[[list[tuple[_Node, Tensor]]], list[Tensor]] | None = None,
            team: Team | None = None) -> None:  # fmt: skip
        """Computes what can be computed ahead for an item. A node that fails is left to the step, which meets the error at
        its own line. ``moved``: copies the inputs of all nodes that only move a tensor to another device, at once; nodes
        behind these stay in the step. ``team``: threads that run nodes side by side which do not need each other."""
        if item.over:
            return
        nodes = list(self.nodes)
        made: list[Any] = [None] * len(nodes)
        waiting: list[tuple[int, _Node, Tensor]] = []

        def compute(i: int) -> None:
            node = nodes[i]
            if node is None:
                return
            for tensor in node.outside:
                item.versions.setdefault(id(tensor), (tensor._version, tensor.detach()))
            try:
                args = _filled(node.args, item.leaves, made)
                if moved and node.moves:
                    waiting.append((i, node, args[0]))
                else:
                    with torch.no_grad():
                        made[i] = node.func(*args, **_filled(node.kwargs, item.leaves, made))
            except Exception:
                made[i] = None  # also a node whose input is missing

        if team is None:
            for i in range(len(nodes)):
                compute(i)
        else:
            for wave in _waves(nodes):
                team.each(compute, wave)
        if moved and waiting:
            for (i, _, _), there in zip(waiting, moved([(node, tensor) for _, node, tensor in waiting])):
                made[i] = there
        item.made = made

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call of the step on a Staged tensor."""
        # Most calls are of this kind, such as those of tables and layers: nothing else is asked of them.
        if func in self._plainly and not (kwargs and "out" in kwargs):
            for arg in args:
                if isinstance(arg, Tensor) and type(arg) is not Staged and arg.requires_grad:
                    with torch._C.DisableTorchFunctionSubclass():
                        return func(*args, **(kwargs or {}))
        found: list[Staged] = []
        others: list[Tensor] = []
        try:
            key = (func, _key(args, found, others), _key(kwargs, found, others) if kwargs else None)
            why = "is under autocast" if torch._C._is_any_autocast_enabled() else ""
        except TypeError:
            key, why = None, "has an argument that is no constant"
        item = found[0]._item if found else None
        if item is None or item.over:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if not why and any(t.requires_grad for t in others):
            why = _GRADIENT
        # Calls that stay in the step are known by their kind, because their tensors are new in every step.
        kind = (func, why or len(others), _form(args, kwargs))
        index = None if why else self._keys.get(key)
        if why or (index is None and kind in self.refused):
            return self._here(func, args, kwargs, kind, why, item)
        if index is not None and index < len(item.made):
            made, node = item.made[index], self.nodes[index]
            if made is not None and node is not None:
                if all(_unchanged(t, item.versions.get(id(t))) for t in node.outside):
                    item.used.add(index)
                    return _wrapped(made, item, index)
                self._drop(index, "reads a tensor that the step changes")
        return self._learned(func, args, kwargs, key, kind, index, item, others)

    def _here(self, func: Any, args: Any, kwargs: Any, kind: Any, why: str, item: Item) -> Any:
        """Runs a call that stays in the step. Whether its kind changes the item is found out once."""
        if kind in self.refused and kind not in self._ends:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        made, effects = _with_effects(func, args, kwargs)
        if _changes(effects, args, kwargs):
            self._ends.add(kind)
            item.over = True
        self.refused.setdefault(kind, why)
        if why == _GRADIENT and not effects.written and not (kwargs and "out" in kwargs):
            self._plainly.add(func)
        return made

    def _learned(self, func: Any, args: Any, kwargs: Any, key: Any, kind: Any, index: int | None, item: Item,
                 others: list[Tensor]) -> Any:  # fmt: skip
        """Runs the call here. If it can run ahead for later items, it becomes a node."""
        if index is None and len(self.nodes) >= _MOST:
            return self._here(func, args, kwargs, kind, f"comes behind {_MOST} others", item)
        if key in self.refused:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        made, effects = _with_effects(func, args, kwargs)
        parts = made if isinstance(made, (tuple, list)) else (made,)
        if _changes(effects, args, kwargs):
            self._ends.add(kind)
            item.over = True
        if effects.outside:
            self.refused[kind] = "changes a tensor"
        elif effects.random:
            self.refused[kind] = "draws random numbers"
        elif not parts or not all(isinstance(t, Tensor) and not t.requires_grad for t in parts):
            self.refused[kind if others else key] = ""  # a shape or a number, which the step needs at once
        else:
            with self._lock:
                if index is None and others and key not in self._seen:
                    # A table, or a tensor that this step made: the next step tells. The reference keeps the id taken.
                    self._seen[key] = others, kind
                    return made
                if index is None:
                    index = len(self.nodes)
                    moves = isinstance(made, Tensor) and made.device != _device(args)
                    self.nodes.append(
                        _Node(
                            func, _template(args), _template(kwargs or {}), self._seen.pop(key, ([], None))[0], moves
                        )
                    )
                    self._keys[key] = index
            item.used.add(index)
            return _wrapped(made, item, index)
        return made

    def _drop(self, index: int, why: str) -> None:
        with self._lock:
            node = self.nodes[index]
            if node is None:
                return
            self.nodes[index] = None
            for key in [key for key, at in self._keys.items() if at == index]:
                del self._keys[key]
                self.refused[key] = why

    def noted(self, item: Item) -> None:
        for index, made in enumerate(item.made):
            node = self.nodes[index]
            if node is None or made is None:
                continue
            node.unused = 0 if index in item.used else node.unused + 1
            if node.unused >= _KEPT:
                self._drop(index, "is not part of every step")
        with self._lock:
            # A call on a tensor from outside was seen in one step: if the next has not made it again, it is forgotten.
            for key in [key for key in self._seen if key in self._once]:
                _, kind = self._seen.pop(key)
                self._forgotten[kind] = self._forgotten.get(kind, 0) + 1
                if self._forgotten[kind] >= _MADE_ANEW:
                    self.refused[kind] = "takes a tensor that each step makes anew"
            self._once = set(self._seen)

    def explained(self) -> str:
        """The nodes, and why other calls on the item's tensors stay in the step, as text."""
        ahead = [node.name for node in self.nodes if node is not None]
        lines = [f"ahead of the step: {', '.join(ahead) or 'no call of it'}"]
        told: dict[tuple[str, str], int] = {}
        for key, why in list(self.refused.items()):
            if why:
                told[_name(key[0]), why] = told.get((_name(key[0]), why), 0) + 1
        lines += [
            f"in the step {name}{f' ({count} kinds of call)' if count > 1 else ''}: {why}"
            for (name, why), count in told.items()
        ]
        return "\n".join(lines) + "\n"


class Staged(Tensor):
    """A tensor made from an item alone. It is a tensor in every way; calls on it go through its Program."""

    _item: Item
    _at: int
    _part: int | None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What Dynamo traces is compiled, and nobody sees its calls; nor is what it asks a tensor for a call of the step.
        if torch.compiler.is_dynamo_compiling() or TracingContext.try_get() is not None:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        first = _first(args)
        if first is None and kwargs:
            first = _first(tuple(kwargs.values()))
        if first is None:
            return super().__torch_function__(func, types, args, kwargs or {})
        return first._item.program.call(func, args, kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:  # what is saved, or sent to a process, is a plain tensor
        return plain(self).__reduce_ex__(protocol)


def plain(data: Any) -> Any:
    """The data with plain tensors for Staged ones: for compiled functions, and for what a step returns."""
    if type(data) in (Tensor, float):
        return data
    with torch._C.DisableTorchFunctionSubclass():
        return pytree.tree_map_only(Staged, lambda t: t.as_subclass(Tensor), data)


def _first(args: Any) -> Staged | None:
    for arg in args:
        if isinstance(arg, Staged):
            return arg
        if isinstance(arg, (tuple, list)) and (found := _first(arg)) is not None:
            return found
    return None


def _staged(tensor: Tensor, item: Item, at: int, part: int | None) -> Staged:
    if type(tensor) is Tensor:
        made = tensor.as_subclass(Staged)
    else:
        with torch._C.DisableTorchFunctionSubclass():
            made = tensor.as_subclass(Staged)
    made._item, made._at, made._part = item, at, part  # type: ignore[attr-defined]
    return made  # type: ignore[return-value]


def _wrapped(made: Any, item: Item, index: int) -> Any:
    if isinstance(made, (tuple, list)):
        parts = [_staged(t, item, index, i) for i, t in enumerate(made)]
        # A named tuple such as torch.max's keeps its class.
        return type(made)(parts) if type(made) in (tuple, list) or hasattr(made, "n_fields") else type(made)(*parts)
    return _staged(made, item, index, None)


def _plain(data: Any) -> bool:
    return type(data) is Tensor and not data.requires_grad


def _tensors(data: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(data) if isinstance(t, Tensor)]


def _device(args: Any) -> torch.device | None:
    """The device of a call's first tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return next((t.device for t in _tensors(args)), None)


def _with_effects(func: Any, args: Any, kwargs: Any) -> tuple[Any, _Effects]:
    with torch._C.DisableTorchFunctionSubclass(), _Effects() as effects:
        return func(*args, **(kwargs or {})), effects


def _changes(effects: _Effects, args: Any, kwargs: Any) -> bool:
    """Whether the call has changed a tensor of the item."""
    given = (t for t in _tensors((args, kwargs)) if isinstance(t, Staged))
    return effects.outside and any(_storage(t) in effects.written for t in given)


def _unchanged(tensor: Tensor, before: tuple[int, Tensor] | None) -> bool:
    """Whether no call has changed the tensor, or given it other data. ``before``: its version, and a view, which keeps the data
    that it had. What is changed by way of its ``.data`` or of NumPy is not seen."""
    if before is None or tensor._version != before[0]:
        return False
    return tensor.layout != torch.strided or _storage(tensor) == _storage(before[1])


def _storage(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def _key(arg: Any, found: list[Tensor], others: list[Tensor]) -> Any:
    """The arguments as something hashable: equal for calls that give equal results on equal items."""
    kind = type(arg)
    if kind is Staged:
        found.append(arg)
        return _Ref, arg._at, arg._part
    if arg is None:
        return arg
    if kind in _NUMBERS:
        return kind, repr(arg) if not arg or kind is complex else arg  # 0.0 and -0.0 are equal
    if kind is tuple or kind is list or kind is torch.Size:
        return kind, *[_key(part, found, others) for part in arg]
    if isinstance(arg, Tensor):
        others.append(arg)
        return "tensor", id(arg)
    if kind is slice:
        return kind, *[_key(part, found, others) for part in (arg.start, arg.stop, arg.step)]
    if kind is dict:
        return kind, *[(name, _key(part, found, others)) for name, part in arg.items()]
    if isinstance(arg, _CONSTANTS):
        return arg
    raise TypeError("an argument that is no constant")


def _form(args: Any, kwargs: Any) -> Any:
    """What of a call decides whether it changes tensors: which arguments are the item's, and flags, such as inplace."""
    return (*[arg if arg is True or arg is False else type(arg) for arg in args],
            *[(name, _form((arg,), None)) for name, arg in (kwargs or {}).items()])  # fmt: skip


def _template(arg: Any) -> Any:
    if isinstance(arg, Staged):
        return _Ref(arg._at, arg._part)
    if type(arg) in (tuple, list, torch.Size):
        return type(arg)(_template(part) for part in arg) if type(arg) is not torch.Size else arg
    if type(arg) is dict:
        return {name: _template(part) for name, part in arg.items()}
    return slice(*[_template(p) for p in (arg.start, arg.stop, arg.step)]) if type(arg) is slice else arg


def _filled(arg: Any, leaves: list[Any], made: list[Any]) -> Any:
    kind = type(arg)
    if kind is _Ref:
        value = leaves[-1 - arg.node] if arg.node < 0 else made[arg.node]
        value = value if arg.part is None or value is None else value[arg.part]
        if value is None:
            raise LookupError("an input of the node was not made")
        return value
    if kind is tuple or kind is list:
        return kind([_filled(part, leaves, made) for part in arg])
    if kind is dict:
        return {name: _filled(part, leaves, made) for name, part in arg.items()}
    if kind is slice:
        return slice(*[_filled(p, leaves, made) for p in (arg.start, arg.stop, arg.step)])
    return arg


def _refs(arg: Any) -> Iterator[_Ref]:
    if type(arg) is _Ref:
        yield arg
    elif type(arg) in (tuple, list):
        for part in arg:
            yield from _refs(part)
    elif type(arg) is dict:
        yield from _refs(list(arg.values()))
    elif type(arg) is slice:
        yield from _refs([arg.start, arg.stop, arg.step])


def _waves(nodes: list[_Node | None]) -> list[list[int]]:
    """The nodes in groups: those of a group need only nodes of groups before it."""
    depth = [0] * len(nodes)
    waves: list[list[int]] = []
    for i, node in enumerate(nodes):
        if node is not None:
            depth[i] = 1 + max((depth[at] for at in node.inputs), default=-1)
            if depth[i] == len(waves):
                waves.append([])
            waves[depth[i]].append(i)
    return waves


def _name(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    return getattr(getattr(func, "__self__", None), "__name__", name) if name == "__get__" else name
