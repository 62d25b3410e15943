"""compile_step: a whole training step as one plan does what it does eagerly, to the bit."""

import copy
import functools
import linecache
import warnings

import pytest
import torch
from support import MODES, same, training
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop, SparseAdam

import engine
import engine.torch


class Small(nn.Linear):
    """For tests in which the number of captures matters, and not what is captured."""

    def __init__(self):
        super().__init__(4, 1)

    def forward(self, ids):
        return super().forward(ids.T.float()).squeeze(1)


class Net(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8, sparse=sparse) for _ in range(4))
        self.top = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))

    def forward(self, ids):
        return self.top(torch.cat([table(column) for table, column in zip(self.tables, ids)], 1)).squeeze(1)


def clicks(model, optimizer):
    return training(model, optimizer, nn.functional.binary_cross_entropy_with_logits)


def batch(n=16):
    return torch.randint(0, 20, (4, n)), torch.randint(0, 2, (n,)).float()


def state_of(model, optimizer):
    return dict(model.state_dict()), [dict(optimizer.state[p]) for p in model.parameters()]


def pair(make, model=None):
    """(compiled step, model, optimizer), and the eager one from the same state."""
    out = []
    model = model or Net()
    for m in (model, copy.deepcopy(model)):
        optimizer = make(m.parameters())
        out.append((clicks(m, optimizer), m, optimizer))
    (mine, *rest), theirs = out
    return (engine.torch.compile_step(mine, options={"workers": 2}), *rest), theirs


def run_both(ours, theirs, steps=4, n=16):
    for i in range(steps):
        data = batch(n)
        losses = []
        for step, _, _ in (ours, theirs):
            torch.manual_seed(i)
            losses.append(step(*data).detach())
        same(*losses)
        same(state_of(*ours[1:]), state_of(*theirs[1:]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [
    functools.partial(SGD, lr=0.1), functools.partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    functools.partial(Adam, lr=0.01, amsgrad=True, weight_decay=0.1), functools.partial(AdamW, lr=0.01, maximize=True),
    functools.partial(Adagrad, lr=0.1, lr_decay=0.01),
], ids=["sgd", "momentum", "adam", "adamw", "adagrad"])  # fmt: skip
def test_each_optimizer_changes_parameters_and_state_as_eager(forced, mode, make):
    forced(mode)
    ours, theirs = pair(make)
    run_both(ours, theirs)
    assert not ours[0].why_eager and ours[0].last.program.steps > 20


def test_the_learning_rate_may_change_without_a_new_capture(forced):
    forced("workers")
    ours, theirs = pair(Adam)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for _, _, o in (ours, theirs)]
    for _ in range(3):
        run_both(ours, theirs, steps=2)
        for scheduler in schedulers:
            scheduler.step()
    assert ours[0].captures == 1


def test_other_shapes_and_changed_settings_are_captured_again(forced):
    forced("workers")
    ours, theirs = pair(functools.partial(SGD, lr=0.1, momentum=0.5))
    run_both(ours, theirs, n=16)
    run_both(ours, theirs, n=8)
    assert ours[0].captures == 2
    for _, model, optimizer in (ours, theirs):
        optimizer.param_groups[0]["momentum"] = 0.8
        model.top[3].eval()
    run_both(ours, theirs, n=8)
    assert ours[0].captures == 3
    for _, model, optimizer in (ours, theirs):
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # other tensors
    run_both(ours, theirs, n=8)
    assert ours[0].captures == 4 and not ours[0].why_eager


def test_the_ninth_shape_runs_eagerly_with_one_warning_and_the_others_stay_captured(forced):
    forced("in turn")
    ours, theirs = pair(functools.partial(SGD, lr=0.1), Small())
    run_both(ours, theirs, steps=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in (*range(2, 13), *range(2, 13)):
            run_both(ours, theirs, steps=1, n=n)
    told = [str(w.message) for w in told if "engine.torch" in str(w.message)]
    assert len(told) == 1 and "captured for 8 kinds of arguments" in told[0] and "others run eagerly" in told[0]
    assert ours[0].captures == len(ours[0].ready) == 8 and not ours[0].why_eager
    assert "than the 8 captured ones run eagerly" in str(engine.torch.explain(ours[0])[0])


def test_a_step_whose_state_keeps_changing_runs_eagerly_in_the_end(forced):
    forced("in turn")
    ours, theirs = pair(functools.partial(SGD, lr=0.1), Small())
    with pytest.warns(UserWarning, match="runs eagerly: it was captured 32 times"):
        for i in range(40):
            for _, _, optimizer in (ours, theirs):
                optimizer.param_groups[0]["weight_decay"] = i / 1000
            run_both(ours, theirs, steps=1)


def test_frozen_parameters_stay_and_are_noticed(forced):
    forced("workers")
    ours, theirs = pair(Adam)
    run_both(ours, theirs)
    for _, model, _ in (ours, theirs):
        model.tables[0].weight.requires_grad_(False)
    run_both(ours, theirs)


def test_a_method_with_two_optimizers_and_clipped_gradients(forced):
    forced("workers")

    class Trainer:
        def __init__(self):
            torch.manual_seed(1)
            self.model = Net()
            self.optimizers = [SGD(self.model.tables.parameters(), lr=0.1), Adam(self.model.top.parameters())]

        def step(self, ids, y):
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            out = self.model(ids)
            loss = (out - y).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
            for optimizer in self.optimizers:
                optimizer.step()
            return {"loss": loss, "out": out, "kind": "mse"}

    ours, theirs = Trainer(), Trainer()
    compiled = engine.torch.compile_step(ours.step)
    for i in range(4):
        data = batch()
        torch.manual_seed(i)
        a = compiled(*data)
        torch.manual_seed(i)
        b = theirs.step(*data)
        same(a["loss"], b["loss"].detach())
        assert a["kind"] == "mse"
        same(dict(ours.model.state_dict()), dict(theirs.model.state_dict()))
    assert not compiled.why_eager


@pytest.mark.parametrize(("change", "why"), [
    (lambda model, optimizer: lambda ids, y: clicks(model, optimizer)(ids, y).item(), "number out of a tensor"),
    (lambda model, optimizer: lambda ids, y: [(model(ids) - y).square().mean().backward(), optimizer.step()][1], "several steps"),
], ids=["a number that is read from a tensor", "gradients kept over steps"])  # fmt: skip
def test_a_step_that_cannot_be_captured_says_why_and_runs_eagerly(change, why):
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    step = engine.torch.compile_step(change(model, optimizer), modules=[model], optimizers=[optimizer])
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(UserWarning, match="runs eagerly"):
        for _ in range(3):
            step(*batch())
    assert why in step.why_eager and why in str(engine.torch.explain(step)[0])
    assert not torch.equal(before["top.0.weight"], model.top[0].weight)


@pytest.mark.parametrize("given", [lambda i: (), lambda i: (object(),), lambda i: (i,)],
                         ids=["refused in the capture", "refused before it", "too many kinds of arguments"])  # fmt: skip
def test_a_warning_names_the_line_that_calls_the_step(forced, given):
    forced("in turn")
    model = nn.Linear(3, 1)
    optimizer = SGD(model.parameters(), lr=0.1)

    @engine.torch.compile_step
    def step(*arguments):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        optimizer.step()
        return loss if arguments else loss.item()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for i in range(12):
            step(*given(i))
    (line,) = {linecache.getline(w.filename, w.lineno).strip() for w in told if "engine.torch" in str(w.message)}
    assert line == "step(*given(i))"


def test_what_no_rule_knows_runs_eagerly_and_says_so():
    ours, theirs = pair(RMSprop)
    with pytest.warns(UserWarning, match="runs eagerly"):
        run_both(ours, theirs)
    assert "the optimizer RMSprop; SGD, " in ours[0].why_eager


class Rows(nn.Module):
    """Tables whose gradients have only the rows that were looked up, one of them looked up twice, and a bag."""

    def __init__(self, padding=None):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8, padding, sparse=True) for _ in range(4))
        self.bag = nn.EmbeddingBag(20, 8, mode="mean" if padding else "sum", sparse=True, padding_idx=padding)

    def forward(self, ids):
        found = [table(column) for table, column in zip(self.tables, ids)]
        return torch.stack([*found, self.tables[0](ids[1]), self.bag(ids.T)]).sum((0, 2))


OF_ROWS = pytest.mark.parametrize("make", [
    functools.partial(SGD, lr=0.1), functools.partial(SGD, lr=0.1, momentum=0.9, dampening=0.1),
    functools.partial(SGD, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    functools.partial(Adagrad, lr=0.1, lr_decay=0.01), functools.partial(SparseAdam, lr=0.01, betas=(0.8, 0.9)),
    functools.partial(SparseAdam, lr=0.01, maximize=True),
], ids=["sgd", "momentum", "nesterov", "adagrad", "sparse adam", "maximized"])  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@OF_ROWS
def test_sparse_gradients_change_parameters_and_state_as_eager(forced, mode, make):
    forced(mode)
    ours, theirs = pair(make, Rows())
    run_both(ours, theirs, steps=5)
    assert not ours[0].why_eager and ours[0].captures == 1


@pytest.mark.parametrize("mode", MODES)
@OF_ROWS
def test_the_row_for_padding_is_left_as_eager_leaves_it(forced, mode, make):
    forced(mode)
    ours, theirs = pair(make, Rows(padding=3))
    run_both(ours, theirs, steps=5)
    only_padding = torch.full((4, 16), 3), torch.ones(16)
    same(*[step(*only_padding).detach() for step, _, _ in (ours, theirs)])
    same(state_of(*ours[1:]), state_of(*theirs[1:]))
    assert not ours[0].why_eager and ours[0].captures == 1


def test_gradients_of_rows_are_torchs_own_again_once_a_step_is_captured(forced):
    forced("in turn")
    ours, theirs = pair(functools.partial(SGD, lr=0.1), Rows(padding=3))
    run_both(ours, theirs, steps=2)
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::embedding_sparse_backward", "AutogradCPU")
    assert "embedding_rows" in str([call.name for call in ours[0].last.program.lowered.calls])


def test_sparse_steps_may_take_turns_with_eager_ones(forced):
    forced("workers")
    ours, theirs = pair(functools.partial(SparseAdam, lr=0.01), Rows())
    run_both(ours, theirs)
    for mode in ("eager", "workers", "in turn"):
        ours[0].last.choice.hold(mode)
        run_both(ours, theirs, steps=2)


def test_gradients_are_not_left_behind(forced):
    forced("workers")
    ours, _ = pair(Adam)
    for _ in range(3):
        loss = ours[0](*batch())
    assert not loss.requires_grad and all(p.grad is None for p in ours[1].parameters())


def test_unknown_options_are_refused():
    for options in ({"policies": "naive"}, {"policy": "fast"}, {"workers": 0}, {"workers": True}, {"partition": 3},
                    {"capture_step": 1}, {"keep_freed_memory": 0}, {"intra_op_threads": -1}):  # fmt: skip
        with pytest.raises(engine.errors.UsageError, match="engine.torch: "):
            engine.torch.compile_step(lambda: None, options=options)


def test_a_step_whose_optimizer_keeps_nothing_is_captured_once(forced):
    forced("in turn")
    ours, theirs = pair(functools.partial(SGD, lr=0.1))
    run_both(ours, theirs, steps=6)
    assert ours[0].captures == 1 and not ours[0].recaptured


class Recurrent(nn.Module):
    """A GRU of batches in front turns its gradients in place."""

    def __init__(self):
        super().__init__()
        self.steps, self.top = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        return self.top(self.steps(x)[0])


@pytest.mark.parametrize("mode", MODES)
def test_a_gru_whose_batch_comes_first_is_captured(forced, mode):
    forced(mode)
    model = Recurrent()
    other = copy.deepcopy(model)
    ours = engine.torch.compile_step(training(model, SGD(model.parameters(), lr=0.1)), options={"workers": 2})
    theirs = training(other, SGD(other.parameters(), lr=0.1))
    for _ in range(4):
        x = torch.randn(5, 6, 8)
        same(ours(x), theirs(x).detach())
        same(model.state_dict(), other.state_dict())
    assert not ours.why_eager


@pytest.mark.parametrize("mode", MODES)
def test_9_what_is_returned_may_be_inputs_views_duplicates_and_none(forced, mode):
    forced(mode)
    model = nn.Linear(4, 4)
    other = copy.deepcopy(model)

    def make(model):
        optimizer = SGD(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            out = model(x)
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
            y.add_(1)
            return {"x": x, "view": y[0], "twice": (loss, loss), "none": None, "out": [out.T, out, out.view(-1)], "kind": "mse", "y": y,
                    "weight": model.weight, "row": model.weight[0], "gradient": model.weight.grad}  # fmt: skip

        return step

    ours, theirs = engine.torch.compile_step(make(model), options={"workers": 2}), make(other)
    for i in range(4):
        x, y = torch.full((2, 4), float(i)), torch.zeros(3, 3)
        b, a = theirs(x.clone(), y.clone()), ours(x, y)
        same(a, torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, b))
        for name, owner in (("x", x), ("view", y), ("y", y), ("weight", model.weight), ("row", model.weight)):
            assert a[name].untyped_storage().data_ptr() == owner.untyped_storage().data_ptr()
    assert not ours.why_eager


def test_an_input_that_the_step_turns_in_place_is_turned(forced):
    forced("in turn")
    model = nn.Linear(8, 8)

    def step(x):
        optimizer.zero_grad()
        loss = model(x.t_()).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    optimizer = SGD(model.parameters(), lr=0.1)
    compiled = engine.torch.compile_step(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            x = torch.randn(8, 5)
            compiled(x)
            assert x.shape == (5, 8)
    assert "changes what a tensor is a view of" in compiled.why_eager


@pytest.mark.parametrize("make", [functools.partial(SGD, lr=0.1, momentum=0.5), Adam, functools.partial(Adagrad, lr=0.1)])
def test_a_first_call_that_raised_does_not_count(forced, make):
    forced("in turn")
    ours, theirs = pair(make)
    bad = torch.full((4, 16), 20), torch.ones(16)
    for step, _, _ in (ours, theirs):
        with pytest.raises(IndexError):
            step(*bad)
    run_both(ours, theirs)
    assert not ours[0].why_eager and ours[0].captures == 1


def test_layers_that_are_thawed_later_get_their_state_in_one_eager_step(forced):
    forced("in turn")
    ours, theirs = pair(Adam)
    for _, model, _ in (ours, theirs):
        model.tables.requires_grad_(False)
    run_both(ours, theirs)
    for _, model, _ in (ours, theirs):
        model.tables.requires_grad_(True)
    run_both(ours, theirs, steps=5)  # they have been updated less often than the other layers
    assert not ours[0].why_eager and ours[0].captures == 3
    assert {s["step"].item() for s in ours[2].state.values()} == {9, 5}


def test_an_optimizer_that_steps_twice_counts_twice(forced):
    forced("workers")
    results = []
    for wrap in (engine.torch.compile_step, lambda step: step):
        torch.manual_seed(0)
        model = nn.Linear(8, 1)
        optimizer = Adam(model.parameters(), lr=0.1)

        def step(x, model=model, optimizer=optimizer):
            for part in x:
                optimizer.zero_grad()
                loss = model(part).square().mean()
                loss.backward()
                optimizer.step()
            return loss

        step = wrap(step)
        for i in range(4):
            step(torch.arange(48.0).reshape(2, 3, 8) * (i + 1))
        results.append((model.state_dict(), optimizer.state_dict()["state"]))
    same(*results)
