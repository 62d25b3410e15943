"""Sparse gradients of tables with a padding_idx, while a step is captured.

Such a gradient lacks the rows of the padding, so how many rows it has depends on the data, and torch finds out by operators
that no capture can follow. Here each of torch's two functions is one operator, which does not tell what is inside."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
from torch import Tensor

aten = torch.ops.aten
_lock = threading.RLock()  # one capture at a time replaces torch's functions
_depth = 0  # guarded by _lock: captures inside of captures


@torch.library.custom_op("engine_torch::embedding_rows", mutates_args=())
def _embedding(gradient: Tensor, indices: Tensor, rows: int, padding: int, scale: bool) -> Tensor:
    return aten.embedding_sparse_backward(gradient, indices, rows, padding, scale)


@torch.library.custom_op("engine_torch::embedding_bag_rows", mutates_args=())
def _bag(gradient: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, sizes: Tensor, rows: int, scale: bool, mode: int,
         weights: Optional[Tensor], padding: int) -> Tensor:  # fmt: skip
    return aten._embedding_bag_sparse_backward(gradient, indices, offsets, bags, sizes, rows, scale, mode, weights, padding)


@_embedding.register_fake
def _all_rows(gradient: Tensor, indices: Tensor, rows: int, *_: Any) -> Tensor:
    """As if there were no padding: nothing that is captured depends on how many rows there are."""
    width = gradient.size(-1)
    return torch.sparse_coo_tensor(indices.new_empty((1, indices.numel())), gradient.new_empty((indices.numel(), width)),
                                   (rows, width), check_invariants=False)  # fmt: skip


@_bag.register_fake
def _all_rows_of_bags(gradient: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, sizes: Tensor, rows: int, *_: Any) -> Tensor:
    return _all_rows(gradient, indices, rows)


def _instead(original: Callable[..., Tensor], ours: Callable[..., Tensor], at: int) -> Callable[..., Tensor]:
    """``at``: the place of padding_idx among the arguments, which is -1 without one."""

    def call(*args: Any) -> Tensor:
        if args[at] >= 0:
            return ours(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return original(*args)

    return call


@contextlib.contextmanager
def opaque_rows() -> Iterator[None]:
    """While it lasts, torch's functions for such gradients are those operators. Other threads get the same gradients."""
    global _depth
    with _lock:
        _depth += 1
        library = torch.library.Library("aten", "IMPL") if _depth == 1 else None
        try:
            if library:
                library.impl("embedding_sparse_backward", _instead(aten.embedding_sparse_backward, _embedding, 3), "AutogradCPU")
                library.impl("_embedding_bag_sparse_backward", _instead(aten._embedding_bag_sparse_backward, _bag, 9), "AutogradCPU")
            yield
        finally:
            _depth -= 1
            if library:
                library._destroy()
