"""What a step computes from its item alone, learned from the step's own calls, so that it can run ahead of the step.

The step gets tensors of the class ``Staged``, which see each call of PyTorch that they are an argument of. A call whose
arguments all come from the item, or are constants, becomes a node of the ``Program``. For later items the program runs
first, on a stage's thread; where the step then makes the same call, it gets what the program made. A call that the program
lacks, or that differs, runs where it stands. So a step may do whatever it likes, and its results never change.

To see a call costs some 10 us. So a step whose calls are known gets a plain tensor for what no node reads any more, such as the
ids that it gives to its tables: whatever it does to such a tensor changes nothing that ran ahead. Every so many steps it gets
Staged ones for all, because it may make other calls now.

Threads: ``Program.run`` may be called by several threads at once. An item's calls come from the thread that its step runs on;
where another thread makes one, such as an op that the step pushed, the item is over, and every later call runs where it stands.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable

import torch
from torch import Tensor
from torch._C import _is_any_autocast_enabled, _len_torch_dispatch_stack
from torch.utils import _pytree as pytree

from . import staged
from .effects import Effects, with_effects
from .item import Item, clock
from .node import Node, name_of, parts_of, waves
from .numerics import mode
from .staged import Staged, filled, unseen, wrapped
from .team import Team
from .unchanged import Note, in_one_memory, is_uncounted, marks, noted, storage, unchanged, version
from .worth import Worth

_MOST = 1024  # nodes that run
_MOST_EVER = 4096  # nodes that there have been
_MADE_ANEW = 4  # calls of a kind on tensors that no other step has: then the kind is not looked at any more
_GRADIENT = "takes a tensor with a gradient"
# What lends a tensor's memory to others, whose changes nobody sees.
_LENDS = {Tensor.numpy, Tensor.__array__, Tensor.data_ptr, Tensor.untyped_storage, Tensor.storage, Tensor.__dlpack__}
_NUMBERS = 64  # calls of a kind that give no tensors of their own: then the kind is not looked at any more
_KEPT = 2  # steps in a row that may leave a node's result alone before the node falls asleep
_SETTLED = 4  # steps behind the last new node before a step gets plain tensors
_LOOKED_AT = 64  # one step in so many gets Staged tensors for all, so that all of its calls are seen
_NOBODY: set[int] = set()
# What gives a tensor other memory, or changes it as PyTorch does not count.
_UNCOUNTED = {Tensor.data.__set__, Tensor.apply_, Tensor.map_, Tensor.map2_}  # type: ignore[attr-defined]


class Program:
    """The nodes, in the order in which they were learned, which is an order in which they can run. ``judges``: whether it is
    measured if they pay."""

    def __init__(self, judges: bool = False) -> None:
        self.worth = Worth(judges)
        self.nodes: list[Node | None] = []  # None: dropped, or asleep
        self._running: list[int] = []  # the numbers of the others
        self._asleep: dict[int, Node] = {}  # whose calls steps have not made lately: they do not run
        self._views: list[set[int] | None] = []  # by node, dropped ones too: the places whose memory it may have; None: its own
        self.refused: dict[Any, str] = {}  # by key or kind: why calls stay in the step
        self._keys: dict[Any, int] = {}
        self._ends: set[Any] = set()  # kinds of calls that change something of the item
        self._plainly: set[Any] = set()  # functions that do not, where they are given a tensor with a gradient
        # By key: calls on tensors from outside that one step made, with these tensors and the kind of the call.
        self._seen: dict[Any, tuple[list[Tensor], Any]] = {}
        self._forgotten: dict[Any, int] = {}  # by kind: how many of them no other step made, and how many nodes none ever took
        self._plain: dict[Any, int] = {}  # by kind: how many calls gave no tensors of their own
        self._once: set[Any] = set()  # those of them that the step before the last made
        self._spec: Any = None
        self._steps = self._changed = 0  # how many steps there were; how many before the last change of the nodes
        self._follows: dict[int, int] = {}  # by node, or -1: whose call came behind its call in the last step
        self._watched: set[int] = set()  # nodes whose tensors a step got as Staged ones
        self._readers: dict[int, set[int]] | None = None  # by place: the nodes that may read its memory; None: not known yet
        self._notes: dict[int, Note] = {}  # by id, of tensors that nodes take from outside
        self._lock = threading.Lock()

    def fits(self, spec: Any) -> bool:
        """Whether items of this structure are those that the program is for. The first item decides."""
        with self._lock:
            self._spec = self._spec or spec
        return bool(spec == self._spec)

    def begin_step(self) -> bool:
        """Counts the step. Whether it makes the calls of those before it, as far as can be known."""
        self._steps += 1
        return self._steps > self._changed + _SETTLED and self._steps % _LOOKED_AT != 0

    def is_done(self, at: int, item: Item) -> bool:
        """Whether each node that may read the memory of this place was taken by the step, so that a change of it means nothing."""
        if not item.settled:
            return False
        if self._readers is None:
            self._readers = self._found_readers()
        readers = self._readers
        if not readers.get(at, _NOBODY) <= item.used:
            return False
        return not item.together or all(readers.get(-1 - i, _NOBODY) <= item.used for i in item.together)

    def _found_readers(self) -> dict[int, set[int]]:
        # By place: those whose memory its tensors may be, itself, or for a view what that is made from.
        memory: dict[int, set[int]] = {}
        for i, made_from in enumerate(self._views):
            memory[i] = {i} if made_from is None else set().union(*(memory.get(at, {at}) for at in made_from))
        of: dict[int, set[int]] = {}  # by place that has memory of its own
        for i, node in enumerate(self.nodes):
            for own in set().union(*(memory.get(at, {at}) for at in node.places)) if node is not None else ():
                of.setdefault(own, set()).add(i)
        return of | {at: set().union(*(of.get(own, _NOBODY) for own in owns)) for at, owns in memory.items()}

    def _nodes_changed(self) -> None:
        self._changed, self._readers, self._notes, self._watched = self._steps, None, {}, set()
        self._running = [i for i, node in enumerate(self.nodes) if node is not None]

    def _note_of(self, tensor: Tensor) -> Note:
        """What a tensor from outside is now. The note of an earlier item says it, if no call has changed the tensor since."""
        note = self._notes.get(id(tensor))
        if note is None or note[2] is not None or not unchanged(tensor, note):
            note = self._notes[id(tensor)] = noted(tensor)
        return note

    def run(self, item: Item, moved: Callable[[list[tuple[Node, Tensor]]], list[Tensor]] | None = None,
            team: Team | None = None, behind: Callable[[], None] | None = None) -> None:  # fmt: skip
        """Computes what can be computed ahead for an item. A node that fails is left to the step, which meets the error at
        its own line. ``moved``: copies the inputs of all nodes that only move a tensor to another device, at once; nodes
        behind these stay in the step. ``team``: threads that run nodes side by side which do not need each other. ``behind``: lets the
        stage's stream wait for others; called if something is read on a device, when it has been noted what that is."""
        if item.over:
            return
        running, nodes = self._running, list(self.nodes)
        made: list[Any] = [None] * len(nodes)
        item.counts, item.mode = [version(leaf) for leaf in item.leaves], mode()
        took = item.took = {} if self.worth.measures else None
        outside = [tensor for i in running if (node := nodes[i]) is not None for tensor in node.outside]
        for tensor in outside:
            if id(tensor) not in item.versions:
                item.versions[id(tensor)] = self._note_of(tensor)
        if behind is not None and any(tensor.is_cuda for tensor in (*item.leaves, *outside) if tensor is not None):
            behind()
        waiting: list[tuple[int, Node, Tensor]] = []

        def compute(i: int) -> None:
            node = nodes[i]
            if node is None:
                return
            try:
                args = node.given(item.leaves, made)
                if moved and node.moves:
                    waiting.append((i, node, args[0]))
                else:
                    kwargs = filled(node.kwargs, item.leaves, made) if node.kwargs else {}
                    begin = 0.0 if took is None else clock()
                    out = node.func(*args, **kwargs)
                    if took is not None:
                        took[i] = clock() - begin
                    if node.gives_alike(out, args, kwargs):
                        made[i] = out
            except Exception:  # also a node whose input is missing
                pass

        def compute_with_gradients(i: int) -> None:
            with torch.enable_grad():
                compute(i)

        # With gradients on, because the step may change a view in place that was made so, and no other.
        if team is None:
            with torch.enable_grad():
                for i in running:
                    compute(i)
        else:
            for wave in waves(nodes):
                team.each(compute_with_gradients, wave)
        if moved and waiting:
            with contextlib.suppress(Exception):  # such as a device without memory: then the step moves them
                for (i, _, _), there in zip(waiting, moved([(node, tensor) for _, node, tensor in waiting])):
                    made[i] = there
        if item.mode == mode():
            item.made, item.marks = made, [-1] * len(made)  # of what is None
            for i in running:
                item.marks[i] = marks(made[i])
            with torch.enable_grad():  # made here, and not while the step waits
                item.staged = {at: wrapped(made[at], item, at) for at in list(self._watched) if at < len(made) and made[at] is not None}

    def judge(self, saved: float, cost: float) -> None:
        """What an item's nodes took ahead of its step, and what the step took to find their results."""
        self.worth.add(saved, cost, any(node.moves for node in map(self.nodes.__getitem__, self._running) if node is not None))
        if self.worth.lost:
            self._seen.clear()

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any, item: Item) -> Any:
        """A call of the step on a tensor of its item."""
        if item.took is None:
            return self._call(func, args, kwargs, item)
        begin, used = clock(), len(item.used)
        made = self._call(func, args, kwargs, item)
        if len(item.used) > used:
            item.cost += clock() - begin
        return made

    def _call(self, func: Callable[..., Any], args: Any, kwargs: Any, item: Item) -> Any:
        if func is Tensor.detach_ and not kwargs and args[0].is_leaf:
            # PyTorch refuses this for a view, as what stands for a tensor of the item is one.
            return unseen(Tensor.requires_grad_, (args[0], False), None) if args[0].requires_grad else args[0]
        # Most calls are of this kind, such as those of tables and layers: nothing else is asked of them.
        if func in self._plainly and not (kwargs and "out" in kwargs):
            for arg in args:
                if isinstance(arg, Tensor) and type(arg) is not Staged and arg.requires_grad:
                    return unseen(func, args, kwargs)
        next_ = self._follows.get(item.last, -1)
        if 0 <= next_ < len(item.made):
            made = self._as_expected(next_, func, args, kwargs, item)
            if made is not None:
                return made
        # Inside of a transform of torch.func tensors have no memory.
        if func in _UNCOUNTED or torch._C._functorch.peek_interpreter_stack() is not None or self._set_otherwise(func, item):
            item.over = True
            return unseen(func, args, kwargs)
        return self._looked_up(func, args, kwargs, item)

    def _looked_up(self, func: Callable[..., Any], args: Any, kwargs: Any, item: Item) -> Any:
        """What the program made of a call, found by its key. Else the call runs here, and may be learned."""
        found: list[Tensor] = []
        others: list[Tensor] = []
        key, why = _key_of(func, args, kwargs, item, found, others)
        # Calls that stay in the step are known by their kind, because their tensors are new in every step.
        kind = (func, why or len(others), staged.form(args, kwargs, item))
        for node in item.expected:
            item.times[node.key[0]] = node.key[1] + 1
        item.expected.clear()
        # Two equal calls are two nodes: each has a result of its own, which the step may change.
        again = 0 if why else item.times.get(key, 0)
        index = None if why else self._keys.get((key, again))
        if func in _LENDS:
            lent = set().union(*(self._leaves(t) for t in found))
            item.lent |= lent if item.together.isdisjoint(lent) else lent | item.together
        if why or (index is None and kind in self.refused):
            return self._here(func, args, kwargs, kind, why, item)
        if index is not None and self.nodes[index] is None and not self._woken(index):
            item.times[key] = again + 1
            if not self._asleep[index].fresh:  # nobody sees what is done with a view
                item.lent |= self._asleep[index].leaves
            return unseen(func, args, kwargs)
        if index is not None and index < len(item.made):
            made, node = item.made[index], self.nodes[index]
            if made is not None and node is not None:
                if self._changed_below(node, item):  # by way of another tensor that shares memory with the item
                    item.over = True
                if item.over or not item.lent.isdisjoint(node.leaves):
                    return unseen(func, args, kwargs)
                if all(unchanged(t, item.versions.get(id(t))) for t in node.outside):
                    item.times[key] = again + 1
                    return self._taken(index, made, item)
                self._drop(index, "reads a tensor that the step changes")
        return self._learned(func, args, kwargs, (key, again), kind, index, item, others)

    def _as_expected(self, index: int, func: Callable[..., Any], args: Any, kwargs: Any, item: Item) -> Any:
        """What the program made of a call, if the call is this node's and nothing needs a closer look; else None."""
        node, made = self.nodes[index], item.made[index]
        if node is None or made is None or index in item.used or item.lent or not node.asked(func, args, kwargs, item):
            return None
        if item.mode != mode() or _is_any_autocast_enabled() or _len_torch_dispatch_stack():
            return None
        with torch._C.DisableTorchFunctionSubclass():
            for arg in (*args, *kwargs.values()) if kwargs else args:
                if isinstance(arg, Tensor) and arg.requires_grad:
                    return None
            if self._changed_below(node, item):
                return None
            for tensor in node.outside:
                if not unchanged(tensor, item.versions.get(id(tensor))):
                    return None
            item.expected.append(node)
            return self._taken(index, made, item)

    def _set_otherwise(self, func: Any, item: Item) -> bool:
        """Whether the step has changed settings. Most are those of the process, so what runs ahead meanwhile has them as well, or not:
        nothing does from here on."""
        if item.mode == mode():
            return False
        self.worth.lost = "the step changes settings of PyTorch"
        self._seen.clear()
        self.refused.setdefault((func, "set"), "is called with other settings of PyTorch than its step began with; no call is ahead")
        return True

    def _changed_below(self, node: Node, item: Item) -> bool:
        """Whether something that the node is made from was changed since, by way of another tensor with its memory."""
        for at in node.leaves | item.together if item.together else node.leaves:
            if version(item.leaves[at]) != item.counts[at]:
                return True
        return any(marks(item.made[at]) != item.marks[at] for at in node.inputs)

    def _taken(self, index: int, made: Any, item: Item) -> Any:
        """What the program made, for the step."""
        item.used.add(index)
        self._follows[item.last] = index
        item.last = index
        if self.is_done(index, item):
            return made
        self._watched.add(index)
        found = item.staged.get(index)
        return found if found is not None else wrapped(made, item, index)

    def elsewhere(self, func: Any, item: Item) -> None:
        """A call on a tensor of the item by a thread that its step does not run on. It may change the tensor while the step's
        thread calls, so nothing of the item is used from here on."""
        item.over = True
        self.refused.setdefault((func, "elsewhere"), "is called on a thread that the step does not run on; no call behind it is ahead")

    def _leaves(self, tensor: Any) -> set[int]:
        node = self.nodes[tensor._at] if tensor._at >= 0 else None
        return {-1 - tensor._at} if tensor._at < 0 else node.leaves if node else set()

    def _here(self, func: Any, args: Any, kwargs: Any, kind: Any, why: str, item: Item) -> Any:
        """Runs a call that stays in the step. Whether its kind changes the item is found out once."""
        if kind in self.refused and kind not in self._ends:
            return unseen(func, args, kwargs)
        made, effects = with_effects(func, args, kwargs)
        if _changes(effects, args, kwargs, item):
            self._ends.add(kind)
            item.over = True
        self.refused.setdefault(kind, why)
        if why == _GRADIENT and not effects.written and not (kwargs and "out" in kwargs):
            self._plainly.add(func)
        return made

    def _learned(self, func: Any, args: Any, kwargs: Any, key: Any, kind: Any, index: int | None, item: Item,
                 others: list[Tensor]) -> Any:  # fmt: skip
        """Runs the call here. If it can run ahead for later items, it becomes a node."""
        if index is None and len(self.nodes) >= _MOST and (len(self.nodes) >= _MOST_EVER or len(self._running) >= _MOST):
            return self._here(func, args, kwargs, kind, f"comes behind {_MOST} others, or {_MOST_EVER} of earlier steps", item)
        if key in self.refused:
            return unseen(func, args, kwargs)
        made, effects = with_effects(func, args, kwargs)
        if _changes(effects, args, kwargs, item):
            self._ends.add(kind)
            item.over = True
        why = _why_not_ahead(made, effects)
        if why is not None:
            if not (why or others):
                self._plain[kind] = self._plain.get(kind, 0) + 1
            self.refused[kind if why or others or self._plain[kind] > _NUMBERS else key] = why
            return made
        with self._lock:
            if index is None and others and key not in self._seen:
                # A table, or a tensor that this step made: the next step tells. The reference keeps the id taken.
                self._seen[key] = others, kind
                return made
            if any(map(is_uncounted, others)):
                self._seen.pop(key, None)
                self.refused[key] = "takes a tensor made in inference mode, whose changes PyTorch does not count"
                return made
            if index is None:
                index = len(self.nodes)
                moves = isinstance(made, Tensor) and made.device != _device(args)
                fresh = all(storage(t) in effects.made for t in parts_of(made))
                node = Node(func, staged.template(args, item), staged.template(kwargs or {}, item), self._seen.pop(key, ([], None))[0],
                            made, self.nodes, moves, fresh, key, kind)  # fmt: skip
                self.nodes.append(node)
                self._views.append(None if fresh else node.places)
                self._keys[key] = index
                self._nodes_changed()
        item.used.add(index)
        item.times[key[0]] = key[1] + 1
        return wrapped(made, item, index)

    def _drop(self, index: int, why: str) -> None:
        with self._lock:
            node = self.nodes[index]
            if node is not None:
                self.nodes[index] = None
                self._nodes_changed()
                del self._keys[node.key]
                self.refused[node.key] = why

    def _fall_asleep(self, index: int, node: Node, why: str) -> None:
        with self._lock:
            self.nodes[index], self._asleep[index] = None, node
            node.called, node.why = self._steps - 1, why
            self._nodes_changed()

    def _woken(self, index: int) -> bool:
        """Whether a sleeping node runs again, now that the step makes its call: if the step before made it, too."""
        with self._lock:
            node = self._asleep[index]
            before, node.called = node.called, self._steps
            if before != self._steps - 1:
                return False
            self.nodes[index], node.unused = node, 0
            del self._asleep[index]
            self._nodes_changed()
            return True

    def ended(self, item: Item) -> None:
        """Behind a step: what it has not used is noted, and sleeps if that happens again."""
        why = "is not part of every step" + (", or comes behind a change of the item" if item.over else "")
        for index in self._running:
            if index >= len(item.made) or (node := self.nodes[index]) is None:
                continue
            made = item.made[index]
            if index in item.used:
                node.unused, node.taken = 0, True
            elif made is not None or any(self.nodes[at] is None for at in node.inputs):
                node.unused += 1
                if node.unused >= _KEPT:
                    self._fall_asleep(index, node, why)
                    if made is not None and not node.taken:
                        self._forget(node.kind, why)
        for index, node in list(self._asleep.items()):
            if self._steps - node.called > _LOOKED_AT:
                with self._lock:
                    del self._asleep[index], self._keys[node.key]
        with self._lock:
            # A call on a tensor from outside was seen in one step: if the next has not made it again, it is forgotten.
            for key in [key for key in self._seen if key in self._once]:
                self._forget(self._seen.pop(key)[1], "takes a tensor that each step makes anew")
            self._once = set(self._seen)

    def _forget(self, kind: Any, why: str) -> None:
        """A call of this kind was learned for nothing. Where that comes again, such as with another number in each step, none is learned."""
        self._forgotten[kind] = self._forgotten.get(kind, 0) + 1
        if self._forgotten[kind] >= _MADE_ANEW:
            self.refused[kind] = why

    def explained(self) -> str:
        """The nodes, and why other calls on the item's tensors stay in the step, as text."""
        ahead = [node.name for node in self.nodes if node is not None]
        lines = [f"ahead of the step: {', '.join(ahead) or 'no call of it'}"]
        if ahead and self.worth.lost:
            lines = [f"ahead of the step: no call of it, because {self.worth.lost} ({', '.join(ahead)}); the loader runs ahead"]
        told: dict[tuple[str, str], int] = {}
        stay = [(name_of(key[0][0] if type(key[0]) is tuple else key[0]), why) for key, why in list(self.refused.items()) if why]
        for each in [*stay, *((node.name, node.why) for node in list(self._asleep.values()))]:
            told[each] = told.get(each, 0) + 1
        lines += [
            f"in the step {name}{f' ({count} kinds of call)' if count > 1 else ''}: {why}"
            for (name, why), count in told.items()
        ]
        return "\n".join(lines) + "\n"


def _tensors(data: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(data) if isinstance(t, Tensor)]


def _device(args: Any) -> torch.device | None:
    """The device of a call's first tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return next((t.device for t in _tensors(args)), None)


def _key_of(func: Any, args: Any, kwargs: Any, item: Item, found: list[Tensor], others: list[Tensor]) -> tuple[Any, str]:
    """By what a call is found, and why it stays in the step, if it does. ``found``, ``others``: as staged.key takes them."""
    try:
        parts = staged.key(args, item, found, others)
        key = (func, parts, staged.key(kwargs, item, found, others) if kwargs else None)
    except TypeError:
        return None, "has an argument that is no constant"
    if _is_any_autocast_enabled():
        return key, "is under autocast"
    if _len_torch_dispatch_stack():
        return key, "is seen by a mode"
    with torch._C.DisableTorchFunctionSubclass():
        return key, _GRADIENT if any(t.requires_grad for t in (*others, *found)) else ""


def _why_not_ahead(made: Any, effects: Effects) -> str | None:
    """Why a call that has made this cannot run ahead; '' if that need not be told; None if it can."""
    parts = parts_of(made)
    if effects.outside:
        return "changes a tensor"
    if effects.random:
        return "draws random numbers"
    if isinstance(made, Staged) or not parts or not all(isinstance(t, Tensor) and not t.requires_grad for t in parts):
        return ""  # an argument as it is, a shape, or a number
    if not all(type(t) is Tensor and in_one_memory(t) for t in parts):
        return "gives a sparse or nested tensor, or one of another class"
    return None


def _changes(effects: Effects, args: Any, kwargs: Any, item: Item) -> bool:
    """Whether the call has changed a tensor of the item."""
    given = (t for t in _tensors((args, kwargs)) if staged.of_item(t, item))
    return effects.outside and any(storage(t) in effects.written for t in given)
