"""Where the tensors of a served program lie: views of storages, whose sizes, strides and offsets are a * rows + c."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._sympy.symbol import SymT, symbol_is_type

from .refusals import Unsupported

Affine = tuple[int, int]  # (a, c): a * rows + c
INPUT, CONSTANT, ARENA, OUTPUT, CALL = range(5)  # kinds of storages, as in serve_program.h
BEFORE = -1  # the position of what is there before the first node
NOMINAL = 8  # rows for which memory is laid out


TRIED = (1, 2, 3, 4, 7, 64, 1000, 65_536, 1 << 20)  # rows for which a size must be what its formula says


@functools.cache
def _of(expression: Any) -> Affine:
    free = list(expression.free_symbols)
    if any(symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)) for symbol in free):
        raise Unsupported(f"the size or number {expression} is known only from the data of a request")
    if len(free) > 1:
        raise Unsupported(f"the size {expression} depends on more than the number of rows")
    if not free:
        return 0, int(expression)
    # By trying, because what torch writes down may hold a Min or a Max that is one of its sides for all numbers of rows.
    found = [expression.subs(free[0], rows) for rows in TRIED]
    a = found[1] - found[0]
    c = found[0] - a
    if any(size != a * rows + c for size, rows in zip(found, TRIED)):
        raise Unsupported(f"the size {expression} is no multiple of the number of rows plus a number")
    return int(a), int(c)


def affine(number: Any) -> Affine:
    """Of an int or a SymInt."""
    return _of(number.node.expr) if isinstance(number, torch.SymInt) else (0, int(number))


def affines(numbers: Sequence[Any]) -> tuple[Affine, ...]:
    return tuple(affine(n) for n in numbers)


def plus(x: Affine, y: Affine) -> Affine:
    return x[0] + y[0], x[1] + y[1]


def times(x: Affine, y: Affine) -> Affine:
    if x[0] and y[0]:
        raise Unsupported("a size that grows with the square of the number of rows")
    return x[0] * y[1] + x[1] * y[0], x[1] * y[1]


def at(x: Affine, rows: int = NOMINAL) -> int:
    return x[0] * rows + x[1]


def count(sizes: Sequence[Affine]) -> Affine:
    return functools.reduce(times, sizes, (0, 1))


def contiguous(sizes: Sequence[Affine]) -> tuple[Affine, ...]:
    strides: list[Affine] = []
    step: Affine = (0, 1)
    for size in reversed(sizes):
        strides.append(step)
        step = times(step, size if size != (0, 0) else (0, 1))
    return tuple(reversed(strides))


@dataclass
class Storage:
    kind: int
    index: int  # of the inputs, constants, blocks or outputs
    bytes: Affine = (0, 0)
    first: int = 1 << 30  # nodes that use it
    last: int = -1


@dataclass(eq=False)
class View:
    """May be moved into another storage until the program is told to the adapter. ``made``: the position of the node that
    fills it. ``owned``: it is all of what its node makes, and nothing else shows a part of it."""

    storage: int
    dtype: torch.dtype
    offset: Affine
    sizes: tuple[Affine, ...]
    strides: tuple[Affine, ...]
    made: int = BEFORE
    owned: bool = False
    source: str = ""  # the argument of which it is a part

    def told(self) -> tuple[Any, ...]:
        return (self.storage, self.dtype, self.offset, self.sizes, self.strides)

    @property
    def dense(self) -> bool:
        return all(s == t or size == (0, 1) for s, t, size in zip(self.strides, contiguous(self.sizes), self.sizes))

    def broadcast(self, sizes: tuple[Affine, ...]) -> View:
        """As operators see it whose result has these sizes."""
        missing = len(sizes) - len(self.sizes)
        strides = [(0, 0)] * missing
        for size, wanted, stride in zip(self.sizes, sizes[missing:], self.strides):
            if size != wanted and size != (0, 1):
                raise Unsupported(f"a tensor of sizes {self.sizes} beside one of {sizes}")
            strides.append(stride if size == wanted else (0, 0))
        return View(self.storage, self.dtype, self.offset, sizes, tuple(strides))


@dataclass
class Memory:
    storages: list[Storage] = field(default_factory=list)
    blocks: list[Affine] = field(default_factory=list)

    def add(self, kind: int, index: int, bytes: Affine = (0, 0)) -> int:
        self.storages.append(Storage(kind, index, bytes))
        return len(self.storages) - 1

    def view(self, value: torch.Tensor, made: int, kind: int = ARENA) -> View:
        """A new storage as torch would lay out this fake tensor."""
        sizes, strides = affines(value.shape), affines(value.stride())
        total: Affine = (0, 1)
        for size, stride in zip(sizes, strides):
            total = plus(total, times(plus(size, (0, -1)), stride))
        storage = self.add(kind, len(self.storages), times(total, (0, value.element_size())))
        return View(storage, value.dtype, (0, 0), sizes, strides, made, True)

    def dense(self, sizes: tuple[Affine, ...], dtype: torch.dtype, made: int) -> View:
        """A new storage whose elements lie one after the other."""
        storage = self.add(ARENA, len(self.storages), times(count(sizes), (0, dtype.itemsize)))
        return View(storage, dtype, (0, 0), sizes, contiguous(sizes), made, True)

    def used(self, view: View, node: int) -> None:
        storage = self.storages[view.storage]
        storage.first, storage.last = min(storage.first, node), max(storage.last, node)

    def lay_out(self, nodes: int) -> None:
        """Gives each storage of the arena a block, which later ones use again once the last node has read it."""
        born: dict[int, list[Storage]] = {}
        for storage in self.storages:
            if storage.kind == ARENA and storage.last >= 0:
                born.setdefault(storage.first, []).append(storage)
        free: list[int] = []
        dying: dict[int, list[int]] = {}
        for node in range(nodes):
            for storage in born.get(node, ()):
                size = at(storage.bytes)
                found = min(free, key=lambda b: abs(math.log2(1 + at(self.blocks[b])) - math.log2(1 + size)), default=-1)
                if found < 0:
                    self.blocks.append(storage.bytes)
                    found = len(self.blocks) - 1
                else:
                    free.remove(found)
                    (a, c), (b, d) = self.blocks[found], storage.bytes
                    self.blocks[found] = (max(a, b), max(c, d))
                storage.index = found
                dying.setdefault(storage.last, []).append(found)
            free += dying.get(node, ())
