"""compile_step: a step that takes its batches itself, and what a program sets around its calls."""

import contextlib
import functools
import itertools
import queue

import pytest
import torch
from kinds import with_changes
from support import OPTIONS, same
from torch import nn
from torch.optim import SGD
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

import engine.torch


def filled(items):
    made = queue.Queue()
    for item in items:
        made.put(item)
    return made


BATCHES = {
    "list_iterator": (iter, next),
    "generator": (lambda batches: (batch for batch in batches), next),
    "a generator in a list": (lambda batches: [batch for batch in batches].__iter__(), next),
    "Queue": (filled, lambda held: held.get()),
    "count": (lambda batches: (itertools.count(), batches), lambda held: held[1][next(held[0])]),
    "SingleProcessDataLoaderIter": (lambda batches: iter(DataLoader(batches, batch_size=None)), next),
    "enumerate": (enumerate, lambda held: next(held)[1]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_step_that_takes_its_batches_itself_runs_eagerly_and_misses_none(name):
    hold, take = BATCHES[name]

    def make():
        model, batches = nn.Linear(8, 4), hold([torch.randn(6, 8) for _ in range(9)])
        optimizer = SGD(model.parameters(), lr=0.1)

        def step():
            optimizer.zero_grad()
            loss = model(take(batches)).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return model, step, lambda i: None

    assert "which gives something else each time" in with_changes(make, lambda i: ()).why_eager


SET = {
    "no gradients": lambda i: torch.set_grad_enabled(i % 4 != 3),
    "autocast": lambda i: (torch.set_autocast_enabled("cpu", i % 2 == 1), torch.clear_autocast_cache()),
    "a default type": lambda i: torch.set_default_dtype(torch.float64 if i > 3 else torch.float32),
    "an attention": lambda i: torch.backends.cuda.enable_flash_sdp(i < 4),
    "oneDNN": lambda i: torch._C._set_mkldnn_enabled(i < 4),
    "a search for errors": lambda i: torch.autograd.set_detect_anomaly(i > 3),
}


@pytest.mark.parametrize("name", SET)
def test_what_a_program_sets_around_a_call_is_noticed(forced, name):
    forced("in turn")

    def make():
        model = nn.Linear(8, 4, dtype=torch.float32)
        optimizer = SGD(model.parameters(), lr=0.1)

        def step(x):
            scale = 1.0 + 2 * torch.backends.cuda.flash_sdp_enabled() + 4 * torch.backends.mkldnn.enabled * torch._C._get_mkldnn_enabled()
            loss = (model(x) * scale).square().mean() + torch.ones(2).sum() / 3 + torch.is_anomaly_enabled()
            if torch.is_grad_enabled():
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return loss

        return model, step, SET[name]

    try:
        step = with_changes(make, lambda i: (torch.randn(6, 8, dtype=torch.float32),), steps=8)
        assert not step.why_eager and step.captures <= 2
    finally:
        torch.set_grad_enabled(True)
        torch.set_autocast_enabled("cpu", False)
        torch.set_default_dtype(torch.float32)
        torch.backends.cuda.enable_flash_sdp(True)
        torch._C._set_mkldnn_enabled(True)
        torch.autograd.set_detect_anomaly(False)


class OfFunctions(TorchFunctionMode):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.log.append(function)
        return function(*args, **kwargs or {})


class OfOperators(TorchDispatchMode):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.log.append(operator)
        return operator(*args, **kwargs or {})


def coarse(log):
    """Keeps less of each tensor for the backward pass, so that gradients are others."""
    return torch.autograd.graph.saved_tensors_hooks(lambda t: (log.append(t), t.bfloat16())[1], lambda t: t.float())


LOOKS = {
    "a mode of functions": OfFunctions,
    "a mode of operators": OfOperators,
    "a count of FLOPs": lambda log: FlopCounterMode(display=False),
    "hooks of saved tensors": coarse,
    "a search for errors": lambda log: torch.autograd.detect_anomaly(check_nan=False),
    "inference": lambda log: torch.inference_mode(),
    "a profile": lambda log: torch.profiler.profile(),
    "a default device": lambda log: torch.device("cpu"),
}


@pytest.mark.parametrize("when", [(1,), (3, 4), (0, 1, 2)], ids=["in the call that would capture", "later", "until"])
@pytest.mark.parametrize("name", LOOKS)
def test_what_sees_each_call_of_torch_sees_those_of_a_compiled_step(forced, name, when):
    forced("in turn")

    def seen(compile):
        torch.manual_seed(0)
        model, log, found = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)), [], []
        optimizer, look = SGD(model.parameters(), lr=0.1, momentum=0.9), LOOKS[name](log)

        @compile
        def step(x):
            loss = model(x).square().mean() + torch.ones(2).sum()
            if not loss.is_inference():
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return loss.detach()

        for i in range(6):
            x = torch.randn(6, 8)
            with look if i in when else contextlib.nullcontext():
                loss = step(x)
            calls = [call for call in log if isinstance(call, torch.Tensor) or "linear" in str(call) or "addmm" in str(call)]
            found.append([loss.clone(), len(calls), [p.detach().clone() for p in model.parameters()]])
            log.clear()
        return found, step

    ours, step = seen(functools.partial(engine.torch.compile_step, options=OPTIONS))
    same(ours, seen(lambda step: step)[0])
    assert step.captures and not step.why_eager
