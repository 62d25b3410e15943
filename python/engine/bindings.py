"""Bindings: the ways by which a recorded function reaches Values and Vars. If one leads elsewhere, the recording is stale.

Constants are bools, None, numbers and texts that the recorded function itself names. Their values are part of the recording, so
one that has changed needs another recording.

They are searched when the function has been recorded: from what its code names (globals, variables of closures, defaults, `self`) along
attributes that some code names, through containers, and through the functions that it calls. The search is bounded. It
does not see attributes whose names are computed, and what only C code, NumPy, PyTorch or the standard library keeps.
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import sys
import types
from typing import Any, Callable, Iterable, Iterator, NamedTuple

from . import _core
from .constants import Named, is_constant, names_of, same
from .values import Value
from .wrapped import behind

_MOST_OBJECTS = 20000
_MOST_FUNCTIONS = 256
_MOST_ROUNDS = 8  # of functions that are found late, because what names them was
_NOT_SEARCHED = {"engine", "numpy", "torch", *sys.stdlib_module_names} - {"__main__", "test"}
_MOST_STEPS = 3  # attributes of attributes, to a constant
_PARTS = "_modules"  # where a torch.nn.Module keeps the modules that are its attributes
_SMALL = 256  # Python has one object for each int up to here, so `is` tells whether a size is the same


class Root(NamedTuple):
    """What a function begins with."""

    kind: str  # 'global', 'variable', 'attribute' ...
    of: str  # the function
    name: str  # of a global or a variable; "" for an object that is always the same
    thing: Any  # that object, or what looks the name up
    own: bool  # whether the function is the recorded one, or part of it
    place: int  # the address of that object, of the globals or of the variable

    def now(self) -> Any:
        return self.thing() if self.name else self.thing


class Path(NamedTuple):
    """How an object is reached from a root. Each step is ('.', name), ('[', key), or ('#', None) to the size of a container."""

    root: Root
    text: str
    steps: tuple[tuple[str, Any], ...] = ()
    containers: tuple[Path, ...] = ()  # that it leads through

    @property
    def key(self) -> tuple[int, str]:
        return self.root.place, self.text

    def to(self, how: str, key: Any) -> Path:
        text = f"{self.text}.{key}" if how == "." else f"{self.text}[{key!r}]"
        return Path(self.root, text, (*self.steps, (how, key)), (*self.containers, self) if how == "[" else self.containers)

    def size(self) -> Path:
        return self._replace(steps=(*self.steps, ("#", None)))

    def end(self) -> Any:
        """What it leads to now; None if it has ended."""
        try:
            at = self.root.now()
            for how, key in self.steps:
                at = getattr(at, key) if how == "." else at[key] if how == "[" else len(at)
            return at
        except (AttributeError, LookupError, TypeError):
            return None


class Binding(NamedTuple):
    """The path led to ``was`` when the function was recorded. ``title``: what that is called, for an error."""

    title: str
    path: Path
    was: Any

    def said(self) -> str:
        """What has become of a constant or a size."""
        return f"{self.title} was {self.was!r} when it was recorded, and is {self.path.end()!r} now"


_FIELDS = (types.MemberDescriptorType, type(Path.steps))  # slots, and fields of named tuples
Link = tuple[Callable[[], Any], Any]  # how to look a step of a path up in one call, and what that must be


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
        at = path.root.now()
        if path.root.name:
            found[path.root.place, path.root.name] = path.root.thing, at
        for how, key in path.steps:
            if how == "#":
                if type(at) is not tuple:
                    found[id(at), how, key] = _size(at)
                break
            attributes = getattr(at, "__dict__", None) if how == "." else None
            if type(attributes) is dict and key in attributes:
                look: Any = functools.partial(attributes.get, key)
            else:
                look = functools.partial(getattr if how == "." else operator.getitem, at, key)
            link, at = (id(at), how, key), look()
            found[link] = look, at
    return tuple(found.values())


def _size(container: Any) -> Link:
    size = len(container)
    return (functools.partial(len, container), size) if size <= _SMALL else ((lambda: len(container) == size), True)


def changed(constants: list[Binding]) -> Binding | None:
    """The first of them that has another value now; None if all are what they were."""
    return next((binding for binding in constants if not same(binding.was, binding.path.end())), None)


def exchanged(bindings: list[Binding]) -> Binding | None:
    """The first of them that leads to another object now; None if all lead where they did."""
    return next((binding for binding in bindings if binding.path.end() is not binding.was), None)


def _module_of(thing: Any) -> str:
    return str(getattr(thing, "__module__", None) or getattr(thing, "__name__", "")).partition(".")[0]


def _functions_of(source: Any) -> Iterator[Any]:
    """The functions that the program wrote and that a call of ``source`` runs, such as a module's ``forward``. ``source`` is no
    method and no partial; what it wraps comes by itself (``behind``)."""
    kind = type(source)
    for fn in [source] if issubclass(kind, types.FunctionType) else [getattr(kind, name, None) for name in ("__call__", "forward")]:
        if isinstance(getattr(fn, "__code__", None), types.CodeType) and _module_of(fn) not in _NOT_SEARCHED:
            yield fn


def named_by(source: Any) -> frozenset[str]:
    """What the code of the function and of what is behind it names."""
    return frozenset(name for part in behind(source) for fn in _functions_of(part) for name in names_of(fn.__code__))


class Search:
    """Finds the bindings of ``source``, called ``called``. ``states``: the Values that its recording uses, apart from arguments.

    ``bindings``: what was found. ``missing``: those of ``states`` that no path leads to. ``sizes``: of the containers on the way.
    ``seen``: all objects that were met.
    ``constants``: bools, None, numbers and texts that ``source`` itself names.
    """

    def __init__(self, source: Any, called: str, states: Iterable[Value[Any]]) -> None:
        self._source, self._called = source, called
        self._states = {id(value): value for value in states}
        self._own = Named()
        self._codes: dict[types.CodeType, bool] = {}  # what `source` itself is: True; and the properties that it names: False
        for part in behind(source):
            for fn in _functions_of(part):
                self._claim(fn.__code__, True)
        self._names: set[str] = {_PARTS, *self._own.read}
        self._functions: dict[Any, str] = {}  # by code object, what it is called
        for _ in range(_MOST_ROUNDS):  # a function that is found late may name what was passed by before
            before = len(self._names), len(self._functions), len(self._codes)
            self._walk()
            if before == (len(self._names), len(self._functions), len(self._codes)):
                break
        self.bindings, self.constants, self.sizes = (list(found.values()) for found in (self._found, self._constants, self._sizes))
        self.seen: list[Any] = list(self._seen.values())
        self.missing = [value for at, value in self._states.items() if at not in self._reached]

    def _walk(self) -> None:
        self._found: dict[tuple[int, str], Binding] = {}
        self._constants: dict[tuple[int, str], Binding] = {}
        self._sizes: dict[tuple[int, str], Binding] = {}
        self._reached: set[int] = set()
        self._seen: dict[int, Any] = {}  # kept, so that no address is used again
        self._parents: dict[int, int] = {}
        self._leading: set[int] = set()  # objects from which a path leads to a state
        self._again: list[tuple[Path, Any, int]] = []  # ways to an object that was seen already
        self._rooted: set[Any] = set()
        self._queue = collections.deque[tuple[Path, Any, int]]()
        self._begin_at(self._source)
        while self._queue and len(self._seen) < _MOST_OBJECTS:
            self._visit(*self._queue.popleft())
        more = True
        while more:  # a second way to what leads to a state has to lead there, too
            more = False
            for path, thing, parent in self._again:
                if id(thing) in self._leading and path.key not in self._found:
                    self._note(path, thing, parent)
                    more = True

    def _claim(self, code: types.CodeType, begins: bool) -> None:
        """The code is part of the recorded function: what it names, that function names."""
        if code not in self._codes:
            self._codes[code] = begins
            self._own.add(code, begins)

    def _is_own(self, path: Path) -> bool:
        """Whether the recorded function itself may have gone this way."""
        keys = tuple(key for _, key in path.steps)
        if not path.root.own or len(keys) > _MOST_STEPS or any(type(key) is not str for key in keys):
            return False
        return self._own.reads((path.root.name, *keys))

    def _constant(self, path: Path, parent: int) -> None:
        """Notes a bool, None, number or text that the recorded function may have read by this path."""
        if not path.steps and path.root.name not in self._own.plain:
            return  # a default, or an attribute has the name of a global
        if not self._is_own(path):
            return
        if issubclass(type(self._seen.get(parent)), types.ModuleType) and _module_of(self._seen[parent]) in _NOT_SEARCHED:
            return  # math.pi
        if is_constant(type(was := path.end())):
            self._constants[path.key] = Binding(self._title(path), path, was)

    def _title(self, path: Path) -> str:
        uses = f", which '{self._called}' uses," if path.root.of != self._called else ""
        return f"the {path.root.kind} '{path.text}' of '{path.root.of}'{uses}"

    def _note(self, path: Path, thing: Any, parent: int) -> None:
        if path.key not in self._found:  # the recorded function comes before those that it calls
            self._found[path.key] = Binding(self._title(path), path, thing)
        for container in path.containers:
            if container.key not in self._sizes:
                size = container.size()
                self._sizes[container.key] = Binding(f"the size of {self._title(container)}", size, size.end())
        while parent and parent not in self._leading:
            self._leading.add(parent)
            parent = self._parents.get(parent, 0)

    def _begin_at(self, source: Any) -> None:
        """Adds what the recorded function begins with, and the functions that it wraps or calls as a method or a partial."""
        called = self._called
        for part in behind(source):
            called = part.__name__ if isinstance(part, types.FunctionType) else called
            if isinstance(part, functools.partial):
                given = [(f"args[{i}]", item) for i, item in enumerate(part.args)]
                given += [(f"keywords[{name!r}]", item) for name, item in part.keywords.items()]
                for where, item in given:
                    self._queue.append((Path(Root("attribute", called, "", item, True, id(item)), f"self.{where}"), item, 0))
            elif isinstance(part, types.MethodType):
                self._self_of(part.__self__, called, True)
            else:
                if not isinstance(part, types.FunctionType):
                    self._self_of(part, called, True)
                for fn in [part] if isinstance(part, types.FunctionType) else _functions_of(part):
                    self._function(fn, called)

    def _self_of(self, thing: Any, called: str, own: bool) -> None:
        self._queue.append((Path(Root("attribute", called, "", thing, own, id(thing)), "self"), thing, 0))

    def _function(self, fn: Any, called: str) -> None:
        """Adds what a function begins with."""
        if isinstance(fn, types.MethodType):
            self._self_of(fn.__self__, called, False)
            fn = fn.__func__
        code = getattr(fn, "__code__", None)
        if not isinstance(code, types.CodeType) or len(self._functions) >= _MOST_FUNCTIONS or fn in self._rooted:
            return
        own = code in self._codes
        if not own and _module_of(fn) in _NOT_SEARCHED:
            return
        self._rooted.add(fn)
        self._functions.setdefault(code, called)
        names = dict.fromkeys(names_of(code))
        self._names.update(names)
        for name, cell in zip(code.co_freevars, fn.__closure__ or ()):
            try:
                contents = cell.cell_contents
            except ValueError:  # it is bound later
                continue
            look = functools.partial(getattr, cell, "cell_contents", None)
            self._begin(Path(Root("variable", called, name, look, own, id(cell)), name), contents, code)
        for name in names:
            if name in fn.__globals__:
                look = functools.partial(fn.__globals__.get, name)
                self._begin(Path(Root("global", called, name, look, own, id(fn.__globals__)), name), fn.__globals__[name], code)
        given = zip(reversed(code.co_varnames[: code.co_argcount]), reversed(fn.__defaults__ or ()))
        for name, default in (*given, *(fn.__kwdefaults__ or {}).items()):
            self._queue.append((Path(Root("default", called, "", default, own, id(default)), name), default, 0))

    def _begin(self, path: Path, thing: Any, code: types.CodeType) -> None:
        """If it is the recorded function that names it, it matters whether the recording has met it or not."""
        if self._codes.get(code) and issubclass(type(thing), (Value, _core.Var)):
            self._note(path, thing, 0)
            self._reached.add(id(thing))
        else:
            self._queue.append((path, thing, 0))

    def _visit(self, path: Path, thing: Any, parent: int) -> None:
        if is_constant(type(thing)):
            self._constant(path, parent)
            return
        if issubclass(type(thing), (Value, _core.Var)):
            direct = len(path.steps) == 1 and path.root.of == self._called and path.steps[0][0] == "."
            if path.steps or path.root.name:
                if direct or issubclass(type(thing), _core.Var) or id(thing) in self._states:
                    self._note(path, thing, parent)
            self._reached.add(id(thing))
            return
        again = id(thing) in self._seen
        if again:
            self._again.append((path, thing, parent))
            if not self._is_own(path):
                return
        else:
            self._seen[id(thing)] = thing
            self._parents[id(thing)] = parent
        for how, key, part in self._parts(thing, path):
            # Of what was seen already, the constants are looked at by each way that the recorded function may have gone.
            if again and (type(key) is not str or issubclass(type(part), (Value, _core.Var)) or not self._is_own(path.to(how, key))):
                continue
            self._queue.append((path.to(how, key), part, id(thing)))

    def _parts(self, thing: Any, path: Path) -> Iterator[tuple[str, Any, Any]]:
        """What may be reached from ``thing``: (how, key, what)."""
        # Not isinstance: what stands in for something else would be asked for its class, and a recorded value refuses that.
        is_a = functools.partial(issubclass, type(thing))
        if is_a((list, tuple, collections.deque)):
            yield from (("[", i, item) for i, item in zip(range(_MOST_OBJECTS), thing) if not is_constant(type(item)))
        elif is_a(dict):
            named = self._names if hasattr(type(thing), "__getattr__") else ()  # whose items may be attributes
            for key, item in list(itertools.islice(dict.items(thing), _MOST_OBJECTS)):
                if not is_constant(type(item)) or key in named:
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
        found = set(attributes) if isinstance(attributes, (dict, types.MappingProxyType)) else set()  # before its classes'
        for kind in kinds:
            if _module_of(kind) in _NOT_SEARCHED or kind.__module__ == "builtins":
                continue
            for name, member in list(kind.__dict__.items()):
                hidden = name in found
                found.add(name)
                if isinstance(member, _FIELDS):
                    if name in self._names and not hidden and not is_a(type) and (part := getattr(thing, name, self)) is not self:
                        yield ".", name, part  # else the slot is empty
                elif name in self._names or (name.startswith("__") and name not in ("__init__", "__new__")):
                    getter = getattr(member, "fget", None)
                    if isinstance(getter, types.FunctionType) and self._is_own(path.to(".", name)):
                        self._claim(getter.__code__, False)  # the function runs it where it names the property
                    member = getter or getattr(member, "__func__", member)
                    if isinstance(member, types.FunctionType):
                        self._function(member, member.__name__)
                    elif name in self._names and not hidden and getter is None:
                        yield ".", name, member  # an attribute of the class
