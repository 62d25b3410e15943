"""compile_step: what is looked at before each run, in C: never sees as unchanged what Python's own look sees changed, and in usual
programs sees all that is unchanged."""

import itertools
import random
from collections import Counter, OrderedDict, namedtuple
from typing import NamedTuple

import pytest
import torch
from support import training
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR

import engine.torch
from engine.torch import adapter, arguments, glance
from engine.torch.glance import ATTRIBUTE, CELL, CLASS, ELEMENTS, EMPTY, ITEM, ITEMS, MISSING, SIZE, TYPE, Glance
from engine.torch.overlaps import Memory, meet
from engine.torch.refusals import Unsupported
from engine.torch.state import State

one, other = object(), object()


@pytest.mark.parametrize(("place", "change"), [
    (lambda d: (ITEM, d, "a", d["a"]), lambda d: d.update(a=other)),
    (lambda d: (ITEM, d, "a", d["a"]), lambda d: d.pop("a")),
    (lambda d: (ITEM, d, "c", MISSING), lambda d: d.update(c=one)),
    (lambda d: (ITEMS, d, tuple(d), tuple(d.values())), lambda d: d.update(b=other)),
    (lambda d: (ITEMS, d, tuple(d), tuple(d.values())), lambda d: d.update(c=one)),
    (lambda d: (ITEMS, d, tuple(d), tuple(d.values())), lambda d: d.update(a=d.pop("a"))),
    (lambda d: (ITEMS, d, tuple(d), tuple(d.values())), lambda d: d.update(c=d.pop("b"))),
    (lambda d: (TYPE, d, "a", type(d["a"])), lambda d: d.update(a=1.0)),
    (lambda d: (TYPE, d, "a", type(d["a"])), lambda d: d.clear()),
    (lambda d: (SIZE, d, None, len(d)), lambda d: d.pop("b")),
    (lambda d: (ELEMENTS, d["b"], None, tuple(d["b"])), lambda d: d["b"].append(1)),
    (lambda d: (ELEMENTS, d["b"], None, tuple(d["b"])), lambda d: d["b"].reverse()),
], ids=range(12))  # fmt: skip
def test_a_place_is_seen_to_change(place, change):
    held = {"a": one, "b": [one, other]}
    beside = {"x": one}
    seen = Glance([(ITEM, beside, "x", one), place(held), (SIZE, beside, None, 1)])
    assert seen.same()
    change(held)
    assert not seen.same()


def test_a_class_is_looked_into_by_its_mapping():
    class Kind:
        rate = one

    seen = Glance([(ITEM, vars(Kind), "rate", one), (ITEM, vars(Kind), "more", MISSING)])
    assert seen.same()
    Kind.more = 1
    assert not seen.same()


def test_what_a_key_raises_is_raised():
    with pytest.raises(TypeError, match="unhashable"):
        Glance([(ITEM, {}, [], MISSING)]).same()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.rate, self.sizes = 2.0, [1, 2]

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu() * self.rate) * self.sizes[0]


# What a program may do between two steps; some of it makes no difference.
CHANGES = {
    "nothing": lambda m, o: None,
    "evaluation": lambda m, o: m.eval(),
    "training": lambda m, o: m.train(),
    "training of a part": lambda m, o: m.norm.train(not m.norm.training),
    "a number": lambda m, o: setattr(m, "rate", m.rate + 1),
    "an equal number": lambda m, o: setattr(m, "rate", float(str(m.rate))),
    "an element": lambda m, o: m.sizes.append(3),
    "another parameter": lambda m, o: setattr(m.first, "weight", nn.Parameter(m.first.weight.detach().clone())),
    "other data": lambda m, o: setattr(m.first.weight, "data", m.first.weight.detach().clone()),
    "another shape": lambda m, o: setattr(m.first.bias, "data", m.first.bias.detach().clone()[None]),
    "frozen": lambda m, o: m.last.weight.requires_grad_(not m.last.weight.requires_grad),
    "another module": lambda m, o: setattr(m, "last", nn.Linear(8, 1)),
    "a module more": lambda m, o: m.add_module(f"more{len(m._modules)}", nn.ReLU()),
    "modules in another order": lambda m, o: m._modules.update(first=m._modules.pop("first")),
    "a buffer": lambda m, o: m.norm.register_buffer("mine", torch.ones(1)),
    "a hook": lambda m, o: m.first.register_forward_hook(lambda *_: None),
    "a hook of a parameter": lambda m, o: m.first.weight.register_hook(lambda g: g),
    "an attribute of a parameter": lambda m, o: setattr(m.first.weight, "mine", len(vars(m.first.weight))),
    "a method of its own": lambda m, o: setattr(m, "forward", m.forward),
    "a rate": lambda m, o: o.param_groups[0].update(lr=o.param_groups[0]["lr"] * 0.9),
    "a rate that is a tensor": lambda m, o: o.param_groups[0].update(lr=torch.tensor(0.1)),
    "decay": lambda m, o: o.param_groups[0].update(weight_decay=o.param_groups[0]["weight_decay"] + 0.1),
    "equal settings": lambda m, o: o.param_groups.__setitem__(0, dict(o.param_groups[0])),
    "fewer parameters": lambda m, o: o.param_groups[0]["params"].pop(),
    "a group more": lambda m, o: o.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]}),
    "loaded": lambda m, o: o.load_state_dict(o.state_dict()),
    "another state": lambda m, o: o.state.update({m.first.weight: dict(o.state[m.first.weight])}),
    "a moment": lambda m, o: o.state[m.last.bias].update({n: v.clone() for n, v in o.state[m.last.bias].items()}),
    "no state": lambda m, o: o.state.pop(m.last.bias, None),
    "a step of its own": lambda m, o: setattr(o, "step", o.step),
    "a hook of the optimizer": lambda m, o: o.register_step_pre_hook(lambda *_: None),
}  # fmt: skip


@pytest.mark.parametrize("make", [lambda p: SGD(p, lr=0.1), lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.1)],
                         ids=["SGD", "momentum", "Adam"])  # fmt: skip
def test_no_change_is_overlooked(make):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    told = set()
    for name, _ in itertools.product(CHANGES, range(3)):
        model = Model()
        optimizer = make(model.parameters())
        step = training(model, optimizer)
        step(torch.randn(4, 8))
        state = State(step, [model], [optimizer])
        state.memory = Memory(state.tensors)
        assert state.glance.same() and not state._changed()
        done = [name, *draw.choices(list(CHANGES), k=draw.randrange(3))]
        for change in done:
            try:
                CHANGES[change](model, optimizer)
            except (KeyError, ValueError, RuntimeError):  # one that does not go with those before it
                continue
        quick = state.glance.same() and not state.surroundings.guarded() and state._look() == state.looked
        why = state._changed()
        assert not quick or not why, f"after {done}: {why}"
        told.add((bool(why), quick))
    assert told >= {(True, False), (False, True)}, "nothing was compared"


@pytest.mark.parametrize("make", [lambda p: SGD(p, lr=0.1), lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.1)],
                         ids=["SGD", "momentum", "Adam"])  # fmt: skip
def test_usual_programs_are_known_at_a_glance(make, monkeypatch):
    looked = []
    careful = State._changed
    monkeypatch.setattr(State, "_changed", lambda self: looked.append(self) or careful(self))
    model = Model()
    optimizer = make(model.parameters())
    scheduler = ExponentialLR(optimizer, 0.99)
    step = engine.torch.compile_step(training(model, optimizer), options={"workers": 2})
    for _ in range(60):
        step(torch.randn(4, 8))
        scheduler.step()
    assert not step.why_eager and step.captures == 1
    assert len(looked) <= 1, "the careful look was taken again and again"
    model.rate = 3.0
    step(torch.randn(4, 8))
    assert step.captures == 2
    for i in range(20):  # with a stop for evaluation
        model.eval()
        model(torch.randn(4, 8))
        model.train()
        step(torch.randn(4, 8))
    assert len(looked) <= 3


def test_equal_objects_in_the_place_of_others_are_noted_some_times_only(monkeypatch):
    noted = []
    note = State._note
    monkeypatch.setattr(State, "_note", lambda self: noted.append(self) or note(self))
    model = Model()
    optimizer = SGD(model.parameters(), lr=0.1)
    step = engine.torch.compile_step(training(model, optimizer), options={"workers": 2})
    for _ in range(40):
        model.rate = float("2.5")
        step(torch.randn(4, 8))
    assert not step.why_eager and step.captures == 1
    assert 2 <= len(noted) <= 8


class Config(dict):
    __getattr__ = dict.__getitem__


def read_by_a_step(read, *, momentum=0.0):
    """A compiled step that multiplies by what ``read`` gives."""
    model = Model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=momentum)

    def step(x):
        optimizer.zero_grad()
        loss = (model(x) * read()).sum()
        loss.backward()
        optimizer.step()
        return loss

    return engine.torch.compile_step(step, options={"workers": 2})


def rebound(scale):
    def set_to(value):
        nonlocal scale
        scale = value

    return lambda: scale, lambda: set_to(float("2.5"))


def slotted():
    class Slotted:
        __slots__ = ("scale",)

    held = Slotted()
    held.scale = 2.5
    return lambda: held.scale, lambda: setattr(held, "scale", float("2.5"))


def of_items(held):
    return lambda: sum(held.values()), lambda: held.__setitem__("scale", float("2.5"))


@pytest.mark.parametrize("case", [lambda: rebound(2.5), slotted, lambda: of_items({"scale": 2.5}), lambda: of_items(OrderedDict(scale=2.5)),
                                  lambda: of_items(Config(scale=2.5)), lambda: of_items(Counter(scale=2.5))],
                         ids=["a variable", "a slot", "a dict", "an OrderedDict", "a dict's class", "a Counter"])  # fmt: skip
def test_equal_values_are_looked_at_closely_once(case, monkeypatch):
    looked = []
    careful = State._changed
    monkeypatch.setattr(State, "_changed", lambda self: looked.append(self) or careful(self))
    read, again = case()
    step = read_by_a_step(read)
    for _ in range(40):
        again()
        step(torch.randn(4, 8))
    assert not step.why_eager and step.captures == 1
    assert len(looked) <= 3


def test_what_changes_behind_the_close_look_is_found_by_the_next_one(monkeypatch):
    held, items = {"scale": 2.0}, [3.0]
    step = read_by_a_step(lambda: sum(held.values()) * sum(items))
    for _ in range(4):
        step(torch.randn(4, 8))
    state, note = step.last.captured.state, State._note

    def late(self):  # as another thread may do
        held["scale"] += 1.0
        items[0] += 1.0
        note(self)

    monkeypatch.setattr(State, "_note", late)
    state.glance.same = lambda: False
    step(torch.randn(4, 8))
    monkeypatch.undo()
    assert not state.glance.same() and state.changed()


def test_keyword_defaults_may_be_replaced():
    def scaled(x, *, by=2.0):
        return x * by

    step = read_by_a_step(lambda: scaled(1.0))
    for _ in range(4):
        step(torch.randn(4, 8))
    captures = step.captures
    scaled.__kwdefaults__ = {"by": 3.0}
    step(torch.randn(4, 8))
    assert step.captures == captures + 1 and not step.why_eager


def test_others_may_add_to_a_dict_while_it_is_noted():
    held = OrderedDict({0: 1, 1: 2})
    noted = glance.in_any_order(held)
    places = [next(noted)]
    held[2] = 3
    assert places + list(noted) == [(SIZE, held, None, 2), (ITEM, held, 0, 1), (ITEM, held, 1, 2)]


class Thing:
    __slots__ = ("scale",)


class OtherThing:
    __slots__ = ("scale",)


def bound(value):
    return lambda: value


@pytest.mark.parametrize(("make", "place", "change"), [
    (lambda: {"a": {}}, lambda d: (EMPTY, d, "a", d["a"]), lambda d: d.update(a={})),
    (lambda: {"a": {}}, lambda d: (EMPTY, d, "a", d["a"]), lambda d: d["a"].update(b=1)),
    (lambda: {"a": {}}, lambda d: (EMPTY, d, "a", d["a"]), lambda d: d.clear()),
    (lambda: bound(one), lambda f: (CELL, f.__closure__[0], None, one), lambda f: setattr(f.__closure__[0], "cell_contents", other)),
    (lambda: bound(one), lambda f: (CELL, f.__closure__[0], None, one), lambda f: delattr(f.__closure__[0], "cell_contents")),
    (lambda: bound(one), lambda f: (ATTRIBUTE, f, "__code__", f.__code__), lambda f: setattr(f, "__code__", (lambda: f).__code__)),
    (Thing, lambda t: (ATTRIBUTE, t, "scale", MISSING), lambda t: setattr(t, "scale", one)),
    (Thing, lambda t: (CLASS, t, None, Thing), lambda t: setattr(t, "__class__", OtherThing)),
])  # fmt: skip
def test_each_kind_of_place_is_looked_at(make, place, change):
    held = make()
    glance = Glance([place(held)])
    assert glance.same()
    change(held)
    assert not glance.same()


def leaves():
    x = torch.arange(24.0).view(4, 6)
    weight = nn.Parameter(torch.ones(2, 2))
    return [x, x.clone(), x[:2], x.t(), x[:, ::2], x.double(), x.long(), x.view(24), x.view(4, 6, 1), x[0, 0], x[:0], weight,
            nn.Parameter(torch.zeros(2, 2)), torch.ones(2, 2), torch.ones(2, 2).t(), torch.ones(2, 2).requires_grad_(), torch.ones(2, 2, dtype=torch.cfloat),
            torch.ones(2, 2, dtype=torch.cfloat).conj(), torch.ones(2, 2, dtype=torch.cfloat).conj().imag, torch.empty(2, 2, device="meta"),
            x.to_sparse(), torch.eye(3).to_sparse(), 1, True, 1.0, 0.0, -0.0, float("nan"), None, "1", b"1", torch.float32,
            torch.device("cpu"), ...]  # fmt: skip


def by_python(given):
    return arguments.repeated(given), *map(arguments.signature, given)


def test_calls_are_told_apart_as_python_tells_them():
    native, made = adapter.load(), leaves()
    calls = [[leaf] for leaf in made] + [[a, b] for a in made for b in (made[0], made[1], made[11], 1)] + [[a, a, made[0]] for a in made]
    by_both = [(native.signatures(call, arguments._TENSORS, arguments.signature), by_python(call)) for call in calls]
    for (ours, theirs), (other_ours, other_theirs) in itertools.combinations(by_both, 2):
        assert (ours == other_ours) == (theirs == other_theirs), (theirs, other_theirs)
    assert len({ours for ours, _ in by_both}) > len(made)


def test_what_is_no_argument_is_refused_as_python_refuses_it():
    weight = nn.Parameter(torch.ones(2))
    for leaf, why in [(weight * 2, "computed from what requires gradients"), ([].append, "may change unseen"),
                      (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "")]:  # fmt: skip
        outcomes = []
        for told in (by_python, arguments.signatures):
            try:
                outcomes.append(bool(told([leaf])))
            except (Unsupported, RuntimeError) as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1] and why in str(outcomes[1])
    with torch.no_grad():
        assert arguments.signatures([weight * 2]) == arguments.signatures([torch.ones(2)])


def test_arguments_are_taken_apart_as_pytree_does():
    x, y = torch.ones(1), torch.zeros(2)
    given = [((), {}), ((x,), {}), ((x, y), {}), (([x, y],), {}), (((x, y),), {}), (({"a": x, "b": y},), {}), (({"b": y, "a": x},), {}),
             ((x,), {"y": y}), ((x, [y, {"n": (1, None)}]), {}), ((x, [y, {"m": (1, None)}]), {}), (([],), {}), (((),), {}), (({},), {}),
             ((x, 1.0, "s"), {"k": [True]}), (([x], y), {}), (([x, y], []), {}), (({1: x},), {}), (({True: x},), {})]  # fmt: skip

    def usual(data):
        return adapter.load().flatten(data, arguments._PLAIN, arguments._named)

    made = [(arguments.flat(g), arguments.taken_apart(*g), usual(g)) for g in given]
    for (leaves, spec), (ours, ours_spec, _), quick in made:
        assert quick is not None and len(ours) == len(leaves) and all(a is b for a, b in zip(ours, leaves)) and ours_spec == spec
    for (a, b) in itertools.combinations(made, 2):
        assert (a[0][1] == b[0][1]) == (a[1][2] == b[1][2])
    for unusual in (lambda: 1, object(), [x, {"a": {1}}], torch.nn.Linear(1, 1)):
        assert usual(((unusual,), {})) is None
        assert arguments.taken_apart((unusual,), {})[2] == arguments.flat(((unusual,), {}))[1]
    round_and_round: list = []
    round_and_round.append(round_and_round)
    with pytest.raises(RecursionError):
        arguments.taken_apart((round_and_round,), {})


class Pair(NamedTuple):
    a: object
    b: object


class Twin(NamedTuple):
    a: object
    b: object


class Backwards(Pair):
    def __iter__(self):
        return iter((self[1], self[0]))


def test_named_tuples_are_known_once_they_have_been_met():
    x, y = torch.ones(1), torch.zeros(2)
    told = []
    for batch in (Pair(x, [y]), Twin(x, [y]), (x, [y]), Pair([x], y), Pair(y, [x])):
        arguments._named.discard(type(batch))
        first = arguments.taken_apart((batch,), {})[2]
        leaves, spec, how = arguments.taken_apart((batch,), {})
        assert how == first and not isinstance(how, arguments.Spec)
        expected = arguments.flat(((batch,), {}))
        assert spec == expected[1] and all(a is b for a, b in zip(leaves, expected[0], strict=True))
        told.append(how)
    assert len(set(told)) == 4 and told[0] == told[4]
    for _ in range(2):  # of its own order: never usual
        leaves, spec, how = arguments.taken_apart((Backwards(x, y),), {})
        assert how is spec and leaves[0] is y
    for n in range(2 * arguments._MOST):
        arguments.taken_apart((namedtuple(f"Of{n}", "a")(x),), {})
    assert len(arguments._named) <= arguments._MOST


def test_structures_that_keep_changing_are_let_go():
    for n in range(2 * arguments._MOST):
        arguments.taken_apart(([0] * n,), {})
    assert len(arguments._structures) <= arguments._MOST


def test_shared_memory_is_found_as_python_finds_it():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    memory = torch.zeros(400)
    found = set()
    for _ in range(500):
        state = Memory([])
        state.begins = [memory.data_ptr() + 4 * at for at in sorted(draw.sample(range(0, 400, 8), 5))]
        state.ends = [begin + 16 for begin in state.begins]
        state.packed = b"".join(number.to_bytes(8, "little") for r in zip(state.begins, state.ends) for number in r)
        tensors = [memory.as_strided((draw.randrange(4), draw.randrange(1, 4)), (draw.randrange(1, 9), draw.randrange(1, 4)), draw.randrange(350))
                   for _ in range(draw.randrange(4))]  # fmt: skip
        for among in (False, True):
            expected = any(map(state.holds, tensors)) or among and meet(tensors)
            assert state.met(tensors, among) == expected
            found.add((among, expected))
    assert len(found) == 4
    assert adapter.load().meets([torch.eye(2).to_sparse()], b"", False) is None
    assert Memory([torch.eye(2)]).met([torch.eye(2).to_sparse()], True) is False
