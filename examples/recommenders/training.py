"""A model with its optimizers: from a batch of keys to a loss, and its state for checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .layers import Inputs
from .reader import Batch
from .schema import Dataset


def tensors(batch: Batch) -> Batch:
    """The batch with tensors for arrays, which share their memory."""
    return Batch(*(torch.from_numpy(part) for part in batch[:4]), *batch[4:])


def device_of(name: str) -> torch.device:
    """The device of that name. ValueError if there is none here."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch built without it raises the second
        raise ValueError(f"there is no device '{name}' here: {str(error).splitlines()[0]}") from error
    return device


class Trainer:
    """Trains ``model`` on ``device``. Tables with sparse gradients get SparseAdam, everything else gets Adam."""

    def __init__(
        self, model: torch.nn.Module, data: Dataset, rate: float, device: str = "cpu", sgd: bool = False
    ) -> None:
        self.device = device_of(device)
        self.model = model.to(self.device)
        self.vocabulary = bool(data.columns) and data.columns[0].vocabulary
        # Made once: a stage runs a call ahead only if the tensors that it is given beside the batch are the same in each step.
        self.buckets = torch.tensor([column.buckets for column in data.single])[:, None]
        self.list_buckets = torch.tensor([column.buckets for column in data.lists])[:, None, None]
        self.spread, self.list_spread = self.buckets - 1, self.list_buckets - 1
        of_tables = {
            id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) and m.sparse for p in m.parameters()
        }
        sparse = [p for p in model.parameters() if id(p) in of_tables]
        rest = [p for p in model.parameters() if id(p) not in of_tables]
        if sgd:
            self.optimizers: list[Any] = [torch.optim.SGD(model.parameters(), rate)]
        else:
            self.optimizers = [torch.optim.SparseAdam(sparse, rate)] if sparse else []
            self.optimizers.append(torch.optim.Adam(rest, rate))

    def prepare(self, batch: Batch) -> tuple[Inputs, Tensor]:
        """What does not depend on the model: numbers are squashed, keys become rows of tables, all goes to the device."""
        dense = batch.dense.nan_to_num(0.0).clamp(min=0).log1p()
        single = self._rows(batch.single, self.buckets, self.spread)
        lists = self._rows(batch.lists, self.list_buckets, self.list_spread)
        there = [part.to(self.device, non_blocking=True) for part in (dense, single, lists, batch.label)]
        return Inputs(*there[:3]), there[3]

    def _rows(self, keys: Tensor, buckets: Tensor, spread: Tensor) -> Tensor:
        if self.vocabulary:
            return torch.where((keys > 0) & (keys < buckets), keys, 0)
        return torch.where(keys == 0, 0, 1 + keys % spread)

    def train(self, inputs: Inputs, label: Tensor, model_loss: Any = None) -> Tensor:
        """One step; returns its loss. ``model_loss``: what to call in place of ``model.loss``, such as its compiled form."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = (model_loss or self.model.loss)(inputs, label)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.detach()

    def step(self, batch: Batch) -> Tensor:
        """The whole step, as ``engine.torch.smart_stage`` takes it."""
        return self.train(*self.prepare(batch))

    @torch.no_grad()
    def scores(self, batch: Batch) -> Tensor:
        """The logits of a batch, on the host."""
        self.model.eval()
        try:
            return self.model(self.prepare(batch)[0]).cpu()
        finally:
            self.model.train()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "rng": torch.get_rng_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continues from what ``state`` returned."""
        self.model.load_state_dict(state["model"])
        for optimizer, given in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(given)
        torch.set_rng_state(state["rng"])


def auc(scores: Tensor, labels: Tensor) -> float:
    """The chance that a positive row has a higher score than a negative one; equal scores count a half."""
    ordered, places = torch.unique(scores.double(), return_inverse=True)
    counts = torch.bincount(places, minlength=len(ordered)).double()
    ranks = (counts.cumsum(0) - counts / 2 + 0.5)[places]  # the mean rank of the rows with the same score
    positive = labels > 0.5
    up, down = int(positive.sum()), int((~positive).sum())
    if not up or not down:
        return float("nan")
    return float((ranks[positive].sum() - up * (up + 1) / 2) / (up * down))
