"""What stands for a tensor may lie otherwise in memory than what an operator makes of a tensor that was turned: all is as eagerly."""

import pytest
import torch
from kinds import compared, momentum
from support import MODES, check, training
from torch import nn
from torch.nn import functional as F


class Turned(nn.Module):
    """Series with channels last, as their layers before and behind take them."""

    def __init__(self, between):
        super().__init__()
        self.before, self.norm, self.behind, self.between = nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 1), between

    def forward(self, x):
        h = self.before(x.reshape(3, 8, 2)).transpose(1, 2)
        return self.behind(self.between(self, h).transpose(1, 2))


class Strided(nn.Module):
    def __init__(self, view):
        super().__init__()
        self.view = view

    def forward(self, h):
        return self.view(h)


def aliased(model, h):
    """A change by another name, behind what made the tensor and before a look at it."""
    made = model.norm(h)
    made.detach()[0].mul_(0)
    return made.transpose(1, 2).reshape(-1, 8).reshape(3, 8, 8).transpose(1, 2)


BETWEEN = {
    "a batch norm": lambda model, h: model.norm(h),
    "a batch norm and a copy": lambda model, h: model.norm(h).transpose(1, 2).contiguous().transpose(1, 2),
    "a batch norm that is changed": aliased,
    "nearest": lambda model, h: F.interpolate(h, scale_factor=2, mode="nearest"),
    "logsigmoid": lambda model, h: F.logsigmoid(h),
    "draws": lambda model, h: h * torch.bernoulli(h.detach().sigmoid()),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("between", BETWEEN)
def test_a_step_looks_at_turned_tensors_as_eagerly(forced, between, mode):
    forced(mode)

    def make():
        model = Turned(BETWEEN[between])
        return [model], training(model, momentum(model))

    assert not compared(make)


@pytest.mark.parametrize("mode", MODES)
def test_torch_compile_looks_at_turned_tensors_as_eagerly(forced, mode):
    forced(mode)
    check(Turned(BETWEEN["a batch norm"]), torch.randn(6, 8))


@pytest.mark.parametrize("sure", [False, True], ids=["of a batch norm", "of a product"])
def test_a_view_by_strides_that_only_a_stand_in_has_makes_a_step_run_eagerly(forced, sure):
    forced("in turn")

    def make():
        by_strides = lambda made: made.as_strided(made.shape, made.stride())  # noqa: E731
        model = nn.Sequential(nn.Linear(8, 8), Strided(by_strides)) if sure else Turned(lambda model, h: by_strides(model.norm(h)))
        return [model], training(model, momentum(model))

    assert compared(make) == "" if sure else "aten.as_strided.default, whose strides" in compared(make)
