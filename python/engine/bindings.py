"""Bindings: the ways by which a recorded function reaches Values and Vars. If one leads elsewhere, the recording is stale.

Constants are bools, None, numbers and texts that the recorded function itself names. Their values are part of the recording, so
one that has changed needs another recording.

They are searched when the function has been recorded: from what its code names (globals, variables of closures, defaults, `self`) along
attributes that some code names, through containers, and through the functions that it calls. The search is bounded. It
does not see attributes whose names are computed, and what only C code, NumPy, PyTorch or the standard library keeps.
"""

from __future__ import annotations

import collections
import dis
import enum
import functools
import itertools
import numbers
import operator
import sys
import types
from typing import Any, Callable, Iterable, Iterator, NamedTuple

from . import _core
from .values import Value

_MOST_OBJECTS = 20000
_MOST_FUNCTIONS = 256
_MOST_ROUNDS = 8  # of functions that are found late, because what names them was
_LEAVES = (int, float, complex, str, bytes, bool, type(None), numbers.Number, enum.Enum)
_NOT_SEARCHED = {"engine", "numpy", "torch", *sys.stdlib_module_names} - {"__main__", "test"}
_MOST_STEPS = 3  # attributes of attributes, to a constant
_PARTS = "_modules"  # where a torch.nn.Module keeps the modules that are its attributes


class Path(NamedTuple):
    """How an object is reached: ``root`` gives the first one, or is it (``fixed``); each step is ('.', name) or ('[', key)."""

    kind: str  # of the root: 'global', 'variable', 'attribute' ...
    of: str  # the function whose root it is
    text: str
    root: Any
    fixed: bool
    steps: tuple[tuple[str, Any], ...] = ()

    def to(self, how: str, key: Any) -> Path:
        text = f"{self.text}.{key}" if how == "." else f"{self.text}[{key!r}]"
        return self._replace(text=text, steps=(*self.steps, (how, key)))

    def end(self) -> Any:
        """What it leads to now; None if it has ended."""
        try:
            at = self.root if self.fixed else self.root()
            for how, key in self.steps:
                at = getattr(at, key) if how == "." else at[key]
            return at
        except (AttributeError, LookupError, TypeError):
            return None


class Binding(NamedTuple):
    """The path led to ``was`` when the function was recorded. ``title``: what that is called, for an error."""

    title: str
    path: Path
    was: Any


Link = tuple[Callable[[], Any], Any]  # how to look a step of a path up, in one call without Python code, and what that must be


def hold(links: tuple[Link, ...]) -> bool:
    """Whether all are what they must be. Else the paths may lead to the same state all the same."""
    try:
        return all(look() is was for look, was in links)
    except (AttributeError, LookupError, TypeError):
        return False


def links(bindings: list[Binding]) -> tuple[Link, ...]:
    """The steps of the paths, each once, as they are now."""
    found: dict[Any, Link] = {}
    for _, path, _ in bindings:
        at = path.root
        if not path.fixed:
            at = path.root()
            found[path.kind, path.of, path.text.partition(".")[0].partition("[")[0]] = path.root, at
        for how, key in path.steps:
            attributes = getattr(at, "__dict__", None) if how == "." else None
            if type(attributes) is dict and key in attributes:
                look: Any = functools.partial(attributes.get, key)
            else:
                look = functools.partial(getattr if how == "." else operator.getitem, at, key)
            link, at = (id(at), how, key), look()
            found[link] = look, at
    return tuple(found.values())


def _is_leaf(kind: type) -> bool:
    """Whether its objects are bools, None, numbers or texts, NumPy's scalars and members of Enums among them. They lead nowhere."""
    numpy = sys.modules.get("numpy")
    return issubclass(kind, _LEAVES) or numpy is not None and issubclass(kind, numpy.generic)


def _names_of(code: types.CodeType) -> Iterator[str]:
    """What the code names, with the functions that are written inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def changed(constants: list[Binding]) -> Binding | None:
    """The first of them that has another value now; None if all are what they were."""
    for binding in constants:
        was, now = binding.was, binding.path.end()
        if now is not was and (type(now) is not type(was) or now != was):
            return binding
    return None


def _kept_by(codes: Iterable[types.CodeType]) -> tuple[set[str], set[str]]:
    """The names that the code and the functions inside of it read and do not set: what it counts is no reason to record it
    anew. The second ones are those of globals and variables, without attributes."""
    read, plain, stored, todo = set[str](), set[str](), set[str](), list(codes)
    while todo:
        code = todo.pop()
        todo += (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        read.update(code.co_names, code.co_freevars)
        for at in dis.get_instructions(code):
            how = at.opname.partition("_")
            outside = how[2] in ("GLOBAL", "NAME", "ATTR") or how[2] == "DEREF" and at.argval in code.co_freevars
            if how[0] in ("STORE", "DELETE") and outside:
                stored.add(at.argval)
            elif at.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")):
                plain.add(at.argval)
        plain.update(code.co_freevars)
    kept = {name for name in read - stored if not name.startswith("__")}
    return kept, kept & plain


def _module_of(thing: Any) -> str:
    return str(getattr(thing, "__module__", None) or getattr(thing, "__name__", "")).partition(".")[0]


def _codes_of(source: Any) -> Iterator[types.CodeType]:
    """The code of a function, a method, or what the program wrote to call an object, such as a module's ``forward``."""
    kind = type(source)
    plain = issubclass(kind, (types.FunctionType, types.MethodType))
    for fn in [source] if plain else [getattr(kind, name, None) for name in ("__call__", "forward")]:
        if isinstance(code := getattr(fn, "__code__", None), types.CodeType) and _module_of(fn) not in _NOT_SEARCHED:
            yield code


class Search:
    """Finds the bindings of ``source``, called ``called``. ``states``: the Values that its recording uses, apart from arguments.

    ``bindings``: what was found. ``missing``: those of ``states`` that no path leads to. ``constants``: bools, None, numbers
    and texts that ``source`` itself names.
    """

    def __init__(self, source: Any, called: str, states: Iterable[Value[Any]]) -> None:
        self._source, self._called = source, called
        self._states = {id(value): value for value in states}
        self._own, self._plain = _kept_by(_codes_of(source))
        self._names: set[str] = {_PARTS, *self._own}
        self._functions: dict[Any, str] = {}  # by code object, what it is called
        for _ in range(_MOST_ROUNDS):  # a function that is found late may name what was passed by before
            before = len(self._names), len(self._functions)
            self._walk()
            if before == (len(self._names), len(self._functions)):
                break
        self.bindings, self.constants = list(self._found.values()), list(self._constants.values())
        self.missing = [value for at, value in self._states.items() if at not in self._reached]

    def _walk(self) -> None:
        self._found: dict[tuple[str, str, str], Binding] = {}
        self._constants: dict[str, Binding] = {}
        self._reached: set[int] = set()
        self._seen: dict[int, Any] = {}  # kept, so that no address is used again
        self._parents: dict[int, int] = {}
        self._leading: set[int] = set()  # objects from which a path leads to a state
        self._again: list[tuple[Path, Any, int]] = []  # ways to an object that was seen already
        self._rooted: set[Any] = set()
        self._queue = collections.deque[tuple[Path, Any, int]]()
        self._function(self._source, self._called, own=True)
        while self._queue and len(self._seen) < _MOST_OBJECTS:
            self._visit(*self._queue.popleft())
        more = True
        while more:  # a second way to what leads to a state has to lead there, too
            more = False
            for path, thing, parent in self._again:
                key = (path.kind, path.of, path.text)
                if id(thing) in self._leading and key not in self._found:
                    self._note(path, thing, parent)
                    more = True

    def _constant(self, path: Path, parent: int) -> None:
        """Notes a bool, None, number or text that the recorded function may have read by this path."""
        if not path.steps and path.text not in self._plain:
            return  # an attribute has the name of a global
        named = path.text.split(".")
        if path.of != self._called or len(path.steps) > _MOST_STEPS or not self._own.issuperset(named[path.fixed :]):
            return
        if issubclass(type(self._seen.get(parent)), types.ModuleType) and _module_of(self._seen[parent]) in _NOT_SEARCHED:
            return  # math.pi
        if _is_leaf(type(was := path.end())):
            self._constants[path.text] = Binding(f"the {path.kind} '{path.text}' of '{path.of}'", path, was)

    def _note(self, path: Path, thing: Any, parent: int) -> None:
        of = f"of '{path.of}'" + (f", which '{self._called}' uses," if path.of != self._called else "")
        title = f"the {path.kind} '{path.text}' {of}"
        self._found[path.kind, path.of, path.text] = Binding(title, path, thing)
        while parent and parent not in self._leading:
            self._leading.add(parent)
            parent = self._parents.get(parent, 0)

    def _function(self, fn: Any, called: str, own: bool = False) -> None:
        """Adds what a function begins with. ``own``: it is the recorded one."""
        if isinstance(fn, types.MethodType):
            self._queue.append((Path("attribute", called, "self", fn.__self__, True), fn.__self__, 0))
            fn = fn.__func__
        elif own and not isinstance(fn, types.FunctionType):
            self._queue.append((Path("attribute", called, "self", fn, True), fn, 0))
        code = getattr(fn, "__code__", None)
        if not isinstance(code, types.CodeType) or len(self._functions) >= _MOST_FUNCTIONS or fn in self._rooted:
            return
        if not own and _module_of(fn) in _NOT_SEARCHED:
            return
        self._rooted.add(fn)
        self._functions.setdefault(code, called)
        names = dict.fromkeys(_names_of(code))
        self._names.update(names)
        for name, cell in zip(code.co_freevars, fn.__closure__ or ()):
            try:
                contents = cell.cell_contents
            except ValueError:  # it is bound later
                continue
            self._begin(Path("variable", called, name, functools.partial(getattr, cell, "cell_contents", None), False), contents, own)
        for name in names:
            if name in fn.__globals__:
                found = fn.__globals__[name]
                self._begin(Path("global", called, name, functools.partial(fn.__globals__.get, name), False), found, own)
        given = zip(reversed(code.co_varnames[: code.co_argcount]), reversed(fn.__defaults__ or ()))
        for name, default in (*given, *(fn.__kwdefaults__ or {}).items()):
            self._begin(Path("default", called, name, default, True), default, False)

    def _begin(self, path: Path, thing: Any, own: bool) -> None:
        """``own``: the recorded function names it, so it matters whether the recording has met it or not."""
        if own and issubclass(type(thing), (Value, _core.Var)):
            self._note(path, thing, 0)
            self._reached.add(id(thing))
        else:
            self._queue.append((path, thing, 0))

    def _visit(self, path: Path, thing: Any, parent: int) -> None:
        if _is_leaf(type(thing)):
            self._constant(path, parent)
            return
        if issubclass(type(thing), (Value, _core.Var)):
            direct = len(path.steps) == 1 and path.of == self._called and path.steps[0][0] == "."
            if path.steps or not path.fixed:
                if direct or issubclass(type(thing), _core.Var) or id(thing) in self._states:
                    self._note(path, thing, parent)
            self._reached.add(id(thing))
            return
        if id(thing) in self._seen:
            self._again.append((path, thing, parent))
            return
        self._seen[id(thing)] = thing
        self._parents[id(thing)] = parent
        for how, key, part in self._parts(thing, path):
            self._queue.append((path.to(how, key), part, id(thing)))

    def _parts(self, thing: Any, path: Path) -> Iterator[tuple[str, Any, Any]]:
        """What may be reached from ``thing``: (how, key, what)."""
        # Not isinstance: what stands in for something else would be asked for its class, and a recorded value refuses that.
        is_a = functools.partial(issubclass, type(thing))
        if is_a((list, tuple, collections.deque)):
            yield from (("[", i, item) for i, item in zip(range(_MOST_OBJECTS), thing) if not _is_leaf(type(item)))
        elif is_a(dict):
            for key, item in list(itertools.islice(dict.items(thing), _MOST_OBJECTS)):
                if not _is_leaf(type(item)):
                    yield "[", key, item
        elif is_a((types.FunctionType, types.MethodType)):
            self._function(thing, thing.__name__)
        elif is_a(functools.partial):
            yield ".", "func", thing.func
            yield ".", "args", thing.args
            yield ".", "keywords", thing.keywords
        if is_a((_core.OpBase, types.MethodType)):  # the body of an op looks names up when it runs
            return
        attributes = getattr(thing, "__dict__", None)
        if isinstance(attributes, (dict, types.MappingProxyType)):
            wrapped = attributes.get("__wrapped__")
            if wrapped is not None:
                yield ".", "__wrapped__", wrapped
            for name in self._names & attributes.keys():
                yield ".", name, attributes[name]
        kinds = thing.__mro__ if is_a(type) else type(thing).__mro__
        if is_a(types.ModuleType) or kinds is types.FunctionType.__mro__:
            return
        for kind in kinds:
            if _module_of(kind) in _NOT_SEARCHED or kind.__module__ == "builtins":
                continue
            for name, member in list(kind.__dict__.items()):
                if isinstance(member, types.MemberDescriptorType) and name in self._names and not is_a(type):
                    if (part := getattr(thing, name, None)) is not None:  # a slot
                        yield ".", name, part
                elif name in self._names or (name.startswith("__") and name not in ("__init__", "__new__")):
                    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
                    if isinstance(member, types.FunctionType):
                        self._function(member, member.__name__)
                    elif name in self._names and not is_a(type):
                        yield ".", name, member  # an attribute of the class
