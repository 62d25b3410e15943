"""Updates of embedding tables that touch only the rows that a batch has looked up.

Eager makes a gradient as large as the table and updates every row with it. Plain SGD and Adagrad leave a row whose gradient is
zero as it is, to the bit, so the adapter (adapter/update.h) updates the other rows alone. That needs a gradient which nobody
but the optimizer reads: not the program, no clipping, no weight decay, no momentum, no second use of the table."""

from __future__ import annotations

import bisect
import functools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from . import adapter
from .calls import NOTHING, Call, bound, changed, storages, touched

aten = torch.ops.aten
SGD, ADAGRAD, SPARSE_ADAM, GRADIENT = range(4)  # Update::Kind of adapter/update.h
ROWS, COLUMNS = 37, 19  # of the trial: vectors, and what is left over behind them


@dataclass
class Update:
    """An optimizer's update of a table, as one call at the place of ``node``. ``eps``: of Adagrad, whose sum is ``total``;
    None: SGD. ``instead``: the nodes whose work it does."""

    node: Node
    table: Node
    gradient: Node  # of what was looked up
    indices: Node
    rate: Node  # minus the rate
    padding: int
    total: Node | None = None
    eps: float | None = None
    instead: list[Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{'Adagrad' if self.total else 'SGD'} of the rows of a table"

    @property
    def given(self) -> list[Node]:
        """The nodes of the adapter's arguments."""
        return [self.table, self.gradient, self.indices, self.rate, *([self.total] if self.total else [])]

    @property
    def changed(self) -> list[Node]:
        return [self.table, *([self.total] if self.total else [])]

    def spec(self) -> tuple[int, int, float]:
        return (SGD if self.total is None else ADAGRAD, self.padding, self.eps or 0.0)


def updates_of(graph: Graph) -> dict[Node, Update]:
    """By the node whose place it takes: what can be updated by rows. Empty where the adapter cannot do it to the bit."""
    found = [u for node in graph.find_nodes(op="call_function", target=aten.embedding_dense_backward.default) if (u := _update(node))]
    if not found or not exact(SGD) or not exact(ADAGRAD):
        return {}
    place = {node: i for i, node in enumerate(graph.nodes)}
    changes = _changes(place)
    return {u.node: u for u in found if not _changed_between(u, place, changes)}


def _update(node: Node) -> Update | None:
    gradient, indices, _, padding, by_frequency = node.args
    if by_frequency or not isinstance(gradient, Node) or not isinstance(indices, Node) or type(padding) is not int:
        return None
    instead = [node]
    while len(node.users) == 1 and next(iter(node.users)).target in NOTHING:
        node = next(iter(node.users))
        instead.append(node)
    users = {user.target: user for user in node.users}
    if len(users) != len(node.users):
        return None
    update = None
    if list(users) == [aten.add_.Tensor]:
        add = users[aten.add_.Tensor]
        if add.args[1:] == (node,) and _is_state(add.args[0]):
            update = Update(add, add.args[0], gradient, indices, add.kwargs.get("alpha"), padding, instead=instead)  # type: ignore[arg-type]
    elif users.keys() == {aten.addcmul_.default, aten.addcdiv_.default}:
        update = _adagrad(node, users[aten.addcmul_.default], users[aten.addcdiv_.default])
        if update:
            update.gradient, update.indices, update.padding = gradient, indices, padding
            update.instead += instead
    if update is None or not _is_number(update.rate) or update.node.users:
        return None
    shapes = {tuple(n.meta["val"].shape) for n in (*update.changed, instead[0])}
    alike = len(shapes) == 1 and all(n.meta["val"].dtype == torch.float32 for n in (*update.changed, gradient))
    return update if alike else None


def _adagrad(gradient: Node, multiply: Node, divide: Node) -> Update | None:
    """total.addcmul_(gradient, gradient); table.addcdiv_(gradient, total.sqrt().add_(eps), value=-rate)"""
    table, divided, deviation = divide.args
    total = multiply.args[0]
    if multiply.args[1:] != (gradient, gradient) or multiply.kwargs.get("value", 1) != 1 or divided is not gradient \
            or not _is_state(table) or not _is_state(total) or not isinstance(deviation, Node):  # fmt: skip
        return None
    if deviation.target is not aten.add_.Tensor or len(deviation.args) != 2 or deviation.kwargs or len(deviation.users) != 1:
        return None
    root, eps = deviation.args
    if type(eps) is not float or not eps > 0 or not isinstance(root, Node) or root.target is not aten.sqrt.default \
            or len(root.users) != 1 or root.args[0] not in (multiply, total) or set(multiply.users) - {root}:  # fmt: skip
        return None
    return Update(divide, table, gradient, gradient, divide.kwargs.get("value"), -1, total, eps, [multiply, root, deviation])  # type: ignore[arg-type]


def _is_state(value: Any) -> bool:
    return isinstance(value, Node) and value.op == "placeholder" and isinstance(value.meta.get("val"), torch.Tensor)


def _is_number(value: Any) -> bool:
    return isinstance(value, Node) and value.op == "placeholder" and isinstance(value.meta.get("val"), float)


def _changes(place: dict[Node, int]) -> dict[Any, list[int]]:
    """By storage, or constant: the places of the calls that change it."""
    changes: dict[Any, list[int]] = defaultdict(list)
    for node, at in place.items():
        if isinstance(node.target, torch._ops.OpOverload):
            schema = node.target._schema
            for value in changed(schema, bound(node, schema)):
                for thing in touched(value):
                    changes[thing].append(at)
    return changes


def _changed_between(update: Update, place: dict[Node, int], changes: dict[Any, list[int]]) -> bool:
    """Whether a call changes what the update reads, after eager has made its gradient of it."""
    begin, end = min(place[node] for node in update.instead), place[update.node]
    for node in (update.gradient, update.indices):
        for storage in storages(node.meta.get("val")):
            at = changes.get(storage, [])
            if bisect.bisect_left(at, end) != bisect.bisect_left(at, begin):
                return True
    return False


def native_of(call: Call) -> tuple[int, int, float] | None:
    """For the adapter: what it does in the place of an operator of ours that is written in Python, or of one of torch's that takes
    longer; None: nothing."""
    value = call.args[0].meta["val"] if call.args and isinstance(call.args[0], Node) else None
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return None
    if call.target is torch.ops.engine_torch.sparse_adam.default and value.dim() == 2 and exact(SPARSE_ADAM):
        return SPARSE_ADAM, -1, 0.0
    if call.target is aten.embedding_dense_backward.default and call.args[-1] is False and exact(GRADIENT):
        return GRADIENT, -1, 0.0
    return None


@functools.cache
def exact(kind: int) -> bool:
    """Whether the adapter's updates are torch's to the bit, with this build of torch on this processor: tried once."""
    native = adapter.load()
    if native is None:
        return False
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        numbers = torch.Generator()  # the program's own random numbers stay as they are
        indices = torch.randint(0, ROWS // 2, (ROWS,), generator=numbers)  # many are there twice
        gradient, table, first = (torch.randn(ROWS, COLUMNS, generator=numbers) for _ in range(3))
        made = []
        for by_rows in (True, False):
            changed = [table.clone(), *([first.clone()] if kind == SPARSE_ADAM else []), *([first.abs()] if kind != SGD else [])]
            if kind == SPARSE_ADAM:
                sparse = torch.sparse_coo_tensor(indices[None], gradient, table.shape, check_invariants=False)
                given: list[Any] = [changed[0], sparse, *changed[1:], 7.0, 0.0137, [0.9, 0.999], 1e-8]
            elif kind == GRADIENT:
                given, changed = [gradient, indices, ROWS, 3, False], []
            else:
                given = [changed[0], gradient, indices, -0.0137, *changed[1:]]
            described = [("f", [("c", v) for v in a]) if isinstance(a, list) else ("c", a) for a in given]
            found = native.update((kind, 3, 1e-10) if kind != SPARSE_ADAM else (kind, -1, 0.0), described, by_rows)
            if found is False:
                return False
            made.append([*changed, *([found] if kind == GRADIENT else [])])
        return all(map(torch.equal, *made))
