"""DSSM: a tower for the user and one for the item, and the cosine of what they return.

Source: Huang et al., Deep Structured Semantic Models, 2013; towers as in DeepRec's model zoo.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .layers import Inputs, Tables, click_loss, dense
from .schema import TAOBAO_USER, Dataset

WIDTH = 16


class DSSM(nn.Module):
    def __init__(self, data: Dataset, sparse: bool = True) -> None:
        super().__init__()
        self.names, self.lists = [c.table for c in data.single], [c.table for c in data.lists]
        self.users = [column.name in TAOBAO_USER for column in data.single]
        self.tables = Tables(data.tables, WIDTH, sparse)
        user = sum(self.users) + len(self.lists)  # the lists are the user's
        self.user = dense([WIDTH * user, 256, 128, 64, 32], norm=True, last=False)
        self.item = dense([WIDTH * (len(self.users) - sum(self.users)), 256, 128, 64, 32], norm=True, last=False)
        self.scale = nn.Parameter(torch.tensor([5.0, 0.0]))  # a cosine alone cannot be surer than 0.73

    def forward(self, inputs: Inputs) -> Tensor:
        """The logit of a click, [rows]."""
        rows = [self.tables(name, ids) for name, ids in zip(self.names, inputs.single.unbind(0))]
        lists = [self.tables.mean(name, ids) for name, ids in zip(self.lists, inputs.lists.unbind(0))]
        user = self.user(torch.cat([*(row for row, users in zip(rows, self.users) if users), *lists], 1))
        item = self.item(torch.cat([row for row, users in zip(rows, self.users) if not users], 1))
        return functional.cosine_similarity(user, item) * self.scale[0] + self.scale[1]

    def loss(self, inputs: Inputs, label: Tensor) -> Tensor:
        return click_loss(self(inputs), label)
