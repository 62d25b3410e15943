"""DIN: of what a user clicked before, what resembles the candidate counts most.

Source: Zhou et al., Deep Interest Network, 2018; sizes as in DeepRec's model zoo.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import Attention, Inputs, Tables, click_loss
from .schema import Dataset

WIDTH = 18  # of the user, the item and the category


class Behaviour(nn.Module):
    """The embeddings that DIN and DIEN share, and the layers over what they have made of the history."""

    def __init__(self, data: Dataset, sparse: bool) -> None:
        super().__init__()
        self.tables = Tables(data.tables, WIDTH, sparse)
        self.top = nn.Sequential(nn.BatchNorm1d(9 * WIDTH), nn.Linear(9 * WIDTH, 200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU(),
                                 nn.Linear(80, 1))  # fmt: skip

    def items(self, item: Tensor, category: Tensor) -> Tensor:
        return torch.cat([self.tables("item", item), self.tables("category", category)], -1)

    def embedded(self, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The user, the candidate, the history, and which of its places have an item."""
        user, item, category = inputs.single.unbind(0)
        there = inputs.lists[0] != 0
        history = self.items(inputs.lists[0], inputs.lists[1]) * there.unsqueeze(-1)
        return self.tables("user", user), self.items(item, category), history, there

    def click(self, user: Tensor, candidate: Tensor, history: Tensor, interest: Tensor) -> Tensor:
        clicked = history.sum(1)
        return self.top(torch.cat([user, candidate, clicked, candidate * clicked, interest], 1)).squeeze(1)


class DIN(Behaviour):
    def __init__(self, data: Dataset, sparse: bool = True) -> None:
        super().__init__(data, sparse)
        self.attention = Attention(2 * WIDTH, 2 * WIDTH)

    def forward(self, inputs: Inputs) -> Tensor:
        """The logit of a click, [rows]."""
        user, candidate, history, there = self.embedded(inputs)
        weights = self.attention(candidate, history, there)
        return self.click(user, candidate, history, (weights.unsqueeze(-1) * history).sum(1))

    def loss(self, inputs: Inputs, label: Tensor) -> Tensor:
        return click_loss(self(inputs), label)
