"""compile_step: parameters that a step reaches by other ways than through their module."""

import copy
import importlib

import pytest
import torch
from support import layers, same
from torch import nn
from torch.optim import SGD, Adam

import engine.torch
from engine.torch.named import installed

X = torch.arange(24.0).reshape(3, 8)


def trained(make, kind, compiled, steps=5):
    """What the steps return, the weights, and why they ran eagerly."""
    torch.manual_seed(1)
    model = layers()
    optimizer = kind(model.parameters(), lr=0.1)
    step = make(model, optimizer)
    step = engine.torch.compile_step(step, options={"workers": 2}) if compiled else step
    returned = [step(X * i).detach().clone() for i in range(steps)]
    return returned, [p.detach().clone() for p in model.parameters()], getattr(step, "why_eager", "")


def clipped(held):
    def make(model, optimizer):
        params = held(model, optimizer)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 0.1)
            optimizer.step()
            return loss

        return step

    return make


def decayed(model, optimizer):
    params = list(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean() * 1e-3 + sum(p.square().sum() for p in params)
        loss.backward()
        optimizer.step()
        return loss

    return step


def functional(model, optimizer):
    params = dict(model.named_parameters())

    def step(x):
        optimizer.zero_grad()
        loss = torch.func.functional_call(model, params, (x,)).square().mean() * 1e-3
        loss.backward()
        optimizer.step()
        return loss

    return step


def by_hand(model, optimizer):
    """Clears, asks for and scales gradients one by one, and returns a norm of what a list holds."""
    params = list(model.parameters())

    def step(x):
        for p in params:
            p.grad = None
        loss = model(x).square().mean() * 1e-3
        gradients = torch.autograd.grad(loss, params)
        for p, gradient in zip(params, gradients):
            p.grad = gradient * 0.5
        with torch.no_grad():
            for p in params:
                p.grad.add_(p, alpha=0.01)
                p.data.mul_(0.999)
        optimizer.step()
        return sum(p.norm() for p in params)

    return step


@pytest.mark.parametrize("mode", ["in turn", "workers"])
@pytest.mark.parametrize("kind", [SGD, Adam])
@pytest.mark.parametrize("make", [
    clipped(lambda model, optimizer: list(model.parameters())), clipped(lambda model, optimizer: optimizer.param_groups[0]["params"]),
    decayed, functional, by_hand,
], ids=["clipped by a list", "clipped by the groups", "a sum over a list", "functional_call", "gradients by hand"])  # fmt: skip
def test_parameters_in_lists_and_groups_are_those_of_the_modules(forced, mode, kind, make):
    forced(mode)
    ours, theirs = trained(make, kind, True), trained(make, kind, False)
    assert not ours[2]
    same(ours[:2], theirs[:2])


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        return weight * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_parameter_that_nothing_can_stand_for_is_refused(forced):
    forced("in turn")

    def make(model, optimizer):
        params = list(model.parameters())

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean() * 1e-3 + sum(Doubled.apply(p).square().sum() for p in params)
            loss.backward()
            optimizer.step()
            return loss

        return step

    with pytest.warns(UserWarning, match="runs eagerly: a parameter that is neither found in its module nor given to a function of torch"):
        ours = trained(make, SGD, True)
    same(ours[:2], trained(make, SGD, False)[:2])


def test_a_gradient_of_what_no_module_holds_is_refused(forced):
    forced("in turn")

    def make(model, optimizer):
        scale = torch.ones(1, requires_grad=True)
        left = [(8, scale)]

        def step(x):
            optimizer.zero_grad()
            scale.grad = None
            loss = (model(x) * scale).square().mean()
            loss.backward()
            optimizer.step()
            return left[0][1].grad.clone()

        return step

    with pytest.warns(UserWarning, match=r"a gradient of a tensor \(1,\) that is no parameter of a module"):
        ours = trained(make, SGD, True)
    same(ours[:2], trained(make, SGD, False)[:2])


def test_a_tensor_that_requires_gradients_may_be_looked_at_without_them(forced):
    forced("workers")
    teacher = layers()

    def make(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            with torch.no_grad():
                wanted = teacher(x)
            loss = (model(x) - wanted).square().mean() * 1e-3
            loss.backward()
            optimizer.step()
            return loss

        return lambda x: step(x)

    def named(model, optimizer):
        return engine.torch.compile_step(make(model, optimizer), modules=[model], optimizers=[optimizer])

    ours = trained(named, SGD, False)
    same(ours[:2], trained(make, SGD, False)[:2])


def test_an_optimizer_that_is_the_default_of_a_keyword_is_found(forced):
    forced("in turn")

    def make(model, optimizer):
        def step(x, *, chosen=optimizer):
            chosen.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            chosen.step()
            return loss

        return step

    ours, theirs = (trained(make, SGD, compiled) for compiled in (True, False))
    same(ours[:2], theirs[:2])
    assert not ours[2]


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
@pytest.mark.parametrize("file", ["__init__.py", "part.py"])
def test_what_lies_where_packages_do_is_not_the_programs(folder, file, tmp_path, monkeypatch):
    """Debian has its own folder for packages; without an __init__.py a package has no file."""
    name = f"package_{folder[:4]}_{file[:4].strip('_')}"
    (tmp_path / folder / name).mkdir(parents=True)
    (tmp_path / folder / name / file).write_text("")
    monkeypatch.syspath_prepend(tmp_path / folder)
    importlib.import_module(name)
    assert installed(name)
