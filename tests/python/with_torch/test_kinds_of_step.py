"""compile_step: steps with many kinds of modules, optimizers and functions return what they return eagerly, to the bit, and leave the
same state behind; those that cannot be captured run eagerly and say why."""

import pytest
import torch
from kinds import WIDTH, compared, momentum, net
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, rnn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop, SparseAdam

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
