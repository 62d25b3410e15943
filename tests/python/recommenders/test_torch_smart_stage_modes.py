"""engine.torch.smart_stage: what a loader sets for itself, and what was set where the loop began, on whichever thread it is read."""

import contextvars
import gc

import pytest

from small_files import one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import numpy
import torch

import engine.torch

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}  # staged from the first step on
WAYS = [{}, AT_ONCE, {**AT_ONCE, "capacity": 4}, {"do_smart_stage": False}]


def with_errstate():
    with numpy.errstate(divide="raise"):
        for i in range(24):
            try:
                yield torch.from_numpy(numpy.ones(3) / numpy.array([1.0, 2.0, i % 5]))
            except FloatingPointError:
                yield torch.zeros(3)


def with_a_context_variable():
    fold = contextvars.ContextVar("fold", default=0)
    token = fold.set(3)
    try:
        for i in range(24):
            yield torch.tensor([float(i * fold.get())])
    finally:
        fold.reset(token)


def with_no_grad():
    weight = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        for i in range(24):
            yield weight * i


def products(count=24):
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(3), requires_grad=True)
    for i in range(count):
        yield torch.full((2, 4), i / 10) @ weight


def within(mode):
    def loader():
        with mode():
            yield from products()

    loader.__name__ = mode.__name__
    return loader


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def half():
    return torch.autocast("cpu", dtype=torch.float16, cache_enabled=False)


def modes():
    """Of this thread; nesting: in how many blocks of autocast it is."""
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(), nesting)  # fmt: skip


MODES = [autocast, half, torch.inference_mode, torch.no_grad]


def of_what_mode(x):
    return x.dtype, x.is_inference(), x.requires_grad, x.float().sum().item()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", WAYS)
def test_a_loader_has_the_modes_of_the_loop(mode, options):
    """Those of where it is iterated, not of where the stage is made."""

    def seen(steps):
        with mode():
            return list(steps)

    assert seen(engine.torch.smart_stage(of_what_mode, products(), **options)) == seen(map(of_what_mode, products()))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stops", [5, 30])
@pytest.mark.parametrize("options", WAYS)
def test_a_mode_that_a_loader_enters_is_its_own(mode, stops, options):
    """Nothing of it is left on behind the loop, where the program trains on."""
    expected = [of_what_mode(x) for _, x in zip(range(stops), within(mode)())]
    before = modes()
    steps = engine.torch.smart_stage(lambda x: (of_what_mode(x), modes()), within(mode)(), **options)
    seen = [each for _, each in zip(range(stops), steps)]
    steps.cancel()
    assert [of for of, _ in seen] == expected
    assert {of for _, of in seen} == {before} and modes() == before


@pytest.mark.parametrize("loader", [with_errstate, with_a_context_variable, with_no_grad])
@pytest.mark.parametrize("options", WAYS)
def test_what_a_loader_sets_for_itself_goes_with_it_from_thread_to_thread(loader, options):
    step = lambda x: (x.requires_grad, (x * 2).sum().item())  # noqa: E731
    expected = list(map(step, loader()))
    assert list(engine.torch.smart_stage(step, loader(), **options)) == expected
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("loader", [with_errstate, with_a_context_variable, with_no_grad, within(half), within(torch.inference_mode)])
@pytest.mark.parametrize("options", WAYS)
def test_a_loader_ends_where_it_ran(loader, options):
    steps = engine.torch.smart_stage(lambda x: x.sum().item(), loader(), **options)
    for _ in zip(range(12), steps):
        pass
    with torch.no_grad():
        steps.cancel()
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled() and numpy.geterr()["divide"] == "warn"
    gc.collect()
