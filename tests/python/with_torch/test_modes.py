"""How a program runs is chosen by measurement."""

import pathlib
import subprocess
import sys

import torch
from torch import nn

import engine.torch
from engine.torch.modes import BLOCK, CALLER, EAGER, IN_TURN, ROUNDS, WORKERS, Choice


def play(costs, warm=None, calls=500):
    choice = Choice(list(costs), warm=warm)
    asked = []
    for _ in range(calls):
        if choice.decided:
            break
        mode = choice.next()
        asked.append(mode)
        choice.add(mode, costs[mode])
        if choice.warm and len(asked) > 4 * BLOCK + 30:
            choice.settled()
    return choice, asked


def test_the_fastest_mode_is_chosen_and_the_medians_are_told():
    costs = {EAGER: 4.0, IN_TURN: 3.0, CALLER: 3.5, WORKERS: 2.0}
    for best in costs:
        choice, _ = play(costs | {best: 1.9})
        assert choice.decided == best and f"{best} 1900.000" in choice.why


def test_a_mode_that_gains_less_than_a_hundredth_does_not_replace_a_calmer_one():
    assert play({EAGER: 1.0, IN_TURN: 0.995, WORKERS: 0.994})[0].decided == EAGER


def test_modes_take_turns_in_blocks_and_hopeless_ones_are_dropped():
    choice, asked = play({EAGER: 9.0, IN_TURN: 1.0, WORKERS: 0.9})
    assert choice.decided == WORKERS
    assert asked.count(EAGER) == BLOCK and asked.count(WORKERS) == ROUNDS * BLOCK
    assert asked[:BLOCK] == [EAGER] * BLOCK


def test_a_mode_that_must_be_prepared_is_measured_afterwards():
    choice, asked = play({EAGER: 1.1, WORKERS: 1.0}, warm=WORKERS)
    assert choice.decided == WORKERS and asked.count(WORKERS) > ROUNDS * BLOCK
    assert len(choice.times[WORKERS]) == (ROUNDS - 1) * (BLOCK - 1)


def test_a_real_step_decides_and_explains():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @engine.torch.compile_step(options={"workers": 2})
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    assert "less than twice" in str(*engine.torch.explain(step))
    x = torch.ones(4, 16)
    for _ in range(300):
        step(x)
    told = engine.torch.explain(step)[0]
    assert told.mode in (EAGER, IN_TURN, CALLER, WORKERS) and set(told.times) >= {told.mode}
    (plan,) = told.plans
    assert plan.work > 0 and plan.path and plan.critical <= plan.work <= plan.workers * plan.bound * 1.000001
    assert any(__file__ in n.line for n in plan.nodes) and any(n.critical for n in plan.nodes)
    assert "why not faster: " in str(told) and "addmm" in str(told)


def test_a_model_under_torch_compile_decides_and_explains():
    model = nn.Linear(4, 4)
    ours = torch.compile(model, backend=engine.torch.backend)
    for _ in range(200):
        ours(torch.ones(2, 4)).sum().backward()
    (told,) = engine.torch.explain(ours)
    assert told.mode and {p.kind for p in told.plans} == {"forward", "backward"}


def test_every_other_policy_can_be_asked_for(forced):
    for policy in ("threaded", "inline", "naive"):
        torch._dynamo.reset()
        ours = torch.compile(nn.Linear(4, 4), backend=engine.torch.backend, options={"policy": policy})
        with torch.no_grad():
            assert ours(torch.ones(2, 4)).shape == (2, 4)


def test_the_example_trains_with_the_losses_of_eager():
    example = pathlib.Path(__file__).resolve().parents[3] / "examples" / "torch_step.py"
    arguments = ["--tables", "4", "--batch", "8", "--steps", "12"]
    done = subprocess.run([sys.executable, str(example), *arguments], capture_output=True, text=True)
    assert done.returncode == 0 and "losses are equal" in done.stdout, done.stderr
