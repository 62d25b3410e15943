"""compile_step: what a program changes between the calls of a step, or does with an optimizer inside of it, has the effect that it has
eagerly, to the bit; the step is captured again, or runs eagerly and says why."""

import types
from collections import OrderedDict, defaultdict

import pytest
import torch
from programs import at, compared, nothing, plain
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop, SparseAdam

import engine.torch


# --- optimizers between calls


def halves(optimizer, late=lambda i, model, optimizer: None):
    """Two halves of a model; the second is in some calls no part of the step."""

    def make():
        a, b = nn.Linear(8, 1), nn.Linear(8, 1)
        model = nn.ModuleList([a, b])
        chosen = optimizer(model.parameters())
        step = plain(chosen, lambda x, both: a(x).square().mean() + (b(x).square().mean() if both else 0))
        return model, step, lambda i: (i in (0, 1, 4, 5),), lambda i: late(i, model, chosen)

    return make


@pytest.mark.parametrize("optimizer", [lambda p: Adam(p, lr=0.1), lambda p: AdamW(p, lr=0.1), lambda p: Adagrad(p, lr=0.1, lr_decay=0.5)])
def test_parameters_that_are_updated_differently_often_have_counts_of_their_own(forced, optimizer):
    forced("in turn")
    assert not compared(halves(optimizer)).why_eager


def test_a_count_that_the_program_sets_is_noticed(forced):
    forced("in turn")

    def late(i, model, optimizer):
        if i == 5:
            optimizer.state[model[0].bias]["step"].zero_()

    assert not compared(halves(lambda p: Adam(p, lr=0.1), late)).why_eager


def trained(optimizer, between, layers=lambda: nn.Linear(8, 4), loss=lambda model, x: model(x).square().mean()):
    def make():
        model = layers()
        chosen = optimizer(model.parameters())
        return model, plain(chosen, lambda x: loss(model, x)), nothing, lambda i: between(i, chosen, model)

    return make


def test_a_learning_rate_of_a_loaded_optimizer_is_followed(forced):
    forced("in turn")

    def between(i, optimizer, _):
        if i == 3:
            optimizer.load_state_dict(optimizer.state_dict())
        if i > 3:
            optimizer.param_groups[0]["lr"] *= 0.5

    assert not compared(trained(lambda p: SGD(p, lr=0.1), between)).why_eager


RESETS = {
    "cleared": lambda optimizer, model: optimizer.state.clear(),
    "replaced": lambda optimizer, model: setattr(optimizer, "state", defaultdict(dict)),
    "of one parameter": lambda optimizer, model: optimizer.state.pop(model.weight),
}


@pytest.mark.parametrize("name", RESETS)
@pytest.mark.parametrize("optimizer", [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: Adam(p, lr=0.1)], ids=["SGD", "Adam"])
def test_state_of_an_optimizer_that_is_gone_is_noticed(forced, name, optimizer):
    forced("in turn")
    between = lambda i, optimizer, model: RESETS[name](optimizer, model) if i == 3 else None  # noqa: E731
    assert not compared(trained(optimizer, between)).why_eager


# --- modules between calls


def doubled(module, given, out):
    return tuple(None if gradient is None else gradient * 2 for gradient in given)


def hooked(model):
    model[1].register_forward_hook(lambda module, given, out: out * 2)


LAYERS = {
    "replaced": lambda model: model.__setitem__(1, nn.ReLU()),
    "appended": lambda model: model.append(nn.Sigmoid()),
    "removed": lambda model: model.__delitem__(1),
    "moved": lambda model: model.append(model.pop(0)),
    "hooked": hooked,
    "with other hooks": lambda model: setattr(model[0], "_forward_hooks", OrderedDict({7: lambda module, given, out: out * 2})),
    "with other hooks before": lambda model: setattr(model[1], "_forward_pre_hooks", OrderedDict({7: lambda module, given: (given[0] * 2,)})),
    "with other hooks of gradients": lambda model: setattr(model[1], "_backward_hooks", OrderedDict({7: doubled})),
    "with other modules": lambda model: setattr(model, "_modules", {**model._modules, "1": nn.ReLU()}),
    "without its hooks": lambda model: setattr(model[2], "_forward_hooks", {}),
    "given a parameter": lambda model: model[2].register_parameter("bias", nn.Parameter(torch.ones(8), requires_grad=False)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_is_changed_is_noticed(forced, name):
    forced("in turn")

    def layers():
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8, bias=False))
        model[2].register_forward_hook(lambda module, given, out: out * 3)
        return model

    between = lambda i, _, model: LAYERS[name](model) if i == 3 else None  # noqa: E731
    step = compared(trained(lambda p: SGD(p, lr=0.1), between, layers))
    assert not step.why_eager and step.captures == 2


@pytest.mark.parametrize("name", ["weight", "pos_weight"])
def test_a_weight_that_a_loss_gets_is_noticed(forced, name):
    forced("in turn")

    def make():
        model = nn.Linear(8, 4)
        chosen = SGD(model.parameters(), lr=0.1)
        criterion = nn.BCEWithLogitsLoss() if name == "pos_weight" else nn.CrossEntropyLoss()
        step = plain(chosen, lambda x: criterion(model(x), x[:, :4].softmax(-1)))
        return model, step, nothing, at(3, lambda: setattr(criterion, name, torch.tensor([1.0, 2.0, 3.0, 4.0])))

    assert not compared(make).why_eager


def test_a_step_that_replaces_a_layer_runs_eagerly(forced):
    forced("in turn")

    def make():
        model = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
        chosen = SGD(model.parameters(), lr=0.1)
        others = [nn.ReLU(), nn.Tanh()]

        def loss(x):
            model[1] = others[isinstance(model[1], nn.ReLU)]
            return model(x).square().mean()

        return model, plain(chosen, loss), nothing, nothing

    assert "it changes '1' of modules of Sequential" in compared(make).why_eager


def test_hooks_of_all_modules_in_another_dict_are_noticed(forced, monkeypatch):
    forced("in turn")
    of_all = torch.nn.modules.module

    def between(i, *_):
        if i == 3:
            monkeypatch.setattr(of_all, "_global_forward_hooks", OrderedDict({7: lambda module, given, out: out * 2}))
        if i == 6:
            monkeypatch.undo()
            forced("in turn")

    step = compared(trained(lambda p: SGD(p, lr=0.1), lambda i, *_: between(i)))
    assert not step.why_eager and step.captures == 3


HOOK_DICTS = ["_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"]


@pytest.mark.parametrize("name", HOOK_DICTS)
def test_hooks_of_an_optimizer_in_another_dict_are_noticed(forced, name):
    forced("in turn")

    def grown(optimizer, *_):
        with torch.no_grad():
            for p in optimizer.param_groups[0]["params"]:
                p.mul_(1.5)

    def between(i, optimizer, _):
        if i == 3:
            setattr(optimizer, name, OrderedDict({7: grown}))

    assert "hooks around its steps" in compared(trained(lambda p: SGD(p, lr=0.1), between)).why_eager


def replaced(optimizer, model):
    plain_step = optimizer.step

    def step():
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        plain_step()

    optimizer.step = step


@pytest.mark.parametrize("call", [0, 1, 3])
def test_a_step_of_an_optimizer_that_the_program_replaces_is_called(forced, call):
    forced("in turn")
    between = lambda i, optimizer, model: replaced(optimizer, model) if i == call else None  # noqa: E731
    assert "that the program has replaced" in compared(trained(lambda p: SGD(p, lr=0.1), between)).why_eager


def test_a_scheduler_that_comes_late_is_followed(forced):
    forced("in turn")
    schedulers = []

    def between(i, optimizer, _):
        if i == 3:
            schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
        if i > 3:
            schedulers[-1].step()

    assert not compared(trained(lambda p: SGD(p, lr=0.1), between)).why_eager


SCHEDULES = {
    "Adam": (lambda p: Adam(p, lr=0.01), lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 20)),
    "AdamW": (lambda p: AdamW(p, lr=0.01, amsgrad=True), lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, 3)),
    "SGD": (lambda p: SGD(p, lr=0.01, momentum=0.9, nesterov=True), lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, 3)),
}


@pytest.mark.parametrize("mode", ["in turn", "workers"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_momentum_that_a_scheduler_changes_needs_no_new_capture(forced, name, mode):
    forced(mode)
    optimizer, schedule = SCHEDULES[name]
    schedulers = []

    def between(i, optimizer, _):
        schedulers.append(schedule(optimizer) if i == 0 else schedulers[-1])
        schedulers[-1].step()

    step = compared(trained(optimizer, between), calls=16)
    assert not step.why_eager and step.captures == 1


def test_betas_of_sparse_gradients_may_change(forced):
    forced("workers")

    def between(i, optimizer, _):
        optimizer.param_groups[0]["betas"] = 0.9 - 0.1 * i, 0.99

    tables = lambda: nn.Embedding(4, 4, sparse=True)  # noqa: E731
    step = compared(trained(lambda p: SparseAdam(p, lr=0.1), between, tables, lambda model, x: model(x.long().abs()).square().mean()))
    assert not step.why_eager and step.captures == 1


@pytest.mark.parametrize("before", [0.0, 0.9])
def test_momentum_that_begins_or_ends_is_another_capture(forced, before):
    forced("in turn")

    def between(i, optimizer, _):
        optimizer.param_groups[0]["momentum"] = before if i < 4 else 0.9 - before

    step = compared(trained(lambda p: SGD(p, lr=0.1, momentum=before), between))
    assert not step.why_eager and step.captures == 3 - (before > 0) and step.recaptured == "whether an optimizer has momentum"


@pytest.mark.filterwarnings("error")
def test_a_scheduler_finds_that_captured_steps_came_before_its_own(forced):
    forced("in turn")
    model = nn.Linear(8, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    step = engine.torch.compile_step(plain(optimizer, lambda x: model(x).square().mean()))
    for i in range(6):
        if i == 3:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        step(torch.randn(6, 8))
        if i >= 3:
            scheduler.step()
    assert not step.why_eager and optimizer._opt_called


def test_a_step_that_lets_its_modules_train_stays_captured_behind_evaluations(forced):
    forced("in turn")

    def make():
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4))
        step = plain(SGD(model.parameters(), lr=0.1), lambda x: model.train()(x).square().mean())
        return model, step, nothing, lambda i: model.eval() if i % 3 == 0 else None

    step = compared(make, calls=12)
    assert not step.why_eager and step.captures == 2


# --- around the step


def test_a_precision_that_a_backend_was_told_is_followed(forced):
    forced("in turn")
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before = [backend.fp32_precision for backend in backends]

    def between(i, *_):
        backends[0].fp32_precision = "tf32"  # torch.get_float32_matmul_precision() raises from here on
        backends[1].fp32_precision = "bf16" if i > 3 else "ieee"

    try:
        step = compared(trained(lambda p: SGD(p, lr=0.1), between))
    finally:
        for backend, precision in zip(backends, before):
            backend.fp32_precision = precision
    assert not step.why_eager and step.captures == 2


# --- optimizers inside of the step


def stepping(body, between=lambda i, optimizer: None, optimizer=lambda p: SGD(p, lr=0.1)):
    """``body`` gives what updates the model, in place of the optimizer's step."""

    def make():
        model = nn.Linear(8, 4)
        chosen = optimizer(model.parameters())
        update = body(model, chosen)

        def step(x):
            chosen.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            update()
            return loss

        return model, step, nothing, lambda i: between(i, chosen)

    return make


def falling(i, optimizer):
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + i // 3)


def test_a_learning_rate_that_the_step_reads_is_followed(forced):
    forced("in turn")

    def body(model, optimizer):
        def update():
            optimizer.step()
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1 - optimizer.param_groups[0]["lr"] * 0.1)

        return update

    step = compared(stepping(body, falling))
    assert not step.why_eager and step.captures == 3 and step.recaptured == "a learning rate or another number of an optimizer that it reads"


def test_a_learning_rate_that_the_step_does_not_read_needs_no_new_capture(forced):
    forced("in turn")
    step = compared(stepping(lambda model, optimizer: lambda: optimizer.step(), falling))
    assert not step.why_eager and step.captures == 1


@pytest.mark.parametrize("kept", [False, True])
def test_a_learning_rate_that_the_step_sets_runs_eagerly(forced, kept):
    forced("in turn")

    def body(model, optimizer):
        group = optimizer.param_groups[0]

        def update():
            held = group if kept else optimizer.param_groups[0]
            held["lr"] *= 0.5
            optimizer.step()
            held["lr"] *= 2

        return update

    assert "it changes 'lr' of a group of SGD" in compared(stepping(body)).why_eager


def bound(model, optimizer):
    return optimizer.step


def by_its_class(model, optimizer):
    return lambda: SGD.step(optimizer)


@pytest.mark.parametrize("body", [bound, by_its_class])
def test_a_step_that_is_called_by_another_name_is_the_optimizer_s(forced, body):
    forced("in turn")
    step = compared(stepping(body, falling))
    assert not step.why_eager and step.captures == 1


def in_a_box(kind):
    def body(model, optimizer):
        box = types.SimpleNamespace(optimizer=kind(model.parameters(), lr=0.1))
        return lambda: (optimizer.step(), box.optimizer.step())

    return body


@pytest.mark.parametrize("kind", [SGD, Adam, RMSprop])
def test_an_optimizer_that_is_not_found_makes_the_step_run_eagerly(forced, kind):
    forced("in turn")
    assert f"it steps an optimizer, {kind.__name__}, that is none of those" in compared(stepping(in_a_box(kind), falling)).why_eager


def test_gradients_are_not_left_by_any_call_behind_the_first(forced):
    forced("eager")
    model = nn.Linear(8, 4)
    step = engine.torch.compile_step(plain(SGD(model.parameters(), lr=0.1), lambda x: model(x).square().mean()))
    for i in range(4):
        step(torch.randn(6, 8))
        assert i == 0 or all(p.grad is None for p in model.parameters())
    assert step.captures == 1


@pytest.mark.parametrize("read", [False, True])
def test_settings_of_a_group_in_a_list_that_is_changed_are_noticed(forced, read):
    forced("in turn")

    def between(i, optimizer, _):
        if i == 4:
            optimizer.param_groups[0]["betas"][0] = 0.5

    chosen = []
    reading = lambda model, x: model(x).square().mean() * (chosen[-1].param_groups[0]["betas"][0] if read else 1)  # noqa: E731
    adam = lambda p: chosen.append(Adam([{"params": p, "betas": [0.9, 0.99]}], lr=0.1)) or chosen[-1]  # noqa: E731
    step = compared(trained(adam, between, loss=reading))
    assert not step.why_eager and step.captures == 1 + read


def test_betas_that_become_tensors_are_noticed(forced):
    forced("in turn")

    def between(i, optimizer, _):
        if i == 4:
            optimizer.param_groups[0]["betas"] = torch.tensor(0.5), torch.tensor(0.9)

    step = compared(trained(lambda p: Adam(p, lr=0.1), between))
    assert "betas as a tensor" in step.why_eager


def test_a_tensor_among_the_settings_of_a_group_is_noticed(forced):
    forced("in turn")

    def make():
        model = nn.Linear(8, 4)
        optimizer = SGD([{"params": model.parameters(), "scales": torch.ones(4)}], lr=0.1)
        group = optimizer.param_groups[0]
        step = plain(optimizer, lambda x: (model(x) * optimizer.param_groups[0]["scales"]).square().mean())
        return model, step, nothing, lambda i: group.update(scales=torch.tensor([1.0, 2.0, 3.0, float(i)])) if i in (4, 6) else None

    assert not compared(make).why_eager
