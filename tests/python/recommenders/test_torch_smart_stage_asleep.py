"""engine.torch.smart_stage: calls that steps do not make any more do not run ahead, and run ahead again where steps make them again."""

import gc
import weakref

import pytest

from small_files import one_thread  # noqa: F401 - a fixture; skips the file where PyTorch is missing

import torch

import engine.torch
from engine.torch import ahead, node
from engine.torch.item import Item

AT_ONCE = {"profile_steps": 0, "guard_steps": 0}  # staged from the first step on


def steps_of(step, count, program=None):
    """The results of steps, with the program of each item run before its step; a step that raises gives its error."""
    program, seen = program or ahead.Program(), []
    for i in range(count):
        item = Item(program, torch.full((3,), float(i)))
        program.run(item)
        try:
            seen.append(step(i, item.data()))
        except ValueError as error:
            seen.append(error)
        item.end()
    return program, seen


def running(program):
    return [each.name for each in program.nodes if each is not None]


def test_calls_that_only_the_first_steps_make_fall_asleep_though_each_step_changes_its_item():
    def step(i, x):
        if i < 3:
            (x * 3).sum()
        x.add_(1)

    program, _ = steps_of(step, 8)
    assert running(program) == []
    assert "in the step mul: is not part of every step, or comes behind a change of the item" in program.explained()


def test_nothing_is_kept_of_steps_that_change_their_items():
    kept = []

    def step(i, x):
        ones = torch.ones(3)
        kept.append(weakref.ref(ones))
        made = x.sort()[0], x + ones
        x.mul_(2)
        return made[0].sum()

    program, _ = steps_of(step, 12)
    gc.collect()
    assert [ref() for ref in kept] == [None] * 12
    assert "in the step add: takes a tensor that each step makes anew" in program.explained()
    assert "sort" in running(program)


def test_steps_that_raise_do_not_end_what_runs_ahead():
    def step(i, x):
        if i in (2, 3, 9, 10, 11):
            raise ValueError
        return (x * 2).sum().item()

    program, seen = steps_of(step, 16)
    assert running(program) == ["mul", "sum"] and len(program.nodes) == 2
    assert [each for each in seen if not isinstance(each, ValueError)] == [i * 6.0 for i in range(16) if i not in (2, 3, 9, 10, 11)]


def test_steps_that_make_other_calls_for_a_while_wake_the_same_nodes():
    """And get what is right: the step changes what slept meanwhile."""
    def step(i, x):
        if i // 5 % 2:
            return (x + 1).mul_(i).sum().item()
        doubled = x * 2
        rest = doubled.view(-1).sum().item()
        doubled.numpy()[0] += 1
        return rest, (doubled * 3).sum().item(), (x * 4).sum().item()

    program, seen = steps_of(step, 40)
    assert seen == [step(i, torch.full((3,), float(i))) for i in range(40)]
    assert len(program.nodes) == len({each.key for each in filter(None, [*program.nodes, *program._asleep.values()])})
    assert "is not part of every step" in program.explained()


def test_a_call_that_every_third_step_makes_does_not_run_ahead():
    program, seen = steps_of(lambda i, x: (x.sin() if i % 3 else x.cos()).sum().item(), 28)
    assert "sin" in running(program) and "cos" not in running(program)
    assert "in the step cos: is not part of every step" in program.explained()


def test_a_view_that_sleeps_may_be_changed_unseen():
    def step(i, x):
        if i < 3 or i == 12:
            x.view(-1).numpy()[0] += 5
        return (x * 3).sum().item()

    assert steps_of(step, 16)[1] == [step(i, torch.full((3,), float(i))) for i in range(16)]


def test_what_sleeps_for_long_is_let_go():
    tables, gone = [torch.ones(100, 3)], []

    def step(i, x):
        if i == 10:
            gone.append(weakref.ref(tables.pop()))
        return (tables[0] * x).sum() if tables else None

    program, _ = steps_of(step, 90)
    gc.collect()
    assert gone[0]() is None and not program._asleep and not program._keys


def test_a_number_that_differs_in_each_step_does_not_fill_the_program():
    program, seen = steps_of(lambda i, x: (x * i).sum().item(), 60)
    assert seen == [3.0 * i * i for i in range(60)]
    assert len(program.nodes) < 20 and not running(program)
    assert "in the step mul" in program.explained() and "sum" not in program.explained().partition("\n")[0]


def test_calls_that_give_numbers_do_not_fill_the_program_either():
    program, _ = steps_of(lambda i, x: i in x, 200)
    assert len(program.refused) < 100


def test_only_nodes_that_run_count_for_how_many_there_may_be(monkeypatch):
    monkeypatch.setattr(ahead, "_MOST", 3)

    def step(i, x):
        return (x + 1, x + 2, x + 3) if i < 5 else (x * 2, x * 3) if i > 8 else ()

    program, _ = steps_of(step, 15)
    assert running(program) == ["mul", "mul"]
    full = steps_of(lambda i, x: (x + 1, x + 2, x + 3, x * 2), 5)[0]
    assert running(full) == ["add"] * 3 and "in the step mul: comes behind 3 others" in full.explained()


def test_nodes_whose_inputs_sleep_are_in_no_wave_of_their_own():
    program, _ = steps_of(lambda i, x: (x * 2).sum().item(), 3)
    assert node.waves(program.nodes) == [[0], [1]]
    assert node.waves([None, program.nodes[1]]) == [[0 + 1]]


@pytest.mark.parametrize("options", [{}, AT_ONCE])
def test_losses_are_those_of_the_loop_where_steps_raise(options):
    def step(x):
        if x[0] in (20, 21, 50, 51, 52):
            raise ValueError("a bad batch")
        return (x * 2).sum().item()

    steps = engine.torch.smart_stage(step, [torch.full((3,), float(i)) for i in range(80)], **options)
    seen = []
    while True:
        try:
            seen.append(next(steps))
        except ValueError:
            pass
        except StopIteration:
            break
    assert seen == [6.0 * i for i in range(80) if i not in (20, 21, 50, 51, 52)]
