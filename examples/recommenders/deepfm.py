"""DeepFM: a linear part, a factorization machine and a deep network over the same embeddings.

Source: Guo et al., DeepFM, 2017; sizes, and the last layers over the three parts, as in DeepRec's model zoo.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .layers import Inputs, Tables, dense
from .schema import Dataset

WIDTH = 16


class DeepFM(nn.Module):
    def __init__(self, data: Dataset, sparse: bool = True) -> None:
        super().__init__()
        self.names = [column.table for column in data.single]
        self.tables, self.linear = Tables(data.tables, WIDTH, sparse), Tables(data.tables, 1, sparse)
        self.deep = dense([len(data.dense) + WIDTH * len(self.names), 1024, 256, 32], norm=True)
        self.last = dense([32 + 1 + WIDTH, 128, 64, 1], last=False)

    def forward(self, inputs: Inputs) -> Tensor:
        """The logit of a click, [rows]."""
        columns = list(zip(self.names, inputs.single.unbind(0)))
        rows = torch.stack([self.tables(name, ids) for name, ids in columns], 1)
        linear = torch.cat([self.linear(name, ids) for name, ids in columns], 1).sum(1, keepdim=True)
        # Half of (square of the sum - sum of the squares): the products of all pairs of rows, added up.
        pairs = 0.5 * (rows.sum(1).square() - rows.square().sum(1))
        deep = self.deep(torch.cat([inputs.dense, rows.flatten(1)], 1))
        return self.last(torch.cat([deep, linear, pairs], 1)).squeeze(1)

    def loss(self, inputs: Inputs, label: Tensor) -> Tensor:
        """The mean squared error of the probability, as DeepRec trains it."""
        return functional.mse_loss(torch.sigmoid(self(inputs)), label)
