"""Products of matrices are made by oneDNN where that is faster, and equal to the bit unless that is not asked for."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support import MODES, same, training
from torch import nn
from torch.optim import SGD

import engine
import engine.torch
from engine.torch import adapter, products
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


def needs_matmul():
    """oneDNN's matmul refuses float32 on some processors, as those without AVX-512; no trial finds it there."""
    form = Form(False, 64, 128, 256, (128, 1), (256, 1))
    if not any(trial.depth == 0 for trial in tried(form, 1, "none")):
        pytest.skip("torch's matmul by oneDNN does not run on this processor")


@pytest.fixture
def told(monkeypatch):
    """told(trial): what every trial finds from now on."""

    def tell(trial):
        if trial and trial.depth == 0:
            needs_matmul()
        monkeypatch.setattr(products, "tried", lambda form, threads, precision: (trial,) if trial else ())

    return tell


def steps_by_others(step):
    return sum(spec[-1] is not None for spec in step.last.program.lowered.specs)


@pytest.mark.parametrize(("trial", "taken"), [
    (Trial(2.0, 1.0, True), {"exact", "fast"}), (Trial(2.0, 1.0, False), {"fast"}), (Trial(1.0, 0.95, True), set()),
    (Trial(1.0, 2.0, True), set()), (Trial(2.0, 1.0, True, 64), {"exact", "fast"}), (Trial(2.0, 1.0, False, 64), {"fast"}),
    (None, set()),
], ids=["faster and equal", "faster", "hardly faster", "slower", "brgemm", "brgemm with other bits", "not there"])  # fmt: skip
def test_a_trial_decides_and_only_fast_gives_up_the_last_bits(forced, told, trial, taken):
    forced("in turn")
    told(trial)
    for asked in ("exact", "fast", "torch"):
        step = step_of(wide(), products=asked)
        for _ in range(3):
            step(torch.ones(64, 128))
        # The three layers' forward and weight gradients, and the two gradients between them.
        assert steps_by_others(step) == (8 if asked in taken else 0)


def test_the_fastest_of_the_kernels_that_may_be_taken_is(forced, monkeypatch):
    needs_matmul()
    forced("in turn")
    trials = (Trial(4.0, 2.0, True, 64), Trial(4.0, 1.0, False))
    monkeypatch.setattr(products, "tried", lambda form, threads, precision: trials)
    for asked, by in (("exact", "oneDNN's brgemm"), ("fast", "oneDNN's matmul")):
        step = step_of(wide(), products=asked)
        for _ in range(3):
            step(torch.ones(64, 128))
        told = engine.torch.explain(step)[0].plans[0]
        assert [n.by for n in told.nodes if n.by] == [by] * 8
        assert f"8 products of matrices by {by}" in str(told)


def test_small_products_are_not_tried(forced, monkeypatch):
    forced("in turn")
    monkeypatch.setattr(products, "tried", lambda form, threads, precision: pytest.fail(f"{form} was tried"))
    step = step_of(nn.Linear(8, 8))
    for _ in range(2):
        step(torch.ones(4, 8))
    assert step.last and 4 * 8 * 8 < LEAST


@pytest.mark.parametrize("depth", [0, 48, 500], ids=["matmul", "brgemm with cuts", "brgemm"])
@pytest.mark.parametrize("mode", MODES)
def test_steps_by_others_are_close_to_eagers_and_call_no_product_of_torch(forced, told, mode, depth):
    forced(mode)
    told(Trial(2.0, 1.0, True, depth))
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
    model = nn.Sequential(wide()[:4], nn.Linear(128, 400), nn.Linear(400, 7), nn.Linear(7, 600), nn.Linear(600, 16), nn.Linear(16, 1))
    other = copy.deepcopy(model)
    ours, theirs = step_of(model), training(other, SGD(other.parameters(), lr=0.01))
    for _ in range(4):
        x = torch.randn(64, 128)
        same(ours(x), theirs(x).detach())
    same(dict(model.state_dict()), dict(other.state_dict()))
    assert not ours.why_eager


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


def test_numbers_that_torch_negates_late_are_multiplied_as_eagerly(forced, told):
    forced("in turn")
    told(Trial(2.0, 1.0, True))
    layer = nn.Linear(128, 128)
    twin = copy.deepcopy(layer)
    ours, theirs = step_of(layer), training(twin, SGD(twin.parameters(), lr=0.01))
    given = torch.randn(64, 128)
    for x in (given, given, torch._neg_view(given), given, torch._neg_view(given), torch._neg_view(given)):
        same(ours(x), theirs(x).detach())
    assert ours.captures == 2, "numbers that are negated are another kind of argument"
    same(dict(layer.state_dict()), dict(twin.state_dict()))



def test_a_row_that_is_not_as_torch_makes_it_is_left_to_torch(forced, told):
    forced("in turn")
    told(Trial(2.0, 1.0, True, 128))
    ours = torch.compile(torch.addmm, backend=engine.torch.backend)
    a, b, row = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64, 2)
    for given in (row[:, 1].contiguous(), row[:, 1]):
        torch.testing.assert_close(ours(given, a, b), torch.addmm(given, a, b))


def test_onednn_switched_off_is_not_used(forced, told):
    forced("in turn")
    for depth in (0, 128):
        told(Trial(2.0, 1.0, True, depth))
        with torch.backends.mkldnn.flags(enabled=False):
            step = step_of(wide())
            for _ in range(2):
                step(torch.ones(64, 128))
        assert steps_by_others(step) == 0


def test_other_types_and_other_sums_are_left_to_torch(forced, monkeypatch):
    forced("in turn")
    monkeypatch.setattr(products, "tried", lambda form, threads, precision: pytest.fail(f"{form} was tried"))

    def scaled(a, b):
        return torch.addmm(a, b, b, alpha=2)

    big = torch.ones(128, 128)
    ours = torch.compile(scaled, backend=engine.torch.backend)
    same(ours(big, big), scaled(big, big))
    ours = torch.compile(torch.mm, backend=engine.torch.backend)
    for kind in (torch.float64, torch.bfloat16):
        same(ours(big.to(kind), big.to(kind)), torch.mm(big.to(kind), big.to(kind)))


def forms():
    """Whose rows and columns fill vectors, and do not; and whose columns are turned at once, or in parts."""
    edges = (1, 5, 8, 15, 16, 17, 32, 45)
    for i, (rows, others) in enumerate((r, o) for r in edges for o in edges):
        yield rows, 1 + i * 7 % 70, others
    yield from ((500, 33, 40), (7, 300, 1100), (26, 9, 513), (40, 70, 270))


@pytest.mark.parametrize("adds", [False, True], ids=["mm", "addmm"])
@pytest.mark.parametrize(("a_turned", "b_turned"), [(False, False), (False, True), (True, False), (True, True)])
def test_brgemms_of_all_forms_are_close_to_torchs(adds, a_turned, b_turned):
    native, numbers = adapter.load(), torch.Generator().manual_seed(1)
    for rows, columns, others in forms():
        strides = ((1, rows) if a_turned else (columns, 1)), ((1, columns) if b_turned else (others, 1))
        form = Form(adds, rows, columns, others, *strides)
        matrices = products._matrices(form, numbers)
        for depth in {1000, (columns + 1) // 2, min(7, columns)}:
            found = [native.compare(form.spec(depth), matrices, 1, threads) for threads in (1, 2)]
            (_, expected), (_, got) = found[0]
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
            same(got, found[1][1][1])  # a second thread changes nothing


@pytest.mark.parametrize("threads", [2, 3])
def test_a_team_of_threads_makes_the_numbers_of_one(threads):
    native = adapter.load()
    for rows, columns, others in ((256, 64, 128), (4096, 16, 16), (16, 128, 1000), (100, 64, 257)):  # by rows, by columns
        form = Form(True, rows, columns, others, (columns, 1), (1, columns))
        matrices = products._matrices(form, torch.Generator().manual_seed(1))
        one, team = (native.compare(form.spec(40), matrices, 1, count) for count in (1, threads))
        same(one[1][1], team[1][1])


def chain(rows, columns):
    """Products one behind the other, so that threads find nothing else to do."""
    return nn.Sequential(nn.Linear(columns, columns), nn.ReLU(), nn.Linear(columns, columns), nn.ReLU(), nn.Linear(columns, 1)), torch.randn(rows, columns)


@pytest.mark.parametrize("policy", ["threaded", "cost_model"])
@pytest.mark.parametrize(("rows", "columns"), [(96, 112), (257, 131), (16, 1024), (1024, 33), (1, 2048), (2048, 16)])
def test_a_product_that_threads_of_a_run_share_is_that_of_one(forced, told, policy, rows, columns):
    told(Trial(2.0, 1.0, True, 64))
    for flush in (False, True):
        made = []
        for mode in ("in turn", "workers"):
            torch.manual_seed(0)
            model, x = chain(rows, columns)
            x *= 1e-38  # some of its products are denormal
            forced(mode)
            step = step_of(model, policy=policy)
            if flush and not torch.set_flush_denormal(True):
                pytest.skip("this processor does not flush denormal numbers")
            try:
                made.append([step(x) for _ in range(40)] + list(model.parameters()))
            finally:
                torch.set_flush_denormal(False)
        same(*made)
        large = rows * columns * columns >= products.WORK_TO_SHARE
        assert bool(step.last.program.lowered.shared()) == large


@pytest.mark.parametrize("workers", [255, 256])
def test_a_node_is_shared_by_as_many_threads_as_there_may_be(told, workers):
    told(Trial(2.0, 1.0, True, 64))
    model, x = chain(256, 256)
    step = step_of(model, workers=workers)
    for _ in range(3):
        step(x)
    assert not step.why_eager and step.last is not None


def test_large_products_by_brgemm_alone_are_shared(forced, told):
    told(Trial(2.0, 1.0, True, 64))
    model, x = chain(256, 256)
    step = step_of(model)
    for _ in range(3):
        step(x)
    lowered = step.last.program.lowered
    # None of the last layer, and none backward, where gradients of weights and of inputs are made beside each other.
    assert [lowered.main(i).target.name() for i in sorted(lowered.shared())] == ["aten::addmm"] * 2
    told(Trial(2.0, 1.0, True, 0))
    step = step_of(chain(256, 256)[0])
    for _ in range(3):
        step(x)
    assert not step.last.program.lowered.shared()


@pytest.mark.parametrize("gap", ["behind rows", "behind columns", "behind numbers", "rows are one"])
def test_brgemms_of_matrices_that_do_not_lie_close_are_close_to_torchs(gap):
    def strides(rows, columns):
        return {"behind rows": (columns + 3, 1), "behind columns": (1, rows + 5), "behind numbers": (2 * columns, 2), "rows are one": (0, 1)}[gap]

    native = adapter.load()
    for rows, columns, others in ((24, 70, 40), (1, 64, 200), (300, 1, 20)):
        matrices = [torch.empty_strided(size, strides(*size)) for size in ((rows, columns), (columns, others))]
        for matrix in matrices:
            matrix[0].copy_(torch.randn(matrix.shape[1])) if gap == "rows are one" else matrix.copy_(torch.randn(matrix.shape))
        form = Form(False, rows, columns, others, *(matrix.stride() for matrix in matrices))
        (_, expected), (_, got) = native.compare(form.spec(48), matrices, 1, 1)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_few_numbers_that_are_equal_by_chance_are_not_taken_for_equal(monkeypatch):
    class Kernels:
        """The numbers of the first product are equal, and those of other random numbers are not."""

        first = None

        def compare(self, spec, matrices, runs, threads):
            self.first = matrices[0] if self.first is None else self.first
            return (2.0, torch.ones(1)), (1.0, torch.ones(1) + (matrices[0] is not self.first))

    for rows, others, equal in ((1, 1, False), (64, 64, True)):
        kernels = Kernels()
        monkeypatch.setattr(adapter, "load", lambda kernels=kernels: kernels)
        trials = tried(Form(False, rows, 77, others, (77, 1), (others, 1)), 1, "none")
        assert [trial.equal for trial in trials] == [equal] * len(trials) and trials


def test_a_trial_draws_none_of_the_programs_random_numbers_and_is_made_once():
    form = Form(True, 64, 96, 96, (96, 1), (1, 96))
    before = torch.random.get_rng_state()
    trials = tried(form, 2, "none")
    same(before, torch.random.get_rng_state())
    assert tried(form, 2, "none") is trials
    assert all(trial.torch > 0 and trial.other > 0 for trial in trials)


def test_an_unknown_way_to_make_products_is_refused():
    with pytest.raises(engine.UsageError, match="products is 'quick'; exact, fast, torch are allowed"):
        engine.torch.compile_step(wide(), options={"products": "quick"})


def test_copies_of_fixed_weights_are_made_again_when_they_change(forced):
    forced("in turn")
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 96))
    fixed = torch.compile(model, backend=engine.torch.backend, options={"weights": "fixed"})
    x, changed = torch.randn(8, 64), copy.deepcopy(model).requires_grad_(False)
    for p in changed.parameters():
        p.mul_(-2)
    with torch.no_grad():
        for change in (lambda: None, lambda: model[0].weight.mul_(3), lambda: model.load_state_dict(changed.state_dict()),
                       lambda: setattr(model[2], "weight", nn.Parameter(torch.randn(96, 48)))):  # fmt: skip
            change()
            for _ in range(3):
                torch.testing.assert_close(fixed(x), model(x))
    forms = [products.form_of(call, True) for program in _programs(fixed) for call in program.lowered.calls]
    assert [form.kept for form in forms if form] == [True] * len([form for form in forms if form]) and any(forms)


def test_matrices_that_change_all_the_time_are_read_as_they_lie(forced):
    forced("in turn")
    fixed = torch.compile(torch.mm, backend=engine.torch.backend, options={"weights": "fixed"})
    a = torch.randn(32, 32)
    for _ in range(120):  # more than copies are made
        b = torch.randn(32, 32).t()
        torch.testing.assert_close(fixed(a, b), torch.mm(a, b))


def test_threads_share_the_copy_of_a_weight(forced):
    forced("in turn")
    model = nn.Linear(64, 64)
    fixed = torch.compile(model, backend=engine.torch.backend, options={"weights": "fixed", "policy": "inline"})
    inputs = [torch.randn(8, 64) for _ in range(4)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        fixed(inputs[0])
        with ThreadPoolExecutor(4) as pool:
            for got, right in zip(pool.map(torch.no_grad()(fixed), inputs * 25), expected * 25):
                torch.testing.assert_close(got, right)


def test_fixed_weights_are_for_a_model_and_not_for_a_step():
    with pytest.raises(engine.UsageError, match="weights 'fixed' is for torch.compile"):
        engine.torch.compile_step(wide(), options={"weights": "fixed"})
    with pytest.raises(engine.UsageError, match="weights is 'frozen'; change, fixed are allowed"):
        engine.torch.compile_step(wide(), options={"weights": "frozen"})


def _programs(compiled):
    own = {id(p) for p in compiled.parameters()}
    return [program for region in engine.torch.regions.compiled if own.intersection(region.parameters) for program in region.programs.values()]


def test_the_gradient_of_a_sum_which_is_one_number_as_many_is_left_to_torch(forced):
    forced("in turn")
    model = nn.Linear(128, 64)
    other = copy.deepcopy(model)
    ours = engine.torch.compile_step(training(model, SGD(model.parameters(), lr=0.01), torch.sum))
    theirs = training(other, SGD(other.parameters(), lr=0.01), torch.sum)
    for _ in range(3):
        x = torch.randn(64, 128)
        same(ours(x), theirs(x).detach())
        same(model.state_dict(), other.state_dict())
    assert not ours.why_eager
