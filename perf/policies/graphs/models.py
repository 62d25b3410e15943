"""The ten training steps whose graphs are recorded: models with their inputs, as functions of nothing.

Each entry of MODELS makes (module, inputs, loss), where loss is a function of the module's output. Sizes are those at
which nodes take 5 to 100 microseconds on one core: the grain at which a scheduler shows."""

from collections.abc import Callable

import torch
from torch import nn

Step = tuple[nn.Module, tuple, Callable]


class Tables(nn.Module):
    """DLRM: one embedding a feature, with a tower of its own if asked, beside a small net for the dense features."""

    def __init__(self, tables: int, rows: int = 10_000, width: int = 16, tower: bool = False):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.towers = None
        if tower:
            self.towers = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU()) for _ in range(tables)
            )
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        found = width * (tables + 1)
        self.top = nn.Sequential(nn.Linear(found, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense, ids):
        found = [table(column) for table, column in zip(self.tables, ids, strict=True)]
        if self.towers:
            found = [tower(x) for tower, x in zip(self.towers, found, strict=True)]
        return self.top(torch.cat([self.bottom(dense), *found], dim=1))


class Branches(nn.Module):
    """Eight nets side by side on one input, summed at the end."""

    def __init__(self, width: int):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
            )
            for _ in range(8)
        )

    def forward(self, x):
        return sum(branch(x) for branch in self.branches)


class Masked(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids, mask):
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


def mean_square(y):
    return (y * y).mean()


def tables(count: int, batch: int, tower: bool = False) -> Step:
    model = Tables(count, tower=tower)
    ids = [torch.randint(0, 10_000, (batch,)) for _ in range(count)]
    return model, (torch.randn(batch, 13), ids), mean_square


def branches(width: int, batch: int) -> Step:
    return Branches(width), (torch.randn(batch, width),), mean_square


def bert() -> Step:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=512, max_position_embeddings=64, hidden_dropout_prob=0,
                        attention_probs_dropout_prob=0)
    config._attn_implementation = "eager"
    return BertModel(config), (torch.randint(0, 1000, (2, 32)),), lambda out: mean_square(out.last_hidden_state)


def gpt2() -> Step:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=1000, n_embd=128, n_layer=2, n_head=4, n_positions=64, bos_token_id=0,
                        eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
    config._attn_implementation = "eager"
    mask = torch.full((32, 32), -1e9).triu(1).expand(2, 1, 32, 32)  # given, because making one looks at values
    return Masked(GPT2Model(config)), (torch.randint(0, 1000, (2, 32)), mask), mean_square


def mlp() -> Step:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(256, 10)), (torch.randn(64, 256),), mean_square


MODELS: dict[str, Callable[[], Step]] = {
    "tables26_b128": lambda: tables(26, 128),
    "towers26_b128": lambda: tables(26, 128, tower=True),
    "tables26_b512": lambda: tables(26, 512),
    "tables26_b2048": lambda: tables(26, 2048),
    "tables1000_b128": lambda: tables(1000, 128),
    "branches128_b64": lambda: branches(128, 64),
    "branches256_b512": lambda: branches(256, 512),
    "bert_tiny": bert,
    "gpt2_tiny": gpt2,
    "mlp_b64": mlp,
}
