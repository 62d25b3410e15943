"""engine.torch.smart_stage: tensors and objects of strangers' programs, and several clients."""

import contextlib
import threading
import weakref

import pytest

from small_files import PATIENCE, one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import numpy
import torch

import engine.torch

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}  # staged from the first step on


def a_parameter(tensor):
    return torch.nn.Parameter(tensor)


def with_an_attribute(tensor):
    tensor.origin = "file"
    return tensor


@pytest.mark.parametrize("whole", [a_parameter, with_an_attribute])
def test_a_tensor_that_runs_nothing_ahead_may_share_memory_with_one_that_does(whole):
    def batches():
        for number in range(24):
            rows = numpy.arange(12, dtype=numpy.float32).reshape(3, 4) - number
            yield {"all": whole(torch.from_numpy(rows)), "left": torch.from_numpy(rows[:, :2])}

    def step(batch):
        with torch.no_grad():
            batch["all"].abs_()
        return (batch["left"] * 2).sum().item()

    expected = [step(batch) for batch in batches()]
    assert list(engine.torch.smart_stage(step, batches(), **AT_ONCE)) == expected


def test_a_copy_that_is_a_leaf_may_be_detached_in_place():
    def step(x):
        y = x.clone().requires_grad_()
        (y * y).sum().backward()
        gradient = y.grad
        y.detach_()
        assert not y.requires_grad
        return (y + gradient).sum().item()

    items = [torch.arange(4.0) + number for number in range(24)]
    expected = [step(x.clone()) for x in items]
    assert list(engine.torch.smart_stage(step, [x.clone() for x in items], **AT_ONCE)) == expected


class StandsForNothing:
    """As a proxy of what is not there now."""

    @property
    def __class__(self):
        raise RuntimeError("outside of a request")


def test_what_stands_for_something_that_has_gone_may_be_reached():
    class Gone:
        pass

    kept = [weakref.proxy(Gone()), StandsForNothing()]
    losses = engine.torch.smart_stage(lambda x: (len(kept), x.sum().item()), (torch.ones(2) for _ in range(3)))
    assert list(losses) == [(2, 2.0)] * 3


def test_a_cancel_ends_the_wait_for_a_turn():
    inside, gate, ended = threading.Event(), threading.Event(), []

    def loader():
        yield torch.ones(1)
        inside.set()
        gate.wait(PATIENCE)
        yield torch.ones(1)

    stage = engine.torch.smart_stage(lambda x: x.sum().item(), loader(), num_clients=2, do_smart_stage=False)
    next(stage)

    def take():
        with contextlib.suppress(engine.errors.CancelledError):
            next(stage)
            return
        ended.append(True)

    first = threading.Thread(target=take)
    first.start()
    assert inside.wait(PATIENCE)
    second = threading.Thread(target=take)
    second.start()
    stage.cancel()
    second.join(PATIENCE)
    assert ended, "it still waits for its turn"
    gate.set()
    first.join(PATIENCE)
