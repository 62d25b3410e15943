"""Concatenations of a served program: the nodes that make the parts put them where they belong, where they can."""

from __future__ import annotations

from operator import getitem
from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from .served_folds import is_constant
from .served_pointwise import Group
from .served_views import BEFORE, CALL, CONSTANT, INPUT, OUTPUT, Affine, View, plus, times

if TYPE_CHECKING:
    from .served_lower import Lowering

aten = torch.ops.aten


def cat(lowering: Lowering, node: Node) -> bool:
    if node.target is not aten.cat.default:
        return False
    value = node.meta["val"]
    parts = [p for p in node.args[0] if p.meta.get("val") is None or p.meta["val"].dim() == value.dim()]  # type: ignore[union-attr]
    dim = (node.args[1] if len(node.args) > 1 else 0) % max(1, value.dim())  # type: ignore[operator]
    if any(lowering.view(p).dtype != value.dtype for p in parts):
        return False
    whole = lowering.memory.view(value, BEFORE)
    offset: Affine = (0, 0)
    for part in parts:
        source = lowering.view(part)
        place = View(whole.storage, whole.dtype, times(offset, whole.strides[dim]), source.sizes, whole.strides)
        offset = plus(offset, source.sizes[dim])
        if not _moved(lowering, part, node, dim, place):
            whole.made = max(whole.made, len(lowering.nodes))
            lowering.copy(node, source, place)
        else:
            whole.made = max(whole.made, source.made)
    lowering.views[node] = whole
    return True


def _moved(lowering: Lowering, part: Node, cat: Node, dim: int, place: View) -> bool:
    """Lets the node that makes a part put it where it belongs, if nothing shows it as if it lay elsewhere."""
    if is_constant(part):
        return False
    at_once = cat.args[0].count(part) == 1  # type: ignore[union-attr]
    stacked = part.target is aten.unsqueeze.default and len(part.users) == 1
    if stacked and part.args[1] % len(place.sizes) == dim:  # type: ignore[operator]
        part = part.args[0]  # type: ignore[assignment]
        if len(part.users) != 1:
            return False
        strides = place.strides[:dim] + place.strides[dim + 1 :]
        source = lowering.views[part]
    else:
        strides, source = place.strides, lowering.views[part]
        if not source.owned or any(_shows(user) for user in part.users):
            return False
    maker = lowering.maker.get(part)
    if not at_once or maker is None or source.storage not in _own(lowering) or source.made < 0:
        return False
    if not isinstance(maker, Group):  # which writes whole rows, where it says
        in_rows = strides[-1:] in ((), ((0, 1),))
        if maker.kind not in "plrs" or not in_rows or not any(written is source for written in maker.writes):
            return False
    source.storage, source.offset, source.strides, source.owned = place.storage, place.offset, strides, False
    return True


def _own(lowering: Lowering) -> set[int]:
    return {i for i, s in enumerate(lowering.memory.storages) if s.kind not in (INPUT, CONSTANT, OUTPUT, CALL)}


def _shows(user: Node) -> bool:
    """Whether it shows its argument as a view that was worked out for where torch would have put it."""
    if user.target is getitem or not isinstance(user.target, torch._ops.OpOverload):
        return True
    returns = user.target._schema.returns
    return bool(returns) and returns[0].alias_info is not None
