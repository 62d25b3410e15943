"""What a step reads besides its arguments and its state: attributes, globals, variables of closures, lists and dicts.

A captured step has them as they were when it was captured. So what its code names is looked at before each run, and the step
is captured again where it has changed. A step that changes any of it is not captured, because a run would not.

The names come from the code of the functions and methods that the step reaches. What is found by other names (getattr with a
computed name), in globals of installed packages, in containers of more than MOST elements or inside of objects written in C is
not looked at."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import operator
import os
import pickle
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from . import glance, library
from .generators import is_generator, set_state, state_of
from .glance import MISSING
from .named import MATCHES, SETTERS, asked_by, codes_of, globals_of, imported_by, installed, names_of, standard
from .parts import Parts, Place, refill
from .refusals import SetBack, Unsupported
from .stand_ins import has_stand_in

MOST = 1024  # elements of a list, dict or set that are looked at
SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_OWN = set(vars(nn.Module()))  # of every module: its parts are state, and looked at there
_OF_OPTIMIZERS = {n for n in vars(torch.optim.SGD([torch.zeros(1)], 0.1)) if n != "defaults"} | {"step", "zero_grad", "_opt_called"}
_MAKES = {"__init__", "__new__"}
_NOT_READ = {"__init__", "__new__", "__repr__", "__str__", "__del__", "__setattr__", "__delattr__", "__init_subclass__", "__set_name__",
             "__class_getitem__", "__copy__", "__deepcopy__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__"}  # fmt: skip
_MADE_OF = ("__code__", "__defaults__", "__kwdefaults__")  # what a function may be given instead
_OF_ALL = {"__dict__", "vars", "asdict", "astuple"}  # by these the code takes all that an object has


def _root(thing: Any) -> str:
    return (getattr(thing, "__module__", None) or "").partition(".")[0]


def same(old: Any, new: Any) -> bool:
    """Whether a step cannot tell them apart."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, SIMPLE):
        return repr(old) == repr(new)  # 0.0 and -0.0 are equal, and no NaN is
    if type(old) in (list, tuple):
        return len(old) == len(new) and all(map(same, old, new))
    return isinstance(old, weakref.ref) and same(old(), new())


class Wrapper:
    """What the engine puts in the place of a function of the program. Attributes besides ``ours`` are the program's."""

    step: Any
    ours: frozenset[str] = frozenset()


@dataclass
class Guard:
    """What ``read`` gives must stay as good as ``values``. ``places``: where these lie, for a glance; None: only asking shows it."""

    owner: str
    read: Callable[[], Any]
    values: Any
    places: Callable[[Any], Iterable[glance.Place]] | None


class Surroundings:
    """``changed()`` before each run; ``watched()`` around a capture."""

    def __init__(self, step: Any, modules: list[nn.Module], optimizers: list[Optimizer], arguments: Iterable[Any] = ()) -> None:
        """``arguments``: modules and classes that a call gives, and the classes of other objects that it gives."""
        self.roots = [step, *modules, *arguments]
        self.names: set[str] = set()
        self.asked: set[str] = set()  # those of them that stand in texts
        self.made: set[int] = set()  # ids of classes that the code names: it may make objects of them, so their __init__ is read
        self.takes_all = False  # whether the program's code takes all attributes of some object
        known = -1
        while known != len(self.names):  # what is found by a name has code with more names
            known = len(self.names)
            self.places: list[Place] = []
            self.guards: list[Guard] = []
            # What is found in a dict by names: (the itemgetter, the dict, whose it is, the names).
            self.held: list[tuple[Callable[[Any], tuple[Any, ...]], Any, str, list[str]]] = []
            self.absent: list[tuple[Any, set[str], str]] = []  # (something with names, what is not among them, whose they are)
            self.modules: list[nn.Module] = []
            self.functions: list[types.FunctionType] = []  # the program's
            self.objects: list[Any] = []  # modules, and objects of the program's classes
            self.classes: list[type] = []  # the program's
            self._walk()
            self.guard("the code of a function", functools.partial(_made_of, self.functions),
                       lambda made: ((glance.ATTRIBUTE, f, name, part)
                                     for (name, f), part in zip(itertools.product(_MADE_OF, self.functions), made)))  # fmt: skip
            self.guard("the class of an object", lambda: (*map(type, self.objects), *[kind.__mro__ for kind in self.classes]), self._kinds)
        self.unseen = [guard for guard in self.guards if guard.places is None]
        self.values = [get(held) for get, held, *_ in self.held]
        self.parts = Parts(self.modules)
        self.places += self.parts.places()
        for optimizer in optimizers:
            self._optimizer(optimizer)

    def _walk(self) -> None:
        seen: set[int] = set()
        left = list(self.roots)
        self.kept = left  # keeps ids taken
        at = 0
        while at < len(left):
            item, at = left[at], at + 1
            if id(item) not in seen and not isinstance(item, SIMPLE):
                seen.add(id(item))
                left += self._inside(item)

    def _inside(self, item: Any) -> list[Any]:
        """What an object holds that the step may read. Notes its places."""
        root = _root(type(item))
        if isinstance(item, torch.Tensor):
            return self._object(item, set()) if getattr(item, "__dict__", None) else []
        if isinstance(item, (list, tuple, dict, set, deque)):
            of_class = root != "torch" and root != "builtins" and not standard(root)
            return self._container(item) + ([type(item), *self._object(item, set())] if of_class else [])
        if isinstance(item, Wrapper):
            return [item.step, *self._object(item, item.ours)]
        if isinstance(item, functools.partial):
            return [item.func, *item.args, item.keywords]
        if isinstance(item, types.MethodType):
            return [item.__func__, item.__self__]
        if isinstance(item, types.BuiltinMethodType):
            return [item.__self__]
        if isinstance(item, types.FunctionType):
            return self._function(item)
        if isinstance(item, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):  # torch notes in them what it has found out
            return []
        if isinstance(item, types.ModuleType):
            if item is os and not self.names.isdisjoint(("environ", "getenv")):
                return [os.environ]
            if installed(item.__name__.partition(".")[0]):
                return []
            self._lacks(item.__name__, vars(item), self.asked - vars(item).keys())
            return self._named(item.__name__, vars(item))
        if isinstance(item, type):
            return self._class(item)
        if isinstance(item, Optimizer):  # what its steps read is looked at elsewhere
            return self._object(item, _OF_OPTIMIZERS)
        if isinstance(item, nn.Module):
            self.modules.append(item)
            own = self._object(item, _OWN)
            hooks = [hook for name in _OWN if name.endswith("hooks") for hook in (getattr(item, name, None) or {}).values()]
            return [type(item), *item._modules.values(), *hooks, *own]
        if item is torch.default_generator:
            raise Unsupported("it names torch.default_generator, whose state a run would not read or set; use torch.get_rng_state() and "
                              "torch.set_rng_state()")  # fmt: skip
        if library.gives_another_each_time(item) and (installed(root) or root == "builtins"):
            raise Unsupported(f"it reaches a {type(item).__qualname__}, which gives something else each time; take that outside, and give it "
                              "as an argument")  # fmt: skip
        if is_generator(item) and not isinstance(item, torch.Generator):
            self.place(f"the state of a {root} generator", lambda: {None: pickle.dumps(state_of(item))},
                       lambda before: set_state(item, pickle.loads(before[None])))  # fmt: skip
            return []
        held = library.inside(item, self)
        if root in ("builtins", "engine") or isinstance(item, (threading.local, os._Environ)):
            return held
        if standard(root) and not isinstance(getattr(item, "__dict__", None), dict):
            return held
        # The code of the standard library is not the program's, so no names come from it.
        return [*held, *([] if standard(root) else [type(item)]), *self._object(item, set())]

    def _container(self, item: Any) -> list[Any]:
        owner = f"a {type(item).__name__}"
        if isinstance(item, dict):
            self.place(owner, lambda: dict(item), functools.partial(refill, item))
        elif isinstance(item, (list, deque, set)):
            add = item.update if isinstance(item, set) else item.extend
            self.place(owner, lambda: dict(enumerate(item)), lambda before: (item.clear(), add(before.values())))
        if len(item) > MOST:
            self.guard(owner, lambda: (len(item),))
            return []
        if isinstance(item, dict):
            plain = type(item) in (dict, defaultdict)  # others have an order of their own
            self.guard(owner, lambda: (*item, *item.values()), (lambda held: [glance.items_were(item, held)]) if plain else None)
        elif isinstance(item, (list, deque, set)):
            # The order of a set is that of its table, which stays while the set does.
            self.guard(owner, lambda: tuple(item), (lambda held: [(glance.ELEMENTS, item, None, held)]) if type(item) is list else None)
        return [*item, *(item.values() if isinstance(item, dict) else ())]

    def _function(self, function: types.FunctionType) -> list[Any]:
        if function is os.getenv:
            return [os.environ]
        if _root(function) in ("torch", "engine"):
            return []
        of_a_package = installed(_root(function))
        self._learn(function.__code__, of_a_package)
        variables, cells = function.__code__.co_freevars, function.__closure__ or ()
        self._may_make(map(_cell, cells))
        if cells and not of_a_package:
            owner = f"a variable of {function.__qualname__}"
            self.place(owner, lambda: dict(zip(variables, map(_cell, cells))), functools.partial(_bind, cells))
            self.guard(owner, lambda: tuple(map(_cell, cells)), lambda held: ((glance.CELL, c, None, v) for c, v in zip(cells, held)))
        held = [*map(_cell, cells), *(function.__defaults__ or ())]
        if of_a_package:
            return held + [*(function.__kwdefaults__ or {}).values()]
        self.functions.append(function)
        held.append(function.__kwdefaults__)
        if attributes := vars(function):
            owner = f"the function {function.__qualname__}"
            self.place(owner, lambda: dict(attributes), functools.partial(refill, attributes))
            held += self._read(owner, attributes, [n for n in attributes if n in self.names])
        held += imported_by(function)
        return held + self._named("a global", function.__globals__, globals_of(function.__code__))

    def _learn(self, code: Any, of_a_package: bool) -> None:
        names = set(names_of(code))
        self.names |= names
        self.takes_all |= not of_a_package and not _OF_ALL.isdisjoint(names)
        self.asked.update(*map(asked_by, codes_of(code)))

    def _class(self, kind: type) -> list[Any]:
        """A method is read if its name is, or if Python or torch calls it by itself."""
        held: list[Any] = [] if installed(_root(type(kind))) else [type(kind)]
        if not installed(_root(kind)):
            self.classes.append(kind)
        behind: set[str] = set()  # what a class of the program gets from those behind it
        for base in reversed(kind.__mro__):
            if not installed(_root(base)):
                self._lacks(base.__qualname__, vars(base), (behind | self.asked) - vars(base).keys())
            if base is not object:
                behind |= {n for n in vars(base) if n in self.names or n == "forward"}
        for base in kind.__mro__:
            if base in (object, nn.Module) or _root(base) == "builtins":
                continue
            read = vars(base)
            if MATCHES in self.names:
                self.names.update(read.get("__match_args__", ()))
            for name, value in read.items():
                if self._is_read(kind, name):
                    for part in (value, getattr(value, "fget", None), getattr(value, "__func__", None), getattr(value, "func", None)):
                        if isinstance(part, types.FunctionType):
                            self._learn(part.__code__, installed(_root(base)))
                            held.append(part)
                    if hasattr(value, "__get__") and (isinstance(value, Wrapper) or not installed(_root(type(value)))):
                        held.append(value)  # a descriptor of the program's
            if not installed(_root(base)):
                # Methods may be replaced, too.
                self._read(base.__qualname__, read, sorted(n for n, v in read.items() if hasattr(v, "__get__") and self._is_read(kind, n)))
                values = {n for n in self.names if n in read and not hasattr(read[n], "__get__")}
                held += self._named(base.__qualname__, read, values, functools.partial(_set_all, base))
        return held

    def _may_make(self, values: Iterable[Any]) -> None:
        self.made.update(id(value) for value in values if isinstance(value, type) and not installed(_root(value)))

    def _is_read(self, kind: type, name: str) -> bool:
        """Whether a method of this name may be called."""
        return id(kind) in self.made and name in _MAKES or name in self.names or name == "forward" or name.startswith("__") and name not in _NOT_READ

    def _object(self, item: Any, without: Set[str]) -> list[Any]:
        """The attributes of an object."""
        takes_all = self.takes_all and not isinstance(item, nn.Module) and (
            isinstance(item, (types.SimpleNamespace, argparse.Namespace)) or not installed(_root(type(item))))  # fmt: skip
        owner, attributes = type(item).__qualname__, getattr(item, "__dict__", None)
        owner = f"torch.{owner}" if _root(type(item)) == "torch" and isinstance(item, nn.Module) else owner
        slots = [n for k in type(item).__mro__ if "__slots__" in vars(k) for n, v in vars(k).items()
                 if (takes_all or n in self.names) and isinstance(v, types.MemberDescriptorType)]  # fmt: skip
        read = lambda: tuple(getattr(item, n, MISSING) for n in slots)  # noqa: E731
        if slots:
            self.place(owner, lambda: dict(zip(slots, read())), functools.partial(_set_all, item))
            self.guard(owner, read, lambda held: ((glance.ATTRIBUTE, item, n, v) for n, v in zip(slots, held)))
        if isinstance(item, nn.Module) or not installed(_root(type(item))):
            self.objects.append(item)
        if attributes is None:
            return list(read())

        def own() -> dict[Any, Any]:
            return {n: v for n, v in attributes.items() if n not in without}

        def write(before: dict[Any, Any]) -> None:
            """Other threads, and handlers of signals, may have written what the code does not name."""
            every = takes_all or not SETTERS.isdisjoint(self.names)
            its = {n for n, v in {**before, **own()}.items() if every or n in self.names or has_stand_in(v)}
            for name in its & attributes.keys():
                del attributes[name]
            attributes.update({n: v for n, v in before.items() if n in its})

        self.place(owner, own, write)
        # What the class has, and the object nothing of its own for it yet.
        absent = {n for base in type(item).__mro__ if base not in (object, nn.Module) for n, v in vars(base).items()
                  if n in self.names and n not in attributes
                  and (isinstance(v, SIMPLE) or not installed(_root(base)) and not hasattr(v, "__set__"))}  # fmt: skip
        self._lacks(owner, attributes, absent if _root(type(item)) == "torch" else absent | self.asked - attributes.keys())
        if takes_all:
            self.guard(owner, lambda: tuple(attributes))
        return [*read(), *self._read(owner, attributes, [n for n in own() if takes_all or n in self.names])]

    def _named(self, owner: str, held: Any, names: set[str] | None = None, write: Any = None) -> list[Any]:
        found = sorted(n for n in (self.names if names is None else names) if n in held)
        self._may_make(held[n] for n in found)
        if found:
            self.place(owner, lambda: {n: held.get(n, MISSING) for n in found}, write or functools.partial(_put_all, held))
        return self._read(owner, held, found)

    def _read(self, owner: str, held: Any, names: list[str]) -> list[Any]:
        if names:
            self.held.append((operator.itemgetter(*names, names[0]), held, owner, names))  # of one name it would give no tuple
        return [held[n] for n in names]

    def _lacks(self, owner: str, held: Mapping[str, Any], names: set[str]) -> None:
        """By these names something else would be found if ``held`` had them."""
        if names:
            self.absent.append((held, names, owner))

    def guard(self, owner: str, read: Callable[[], Any], places: Callable[[Any], Iterable[glance.Place]] | None = None) -> None:
        self.guards.append(Guard(owner, read, read(), places))

    def _kinds(self, given: tuple[Any, ...]) -> Iterator[glance.Place]:
        yield from ((glance.CLASS, item, None, kind) for item, kind in zip(self.objects, given))
        yield from ((glance.ATTRIBUTE, kind, "__mro__", order) for kind, order in zip(self.classes, given[len(self.objects) :]))

    def place(self, owner: str, read: Callable[[], dict[Any, Any]], write: Callable[[dict[Any, Any]], Any]) -> None:
        self.places.append(Place(owner, read, write))

    def _optimizer(self, optimizer: Optimizer) -> None:
        name, state = type(optimizer).__name__, optimizer.state
        for group in optimizer.param_groups:
            self.place(f"a group of {name}", functools.partial(dict, group), group.update)
        self.place(name, lambda: {"state": optimizer.state}, vars(optimizer).update)
        self.place(f"the state of {name}", lambda: dict.fromkeys(map(id, state)),
                    lambda before: [state.pop(p) for p in list(state) if id(p) not in before])  # fmt: skip

    def changed(self) -> str:
        """What the step reads that is no longer as when it was captured; '' if nothing."""
        for i, (get, held, owner, _) in enumerate(self.held):
            try:
                now = get(held)
            except KeyError:
                return owner
            if not all(map(same, self.values[i], now)):
                return owner
            self.values[i] = now  # as good as before, and kept for the next time
        for held, names, owner in self.absent:
            if not held.keys().isdisjoint(names):
                return owner
        why = _asked(self.guards)
        self.unseen = [guard for guard in self.guards if guard.places is None]
        return why

    def noted(self) -> Iterator[glance.Place]:
        """The places of all that changed() looks at, but for the guards without places."""
        for (_, held, _, names), values in zip(self.held, self.values):
            yield from ((glance.ITEM, held, name, value) for name, value in zip(names, values))
        for held, names, _ in self.absent:
            yield from ((glance.ITEM, held, name, MISSING) for name in names)
        for guard in self.guards:
            if guard.places is not None:
                yield from guard.places(guard.values)

    def guarded(self) -> str:
        """changed() of the guards without places."""
        return _asked(self.unseen)

    @contextlib.contextmanager
    def watched(self, real: Callable[[Any], Any]) -> Iterator[None]:
        """Puts everything back as it was. Unsupported if what happens inside has changed any of it. ``real``: the tensor of the
        state for what stands for it."""
        before = [(place, place.read()) for place in self.places]
        # Of tensors of one element a trace computes values, too: the counts of batches, of modules that are not swapped.
        counts = [(t, t._version, t.detach().clone()) for _, _, t in self.parts.tensors
                  if t is not None and not nn.parameter.is_lazy(t) and t.numel() == 1]  # fmt: skip
        try:
            yield
        finally:
            for count, version, value in counts:
                if count._version != version:
                    count.data.copy_(value)
            # All of it is put back before any of it is judged, whatever comparisons of the program's do.
            moved = [(place, values, now) for place, values in before if not _identical(values, now := _now(place))]
            for place, values, _ in moved:
                place.write(values)
        changed: list[str] = []
        trained: list[str] = []  # of these, those that are only whether a module trains
        for place, *both in moved:
            values, now = (_by_key(held, real) for held in both)
            if differ := [n for n in {**values, **now} if not same(values.get(n, MISSING), _real(now.get(n, MISSING), real))]:
                where = f"'{os.fsdecode(differ[0])}' of " if isinstance(differ[0], (str, bytes)) else ""
                (trained if [*values] == ["training"] else changed).append(f"{where}{place.owner}")
        if found := changed + trained:
            raise (Unsupported if changed else SetBack)(f"it changes {found[0]}, which a run of its plan would not; return such a value, or "
                                                        "keep it in a buffer of a module that the step changes in place")  # fmt: skip


def _by_key(held: dict[Any, Any], real: Callable[[Any], Any]) -> dict[Any, Any]:
    """With keys that no ``==`` of the program's compares, as that of tensors would."""

    def key(given: Any) -> Any:
        if isinstance(given, SIMPLE):
            return given
        if type(given) is tuple:
            return tuple(map(key, given))
        tensor = given() if isinstance(given, weakref.ref) else given
        return type(given), id(real(tensor) if isinstance(tensor, torch.Tensor) else given)

    return {key(given): value for given, value in held.items()}


def _real(value: Any, real: Callable[[Any], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return real(value)
    if isinstance(value, weakref.ref):
        found = value()
        return weakref.ref(real(found)) if isinstance(found, torch.Tensor) else value
    return type(value)([_real(v, real) for v in value]) if type(value) in (list, tuple) else value


def _now(place: Place) -> dict[Any, Any]:
    try:
        return place.read()
    except Exception:  # of the program's own code: then it is put back, and taken for changed
        return {}


def _identical(before: dict[Any, Any], now: dict[Any, Any]) -> bool:
    """In the same order, too. Asks no object of the program's whether it equals another."""
    return (len(before) == len(now) and all(map(operator.is_, before.values(), now.values()))
            and all(a is b or type(a) is int and a == b for a, b in zip(before, now)))  # fmt: skip


def _asked(guards: list[Guard]) -> str:
    """Whose values are no longer what they were; '' if all are. Who has been given equal ones is asked from now on: it may be given others
    before each run, which no glance would find the same."""
    for guard in guards:
        given, before = guard.read(), guard.values
        if len(given) != len(before):
            return guard.owner
        if not all(map(operator.is_, given, before)):
            if not all(map(same, before, given)):
                return guard.owner
            guard.values, guard.places = given, None
    return ""


def _made_of(functions: list[types.FunctionType]) -> tuple[Any, ...]:
    return tuple(getattr(f, name) for name in _MADE_OF for f in functions)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return MISSING


def _bind(cells: Any, before: dict[Any, Any]) -> None:
    for cell, value in zip(cells, before.values()):
        if value is not MISSING:
            cell.cell_contents = value
        elif _cell(cell) is not MISSING:
            del cell.cell_contents


def _set_all(item: Any, before: dict[str, Any]) -> None:
    for name, value in before.items():
        if value is not MISSING:
            setattr(item, name, value)
        elif hasattr(item, name):
            delattr(item, name)


def _put_all(held: dict[str, Any], before: dict[str, Any]) -> None:
    held.update({n: v for n, v in before.items() if v is not MISSING})
