"""Steps that smart_stage looks at, and that call what is compiled."""

import pytest
import torch
from torch import nn

import engine.torch

BATCHES = 60


def batches():
    for number in range(BATCHES):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(number))
        yield {"x": x, "y": x.sum(1)}


def trained(staged, compiled, changes):
    """The losses, what the steps saw of their batches, and the compiled step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def update(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        if changes:
            x.mul_(0.5)
        return loss

    step = engine.torch.compile_step(update) if compiled else update
    seen = []

    def train(batch):
        prepared = torch.cat([batch["x"], batch["x"].sin().exp()], 1)
        loss = step(prepared, batch["y"])
        seen.append((prepared.sum().item(), batch["x"].sum().item()))
        return loss

    if not staged:
        return [train(batch).item() for batch in batches()], seen, step
    with engine.torch.smart_stage(train, batches(), guard_steps=0) as losses:
        return [loss.item() for loss in losses], seen, step


@pytest.mark.parametrize("changes", [False, True], ids=["reads its batch", "changes its batch"])
def test_compile_step_takes_the_tensors_of_a_batch(changes):
    expected = trained(staged=False, compiled=False, changes=changes)
    losses, seen, step = trained(staged=True, compiled=True, changes=changes)
    assert (losses, seen) == expected[:2]
    assert not step.why_eager and step.last is not None
