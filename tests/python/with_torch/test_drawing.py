"""compile_step: what draws random numbers, and what reads or sets the state of a generator."""

import copy
import random
import threading
import time

import numpy as np
import pytest
import torch
from numpy.random import mtrand
from support import MODES, OPTIONS, layers, same, training
from torch import default_generator, manual_seed, nn
from torch.utils.checkpoint import checkpoint

import engine.torch
from engine.torch.drawing import ordered_draws
from engine.torch.generators import draws

PATIENCE = 60  # seconds until a thread that does not come is given up


class Checkpointed(nn.Module):
    """The backward pass draws again what the forward pass drew, and what comes behind draws other numbers."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant, self.parts = reentrant, nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for part in self.parts:
            x = checkpoint(lambda x, part=part: nn.functional.dropout(part(x).relu(), 0.5), x, use_reentrant=self.reentrant)
            x = nn.functional.dropout(x, 0.1)
        return x


def compared(model, make, steps=5):
    """The step and its double, step by step: what they return, the weights, and the state of torch's generator."""
    models = model, copy.deepcopy(model)
    ours, theirs = (make(m, torch.optim.Adam(m.parameters(), lr=0.1)) for m in models)
    ours = engine.torch.compile_step(ours, options=OPTIONS)
    for i in range(steps):
        found = []
        for step, m in zip((ours, theirs), models):
            torch.manual_seed(i)
            out = step(torch.randn(4, 8))
            found.append([out, torch.get_rng_state(), [p.detach().clone() for p in m.parameters()]])
        same(*([[t.detach() for t in out] if type(out) is tuple else out.detach(), *rest] for out, *rest in found))
    return ours


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_draws_the_same_numbers_twice(forced, mode, reentrant):
    forced(mode)
    model = nn.Sequential(nn.Linear(8, 8), Checkpointed(reentrant))
    assert not compared(model, training).why_eager


def test_a_step_may_read_and_set_the_state_of_torchs_generator(forced):
    forced("workers")

    def make(model, optimizer):
        def step(x):
            before = torch.get_rng_state()
            first = torch.rand(3)
            torch.random.set_rng_state(before)
            second = torch.rand(3)
            with torch.random.fork_rng():
                third = torch.rand(3)
            optimizer.zero_grad()
            loss = model(nn.functional.dropout(x)).square().mean()
            loss.backward()
            optimizer.step()
            return first, second, third, torch.rand(3), loss

        return step

    ours = compared(layers(), make)
    assert not ours.why_eager
    first, second, *_ = ours(torch.ones(4, 8))
    same(first, second)


OWN, OF_NUMPY, OLD, drawn = random.Random(1), np.random.default_rng(1), np.random.RandomState(1), random.random
THE_GLOBAL = mtrand._rand


def drawn_twice(generator):
    before = generator.get_state()
    first = torch.rand(())
    generator.set_state(before)
    return first * torch.rand(())


DRAWS = {
    "torch.manual_seed": lambda: torch.manual_seed(3) and torch.rand(()),
    "torch.initial_seed": lambda: torch.initial_seed() % 7,
    "torch.default_generator.manual_seed": lambda: manual_seed(3) and torch.rand(()),
    "torch.default_generator.get_state": lambda: drawn_twice(torch.default_generator),
    "torch.default_generator": lambda: drawn_twice(default_generator),
    "numpy.random.mtrand._rand.rand": lambda: float(np.random.mtrand._rand.rand()),
    "a numpy generator  ": lambda: float(THE_GLOBAL.rand()),
    "random.random": lambda: random.random(),
    "random.uniform": lambda: random.uniform(0, 1),
    "numpy.random.rand": lambda: float(np.random.rand()),
    "a random generator": lambda: OWN.random(),
    "a random generator ": lambda: drawn(),
    "a numpy generator": lambda: float(OF_NUMPY.random()),
    "a numpy generator ": lambda: float(OLD.rand()),
}


@pytest.mark.parametrize("named", DRAWS)
def test_numbers_that_a_plan_would_repeat_make_the_step_run_eagerly(named):
    model, draw = layers(), DRAWS[named]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean() * draw()
        loss.backward()
        optimizer.step()
        return loss

    def seeded(run):
        random.seed(1), np.random.seed(1), OWN.seed(1), OLD.seed(1), torch.manual_seed(1)
        OF_NUMPY.bit_generator.state = np.random.default_rng(1).bit_generator.state
        model.load_state_dict(weights)
        return [run(torch.ones(4, 8)).detach() for _ in range(4)]

    weights = copy.deepcopy(model.state_dict())
    ours = engine.torch.compile_step(step, options=OPTIONS)
    with pytest.warns(UserWarning, match=f"runs eagerly: it .*{named.strip()}"):
        found = seeded(ours)
    same(found, seeded(step))
    same(seeded(ours), found)


def test_other_threads_draw_while_a_step_is_captured():
    over, failed, count = threading.Event(), [], [0]

    def draws():
        try:
            while not over.is_set():
                random.random(), np.random.rand(), torch.initial_seed(), torch.get_rng_state()
                count[0] += 1
        except Exception as error:
            failed.append(error)

    before = random.random, np.random.rand, torch.initial_seed, torch.get_rng_state, torch.random.get_rng_state
    thread = threading.Thread(target=draws)
    thread.start()
    try:
        for _ in range(3):
            model = Checkpointed(False)
            step = engine.torch.compile_step(training(model, torch.optim.SGD(model.parameters(), lr=0.1)), options=OPTIONS)
            for _ in range(3):
                step(torch.ones(4, 8))
            assert not step.why_eager
    finally:
        over.set()
        thread.join()
    assert not failed and count[0] > 3
    assert before == (random.random, np.random.rand, torch.initial_seed, torch.get_rng_state, torch.random.get_rng_state)


WATCHED = lambda: draws({})  # noqa: E731


@pytest.mark.parametrize("first, second", [(ordered_draws, WATCHED), (WATCHED, ordered_draws), (WATCHED, WATCHED)])
def test_replaced_functions_are_back_whoever_ends_last(first, second):
    names = [(torch, "set_rng_state"), (torch.random, "set_rng_state"), (random, "setstate"), (np.random, "set_state"), (time, "time")]
    originals = [getattr(module, name) for module, name in names]
    inside, both, out = threading.Event(), threading.Event(), threading.Event()

    def one():
        with first():
            inside.set()
            assert both.wait(PATIENCE)
        out.set()

    thread = threading.Thread(target=one)
    thread.start()
    assert inside.wait(PATIENCE)
    with second():
        both.set()
        assert out.wait(PATIENCE)
        assert torch.set_rng_state is not originals[0]
    thread.join()
    assert [getattr(module, name) for module, name in names] == originals


def test_what_the_program_puts_in_place_of_a_function_meanwhile_stays(monkeypatch):
    def own(state):
        pass

    original = torch.set_rng_state
    monkeypatch.setattr(torch, "set_rng_state", original)  # to be put back at the end
    with draws({}):
        torch.set_rng_state = own
        with draws({}):
            assert torch.set_rng_state is not own
        assert torch.set_rng_state is own
    assert torch.set_rng_state is own


def test_each_thread_is_told_of_what_it_sets_itself_however_many_watch():
    with draws({}) as outer:
        with draws({}) as inner, ordered_draws():
            random.setstate(random.getstate())
        assert inner == {"Python's random"}
        thread = threading.Thread(target=lambda: np.random.set_state(np.random.get_state()))
        thread.start()
        thread.join()
    assert outer == {"Python's random"}
