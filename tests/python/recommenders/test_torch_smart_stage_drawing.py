"""engine.torch.smart_stage where the loader draws random numbers, the step does, or both do from one generator."""

import collections
import dataclasses
import random
import threading
import time
import types
import warnings

import pytest

from small_files import PATIENCE, one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import numpy
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import engine
import engine.torch

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}  # staged from the first step on
WAYS = [{}, AT_ONCE, {**AT_ONCE, "capacity": 4}, {"profile_steps": 3, "guard_steps": 4, "capacity": 2}, {"profile_steps": 1, "guard_steps": 0},
        {"ignored_exception_types": ValueError}, {"ignored_exception_types": ValueError, "guard_steps": 0, "capacity": 4},
        {"closed_exception_types": (StopIteration, EOFError), "guard_steps": 0}]  # fmt: skip
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


def a_step_that_forks():
    def step(x):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            time.sleep(0.002)
            return x.sum().item(), torch.rand(4).sum().item()

    return drawn(), step, "torch's generator"


def a_checkpointed_step():
    layer = torch.nn.Linear(4, 4)
    return drawn(), lambda x: checkpoint(layer, x.requires_grad_(), use_reentrant=False).sum().backward() or x.sum().item(), "torch's generator"


def a_step_that_puts_pythons_state_back():
    def step(x):
        before = random.getstate()
        random.seed(5)
        time.sleep(0.002)
        noise = random.random()
        random.setstate(before)
        return x.sum().item(), noise

    return (row * random.random() for row in rows()), step, "Python's random"


def numpys_own():
    rng = numpy.random.default_rng(1)
    return (row * rng.random() for row in rows()), lambda x: (x * rng.random()).sum().item(), "numpy's Generator number 1"


def torchs_own():
    rng = torch.Generator().manual_seed(1)
    return (row * torch.rand(1, generator=rng) for row in rows()), lambda x: (x * torch.rand(4, generator=rng)).sum().item(), "torch's Generator"


def a_default_of_a_keyword():
    rng = random.Random(1)

    def step(x, *, chance=rng.random):
        return (x * chance()).sum().item()

    return (row * rng.random() for row in rows()), step, "random's Random"


def a_datasets_own():
    rng = random.Random(1)

    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, i):
            return rows()[i] + rng.random()

    return DataLoader(Noisy(), batch_size=2), lambda x: (x * rng.random()).sum().item(), "random's Random"


@dataclasses.dataclass
class Slots:
    __slots__ = ("rng",)
    rng: torch.Generator


class OfTheClass:
    rng = torch.Generator()


def held(hold, get):
    """A generator that loader and step reach by way of the same object."""
    box = hold(torch.Generator().manual_seed(1))

    def loader():
        for _ in range(12):
            yield torch.rand(4, generator=get(box))

    return loader(), lambda x: x.sum().item() + torch.rand(1, generator=get(box)).item(), "torch's Generator"


def in_slots():
    return held(Slots, lambda box: box.rng)


def in_a_deque():
    return held(lambda rng: collections.deque([rng]), lambda box: box[0])


def in_a_mapping_proxy():
    return held(lambda rng: types.MappingProxyType({"rng": rng}), lambda box: box["rng"])


def in_a_class():
    OfTheClass.rng.manual_seed(1)
    return held(lambda _: OfTheClass, lambda box: box.rng)


def beside_a_long_list():
    return held(lambda rng: [[(i,) for i in range(20_000)], *range(99), [[rng]]], lambda box: box[-1][0][0])


def in_common_and_only_the_loader_draws():
    rng = numpy.random.default_rng(1)
    return (row * rng.random() for row in rows()), lambda x: (x * 2).sum().item() if rng else 0, ""


@pytest.mark.parametrize("kind", [a_loader_and_a_step, an_augmenting_loader, pythons_random, numpys_generator, a_loader_alone,
                                  a_step_alone, a_shuffled_loader_and_a_step, two_generators, a_step_that_forks, a_checkpointed_step,
                                  a_step_that_puts_pythons_state_back, numpys_own, torchs_own, a_default_of_a_keyword, a_datasets_own,
                                  in_slots, in_a_deque, in_a_mapping_proxy, in_a_class, beside_a_long_list,
                                  in_common_and_only_the_loader_draws])  # fmt: skip
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


def by_the_body(make):
    return [seen + torch.rand(()).item() for seen in make()]


def by_another_loop(make):
    return list(zip(make(), make()))


@pytest.mark.parametrize("loop", [by_the_body, by_another_loop])
@pytest.mark.filterwarnings("ignore:engine.torch.smart_stage")
def test_what_the_loader_and_the_loops_body_draw_is_that_of_the_loop_in_turn(loop):
    torch.manual_seed(3)
    expected = loop(lambda: map(doubled, drawn()))
    for options in WAYS:
        torch.manual_seed(3)
        made = []
        assert loop(lambda: made.append(engine.torch.smart_stage(doubled, drawn(), **options)) or made[-1]) == expected, options
        assert all("the loader and the loop's body both draw from torch's generator" in steps.report["in_turn"] for steps in made)


def test_a_body_that_draws_from_another_generator_changes_nothing():
    steps = engine.torch.smart_stage(doubled, drawn(), **AT_ONCE)
    assert len([seen + random.random() for seen in steps]) == 12 and not steps.report["in_turn"]


def test_a_generator_without_a_state_may_be_shared():
    entropy = random.SystemRandom()

    def loader():
        for i in range(20):
            yield torch.full((3,), float(i) + 0 * entropy.random())

    def step(x):
        return (x * 2).sum().item() + 0 * entropy.random()

    for options in WAYS:
        steps = engine.torch.smart_stage(step, loader(), **options)
        assert list(steps) == [6.0 * i for i in range(20)] and not steps.report["in_turn"]


@pytest.mark.parametrize("options", WAYS)
def test_a_loader_begins_with_its_loop(options):
    def run(stage):
        torch.manual_seed(3)
        shuffled, valid = stage(dropout, DataLoader(rows(), batch_size=2, shuffle=True)), stage(doubled, DataLoader(rows(), batch_size=2))
        torch.manual_seed(7)
        return list(shuffled) + list(valid) + [torch.rand(()).item()]

    def in_turn(step, loader):
        for x in loader:
            yield step(x)

    assert run(lambda step, loader: engine.torch.smart_stage(step, loader, **options)) == run(in_turn)
    with pytest.raises(TypeError, match="an int is no loader"):
        engine.torch.smart_stage(doubled, 7, **options)


@pytest.mark.parametrize("options", WAYS)
def test_a_warning_that_is_an_error_loses_no_item(options):
    torch.manual_seed(3)
    expected = [dropout(x) for x in drawn()]
    torch.manual_seed(3)
    steps, told, seen = engine.torch.smart_stage(dropout, drawn(), **options), [], []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while len(seen) < len(expected):
            try:
                seen.append(next(steps))
            except UserWarning as warning:
                told.append(str(warning))
    assert seen == expected and len(told) == 1 and IN_TURN in told[0]


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


class Rows:
    """Rows, and at some places errors. ``draws``: so that they are read in turn with steps that draw, too."""

    def __init__(self, count, errors, draws=False):
        self.errors, self.draws, self.places = errors, draws, iter(range(count))

    def __iter__(self):
        return self

    def __next__(self):
        place = next(self.places)
        if place in self.errors:
            raise self.errors[place]
        return torch.full((2,), float(place)) + (0 * torch.rand(2) if self.draws else 0)


IGNORING = [{**options, "ignored_exception_types": ValueError} for options in
            ({}, AT_ONCE, {**AT_ONCE, "capacity": 4}, {"guard_steps": 0, "capacity": 3}, {"do_smart_stage": False})]  # fmt: skip


@pytest.mark.filterwarnings("ignore:engine.torch.smart_stage")
@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("options", IGNORING)
def test_rows_that_are_ignored_end_nothing(options, draws):
    step = (lambda x: (F.dropout(x, 0.5), int(x[0]))[1]) if draws else (lambda x: int(x[0]))
    errors = {place: ValueError("malformed") for place in (0, 1, 3, 6, 7, 12)}
    expected = [place for place in range(20) if place not in errors]
    steps = engine.torch.smart_stage(step, Rows(20, errors, draws), **options)
    seen = []
    for number in steps:
        seen.append(number)
        assert steps.position == number + 1  # what a program that resumes leaves out
    assert seen == expected
    assert steps.stats()["skipped"] == len(errors)
    for at in (1, 4, 8):
        assert list(engine.torch.smart_stage(step, Rows(20, errors, draws), skip=at, **options)) == [n for n in expected if n >= at]


@pytest.mark.filterwarnings("ignore:engine.torch.smart_stage")
@pytest.mark.parametrize("options", IGNORING)
def test_the_budget_of_ignored_errors_is_of_those_in_a_row(options):
    step = lambda x: (F.dropout(x, 0.5), int(x[0]))[1]  # noqa: E731
    errors = {place: ValueError(f"malformed in line {place}") for place in range(40) if place % 4 or place > 30}
    steps = engine.torch.smart_stage(step, Rows(40, errors, True), ignored_budget=3, **options)
    assert [next(steps) for _ in range(8)] == list(range(0, 32, 4))
    with pytest.raises(ValueError, match="malformed in line 32|malformed in line 34|malformed in line 35"):
        next(steps)


def test_what_is_read_in_turn_when_ctrl_c_comes_is_read_again():
    given = Rows(8, {1: KeyboardInterrupt()}, True)
    steps = engine.torch.smart_stage(lambda x: (F.dropout(x, 0.5), int(x[0]))[1], given, **AT_ONCE)
    assert next(steps) == 0
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert steps.position == 1
    with pytest.warns(UserWarning, match=IN_TURN):
        assert list(steps) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("options", WAYS)
def test_ctrl_c_while_items_are_left_out_leaves_out_as_many(options):
    steps = engine.torch.smart_stage(lambda x: int(x[0]), Rows(9, {2: KeyboardInterrupt()}), skip=5, **options)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert next(steps) == 6 and steps.position == 6  # Rows does not give again what Ctrl-C has ended


@pytest.mark.parametrize("options", WAYS)
def test_the_position_behind_a_loader_with_fewer_items_than_are_left_out(options):
    steps = engine.torch.smart_stage(doubled, rows(10), skip=20, **options)
    assert steps.position == 20 and not list(steps) and steps.position == 10


@pytest.mark.filterwarnings("ignore:engine.torch.smart_stage")
def test_a_cancel_ends_the_errors_that_are_ignored():
    """Also where the types that are ignored have the error that says so."""
    paused = threading.Event()

    class Broken:
        asked = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.asked += 1
            if self.asked < 4:
                return torch.rand(2)
            if self.asked == 14:
                paused.set()
            raise OSError("no network")

    given = Broken()
    steps = engine.torch.smart_stage(dropout, given, ignored_exception_types=Exception, ignored_budget=40)
    for _ in range(3):
        next(steps)
    ends = threading.Thread(target=lambda: (paused.wait(PATIENCE), steps.cancel()))
    ends.start()
    with pytest.raises(engine.CancelledError):
        next(steps)
    ends.join()
    assert steps.stats()["skipped"] == given.asked - 3


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
