"""Products of matrices are made by oneDNN where that is faster, and equal to the bit unless that is not asked for."""

import copy

import pytest
import torch
from support import MODES, same, training
from torch import nn
from torch.optim import SGD

import engine
import engine.torch
from engine.torch import products
from engine.torch.products import LEAST, Form, Trial, tried

PRODUCTS = {"aten::mm", "aten::addmm"}


def wide():
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1))


def step_of(model, **options):
    step = training(model, SGD(model.parameters(), lr=0.01))
    return engine.torch.compile_step(step, options={"workers": 2, **options})


def called(step, x):
    """Which of torch's own products a call of the step makes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step(x)
    return {event.key for event in profile.key_averages()} & PRODUCTS


@pytest.fixture
def told(monkeypatch):
    """told(trial): what every trial finds from now on."""

    def tell(trial):
        monkeypatch.setattr(products, "tried", lambda form, threads: trial)

    return tell


def steps_by_onednn(step):
    return sum(spec[-1] is not None for spec in step.last.program.lowered.specs)


@pytest.mark.parametrize(("trial", "taken"), [
    (Trial(2.0, 1.0, True), {"exact", "fast"}), (Trial(2.0, 1.0, False), {"fast"}), (Trial(1.0, 0.95, True), set()),
    (Trial(1.0, 2.0, True), set()), (None, set()),
], ids=["faster and equal", "faster", "hardly faster", "slower", "not there"])  # fmt: skip
def test_a_trial_decides_and_only_fast_gives_up_the_last_bits(forced, told, trial, taken):
    forced("in turn")
    told(trial)
    for asked in ("exact", "fast", "torch"):
        step = step_of(wide(), products=asked)
        for _ in range(3):
            step(torch.ones(64, 128))
        # Both wide layers' forward and weight gradients, and the gradient between them. The last layer is too small.
        assert steps_by_onednn(step) == (5 if asked in taken else 0)


def test_small_products_are_not_tried(forced, monkeypatch):
    forced("in turn")
    monkeypatch.setattr(products, "tried", lambda form, threads: pytest.fail(f"{form} was tried"))
    step = step_of(nn.Linear(8, 8))
    for _ in range(2):
        step(torch.ones(4, 8))
    assert step.last and 4 * 8 * 8 < LEAST


@pytest.mark.parametrize("mode", MODES)
def test_steps_by_onednn_are_close_to_eagers_and_call_no_other_product(forced, told, mode):
    forced(mode)
    told(Trial(2.0, 1.0, True))
    model = wide()
    model[4] = nn.Identity()
    other = copy.deepcopy(model)
    ours, theirs = step_of(model), training(other, SGD(other.parameters(), lr=0.01))
    for _ in range(4):
        x = torch.randn(64, 128)
        torch.testing.assert_close(ours(x), theirs(x).detach())
    torch.testing.assert_close(dict(model.state_dict()), dict(other.state_dict()))
    assert not ours.why_eager and called(ours, torch.randn(64, 128)) == set()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_exact_products_are_eagers_to_the_bit(forced, mode, threads):
    torch.set_num_threads(threads if mode == "caller" else 1)
    forced(mode)
    model = wide()
    other = copy.deepcopy(model)
    ours, theirs = step_of(model), training(other, SGD(other.parameters(), lr=0.01))
    for _ in range(4):
        x = torch.randn(64, 128)
        same(ours(x), theirs(x).detach())
    same(dict(model.state_dict()), dict(other.state_dict()))


def test_a_tensor_that_is_not_as_torch_makes_them_is_left_to_torch(forced, told):
    forced("in turn")
    told(Trial(2.0, 1.0, True))
    layer = nn.Linear(128, 128)
    ours = step_of(layer)
    aligned, odd = torch.randn(64, 128), torch.randn(64 * 128 + 1)[1:].view(64, 128)
    for _ in range(3):
        ours(aligned)
    assert called(ours, aligned) == set()
    assert called(ours, odd) == PRODUCTS and ours.captures == 1
    late = torch._neg_view(aligned)  # only torch's dispatcher knows that these numbers are negated
    assert called(ours, late) == PRODUCTS and ours.captures == 1


def test_onednn_switched_off_is_not_used(forced, told):
    forced("in turn")
    told(Trial(2.0, 1.0, True))
    with torch.backends.mkldnn.flags(enabled=False):
        step = step_of(wide())
        for _ in range(2):
            step(torch.ones(64, 128))
    assert steps_by_onednn(step) == 0


def test_other_types_and_other_sums_are_left_to_torch(forced, monkeypatch):
    forced("in turn")
    monkeypatch.setattr(products, "tried", lambda form, threads: pytest.fail(f"{form} was tried"))

    def scaled(a, b):
        return torch.addmm(a, b, b, alpha=2)

    big = torch.ones(128, 128)
    ours = torch.compile(scaled, backend=engine.torch.backend)
    same(ours(big, big), scaled(big, big))
    ours = torch.compile(torch.mm, backend=engine.torch.backend)
    for kind in (torch.float64, torch.bfloat16):
        same(ours(big.to(kind), big.to(kind)), torch.mm(big.to(kind), big.to(kind)))


def test_a_trial_draws_none_of_the_programs_random_numbers_and_is_made_once():
    form = Form(True, 64, 96, 96, (96, 1), (1, 96))
    before = torch.random.get_rng_state()
    trial = tried(form, 2)
    same(before, torch.random.get_rng_state())
    assert tried(form, 2) is trial
    assert trial is None or trial.torch > 0 and trial.onednn > 0


def test_an_unknown_way_to_make_products_is_refused():
    with pytest.raises(engine.UsageError, match="products is 'quick'; exact, fast, torch are allowed"):
        engine.torch.compile_step(wide(), options={"products": "quick"})
