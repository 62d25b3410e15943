"""Sources: from the structure that the program gave, such as a dict of iterators, to what a stage reads.

``pull`` advances the iterators together, one producer at a time and in order. ``make`` calls the callables, which
turn what was pulled into the item; several producers do that at once. A recorded function is part of ``make`` if it
has parameters, else of ``pull``; the stage waits for what it returns.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Iterable, NamedTuple

from . import _core
from .containers import mapped
from .errors import UsageError, an
from .graphs import Hybrid
from .values import Value

Build = Callable[[list[Any], dict[str, Any]], Any]


class Source(NamedTuple):
    """What the producers of one run read."""

    pull: Callable[[], Any] | None
    make: Callable[[Any], Any] | None
    once: dict[str, str]  # of features and feed_dict, those that cannot begin again, and why, as text
    holders: list[Any]  # what a stage keeps of it (stages.py)


class _Compiler:
    def __init__(self, feed_dict: dict[str, Any]) -> None:
        self.pulls: list[Callable[[], Any]] = []
        self.once: dict[str, str] = {}
        self.feeds: dict[str, Callable[[list[Any]], Any]] = {}
        self.used: set[str] = set()
        for name, value in feed_dict.items():
            if not isinstance(name, str):
                raise TypeError(f"staged: feed_dict has the key {name!r}; names of parameters are expected")
            self.feeds[name] = self._feed(name, value)

    def _feed(self, name: str, value: Any) -> Callable[[list[Any]], Any]:
        if hasattr(value, "__next__"):
            at = self._iterator(value, f"feed_dict[{name!r}]")
            return lambda raw: raw[at]
        if callable(value):
            _refuse_generators(value, f"feed_dict[{name!r}]")
            return lambda raw: value()
        return lambda raw: value

    def _iterator(self, source: Iterable[Any], path: str) -> int:
        iterator = iter(source)
        if iterator is source:
            self.once.setdefault(path.partition("[")[0], f"{path} is {an(type(source))}")
        return self._pull(iterator.__next__)

    def _pull(self, fn: Callable[[], Any]) -> int:
        self.pulls.append(fn)
        return len(self.pulls) - 1

    def build(self, node: Any, path: str) -> Build:
        """Returns the function that makes the part ``node`` of an item from what was pulled and what feed_dict gives.
        """
        if node is None:
            return lambda raw, fed: None
        if isinstance(node, dict):
            parts = {key: self.build(value, f"{path}[{key!r}]") for key, value in node.items()}
            return lambda raw, fed: {key: part(raw, fed) for key, part in parts.items()}
        if isinstance(node, (list, tuple)):
            items = [self.build(value, f"{path}[{i}]") for i, value in enumerate(node)]
            kind: Any = type(node)
            if hasattr(node, "_fields"):
                return lambda raw, fed: kind(*[part(raw, fed) for part in items])
            return lambda raw, fed: kind([part(raw, fed) for part in items])
        if getattr(type(node), "__iter__", None) is not None and not isinstance(node, (str, bytes)):
            at = self._iterator(node, path)
            return lambda raw, fed: raw[at]
        if isinstance(node, Hybrid):
            return self._recorded(node, path)
        if callable(node):
            return self._call(node, path)
        raise TypeError(
            f"staged: {path} is {an(type(node))}; an iterator, iterable or callable, or a list, tuple or dict "
            "of them, or None in one, is expected; for the items of a list give iter(the list)"
        )

    def _recorded(self, hybrid: Hybrid, path: str) -> Build:
        @functools.wraps(hybrid._fn)
        def data(*args: Any, **kwargs: Any) -> Any:
            return data_of(hybrid(*args, **kwargs))

        if inspect.signature(hybrid._fn).parameters:
            return self._call(data, path)
        at = self._pull(data)  # in order: the Vars that it changes order its runs anyway
        return lambda raw, fed: raw[at]

    def _call(self, fn: Callable[..., Any], path: str) -> Build:
        _refuse_generators(fn, path)
        try:
            parameters = inspect.signature(fn).parameters.values()
        except (TypeError, ValueError):  # a built-in may have no signature
            parameters = {}.values()
        given, any_name = [], False
        for p in parameters:
            if p.kind is p.VAR_KEYWORD:
                any_name = True
            elif p.name in self.feeds and p.kind is not p.VAR_POSITIONAL:
                given.append((p.name, p.kind is p.POSITIONAL_ONLY))
            elif p.default is p.empty and p.kind is not p.VAR_POSITIONAL:
                raise UsageError(
                    f"staged: parameter '{p.name}' of {path} ({getattr(fn, '__name__', fn)}) is not in feed_dict; "
                    "add it there, or give it a default"
                )
        if any_name:
            given = [(name, False) for name in self.feeds]
        self.used |= {name for name, _ in given}
        positional = [name for name, by_place in given if by_place]
        named = [name for name, by_place in given if not by_place]
        return lambda raw, fed: fn(*[fed[n] for n in positional], **{n: fed[n] for n in named})


def _refuse_generators(fn: Any, path: str) -> None:
    called = getattr(fn, "__name__", "it")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(f"staged: {path} is a generator function, each call of which would make another generator; give {called}(...)")
    if inspect.iscoroutinefunction(fn):
        raise TypeError(f"staged: {path} is a coroutine function, and calling it runs nothing; give a plain function")


def compile_source(features: Any, feed_dict: dict[str, Any]) -> Source:
    """Checks ``features`` and ``feed_dict``, and begins their iterators. TypeError or UsageError says what is wrong.
    """
    if isinstance(features, Source):
        return features
    compiler = _Compiler(feed_dict)
    build = compiler.build(features, "features")
    unused = [name for name in compiler.feeds if name not in compiler.used]
    if unused:
        raise UsageError(f"staged: feed_dict names '{unused[0]}', and no callable in features has such a parameter")
    pulls, feeds = compiler.pulls, compiler.feeds
    if not pulls and not _has_callable(features):
        raise UsageError("staged: features has no source (iterator or callable), only the same item for ever")
    if len(pulls) == 1 and not feeds and not isinstance(features, (dict, list, tuple)):
        return Source(pulls[0], None, compiler.once, [])

    def pull() -> list[Any]:
        return [next_item() for next_item in pulls]

    def make(raw: list[Any]) -> Any:
        return build(raw, {name: feed(raw) for name, feed in feeds.items()})

    return Source(pull if pulls else None, make, compiler.once, [])


def _has_callable(node: Any) -> bool:
    if isinstance(node, dict):
        return any(map(_has_callable, node.values()))
    if isinstance(node, (list, tuple)):
        return any(map(_has_callable, node))
    return node is not None


def data_of(item: Any) -> Any:
    """The item with each Value in it replaced by its data. Waits for the Values."""
    if isinstance(item, Value):
        return item.get()
    if type(item) in (list, tuple):
        return type(item)(map(data_of, item))
    if type(item) is dict:
        return {key: data_of(value) for key, value in item.items()}
    return mapped(item, data_of) if _core._any_holds((item,), {}) else item  # a named tuple, a dataclass ...
