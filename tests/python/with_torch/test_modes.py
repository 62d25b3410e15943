"""How a program runs is chosen by measurement."""

import gc
import pathlib
import random
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from support import compiled, layers, training
from torch import nn

import engine.torch
from engine.torch.modes import CALLER, EAGER, IN_TURN, MOST, SHARE, TRIAL, WORKERS, Choice
from engine.torch.program import Program

COSTS = {IN_TURN: 3.0, EAGER: 4.0, CALLER: 3.5, WORKERS: 2.0}


def play(costs, calls=TRIAL, warm=None, choice=None):
    """Calls that take, by mode, what costs says: a number, or a function of the call's number. (choice, modes)"""
    choice, modes = choice or Choice(list(costs), warm=warm), []
    for i in range(calls):
        mode, measured = choice.next()
        modes.append(mode)
        if measured:
            choice.add(mode, costs[mode](i) if callable(costs[mode]) else costs[mode])
    return choice, modes


def test_the_fastest_mode_is_chosen_and_the_medians_are_told():
    for best in COSTS:
        choice, _ = play(COSTS | {best: 1.9})
        assert choice.decided == best and f"{best} 1900.000" in choice.why


def test_the_nodes_in_turn_hold_until_another_mode_has_won_often_enough():
    choice, modes = play(COSTS, 20)
    assert choice.holds == IN_TURN and choice.decided is None and modes[:5] == [IN_TURN] * 5
    assert play({IN_TURN: 1.0, EAGER: 0.995, WORKERS: 0.994}, 5000)[0].holds == IN_TURN  # less than a hundredth is no gain


def test_first_calls_that_lie_let_no_mode_take_over():
    lies = {IN_TURN: 1.0, EAGER: 3.0, CALLER: 1.2, WORKERS: lambda i: 0.1 if i < 45 else 1.3}
    choice, _ = play(lies, 10_000)
    assert choice.holds == IN_TURN and not choice.taken_over
    slow = {IN_TURN: lambda i: 9.0 if i < 12 else 1.0, EAGER: 3.0, CALLER: 1.2, WORKERS: 1.3}  # a first call is often slow
    choice, _ = play(slow, 10_000)
    assert choice.holds == IN_TURN and not choice.taken_over


def test_a_machine_that_is_slow_for_a_while_lets_no_mode_take_over():
    def noisy(cost):
        return lambda i: cost * (3.0 if i // 7 % 3 == 0 else 1.0)

    choice, _ = play({IN_TURN: noisy(1.0), CALLER: noisy(1.05), WORKERS: noisy(1.1)}, 20_000)
    assert choice.holds == IN_TURN and not choice.taken_over


def test_noise_that_is_larger_than_the_gain_delays_the_choice_and_does_not_turn_it():
    for seed in range(20):
        draw = random.Random(seed)
        costs = {m: lambda _, c=c: c * draw.lognormvariate(0, 0.1) for m, c in (COSTS | {WORKERS: 2.5}).items()}
        choice, _ = play(costs, 6_000)
        assert choice.holds == WORKERS, seed


def test_the_trial_goes_on_while_a_mode_leads_that_has_not_won_often_enough():
    chosen, longer = 0, 0
    for seed in range(100):
        draw = random.Random(seed)
        means = {IN_TURN: 4.0, EAGER: 4.6, CALLER: 3.1, WORKERS: 3.0}  # two are as good, and each gets but half of the comparisons
        costs = {m: lambda _, c=c: c * draw.lognormvariate(0, 0.2) for m, c in means.items()}
        choice, _ = play(costs, MOST)
        assert choice.decided and choice.trial_calls <= MOST
        chosen += choice.decided in (CALLER, WORKERS)
        longer += choice.trial_calls > TRIAL
    assert chosen >= 95 and longer >= 10
    choice, _ = play(dict.fromkeys(COSTS, 1.0), TRIAL)
    assert choice.decided and choice.trial_calls <= TRIAL, "nobody leads"


def test_a_mode_that_is_barely_better_does_not_use_up_the_comparisons_of_one_that_is_much_better():
    for seed in range(100):
        draw = random.Random(seed)
        means = {IN_TURN: 4.46, EAGER: 5.8, CALLER: 4.41, WORKERS: 3.0}
        costs = {m: lambda _, c=c: c * (1 + abs(draw.gauss(0, 0.02))) for m, c in means.items()}
        choice, warm = Choice(list(costs), warm=WORKERS), 0
        while choice.decided is None:
            warm += choice.preparing
            if warm == 60:
                choice.prepared()
            play(costs, 1, choice=choice)
        assert choice.decided == WORKERS, seed


def test_a_mode_that_becomes_better_later_takes_over_and_the_first_one_comes_back():
    turns = {IN_TURN: 1.0, EAGER: 3.0, WORKERS: lambda i: 0.7 if 5_000 < i < 15_000 else 1.5}
    choice, modes = play(turns, 25_000)
    assert choice.taken_over == [WORKERS, IN_TURN]
    assert modes[9_000:15_000].count(WORKERS) > 5_800 and modes[-5_000:].count(IN_TURN) > 4_800


def test_comparisons_after_the_trial_take_a_small_share_of_the_calls_and_of_the_time():
    for costs in (COSTS, dict.fromkeys(COSTS, 1.0), COSTS | {EAGER: 300.0}):
        choice, modes = play(costs, TRIAL)
        assert choice.decided and choice.trial_calls <= TRIAL
        best = choice.decided
        _, modes = play(costs, 20_000, choice=choice)
        for calls in range(100, 20_000, 50):
            others = [m for m in modes[:calls] if m != best]
            assert len(others) <= SHARE * calls
            assert sum(costs[m] - costs[best] for m in others) <= SHARE * calls * costs[best]
        assert choice.tries <= SHARE * 20_000 and (set(modes) == set(costs) or costs[EAGER] == 300.0)
        assert f"{choice.tries} of 20100 calls tried other modes again" in choice.why


def test_a_mode_that_is_far_behind_is_tried_seldom():
    choice, modes = play(COSTS | {EAGER: 30.0}, TRIAL)
    assert modes.count(EAGER) == 5
    _, modes = play(COSTS | {EAGER: 30.0}, 50_000, choice=choice)
    assert 0 < modes.count(EAGER) < modes.count(CALLER) / 4


def test_a_mode_that_must_be_prepared_is_measured_afterwards():
    choice, asked, prepared = Choice([IN_TURN, EAGER, WORKERS], warm=WORKERS), 0, 0
    while choice.decided is None:
        mode, measured = choice.next()
        asked += 1
        if measured:
            choice.add(mode, {IN_TURN: 1.0, EAGER: 1.1, WORKERS: 0.8 if prepared == 40 else 1.3}[mode])
        else:
            assert choice.preparing and mode == WORKERS
            prepared += 1
            if prepared == 40:
                choice.prepared()
    assert choice.decided == WORKERS and prepared == 40 and asked <= TRIAL + 40


def test_a_mode_that_is_hopeless_is_not_prepared():
    choice, modes = play({IN_TURN: 1.0, WORKERS: 3.0}, warm=WORKERS)
    assert choice.decided == IN_TURN and modes.count(WORKERS) == 5 and not choice.preparing


def test_a_compiled_step_and_a_model_leave_a_mode_that_has_become_slower(monkeypatch):
    cost, now = {IN_TURN: 3.0, EAGER: 4.0, CALLER: 5.0, WORKERS: 1.0}, 0.0

    def took(mode):
        nonlocal now
        now += cost[mode]

    for module in ("step", "measured"):
        monkeypatch.setattr(sys.modules[f"engine.torch.{module}"], "clock", lambda: now)
    run, eager = Program.run, engine.torch.CompiledStep._eager
    monkeypatch.setattr(Program, "run", lambda self, inputs, mode, *more: (took(mode), run(self, inputs, mode, *more))[1])
    monkeypatch.setattr(engine.torch.CompiledStep, "_eager", lambda *args: (took(EAGER), eager(*args))[1])
    model = layers()
    step = engine.torch.compile_step(training(model, torch.optim.SGD(model.parameters(), lr=0.01)),
                                     options={"workers": 2, "policy": "threaded"})  # fmt: skip
    ours = compiled(layers().requires_grad_(False), options={"workers": 2, "policy": "threaded"})
    monkeypatch.setattr(engine.torch.regions.Region, "_candidates", lambda self: [IN_TURN, WORKERS])
    x = torch.ones(4, 8)
    for call, choice in ((step, lambda: step.last.choice), (ours, lambda: max(engine.torch.regions.compiled, key=lambda r: r.number).choice)):
        cost.update({IN_TURN: 3.0, WORKERS: 1.0})
        for _ in range(TRIAL + 2):
            call(x)
        assert choice().decided == WORKERS
        cost[WORKERS] = 10.0
        for _ in range(3_000):
            call(x)
        assert choice().decided == IN_TURN and "tried other modes again" in choice().why


@pytest.mark.parametrize("faster", [EAGER, IN_TURN])
def test_where_eager_is_faster_calls_run_eagerly_and_explain_says_so(monkeypatch, faster):
    """Forced times: the program would run either way, and the way that was told to be faster is taken and named."""
    now, taken = 0.0, []

    def took(mode):
        nonlocal now
        taken.append(mode)
        now += 1.0 if mode == faster else 4.0

    for module in ("step", "measured"):
        monkeypatch.setattr(sys.modules[f"engine.torch.{module}"], "clock", lambda: now)
    run, eager = Program.run, engine.torch.CompiledStep._eager
    monkeypatch.setattr(Program, "run", lambda self, inputs, mode, *more: (took(mode), run(self, inputs, mode, *more))[1])
    monkeypatch.setattr(engine.torch.CompiledStep, "_eager", lambda *args: (took(EAGER), eager(*args))[1])
    model, x = layers(), torch.ones(4, 8)
    step = engine.torch.compile_step(training(model, torch.optim.SGD(model.parameters(), lr=0.01)), options={"workers": 2})
    net = layers().requires_grad_(False)
    ours = compiled(net)
    ours(x)
    region = max(engine.torch.regions.compiled, key=lambda r: r.number)
    eagerly = region.eager
    monkeypatch.setattr(region, "eager", lambda *args: (took(EAGER), eagerly(*args))[1])
    for call, asked in ((step, step), (ours, net)):
        for _ in range(4 * TRIAL):
            call(x)
        told = engine.torch.explain(asked)[-1]
        assert told.mode == faster and told.times[faster] == 1.0 and told.times[IN_TURN if faster == EAGER else EAGER] == 4.0
        says = "it runs eagerly, which was faster (1000.000 ms, "
        assert (says in told.why_not_faster() and f"runs {EAGER}: " in str(told)) == (faster == EAGER), str(told)
        del taken[:]
        for _ in range(10):
            call(x)
        assert taken.count(faster) >= 9
    torch.testing.assert_close(ours(x), net(x))


def test_a_real_step_decides_and_explains():
    model = layers()
    step = engine.torch.compile_step(training(model, torch.optim.SGD(model.parameters(), lr=0.01)), options={"workers": 2})
    assert "less than twice" in str(*engine.torch.explain(step))
    x = torch.ones(4, 8)
    for _ in range(500):
        step(x)
    told = engine.torch.explain(step)[0]
    assert told.mode in (EAGER, IN_TURN, CALLER, WORKERS) and set(told.times) >= {told.mode}
    (plan,) = told.plans
    assert plan.work > 0 and plan.path and plan.critical <= plan.work <= plan.workers * plan.bound * 1.000001
    assert any("support.py" in n.line for n in plan.nodes) and any(n.critical for n in plan.nodes)
    assert "why not faster: " in str(told) and "addmm" in str(told)


def test_a_model_under_torch_compile_decides_and_explains():
    class Own(nn.Linear):  # what is compiled of other linear layers in this process is not told with it
        def forward(self, x):
            return nn.functional.linear(x, self.weight, self.bias)

    ours = torch.compile(Own(4, 4), backend=engine.torch.backend)
    for _ in range(400):
        ours(torch.ones(2, 4)).sum().backward()
    (told,) = engine.torch.explain(ours)
    assert told.mode and {p.kind for p in told.plans} == {"forward", "backward"}


def test_a_graph_of_a_model_that_is_gone_is_not_told_for_one_whose_parameters_have_got_its_ids():
    def fresh():
        class Own(nn.Linear):
            def forward(self, x):
                return nn.functional.linear(x, self.weight, self.bias)

        model = torch.compile(Own(4, 4), backend=engine.torch.backend)
        before = set(engine.torch.regions.compiled)
        model(torch.ones(2, 4)).sum().backward()
        (region,) = set(engine.torch.regions.compiled) - before
        return model, region

    model, region = fresh()
    assert {id(p) for p in model.parameters()} == set(region.parameters)
    del model
    torch._dynamo.reset()
    gc.collect()
    assert not region.parameters  # though it lives
    other, own = fresh()
    assert [told.name for told in engine.torch.explain(other)] == [f"graph {own.number}"]


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


@pytest.mark.parametrize("learns", [False, True])
def test_a_call_that_raises_is_no_call_that_cost_nothing(learns):
    table, linear = nn.Embedding(5, 4), nn.Linear(4, 4)
    ours = compiled(lambda ids: linear(table(ids)))
    ids = torch.tensor([1, 2])

    def call(given):
        with torch.set_grad_enabled(learns):
            out = ours(given)
            out.sum().backward() if learns else None

    call(ids)
    (region,) = engine.torch.regions.regions_of(ours._torchdynamo_orig_callable)
    seen = []
    region.choice.add = lambda mode, seconds: seen.append(seconds)
    with pytest.raises(IndexError):
        call(torch.tensor([1, 9]))
    call(ids)
    assert all(seconds > 0 for seconds in seen)


def test_a_function_without_parameters_is_told_from_others():
    def first(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.exp()

    class Square(nn.Module):
        def forward(self, x):
            return x.square()

    parts = [compiled(first), compiled(lambda x: x.cos() + 1), compiled(Square())]
    for part in parts:
        part(torch.ones(3))
    told = [[[n.name for p in e.plans for n in p.nodes] for e in engine.torch.explain(part)] for part in parts]
    assert told == [[["aten.sin.default"], ["aten.exp.default"]], [["aten.cos.default", "aten.add.Tensor"]],
                    [["aten.pow.Tensor_Scalar"]]]  # fmt: skip


def test_each_thread_runs_the_way_that_was_chosen_for_its_own_call(monkeypatch):
    """Another thread's call between a forward and a backward pass changes nothing of the latter."""
    ours, x = compiled(layers()), torch.ones(2, 8)
    ours(x).sum().backward()
    main, runs, run = threading.get_ident(), [], Program.run
    monkeypatch.setattr(Choice, "next", lambda self: (WORKERS if threading.get_ident() == main else CALLER, False))

    def noted(self, inputs, mode, times=None):
        runs.append((self.name, mode, threading.get_ident() == main))
        return run(self, inputs, mode, times)

    monkeypatch.setattr(Program, "run", noted)
    out = ours(x).sum()
    other = threading.Thread(target=lambda: ours(x).sum().backward())
    other.start()
    other.join()
    out.backward()
    assert runs == [("forward", WORKERS, True), ("forward", CALLER, False), ("backward", CALLER, False), ("backward", WORKERS, True)]


def test_a_model_whose_gradients_are_differentiated_runs_eagerly_and_says_so():
    """As a gradient penalty does; programs of AOTAutograd cannot."""
    losses = []
    for compile in (compiled, lambda model: model):
        torch.manual_seed(0)
        critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer, net = torch.optim.SGD(critic.parameters(), 0.05), compile(critic)
        losses.append([])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(30):
                optimizer.zero_grad()
                x = torch.randn(8, 4, requires_grad=True)
                out = net(x)
                (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
                loss = out.mean() + (gradient.norm(2, dim=1) - 1).square().mean()
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
        if net is not critic:
            assert sum("runs eagerly: its gradients are differentiated" in str(w.message) for w in told) == 1
            assert "its gradients are differentiated" in str(engine.torch.explain(net)[-1])
    assert losses[0] == losses[1]
