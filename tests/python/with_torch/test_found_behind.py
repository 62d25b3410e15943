"""compile_step: what a program changes behind the things that its code names (methods, the code of functions, what partials and caches
hold, all attributes of an object) has the effect that it has eagerly."""

import argparse
import configparser
import dataclasses
import functools
import types
import warnings

import pytest
import torch
from support import same
from torch import nn
from torch.nn import functional as F

import engine.torch


def scaled(out, y, beta=1.0, factor=1.0):
    return F.smooth_l1_loss(out, y, beta=beta) * factor


class Settings:
    def __init__(self):
        self.beta = 1.0


@dataclasses.dataclass
class Data:
    beta: float = 1.0


@dataclasses.dataclass(slots=True)
class Slots:
    beta: float = 1.0


def a_method_of_the_class():
    class Recipe:
        @classmethod
        def loss(cls, out, y):
            return F.mse_loss(out, y)

    return lambda out, y: Recipe.loss(out, y), lambda: setattr(Recipe, "loss", staticmethod(F.l1_loss))


def a_static_method():
    class Recipe:
        loss = staticmethod(F.mse_loss)

    return lambda out, y: Recipe.loss(out, y), lambda: setattr(Recipe, "loss", staticmethod(F.l1_loss))


def a_property():
    class Config:
        @property
        def scale(self):
            return 1.0

    config = Config()
    return lambda out, y: F.mse_loss(out, y) * config.scale, lambda: setattr(Config, "scale", property(lambda self: 3.0))


def what_python_calls_by_itself():
    class Loss:
        def __call__(self, out, y):
            return F.mse_loss(out, y)

    loss = Loss()
    return lambda out, y: loss(out, y), lambda: setattr(Loss, "__call__", lambda self, out, y: F.l1_loss(out, y))


def keywords_of_a_partial():
    criterion = functools.partial(scaled, beta=1.0)
    return lambda out, y: criterion(out, y), lambda: criterion.keywords.update(beta=0.1)


def the_code_of_a_function():
    def loss(out, y):
        return (out - y).square().mean()

    def edited(out, y):
        return (out - y).abs().mean()

    return lambda out, y: loss(out, y), lambda: setattr(loss, "__code__", edited.__code__)


def the_defaults_of_a_function():
    def loss(out, y, beta=1.0):
        return scaled(out, y, beta)

    return lambda out, y: loss(out, y), lambda: setattr(loss, "__defaults__", (0.1,))


def keyword_defaults_of_a_function():
    def loss(out, y, *, beta=1.0):
        return scaled(out, y, beta)

    return lambda out, y: loss(out, y), lambda: loss.__kwdefaults__.update(beta=0.1)


def a_loss_that_is_a_key():
    smooth = nn.SmoothL1Loss()
    weights = {smooth: 1.0, nn.MSELoss(): 0.5}
    return lambda out, y: sum(w * loss(out, y) for loss, w in weights.items()), lambda: setattr(smooth, "beta", 0.05)


def what_a_bounded_cache_holds():
    settings = functools.lru_cache(Settings)
    settings()
    return lambda out, y: scaled(out, y, settings().beta), lambda: setattr(settings(), "beta", 0.1)


def what_a_cache_holds():
    settings = functools.cache(Settings)
    settings()
    return lambda out, y: scaled(out, y, settings().beta), lambda: setattr(settings(), "beta", 0.1)


def all_of_a_namespace():
    given = argparse.Namespace(beta=1.0)
    return lambda out, y: scaled(out, y, **vars(given)), lambda: setattr(given, "beta", 0.1)


def all_of_a_namespace_that_grows():
    given = types.SimpleNamespace(beta=1.0)
    return lambda out, y: scaled(out, y, **given.__dict__), lambda: setattr(given, "factor", 3.0)


def all_of_a_dataclass():
    given = Data()
    return lambda out, y: scaled(out, y, **dataclasses.asdict(given)), lambda: setattr(given, "beta", 0.1)


def all_of_a_dataclass_with_slots():
    given = Slots()
    return lambda out, y: scaled(out, y, *dataclasses.astuple(given)), lambda: setattr(given, "beta", 0.1)

def the_class_of_a_loss():
    class Doubled(nn.MSELoss):
        def forward(self, out, y):
            return 2 * super().forward(out, y)

    loss = nn.MSELoss()
    return lambda out, y: loss(out, y), lambda: setattr(loss, "__class__", Doubled)


def the_class_of_an_object():
    class Loss:
        def of(self, out, y):
            return F.mse_loss(out, y)

    class Other(Loss):
        def of(self, out, y):
            return F.l1_loss(out, y)

    loss = Loss()
    return lambda out, y: loss.of(out, y), lambda: setattr(loss, "__class__", Other)


BETA = {"beta": 1.0}


class Made:
    def __init__(self):
        self.beta = BETA["beta"]


def what_a_constructor_reads():
    BETA["beta"] = 1.0
    return lambda out, y: scaled(out, y, Made().beta), lambda: BETA.update(beta=0.1)


def an_attribute_of_a_module_that_comes_later():
    module = types.ModuleType("settings_of_a_program")
    return lambda out, y: scaled(out, y, getattr(module, "beta", 1.0)), lambda: setattr(module, "beta", 0.1)


def an_attribute_of_a_class_that_comes_later():
    class Config:
        pass

    return lambda out, y: scaled(out, y, getattr(Config, "beta", 1.0)), lambda: setattr(Config, "beta", 0.1)


def a_configuration_file():
    parser = configparser.ConfigParser()
    parser.read_dict({"loss": {"beta": "1.0"}})
    return lambda out, y: scaled(out, y, float(parser["loss"]["beta"])), lambda: parser.set("loss", "beta", "0.1")


KINDS = [a_method_of_the_class, a_static_method, a_property, what_python_calls_by_itself, keywords_of_a_partial, the_code_of_a_function,
         the_defaults_of_a_function, keyword_defaults_of_a_function, a_loss_that_is_a_key, what_a_bounded_cache_holds, what_a_cache_holds,
         all_of_a_namespace, all_of_a_namespace_that_grows, all_of_a_dataclass, all_of_a_dataclass_with_slots, the_class_of_a_loss,
         the_class_of_an_object, what_a_constructor_reads, an_attribute_of_a_module_that_comes_later,
         an_attribute_of_a_class_that_comes_later, a_configuration_file]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_changed_is_noticed(forced, kind):
    forced("in turn")
    found = []
    for compile in (engine.torch.compile_step, lambda step: step):
        torch.manual_seed(0)
        loss_of, change = kind()
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        @compile
        def step(x, y):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        seen = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for i in range(8):
                if i == 4:
                    change()
                torch.manual_seed(i)
                seen.append(step(torch.randn(6, 8), torch.randn(6, 4)).detach())
        found.append((seen, step))
    same(found[0][0], found[1][0])
    assert not found[0][1].why_eager and found[0][1].captures == 2
