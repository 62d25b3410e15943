"""A thousand random programs mean the same through the engine as in plain Python (oracle/README.md)."""

import os
import random

import pytest

import engine
from oracle import engaged, plain, programs, run


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_random_programs_mean_what_they_mean_in_plain_python(rng, workers):
    count = run.Count(rng.getrandbits(40), 334, None)
    run.run(count, 2, workers)
    assert count.wrong == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a weak reference's callback
def test_programs_that_are_interrupted_change_nothing_for_the_next(rng):
    assert run.interrupts(150, rng.getrandbits(40)) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_programs_mean_the_same_beside_forks_and_in_their_children(rng):
    assert run.forks(30, rng.getrandbits(40)) == []


def test_random_programs_leave_nothing_behind():
    assert run.leaks() == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc here")
@pytest.mark.parametrize("leaks", [False, True])
def test_memory_does_not_grow_from_one_run_of_programs_to_the_next(rng, monkeypatch, leaks):
    kept, plainly = [], engaged.run
    if leaks:  # the check finds it
        monkeypatch.setattr(engaged, "run", lambda program, at: (kept.append(bytes(1 << 16)), plainly(program, at))[1])
    # Few programs are enough to see 64 KiB from each: 40 of them keep more than twice what may be kept.
    assert bool(run.grows(40 if leaks else 100, rng.getrandbits(40))) is leaks


def test_the_oracle_finds_a_wrong_result(monkeypatch):
    monkeypatch.setattr(plain, "_update", lambda w, x, number: None)
    with engaged.ground(1) as at:
        found = sum(engaged.differs(programs.make(seed), at) is not None for seed in range(60))
    assert found > 10


def test_a_program_is_made_from_its_number():
    seed = random.randrange(1 << 40)
    assert programs.make(seed) == programs.make(seed)


def test_programs_have_devices_stages_and_collectives():
    steps = [step for seed in range(2000) for step in programs.make(seed).steps]
    assert {step.place for step in steps} == set(programs.PLACES)
    assert {"stage", "reduce", "view", "look", "overwrite", "call with values"} <= {step.do for step in steps}
    assert set(programs.BOX_STEPS) <= {step.do for step in steps}
    assert {kind for seed in range(100) for kind in programs.make(seed).boxes} == set(programs.KINDS)
    recorded = [function for seed in range(2000) for function in programs.make(seed).functions]
    assert any(step.do == "view" for function in recorded for step in function.steps)
    assert any(step.do == "put" for function in recorded for step in function.steps)
    assert any(number < function.arguments for function in recorded for number in function.returned)
