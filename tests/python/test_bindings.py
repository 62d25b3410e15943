"""State that is bound anew after a function was recorded is noticed at the next call, wherever the function finds it."""

import collections
import functools
import types

import numpy as np
import pytest

import engine

mul = engine.op(lambda x, w: x * w)
w = None  # a global that a helper uses


def fresh(number):
    return engine.value(np.full(2, float(number)))


class Layer:
    def __init__(self):
        self.w = fresh(1)

    def __call__(self, x):
        return mul(x, self.w)


class Slotted:
    __slots__ = ("w",)


class Model:
    shared = fresh(1)

    def __init__(self):
        self.layer, self.ws, self.named = Layer(), [fresh(1)], {"a": [fresh(1)]}
        self.layers = [Layer(), Layer()]
        self.deep = types.SimpleNamespace(inner=types.SimpleNamespace(w=fresh(1)))
        self.slotted, self.same, self._hidden = Slotted(), self.layer, fresh(1)
        self.slotted.w, self.queue = fresh(1), collections.deque([fresh(1)])

    @property
    def hidden(self):
        return self._hidden

    def helper(self, x):
        return mul(x, self.deep.inner.w)


def helper(x):
    return mul(x, w)


def set_global(value):
    globals()["w"] = value


def set_item(container, key):
    container[key] = fresh(5)


WAYS = {
    "attribute of an attribute": (lambda m, x: mul(x, m.layer.w), lambda m: setattr(m.layer, "w", fresh(5))),
    "the object between": (lambda m, x: mul(x, m.layer.w), lambda m: setattr(m, "layer", Layer())),
    "item of a list": (lambda m, x: mul(x, m.ws[0]), lambda m: set_item(m.ws, 0)),
    "item that is gone": (lambda m, x: mul(x, m.ws[0]), lambda m: m.ws.clear()),
    "the list": (lambda m, x: mul(x, m.ws[0]), lambda m: setattr(m, "ws", [fresh(5)])),
    "item of a dict": (lambda m, x: mul(x, m.named["a"][0]), lambda m: set_item(m.named, "a")),
    "item of a list in a dict": (lambda m, x: mul(x, m.named["a"][0]), lambda m: set_item(m.named["a"], 0)),
    "item of a deque": (lambda m, x: mul(x, m.queue[0]), lambda m: set_item(m.queue, 0)),
    "three attributes": (lambda m, x: mul(x, m.deep.inner.w), lambda m: setattr(m.deep.inner, "w", fresh(5))),
    "a method": (lambda m, x: m.helper(x), lambda m: setattr(m.deep.inner, "w", fresh(5))),
    "an object that is called": (lambda m, x: m.layer(x), lambda m: setattr(m.layer, "w", fresh(5))),
    "objects in a list": (lambda m, x: [layer(x) for layer in m.layers], lambda m: setattr(m.layers[1], "w", fresh(5))),
    "a slot": (lambda m, x: mul(x, m.slotted.w), lambda m: setattr(m.slotted, "w", fresh(5))),
    "a property": (lambda m, x: mul(x, m.hidden), lambda m: setattr(m, "_hidden", fresh(5))),
    "a class": (lambda m, x: mul(x, m.shared), lambda m: setattr(m, "shared", fresh(5))),
    "a second name of an object": (lambda m, x: (m.layer, mul(x, m.same.w))[1], lambda m: setattr(m, "same", Layer())),
    "a global of a helper": (lambda m, x: helper(x), lambda m: set_global(fresh(5))),
    "a helper that is wrapped": (lambda m, x: wrapped(x), lambda m: set_global(fresh(5))),
    "a hybridized helper": (lambda m, x: hybrid(x), lambda m: set_global(fresh(5))),
}
wrapped = functools.wraps(helper)(lambda x: helper(x))
hybrid = engine.hybridize(helper)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bound", ["method", "closure", "partial"])
def test_state_that_is_bound_anew_is_noticed(way, bound):
    set_global(fresh(1))
    use, change = WAYS[way]
    model = Model()
    model.step = types.MethodType(use, model)
    step = engine.hybridize({"method": model.step, "closure": lambda x: use(model, x), "partial": functools.partial(use, model)}[bound])
    for _ in range(3):
        step(np.ones(2))
    assert step.unwatched == []
    change(model)
    for _ in range(2):
        with pytest.raises(engine.UsageError, match="stood for .* was recorded, and for something else now"):
            step(np.ones(2))


def test_the_refusal_says_the_way():
    model = Model()
    step = engine.hybridize(functools.partial(lambda m, x: mul(x, m.named["a"][0]), model))
    step(np.ones(2))
    set_item(model.named["a"], 0)
    with pytest.raises(engine.UsageError, match=r"'self.args\[0\].named\['a'\]\[0\]' of 'partial' stood for <engine.Value"):
        step(np.ones(2))
    set_global(fresh(1))

    @engine.hybridize
    def outer(x):
        return helper(x)

    outer(np.ones(2))
    set_global(fresh(2))
    with pytest.raises(engine.UsageError, match="the global 'w' of 'helper', which 'outer' uses, stood for"):
        outer(np.ones(2))


def test_what_holds_state_may_be_exchanged_if_the_state_stays():
    model = Model()
    step = engine.hybridize(lambda x: mul(x, model.ws[0]))
    for _ in range(3):
        assert step(np.ones(2)).get().tolist() == [1, 1]
        model.ws = [model.ws[0], fresh(7)]  # the function does not look at the other one


def test_a_circle_ends_the_search_and_is_no_hindrance():
    model = Model()
    model.layer.model = model
    step = engine.hybridize(lambda x: mul(x, model.layer.model.layer.w))
    step(np.ones(2))
    model.layer.w = fresh(5)
    with pytest.raises(engine.UsageError, match="stood for"):
        step(np.ones(2))


def test_state_that_no_name_leads_to_is_told():
    kept = {0: engine.value(np.ones(2), name="hidden one")}

    @engine.hybridize
    def step(x):
        return mul(x, getattr(model, "".join("hid"))) if x is None else mul(x, next(iter(keeper())))

    def keeper():
        return map(kept.get, [0])

    step(np.ones(2))
    assert step.unwatched == []  # by the closure of a helper
    model = types.SimpleNamespace(secret=engine.value(np.ones(2), name="secret one"))
    computed = engine.hybridize(lambda x: mul(x, getattr(model, "".join(["sec", "ret"]))))
    computed(np.ones(2))
    assert computed.unwatched == ["secret one"]
    assert "unwatched state, which no name leads to: secret one" in str(engine.explain(computed))


@pytest.mark.parametrize(("change", "number"), [
    (lambda m: m.ws.append(fresh(10)), 12), (lambda m: m.named.update(b=[fresh(10)]), 12), (lambda m: m.queue.append(fresh(10)), 12),
    (lambda m: setattr(m, "pair", (*m.pair, fresh(10))), 12), (lambda m: m.named["a"].append(fresh(10)), 12)])  # fmt: skip
def test_state_that_is_added_to_a_container_is_recorded(change, number):
    model, add = Model(), engine.op(lambda x, w: x + w)
    model.ws, model.named, model.queue, model.pair = [fresh(1)], {"a": [fresh(1)]}, collections.deque(), (fresh(0),)
    model.queue.append(fresh(0))

    def forward(x):
        for w in (*model.ws, *(w for ws in model.named.values() for w in ws), *model.queue, *model.pair):
            x = add(x, w)
        return x

    step = engine.hybridize(forward)
    assert step(np.zeros(2)).get().tolist() == [2, 2]
    change(model)
    assert step(np.zeros(2)).get().tolist() == [number] * 2
    plan = step.plan
    assert step(np.zeros(2)).get().tolist() == [number] * 2 and step.plan is plan


def test_a_large_container_is_not_recorded_anew_at_each_call():
    ws, total = [fresh(1) for _ in range(300)], engine.op(lambda x, ws: x + sum(ws))
    step = engine.hybridize(lambda x: total(x, ws))
    step(np.zeros(2))
    links = step._last.links
    assert step(np.zeros(2)).get().tolist() == [300, 300] and step._last.links is links
    ws.append(fresh(1))
    assert step(np.zeros(2)).get().tolist() == [301, 301]


def test_two_functions_of_one_name_have_globals_of_their_own():
    made = []
    for number in (1, 2):
        module = {"mul": mul, "w": fresh(number), "__name__": "module_of_the_program"}
        exec("def helper(x): return mul(x, w)", module)
        made.append(module)
    one, two = (module["helper"] for module in made)
    step = engine.hybridize(lambda x: two(one(x)))
    assert step(np.ones(2)).get().tolist() == [2, 2]
    for module in made:
        before, module["w"] = module["w"], fresh(5)
        with pytest.raises(engine.UsageError, match="the global 'w' of 'helper', which '<lambda>' uses, stood for"):
            step(np.ones(2))
        module["w"] = before
