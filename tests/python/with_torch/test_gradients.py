"""compile_step: gradients that a step leaves for the next one, or finds."""

import pytest
import torch
from kinds import momentum, with_changes
from torch import nn
from torch.optim import SGD, Adam

nothing = lambda i: None  # noqa: E731
ADDED = "gradients that are added up over several steps"


@pytest.mark.parametrize("optimizer", [Adam, SGD])
@pytest.mark.parametrize("when", [lambda i: i % 2 == 1, lambda i: i % 2 == 0, lambda i: i < 3 or i % 2 == 0])
def test_a_step_that_adds_gradients_up_by_a_flag_runs_eagerly(optimizer, when):
    def make():
        model = nn.Linear(8, 4)
        chosen = optimizer(model.parameters(), lr=0.1)

        def step(x, last):
            loss = model(x).square().mean()
            loss.backward()
            if last:
                chosen.step()
                chosen.zero_grad()
            return loss

        return model, step, nothing

    assert ADDED in with_changes(make, lambda i: (torch.randn(6, 8), when(i)), steps=12).why_eager


@pytest.mark.parametrize("optimizer", [Adam, SGD])
def test_a_step_that_adds_gradients_up_from_a_flag_on_runs_eagerly(optimizer):
    def make():
        model = nn.Linear(8, 4)
        chosen = optimizer(model.parameters(), lr=0.1)

        def step(x, first, last):
            if first:
                chosen.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            if last:
                chosen.step()
            return loss

        return model, step, nothing

    assert ADDED in with_changes(make, lambda i: (torch.randn(6, 8), i % 2 == 0, i % 2 == 1), steps=12).why_eager


def at_the_end(model, optimizer, between):
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, step, between


@pytest.mark.parametrize("count", [0, 1])
def test_gradients_that_are_cleared_at_the_end_are_captured_and_those_from_outside_count(forced, count):
    forced("in turn")

    def make():
        model = nn.Linear(8, 4)
        return at_the_end(model, momentum(model), lambda i: (model(torch.ones(2, 8)).sum() * 0.1).backward() if i in (4, 5)[:count] else None)

    step = with_changes(make, steps=8)
    assert not step.why_eager and step.captures == 1


def test_two_compiled_players_that_clear_at_their_end_train_as_eagerly():
    import engine.torch

    def make(compile):
        maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
        of_maker, of_judge = momentum(maker), momentum(judge)

        def judges(x):
            loss = judge(maker(x).detach()).square().mean() - judge(x).square().mean()
            loss.backward()
            of_judge.step()
            of_judge.zero_grad()
            return loss

        def makes(x):
            loss = judge(maker(x)).square().mean()
            loss.backward()
            of_maker.step()
            of_maker.zero_grad()
            return loss

        judges, makes, n = compile(judges), compile(makes), [0]

        def step(x):
            n[0] += 1
            return (judges if n[0] <= 3 or n[0] % 2 == 0 else makes)(x)

        return nn.ModuleList([maker, judge]), step

    states = []
    for compile in (engine.torch.compile_step, lambda step: step):
        torch.manual_seed(0)
        module, step = make(compile)
        for _ in range(10):
            step(torch.randn(6, 8))
        states.append([p.detach().clone() for p in module.parameters()])
    assert all(map(torch.equal, *states))


@pytest.mark.parametrize("optimizer", [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.1)])
def test_gradients_that_are_set_to_zero_update_what_a_call_does_not_use(optimizer):
    def make():
        parts = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])
        chosen = optimizer(parts.parameters())

        def step(x, which):
            chosen.zero_grad(set_to_none=False)
            loss = parts[which](x).square().mean()
            loss.backward()
            chosen.step()
            return loss

        return parts, step, nothing

    assert ADDED in with_changes(make, lambda i: (torch.randn(6, 8), i % 2)).why_eager


def two_parts(clear, outside):
    """A step of the head's optimizer, and what the program does around it with the body's."""

    def make():
        parts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 4)])
        head, body = SGD(parts[1].parameters(), lr=0.1), momentum(parts[0])

        def step(x):
            clear(parts, head)
            loss = parts[1](parts[0](x).tanh()).square().mean()
            loss.backward()
            head.step()
            return loss

        return parts, step, lambda i: outside(parts, body)

    return make


def each_cleared(parts, head):
    for parameter in parts.parameters():
        parameter.grad = None


@pytest.mark.parametrize("clear", [lambda parts, head: parts.zero_grad(), each_cleared])
def test_gradients_of_what_another_optimizer_updates_are_left_for_it(forced, clear):
    forced("in turn")
    step = with_changes(two_parts(clear, lambda parts, body: body.step()))
    assert not step.why_eager and step.captures == 1


def test_gradients_that_another_optimizer_clears_make_the_step_run_eagerly():
    step = with_changes(two_parts(lambda parts, head: head.zero_grad(), lambda parts, body: (body.step(), body.zero_grad())))
    assert ADDED in step.why_eager


def test_gradients_that_a_step_leaves_alone_wait_until_it_is_over(forced):
    forced("in turn")

    def make():
        maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
        of_maker, of_judge = momentum(maker), momentum(judge)

        def step(x):
            of_judge.zero_grad()
            loss = judge(maker(x).detach()).square().mean()
            loss.backward()
            of_judge.step()
            return loss

        def between(i):
            of_maker.step()  # with the gradients of the call before
            of_maker.zero_grad()
            maker(torch.ones(2, 8)).square().mean().backward()

        return nn.ModuleList([maker, judge]), step, between

    step = with_changes(make)
    assert not step.why_eager and step.captures == 1


def test_gradients_from_outside_are_gone_once_the_step_has_cleared_them(forced):
    forced("in turn")

    def make():
        parts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 1)])
        optimizer, every = momentum(parts), SGD(parts.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = parts[0](x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        def between(i):
            every.step()
            parts[1](parts[0](torch.ones(2, 8))).sum().backward()

        return parts, step, between

    step = with_changes(make)
    assert not step.why_eager and step.captures == 1


def test_a_gradient_of_an_argument_is_left_there():
    seen = []

    def make():
        model = nn.Linear(8, 4)
        optimizer = momentum(model)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return model, step, lambda i: None

    def given(i):
        seen.append(torch.randn(6, 8, requires_grad=True))
        return (seen[-1],)

    assert "a gradient of an argument" in with_changes(make, given).why_eager
    assert all(map(torch.equal, (x.grad for x in seen[:6]), (x.grad for x in seen[6:])))


def test_an_argument_that_comes_with_a_gradient_keeps_its_sum():
    def make():
        model = nn.Linear(8, 4)
        optimizer = SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            found, x.grad = x.grad, None
            return found

        return model, step, nothing

    def given(i):
        x = torch.randn(6, 8, requires_grad=True)
        if i in (1, 4):
            x.sum().backward()
        return (x,)

    step = with_changes(make, given, steps=8)
    assert not step.why_eager and step.last
