"""Which tensors share memory: the state of a step, the constants in its graph, and the arguments of a call.

The order of a program's nodes is derived from the storages of the tensors that it was captured with. Memory that has two
storages, as with NumPy, is found by its addresses, once; memory that an argument shares with others in a later call is found
before that call, which then runs node after node in the order of the program."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import torch

from . import adapter

Range = tuple[int, int]  # addresses: the first, and the one behind the last


def ranges(tensor: torch.Tensor) -> Iterator[Range]:
    """The whole memory that a tensor is a part of, because more of it can be reached by as_strided."""
    if tensor.layout is torch.strided:
        storage = tensor.untyped_storage()
        begin, size = storage.data_ptr(), storage.nbytes()
        if begin and size:
            yield begin, begin + size
    elif tensor.layout is torch.sparse_coo:
        yield from itertools.chain(ranges(tensor._indices()), ranges(tensor._values()))


def used(tensor: torch.Tensor) -> Range | None:
    """From the first to the last element of a tensor with strides."""
    begin, size = tensor.data_ptr(), tensor.numel()
    if tensor.layout is not torch.strided or not size:
        return None
    if not tensor.is_contiguous():
        size = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
    return begin, begin + size * tensor.element_size()


def joined(tensors: list[torch.Tensor]) -> list[tuple[int, int, list[int]]]:
    """The memory of the tensors as ranges that lie apart, in order, with the numbers of the tensors in each."""
    found: list[tuple[int, int, list[int]]] = []
    for begin, end, number in sorted((b, e, i) for i, tensor in enumerate(tensors) for b, e in ranges(tensor)):
        if found and begin < found[-1][1]:
            first, last, numbers = found[-1]
            found[-1] = first, max(last, end), [*numbers, number]
        else:
            found.append((begin, end, [number]))
    return found


class Memory:
    """The memory of a step's state and constants. Threads: those of State."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.refresh()

    def refresh(self) -> None:
        found = joined(self.tensors)
        self.begins, self.ends = [b for b, _, _ in found], [e for _, e, _ in found]
        self.packed = array("Q", itertools.chain.from_iterable((b, e) for b, e, _ in found)).tobytes()
        self.groups = sorted(numbers for _, _, numbers in found if len(numbers) > 1)

    def met(self, tensors: list[torch.Tensor], among: bool) -> bool:
        """Whether some of these tensors' memory is among it or, if ``among``, two of them share an element, or may."""
        native = adapter.load()
        found = native and native.meets(tensors, self.packed, among)
        return any(map(self.holds, tensors)) or among and meet(tensors) if found is None else found

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether some of a tensor's memory is among it."""
        if tensor.layout is not torch.strided:
            return any(self._meets(*r) for r in ranges(tensor))
        range_ = used(tensor)
        return range_ is not None and self._meets(*range_)

    def _meets(self, begin: int, end: int) -> bool:
        at = bisect_left(self.begins, end) - 1  # the last that begins before the end
        return at >= 0 and self.ends[at] > begin


def meet(tensors: list[torch.Tensor]) -> bool:
    """Whether two of the tensors share an element, or may."""
    found = sorted(r for tensor in tensors for r in ([used(tensor)] if tensor.layout is torch.strided else ranges(tensor)) if r)
    return any(after[0] < before[1] for before, after in itertools.pairwise(found))


def one_thing(storages: list[list[Any]], groups: list[list[int]]) -> dict[Any, Any]:
    """What orders calls, by storage: the same thing for all storages of tensors in a group. ``storages``: of each tensor."""
    return {s: storages[group[0]][0] for group in groups for number in group for s in storages[number] if storages[group[0]]}
