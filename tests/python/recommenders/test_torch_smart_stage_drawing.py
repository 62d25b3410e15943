"""engine.torch.smart_stage where the loader draws random numbers, the step does, or both do from one generator."""

import random
import warnings

import pytest

from small_files import one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import numpy
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

import engine
import engine.torch

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}  # staged from the first step on
WAYS = [{}, AT_ONCE, {**AT_ONCE, "capacity": 4}, {"profile_steps": 3, "guard_steps": 4, "capacity": 2}]
IN_TURN = "the loader and the step both draw from "


def rows(count=16):
    return [torch.full((4,), i / 8 - 1) for i in range(count)]


def drawn(count=12):
    for _ in range(count):
        yield torch.rand(2, 4)


def augmented(given):
    return torch.stack(given) + torch.rand(1)


def dropout(x):
    return F.dropout(x * 2, 0.5).sum().item()


def doubled(x):
    return (x * 2).sum().item()


def a_loader_and_a_step():
    return drawn(), dropout, "torch's generator"


def an_augmenting_loader():
    return DataLoader(rows(), batch_size=2, shuffle=True, collate_fn=augmented), dropout, "torch's generator"


def pythons_random():
    return (row * random.random() for row in rows()), lambda x: (x * random.random()).sum().item(), "Python's random"


def numpys_generator():
    return (row * numpy.random.rand() for row in rows()), lambda x: (x * numpy.random.rand()).sum().item(), "NumPy's generator"


def a_loader_alone():
    return drawn(), doubled, ""


def a_step_alone():
    return rows(), dropout, ""


def a_shuffled_loader_and_a_step():
    return DataLoader(rows(), batch_size=2, shuffle=True), dropout, ""


def two_generators():
    return (row * random.random() for row in rows()), dropout, ""


@pytest.mark.parametrize("kind", [a_loader_and_a_step, an_augmenting_loader, pythons_random, numpys_generator, a_loader_alone,
                                  a_step_alone, a_shuffled_loader_and_a_step, two_generators])  # fmt: skip
def test_numbers_are_those_of_the_loop_in_turn(kind):
    def seeded():
        torch.manual_seed(3)
        random.seed(3)
        numpy.random.seed(3)
        return kind()

    loader, step, which = seeded()
    expected = [step(x) for x in loader]
    for options in WAYS:
        loader, step, which = seeded()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            steps = engine.torch.smart_stage(step, loader, **options)
            assert list(steps) == expected, options
        said = [str(warning.message) for warning in told if IN_TURN in str(warning.message)]
        assert len(said) == (which != "")
        assert (IN_TURN + which in steps.explain() and IN_TURN + which in steps.report["in_turn"]) if which else not steps.report["in_turn"]
        assert steps.position == steps.stats()["position"] == len(expected)
        assert list(steps) == []


@pytest.mark.filterwarnings("ignore:engine.torch.smart_stage")
@pytest.mark.parametrize("options", WAYS)
def test_a_loader_that_is_read_in_turn_and_fails(options):
    def loader():
        yield from drawn(9)
        raise OSError("rows.parquet: truncated")

    steps = engine.torch.smart_stage(dropout, loader(), **options)
    assert len([next(steps) for _ in range(9)]) == 9
    for _ in range(2):
        with pytest.raises(OSError, match="rows.parquet: truncated"):
            next(steps)
    assert steps.position == 9


@pytest.mark.filterwarnings("ignore:engine.torch.smart_stage")
def test_a_loader_that_is_read_in_turn_is_left_in_the_middle():
    with engine.torch.smart_stage(dropout, drawn(), skip=2, **AT_ONCE) as steps:
        assert len([next(steps) for _ in range(4)]) == 4
        assert steps.position == 6


@pytest.mark.parametrize("count", range(4))
def test_loaders_with_few_items(count):
    assert list(engine.torch.smart_stage(doubled, rows(count), **AT_ONCE)) == [doubled(row) for row in rows(count)]


@torch.library.custom_op("engine_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + numpy.random.rand()


def test_an_op_of_the_programs_that_draws_by_other_means_stays_in_the_step():
    found = []
    for staged in (True, False):
        numpy.random.seed(3)
        step = lambda x: (noisy(x) * 2).sum().item()  # noqa: E731
        found.append(list(engine.torch.smart_stage(step, rows(), **AT_ONCE)) if staged else [step(row) for row in rows()])
    assert found[0] == found[1]
