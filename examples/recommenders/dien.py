"""DIEN: interests that change. A GRU reads the history, a second one follows the part that matters for the candidate.

Source: Zhou et al., Deep Interest Evolution Network, 2019; sizes as in DeepRec's model zoo.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .din import WIDTH, Behaviour
from .layers import Attention, Inputs, click_loss
from .schema import Dataset

STATE = 2 * WIDTH


class AUGRU(nn.Module):
    """A GRU whose update gate is made smaller by attention: what does not matter leaves the state as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.gates_of_state = nn.Linear(STATE, 3 * STATE), nn.Linear(STATE, 3 * STATE)

    def forward(self, steps: Tensor, attention: Tensor) -> Tensor:
        """The last state, [rows, STATE]. ``steps``: [rows, length, STATE]; ``attention``: [rows, length]."""
        state = steps.new_zeros(steps.shape[0], STATE)
        for given, weight in zip(self.gates(steps).unbind(1), attention.unsqueeze(-1).unbind(1)):
            (update, reset, new), of_state = given.chunk(3, 1), self.gates_of_state(state).chunk(3, 1)
            update = torch.sigmoid(update + of_state[0]) * weight
            new = torch.tanh(new + torch.sigmoid(reset + of_state[1]) * of_state[2])
            state = state + update * (new - state)
        return state


class DIEN(Behaviour):
    def __init__(self, data: Dataset, sparse: bool = True) -> None:
        super().__init__(data, sparse)
        self.extract, self.evolve = nn.GRU(STATE, STATE, batch_first=True), AUGRU()
        self.attention = Attention(2 * WIDTH, STATE)
        self.auxiliary = nn.Sequential(
            nn.Linear(2 * STATE, 100), nn.Sigmoid(), nn.Linear(100, 50), nn.Sigmoid(), nn.Linear(50, 1)
        )

    def _logits(self, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        user, candidate, history, there = self.embedded(inputs)
        # The lists begin with the last click; the GRUs go from the first place that has one to the last click.
        history, there = history.flip(1), there.flip(1)
        states, _ = self.extract(history)
        weights = self.attention(candidate, states, there) * there
        return self.click(user, candidate, history, self.evolve(states, weights)), states, history, there

    def forward(self, inputs: Inputs) -> Tensor:
        """The logit of a click, [rows]."""
        return self._logits(inputs)[0]

    def loss(self, inputs: Inputs, label: Tensor) -> Tensor:
        """The loss of the click, and of telling from each state which of two items the user clicked next."""
        logit, states, history, there = self._logits(inputs)
        not_clicked = self.items(inputs.lists[2], inputs.lists[3]).flip(1)
        both = there[:, :-1] & there[:, 1:]

        def auxiliary(following: Tensor, clicked: float) -> Tensor:
            told = self.auxiliary(torch.cat([states[:, :-1], following[:, 1:]], -1)).squeeze(-1)
            wrong = nn.functional.binary_cross_entropy_with_logits(
                told, torch.full_like(told, clicked), reduction="none"
            )
            return (wrong * both).sum() / both.sum().clamp(min=1)

        return click_loss(logit, label) + auxiliary(history, 1.0) + auxiliary(not_clicked, 0.0)
