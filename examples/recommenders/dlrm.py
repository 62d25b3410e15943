"""DLRM: numbers through a bottom network, categories through tables, all of them together through a top network.

Source: Naumov et al., Deep Learning Recommendation Model, 2019; sizes as in DeepRec's model zoo.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import Inputs, Tables, click_loss, dense
from .schema import Dataset

WIDTH = 16


class DLRM(nn.Module):
    """``dot``: interaction by the dot products of all pairs (the paper's), else by concatenation (DeepRec's default)."""

    def __init__(self, data: Dataset, sparse: bool = True, dot: bool = False) -> None:
        super().__init__()
        self.names, self.dot = [column.table for column in data.single], dot
        self.tables = Tables(data.tables, WIDTH, sparse)
        self.bottom = dense([len(data.dense), 512, 256, 64, WIDTH], norm=True)
        vectors = 1 + len(self.names)
        pairs = vectors * (vectors - 1) // 2
        self.top = nn.Sequential(
            dense([WIDTH + pairs if dot else WIDTH * vectors, 512, 256], norm=True), nn.Linear(256, 1)
        )
        rows, columns = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("pairs", rows * vectors + columns, persistent=False)

    def forward(self, inputs: Inputs) -> Tensor:
        """The logit of a click, [rows]."""
        numbers = self.bottom(inputs.dense)
        vectors = [numbers, *(self.tables(name, ids) for name, ids in zip(self.names, inputs.single.unbind(0)))]
        if not self.dot:
            return self.top(torch.cat(vectors, 1)).squeeze(1)
        stacked = torch.stack(vectors, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([numbers, products], 1)).squeeze(1)

    def loss(self, inputs: Inputs, label: Tensor) -> Tensor:
        return click_loss(self(inputs), label)
