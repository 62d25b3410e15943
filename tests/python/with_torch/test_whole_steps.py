"""compile_step: whole steps as programs write them return what they return eagerly, to the bit, and leave the same state behind; those
that cannot be captured run eagerly and say why."""

import copy

import pytest
import torch
from kinds import ROWS, WIDTH, compared, momentum, net
from support import OPTIONS
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import engine.torch

WHOLE, EAGERLY = {}, {}


def whole(make):
    WHOLE[make.__name__] = make
    return make


def eagerly(why):
    def note(make):
        EAGERLY[make.__name__] = make, why
        return make

    return note


def with_loss(model, after=lambda loss, x: None, before=lambda x: None):
    optimizer = momentum(model)

    def step(x):
        before(x)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        after(loss, x)
        return loss

    return step


@whole
def penalty_of_a_gradient():
    model = net()
    optimizer = momentum(model)

    def step(x):
        optimizer.zero_grad()
        x = x.clone().requires_grad_()
        out = model(x).sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        loss = (gradient.norm(2, dim=1) - 1).square().mean() + out.square()
        loss.backward()
        optimizer.step()
        return loss

    return [model], step


@whole
def moving_average_of_weights():
    model = net()
    average = copy.deepcopy(model)

    def after(loss, x):
        with torch.no_grad():
            for mine, other in zip(average.parameters(), model.parameters()):
                mine.mul_(0.9).add_(other, alpha=0.1)

    return [model, average], with_loss(model, after)


@whole
def moving_average_of_data():
    model = net()
    average = copy.deepcopy(model)

    def after(loss, x):
        for mine, other in zip(average.parameters(), model.parameters()):
            mine.data.mul_(0.9).add_(other.data, alpha=0.1)

    return [model, average], with_loss(model, after)


@whole
def moving_average_of_statistics():
    """Batch norm changes its statistics although its schema does not say so; who reads them comes behind."""
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    average = copy.deepcopy(model)

    def after(loss, x):
        for mine, other in zip(average.buffers(), model.buffers()):
            mine.copy_(other)
        model[1].running_mean.mul_(0.5)

    return [model, average], with_loss(model, after)


@whole
def a_state_that_is_loaded():
    model = net()
    average = copy.deepcopy(model)
    return [model, average], with_loss(
        model, lambda loss, x: average.load_state_dict({name: t * 0.5 for name, t in model.state_dict().items()}) and None
    )


@whole
def clamped_weights():
    model = net()
    return [model], with_loss(model, lambda loss, x: [p.data.clamp_(-0.1, 0.1) for p in model.parameters()] and None)


@whole
def two_backward_passes():
    model = net()
    optimizer = momentum(model)

    def step(x):
        optimizer.zero_grad()
        out = model(x)
        first, second = out.square().mean(), out.abs().mean()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        return first + second

    return [model], step


@whole
def parts_of_a_batch():
    model = net()
    optimizer = momentum(model)

    def step(x):
        optimizer.zero_grad()
        total = 0
        for part in x.chunk(2):
            loss = model(part).square().mean() / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    return [model], step


@whole
def gradients_that_are_changed():
    model = net()
    optimizer = momentum(model)

    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for p in model.parameters():
            p.grad.data.clamp_(-0.01, 0.01)
            p.grad = p.grad * 0.5
        model[0].bias.grad = None
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    return [model], step


@whole
def two_players():
    maker, judge = nn.Linear(WIDTH, 8), nn.Linear(8, 1)
    of_maker, of_judge = momentum(maker), momentum(judge)

    def step(x):
        of_judge.zero_grad()
        made = maker(x)
        first = F.softplus(judge(made.detach())).mean() + F.softplus(-judge(x)).mean()
        first.backward()
        of_judge.step()
        for p in judge.parameters():
            p.requires_grad_(False)
        of_maker.zero_grad()
        second = F.softplus(-judge(made)).mean()
        second.backward()
        of_maker.step()
        for p in judge.parameters():
            p.requires_grad_(True)
        return first.detach() + second.detach()

    return [maker, judge], step


@whole
def a_hook_of_a_result():
    model = net()
    optimizer = momentum(model)

    def step(x):
        optimizer.zero_grad()
        middle = model[0](x)
        middle.register_hook(lambda gradient: gradient * 0.1)
        loss = model[2](middle).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return [model], step


@whole
def a_batch_that_is_changed():
    model = net()

    def before(x):
        x[0] = 0
        x.t()[1].mul_(2)

    return [model], with_loss(model, before=before)


class Statistic(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.layer, self.change = nn.Linear(WIDTH, 4), change
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        out = self.layer(x)
        self.change(self, 0.9 * self.mean + 0.1 * out.detach().mean(0))
        self.count += 1
        return out - self.mean * self.count


@whole
def a_buffer_that_is_changed_in_place():
    model = Statistic(lambda self, now: self.mean.copy_(now))
    return [model], with_loss(model)


ANOTHER = r"it gives Statistic another 'mean', which a run of its plan would not; change that tensor in place, as by copy_()"
OTHER_DATA = r"it gives a parameter or buffer other data (p.data = ...), which a run of its plan would not"


@eagerly(ANOTHER)
def a_buffer_that_is_replaced():
    model = Statistic(lambda self, now: setattr(self, "mean", now))
    return [model], with_loss(model)


@eagerly(ANOTHER)
def a_buffer_that_is_replaced_in_its_dict():
    model = Statistic(lambda self, now: self._buffers.update(mean=now))
    return [model], with_loss(model)


@eagerly(ANOTHER)
def a_buffer_that_is_registered_again():
    model = Statistic(lambda self, now: self.register_buffer("mean", now))
    return [model], with_loss(model)


@eagerly("it gives Statistic another 'late'")
def a_buffer_that_comes():
    model = Statistic(lambda self, now: self.register_buffer("late", now))

    def before(x):
        model._buffers.pop("late", None)

    return [model], with_loss(model, before=before)


@eagerly(OTHER_DATA)
def a_buffer_with_other_data():
    model = Statistic(lambda self, now: setattr(self.mean, "data", now))
    return [model], with_loss(model)


@eagerly(OTHER_DATA)
def weights_with_other_data():
    model = net()
    return [model], with_loss(model, lambda loss, x: [setattr(p, "data", p.data.clamp(-0.1, 0.1)) for p in model.parameters()] and None)


@eagerly(OTHER_DATA)
def weights_of_a_vector():
    model = net()
    return [model], with_loss(
        model, lambda loss, x: vector_to_parameters(parameters_to_vector(model.parameters()) * 0.99, model.parameters())
    )


@eagerly("")
def scaled_gradients():
    model = net()
    optimizer, scaler = momentum(model), torch.amp.GradScaler("cpu")

    def step(x):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return [model], step


@pytest.mark.parametrize("name", WHOLE)
def test_whole_steps(forced, name):
    forced("workers")
    assert not compared(WHOLE[name])


@pytest.mark.parametrize("name", EAGERLY)
def test_whole_steps_that_run_eagerly(name):
    make, why = EAGERLY[name]
    found = compared(make)
    assert found and why in found


def test_a_module_of_torch_jit_runs_eagerly():
    model = torch.jit.script(net())
    step = engine.torch.compile_step(with_loss(model), options=OPTIONS)
    with pytest.warns(UserWarning, match="runs eagerly: a module of torch.jit"):
        for _ in range(2):
            assert step(torch.ones(ROWS, WIDTH)).isfinite()


def test_a_step_that_failed_in_its_capture_leaves_the_modules_as_they_were():
    (model,), step = a_buffer_that_comes()
    step = engine.torch.compile_step(step, options=OPTIONS)
    with pytest.warns(UserWarning, match="another 'late'"):
        step(torch.ones(ROWS, WIDTH)), step(torch.ones(ROWS, WIDTH))
    assert not any(isinstance(t, torch._subclasses.FakeTensor) for t in model.state_dict().values())
    assert list(model._buffers) == ["mean", "count", "late"]
