"""Whether a tensor is still what it was when it was noted, and whether another object can stand for it."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from engine.extents import PLAIN, extents, overlap

_SMALL = 65_536  # elements: tensors of one dimension up to this size from outside are compared by their values
Note = tuple[int, Tensor, Optional[Tensor], int]  # version, a view, values, storage


def version(tensor: Tensor | None) -> int:
    return -1 if tensor is None or tensor.is_inference() else tensor._version


def noted(tensor: Tensor) -> Note:
    """What a tensor from outside is now: its version; a view, which keeps the data that it has; its values, if it is small.
    PyTorch does not count changes of a batch norm's running statistics, which are small."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        return version(tensor), tensor.detach(), tensor.detach().clone() if _is_small(tensor) else None, storage(tensor)


def unchanged(tensor: Tensor, before: Note | None) -> bool:
    """Whether no call has changed the tensor, or given it other data. What is changed in a tensor that is not small by way
    of its ``.data`` or of NumPy is not seen."""
    if before is None:
        return False
    count, view, values, data = before
    with torch._C.DisableTorchFunctionSubclass():
        if version(tensor) != count or tensor.layout != view.layout:
            return False
        if tensor.layout == torch.strided and tensor.untyped_storage()._cdata != data:
            return False
        return values is None or _same_bits(tensor.detach(), values)


def _is_small(tensor: Tensor) -> bool:
    return tensor.dim() <= 1 and tensor.numel() <= _SMALL and tensor.layout == torch.strided and tensor.device.type == "cpu"


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(a.element_size()) if a.is_floating_point() else None
    return torch.equal(a.view(bits), b.view(bits)) if bits else torch.equal(a, b)


def storage(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def marks(made: Any) -> Any:
    """The versions of what a node made."""
    return tuple(map(version, made)) if isinstance(made, (tuple, list)) else version(made)


def stageable(flat: list[Any]) -> list[Tensor | None]:
    """Of an item's leaves the tensors that can be Staged; None for what else there is, such as a tensor with the memory of an array or of
    another tensor beside it that cannot, whose changes nothing counts."""
    leaves = [t if is_plain(t) else None for t in flat]
    arrays = [extent for leaf, staged in zip(flat, leaves) if staged is None and not isinstance(leaf, PLAIN) for extent in extents(leaf) or ()]
    return [None if t is not None and overlap(extents(t) or [], arrays) else t for t in leaves] if arrays else leaves


def together(leaves: list[Tensor | None]) -> frozenset[int]:
    """The places of leaves that share memory with another one whose changes PyTorch counts by itself, as tensors made of one NumPy array
    do: a change of one of them is a change of all."""
    spans = []
    for at, leaf in enumerate(leaves):
        if leaf is not None and (first := (memory := leaf.untyped_storage()).data_ptr()):
            base = leaf._base  # views have the counter of what they are views of
            spans.append((first, first + memory.nbytes(), at, id(leaf if base is None else base)))
    spans.sort()
    found: set[int] = set()
    behind, near, counters = 0, [], set()  # the end of spans that lie in one another, their places and their counters
    for first, end, at, counter in spans:
        if first >= behind:
            near, counters = [], set()
        behind = max(behind, end)
        near.append(at)
        counters.add(counter)
        if len(counters) > 1:
            found.update(near)
    return frozenset(found)


def is_plain(data: Any) -> bool:
    """Whether a tensor can be Staged: another object that shares its memory, whose changes PyTorch counts, and that has no attributes of
    the program's."""
    return type(data) is Tensor and not (data.requires_grad or data.is_inference()) and in_one_memory(data) and not data.__dict__


def is_uncounted(tensor: Tensor) -> bool:
    """Whether nobody could tell if the tensor was changed."""
    return tensor.is_inference() and not _is_small(tensor)


def in_one_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested
