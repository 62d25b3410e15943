"""What the models share: dense layers, embedding tables, attention over a history."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Inputs(NamedTuple):
    """What a model sees. dense: float32 [rows, numbers]; single: int64 [columns, rows], each the number of a row of a table;
    lists: int64 [columns, rows, length], likewise, and 0 where a list has no value."""

    dense: Tensor
    single: Tensor
    lists: Tensor


class Tables(nn.Module):
    """Embedding tables by name. Row 0 stands for missing and unknown values. ``sparse``: gradients have only the rows
    that a batch used, so that a step does not cost more if a table is larger."""

    def __init__(self, sizes: dict[str, int], width: int, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(size, width, sparse=sparse) for name, size in sizes.items()})
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, name: str, ids: Tensor) -> Tensor:
        """Rows of a table: [..., width]."""
        return self.tables[name](ids)

    def mean(self, name: str, ids: Tensor) -> Tensor:
        """The mean of each list's rows, [rows, width]; zeros for an empty list."""
        there = (ids != 0).unsqueeze(-1).float()
        return (self.tables[name](ids) * there).sum(1) / there.sum(1).clamp(min=1)


def dense(sizes: list[int], norm: bool = False, last: bool = True) -> nn.Sequential:
    """Linear layers, each with ReLU and, if ``norm``, with batch norm behind it. ``last``: also behind the last one."""
    layers: list[nn.Module] = []
    for i in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if last or i < len(sizes) - 2:
            layers += [nn.ReLU(), *([nn.BatchNorm1d(sizes[i + 1])] if norm else [])]
    return nn.Sequential(*layers)


class Attention(nn.Module):
    """DIN's: how much each element of a history matters for a candidate. Returns weights, [rows, length]."""

    def __init__(self, query: int, width: int) -> None:
        super().__init__()
        self.query = nn.Sequential(nn.Linear(query, width), nn.PReLU())
        self.score = nn.Sequential(
            nn.Linear(4 * width, 80), nn.Sigmoid(), nn.Linear(80, 40), nn.Sigmoid(), nn.Linear(40, 1)
        )

    def forward(self, candidate: Tensor, history: Tensor, there: Tensor) -> Tensor:
        query = self.query(candidate).unsqueeze(1).expand_as(history)
        score = self.score(torch.cat([query, history, query - history, query * history], -1)).squeeze(-1)
        # Not minus infinity: a row without a history would give NaN.
        return torch.softmax(score.masked_fill(~there, -1e9), -1)


def click_loss(logit: Tensor, label: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logit, label)
