"""compile_step: training steps of many kinds return what they return eagerly, to the bit, and leave the same state behind; those that
cannot be captured run eagerly and say why."""

import copy
import warnings

import pytest
import torch
from support import OPTIONS, same
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parameters_to_vector, rnn, vector_to_parameters
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop, SparseAdam

import engine.torch

ROWS, WIDTH = 6, 8


def net():
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 4))


def momentum(model):
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


def compared(make, steps=4):
    """``make`` gives modules, and a step over a batch. Returns why the compiled step runs eagerly."""
    found = []
    for compile in (lambda step: engine.torch.compile_step(step, options=OPTIONS), lambda step: step):
        torch.manual_seed(0)
        modules, step = make()
        step, seen = compile(step), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i in range(steps):
                torch.manual_seed(i)
                x = torch.randn(ROWS, WIDTH)
                out = step(x)
                state = [{name: t.detach().clone() for name, t in module.state_dict().items()} for module in modules]
                seen.append([out.detach(), x, torch.get_rng_state(), state])
        found.append((seen, step))
    same(found[0][0], found[1][0])
    return found[0][1].why_eager


# --- modules: name -> (how one is made, what it is given of a batch); the loss is the same for all

IDS = lambda x: (x.abs() * 3).long().clamp(max=9)  # noqa: E731
IMAGE = lambda x: x.reshape(1, 3, 4, 4)  # noqa: E731
ONE = lambda x: x[None]  # noqa: E731
TIMES = lambda x: x[:, None]  # noqa: E731
AS_IS = lambda x: x  # noqa: E731


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.MultiheadAttention(WIDTH, 2, dropout=0.2, batch_first=True)

    def forward(self, x):
        return self.inside(x, x, x)[0]


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.LSTM(WIDTH, 4, batch_first=True)

    def forward(self, x):
        packed = rnn.pack_padded_sequence(torch.stack([x, x * 2]), torch.tensor([6, 3]), batch_first=True)
        return rnn.pad_packed_sequence(self.inside(packed)[0], batch_first=True)[0]


def convolved(*layers):
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *layers)


MODULES = {
    "attention": (Attention, ONE),
    "encoder": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True), 2), ONE),
    "RNN": (lambda: nn.RNN(WIDTH, 4, 2, dropout=0.3), TIMES),
    "GRU": (lambda: nn.GRU(WIDTH, 4, 2, dropout=0.3, bidirectional=True), TIMES),
    "LSTM": (lambda: nn.LSTM(WIDTH, 4, 2, dropout=0.3, bidirectional=True), TIMES),
    "LSTM, evaluating": (lambda: nn.LSTM(WIDTH, 4).eval(), TIMES),
    "LSTM with a projection": (lambda: nn.LSTM(WIDTH, 4, proj_size=2), TIMES),
    "LSTMCell": (lambda: nn.LSTMCell(WIDTH, 4), AS_IS),
    "convolutions": (lambda: convolved(nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1, groups=2)), IMAGE),
    "transposed": (lambda: convolved(nn.ConvTranspose2d(4, 2, 2, stride=2), nn.GELU(), nn.AvgPool2d(2)), IMAGE),
    "norms of an instance": (lambda: convolved(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)), IMAGE),
    "dropped channels": (lambda: convolved(nn.Dropout2d(0.5), nn.PixelShuffle(2), nn.Upsample(scale_factor=2, mode="bilinear")), IMAGE),
    "channels last": (lambda: convolved(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3)).to(memory_format=torch.channels_last),
                      lambda x: IMAGE(x).contiguous(memory_format=torch.channels_last)),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(6, 4, 3, dilation=2), nn.LeakyReLU(0.1), nn.MaxPool1d(2)), ONE),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.PReLU(), nn.RMSNorm(WIDTH), nn.BatchNorm1d(WIDTH)), AS_IS),
    "odd dropouts": (lambda: nn.Sequential(nn.Linear(8, 8), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3), nn.RReLU()), AS_IS),
    "bfloat16": (lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.LayerNorm(8)).bfloat16(), lambda x: x.bfloat16()),
    "float64": (lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Softplus()).double(), lambda x: x.double()),
    "a bag of maxima": (lambda: nn.EmbeddingBag(10, 4, mode="max"), IDS),
    "a bag with padding": (lambda: nn.EmbeddingBag(10, 4, mode="mean", padding_idx=0), IDS),
    "a table with all options": (lambda: nn.Embedding(10, 4, scale_grad_by_freq=True, padding_idx=1, max_norm=0.5), IDS),
    "a norm of weights": (lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, 4))), AS_IS),
    "a spectral norm": (lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(WIDTH, 4))), AS_IS),
}  # fmt: skip
EAGER_MODULES = {
    "a packed sequence": (Packed, AS_IS, ""),
    "batch norm by counts": (lambda: nn.Sequential(nn.BatchNorm1d(WIDTH, momentum=None), nn.Linear(WIDTH, 4)), AS_IS, ""),
    "the old norm of weights": (lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(WIDTH, 4))), AS_IS, "it changes 'weight' of"),
}


def trained(model, given, optimizer):
    def make():
        module = model()
        chosen = optimizer(module)

        def step(x):
            chosen.zero_grad()
            out = module(given(x))
            loss = (out[0] if isinstance(out, tuple) else out).float().square().mean()
            loss.backward()
            chosen.step()
            return loss

        return [module], step

    return make


@pytest.mark.parametrize("name", MODULES)
def test_modules(forced, name):
    forced("workers")
    model, given = MODULES[name]
    assert not compared(trained(model, given, lambda m: AdamW(m.parameters(), lr=0.01)))


@pytest.mark.parametrize("name", EAGER_MODULES)
def test_modules_that_run_eagerly(name):
    model, given, why = EAGER_MODULES[name]
    found = compared(trained(model, given, momentum))
    assert found and why in found


OPTIMIZERS = {
    "Adam": (lambda p: Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1, maximize=True), ""),
    "SGD": (lambda p: SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1), ""),
    "SGD with dampening": (lambda p: SGD(p, lr=0.01, momentum=0.9, dampening=0.3), ""),
    "Adagrad": (lambda p: Adagrad(p, lr=0.01, lr_decay=0.1, initial_accumulator_value=0.5), ""),
    "RMSprop": (lambda p: RMSprop(p), "the optimizer RMSprop"),
    "foreach": (lambda p: AdamW(p, foreach=True), "AdamW with foreach=True"),
    "fused": (lambda p: Adam(p, fused=True), "Adam with fused=True"),
    "a rate that is a tensor": (lambda p: Adam(p, lr=torch.tensor(0.01)), "Adam with lr as a tensor"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(forced, name):
    forced("workers")
    optimizer, why = OPTIMIZERS[name]
    found = compared(trained(net, AS_IS, lambda m: optimizer(m.parameters())))
    assert why in found and bool(found) == bool(why)


@pytest.mark.parametrize("optimizer", [lambda p: SGD(p, lr=0.1), lambda p: SparseAdam(p, lr=0.1)])
def test_optimizers_of_sparse_gradients(forced, optimizer):
    forced("workers")
    assert not compared(trained(lambda: nn.Embedding(10, 4, sparse=True), IDS, lambda m: optimizer(m.parameters())))


# --- functions of a batch and a weight

FUNCTIONS = {
    "attention": lambda x, w: F.scaled_dot_product_attention((x @ w)[None, None], x[None, None], x[None, None], dropout_p=0.3, is_causal=True),
    "a Fourier transform": lambda x, w: torch.fft.rfft(x @ w).abs(),
    "einsum": lambda x, w: torch.einsum("bi,io,bj->boj", x, w, x),
    "linear algebra": lambda x, w: torch.linalg.solve(w @ w.T + torch.eye(8), x.T) + torch.logdet(w @ w.T + torch.eye(8)),
    "singular values": lambda x, w: torch.linalg.svdvals(x @ w),
    "orders": lambda x, w: (x @ w).sort(-1)[0][:, :3].cumsum(-1) + (x @ w).topk(3)[0] * (x @ w).argmax(-1, keepdim=True),
    "scattering": lambda x, w: torch.zeros(6, 8).scatter_add(1, IDS(x).clamp(max=7), x @ w).index_add(0, torch.tensor([0, 0, 1]), (x @ w)[:3]),
    "a put": lambda x, w: torch.zeros(6, 8).index_put((torch.tensor([0, 0, 1]),), (x @ w)[:3], accumulate=True),
    "masks": lambda x, w: (x @ w).masked_fill(x > 0, 0) + torch.where(x > 0.5, x @ w, x).nan_to_num().triu().roll(1, 0),
    "what a mask selects": lambda x, w: (x @ w)[x > 0],
    "a sparse product": lambda x, w: torch.sparse.mm(x.relu().to_sparse(), w),
    "complex numbers": lambda x, w: torch.view_as_real(torch.polar(x.abs(), x @ w)),
    "calls in place": lambda x, w: (x @ w).mul_(2).add_(1)[:, ::2].exp_(),
    "views": lambda x, w: (x @ w).unfold(1, 4, 2).permute(2, 0, 1).contiguous().as_strided((4, 4), (1, 4)),
    "a grid": lambda x, w: F.grid_sample(IMAGE(x), F.affine_grid(w[:2, :3][None], [1, 3, 4, 4], align_corners=False), align_corners=False),
    "folds": lambda x, w: F.fold(F.unfold(IMAGE(x) * w[0, 0], 2), (4, 4), 2),
    "random choices": lambda x, w: F.gumbel_softmax(x @ w, hard=True) + torch.multinomial((x @ w).softmax(-1), 2).float().mean(),
    "jvp": lambda x, w: torch.func.jvp(lambda r: r @ w, (x,), (x,))[1],
    "losses": lambda x, w: F.cross_entropy(x @ w, IDS(x).clamp(max=7).argmax(-1), label_smoothing=0.1) + F.smooth_l1_loss(x @ w, x)
    + F.kl_div((x @ w).log_softmax(-1), x.softmax(-1), reduction="batchmean") + F.multi_margin_loss(x @ w, torch.zeros(6).long()),
}  # fmt: skip


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(8, 8) * 0.3), function

    def forward(self, x):
        return self.function(x, self.weight)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(forced, name):
    forced("workers")
    assert not compared(trained(lambda: Applied(FUNCTIONS[name]), AS_IS, momentum))


# --- whole steps: each gives the modules and the step

WHOLE, EAGERLY = {}, {}


def whole(make):
    WHOLE[make.__name__] = make
    return make


def eagerly(why):
    def note(make):
        EAGERLY[make.__name__] = make, why
        return make

    return note


def with_loss(model, after=lambda loss, x: None, before=lambda x: None):
    optimizer = momentum(model)

    def step(x):
        before(x)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        after(loss, x)
        return loss

    return step


@whole
def penalty_of_a_gradient():
    model = net()
    optimizer = momentum(model)

    def step(x):
        optimizer.zero_grad()
        x = x.clone().requires_grad_()
        out = model(x).sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        loss = (gradient.norm(2, dim=1) - 1).square().mean() + out.square()
        loss.backward()
        optimizer.step()
        return loss

    return [model], step


@whole
def moving_average_of_weights():
    model = net()
    average = copy.deepcopy(model)

    def after(loss, x):
        with torch.no_grad():
            for mine, other in zip(average.parameters(), model.parameters()):
                mine.mul_(0.9).add_(other, alpha=0.1)

    return [model, average], with_loss(model, after)


@whole
def moving_average_of_data():
    model = net()
    average = copy.deepcopy(model)

    def after(loss, x):
        for mine, other in zip(average.parameters(), model.parameters()):
            mine.data.mul_(0.9).add_(other.data, alpha=0.1)

    return [model, average], with_loss(model, after)


@whole
def moving_average_of_statistics():
    """Batch norm changes its statistics although its schema does not say so; who reads them comes behind."""
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    average = copy.deepcopy(model)

    def after(loss, x):
        for mine, other in zip(average.buffers(), model.buffers()):
            mine.copy_(other)
        model[1].running_mean.mul_(0.5)

    return [model, average], with_loss(model, after)


@whole
def a_state_that_is_loaded():
    model = net()
    average = copy.deepcopy(model)
    return [model, average], with_loss(
        model, lambda loss, x: average.load_state_dict({name: t * 0.5 for name, t in model.state_dict().items()}) and None
    )


@whole
def clamped_weights():
    model = net()
    return [model], with_loss(model, lambda loss, x: [p.data.clamp_(-0.1, 0.1) for p in model.parameters()] and None)


@whole
def two_backward_passes():
    model = net()
    optimizer = momentum(model)

    def step(x):
        optimizer.zero_grad()
        out = model(x)
        first, second = out.square().mean(), out.abs().mean()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        return first + second

    return [model], step


@whole
def parts_of_a_batch():
    model = net()
    optimizer = momentum(model)

    def step(x):
        optimizer.zero_grad()
        total = 0
        for part in x.chunk(2):
            loss = model(part).square().mean() / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    return [model], step


@whole
def gradients_that_are_changed():
    model = net()
    optimizer = momentum(model)

    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for p in model.parameters():
            p.grad.data.clamp_(-0.01, 0.01)
            p.grad = p.grad * 0.5
        model[0].bias.grad = None
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    return [model], step


@whole
def two_players():
    maker, judge = nn.Linear(WIDTH, 8), nn.Linear(8, 1)
    of_maker, of_judge = momentum(maker), momentum(judge)

    def step(x):
        of_judge.zero_grad()
        made = maker(x)
        first = F.softplus(judge(made.detach())).mean() + F.softplus(-judge(x)).mean()
        first.backward()
        of_judge.step()
        for p in judge.parameters():
            p.requires_grad_(False)
        of_maker.zero_grad()
        second = F.softplus(-judge(made)).mean()
        second.backward()
        of_maker.step()
        for p in judge.parameters():
            p.requires_grad_(True)
        return first.detach() + second.detach()

    return [maker, judge], step


@whole
def a_hook_of_a_result():
    model = net()
    optimizer = momentum(model)

    def step(x):
        optimizer.zero_grad()
        middle = model[0](x)
        middle.register_hook(lambda gradient: gradient * 0.1)
        loss = model[2](middle).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return [model], step


@whole
def a_batch_that_is_changed():
    model = net()

    def before(x):
        x[0] = 0
        x.t()[1].mul_(2)

    return [model], with_loss(model, before=before)


class Statistic(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.layer, self.change = nn.Linear(WIDTH, 4), change
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        out = self.layer(x)
        self.change(self, 0.9 * self.mean + 0.1 * out.detach().mean(0))
        self.count += 1
        return out - self.mean * self.count


@whole
def a_buffer_that_is_changed_in_place():
    model = Statistic(lambda self, now: self.mean.copy_(now))
    return [model], with_loss(model)


ANOTHER = r"it gives Statistic another 'mean', which a run of its plan would not; change that tensor in place, as by copy_()"
OTHER_DATA = r"it gives a parameter or buffer other data (p.data = ...), which a run of its plan would not"


@eagerly(ANOTHER)
def a_buffer_that_is_replaced():
    model = Statistic(lambda self, now: setattr(self, "mean", now))
    return [model], with_loss(model)


@eagerly(ANOTHER)
def a_buffer_that_is_replaced_in_its_dict():
    model = Statistic(lambda self, now: self._buffers.update(mean=now))
    return [model], with_loss(model)


@eagerly(ANOTHER)
def a_buffer_that_is_registered_again():
    model = Statistic(lambda self, now: self.register_buffer("mean", now))
    return [model], with_loss(model)


@eagerly("it gives Statistic another 'late'")
def a_buffer_that_comes():
    model = Statistic(lambda self, now: self.register_buffer("late", now))

    def before(x):
        model._buffers.pop("late", None)

    return [model], with_loss(model, before=before)


@eagerly(OTHER_DATA)
def a_buffer_with_other_data():
    model = Statistic(lambda self, now: setattr(self.mean, "data", now))
    return [model], with_loss(model)


@eagerly(OTHER_DATA)
def weights_with_other_data():
    model = net()
    return [model], with_loss(model, lambda loss, x: [setattr(p, "data", p.data.clamp(-0.1, 0.1)) for p in model.parameters()] and None)


@eagerly(OTHER_DATA)
def weights_of_a_vector():
    model = net()
    return [model], with_loss(
        model, lambda loss, x: vector_to_parameters(parameters_to_vector(model.parameters()) * 0.99, model.parameters())
    )


@eagerly("")
def scaled_gradients():
    model = net()
    optimizer, scaler = momentum(model), torch.amp.GradScaler("cpu")

    def step(x):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return [model], step


@pytest.mark.parametrize("name", WHOLE)
def test_whole_steps(forced, name):
    forced("workers")
    assert not compared(WHOLE[name])


@pytest.mark.parametrize("name", EAGERLY)
def test_whole_steps_that_run_eagerly(name):
    make, why = EAGERLY[name]
    found = compared(make)
    assert found and why in found


def test_a_module_of_torch_jit_runs_eagerly():
    model = torch.jit.script(net())
    step = engine.torch.compile_step(with_loss(model), options=OPTIONS)
    with pytest.warns(UserWarning, match="runs eagerly: a module of torch.jit"):
        for _ in range(2):
            assert step(torch.ones(ROWS, WIDTH)).isfinite()


def test_a_step_that_failed_in_its_capture_leaves_the_modules_as_they_were():
    (model,), step = a_buffer_that_comes()
    step = engine.torch.compile_step(step, options=OPTIONS)
    with pytest.warns(UserWarning, match="another 'late'"):
        step(torch.ones(ROWS, WIDTH)), step(torch.ones(ROWS, WIDTH))
    assert not any(isinstance(t, torch._subclasses.FakeTensor) for t in model.state_dict().values())
    assert list(model._buffers) == ["mean", "count", "late"]
