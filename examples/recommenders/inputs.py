"""The ways to feed a step. All give the same batches in the same order, so they give the same losses.

``plain``: read, convert, step, in turn. ``staged``: the program says what runs ahead: reading, converting and preparing.
``smart_stage``: the engine finds it. ``on_cpu``: the same, with the stage kept on the CPU and what it makes for a device
copied there at once. ``dataloader``: PyTorch's, with worker processes.
"""

from __future__ import annotations

import pathlib
from typing import Any, Callable, Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import engine
import engine.torch

from . import vocabulary
from .reader import Batch, Sampling, convert, rows
from .schema import Dataset
from .training import Trainer, tensors

WAYS = ("plain", "staged", "smart_stage", "on_cpu", "dataloader")
AHEAD = 4  # items that may be ready before the step


class File(IterableDataset):
    """The batches of a file, from batch ``start`` up to batch ``limit``. Of n worker processes, each makes every n-th batch."""

    def __init__(
        self, path: pathlib.Path, data: Dataset, size: int, start: int = 0, limit: int | None = None,
        sampling: Sampling = Sampling(),
    ) -> None:  # fmt: skip
        self.path, self.data, self.size, self.start, self.limit = path, data, size, start, limit
        self.sampling, self.words = sampling, vocabulary.of(path, data)

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        count, own = (worker.num_workers, worker.id) if worker else (1, 0)
        for raw in self.raw(count, own):
            yield self.converted(raw)

    def converted(self, raw: Any) -> Batch:
        return tensors(convert(raw, self.data, self.words, self.sampling.seed))

    def raw(self, count: int = 1, own: int = 0) -> Iterator[Any]:
        left = None if self.limit is None else max(0, self.limit - self.start - own + count - 1) // count
        for number, raw in enumerate(rows(self.path, self.data, self.size, self.start, count, own, self.sampling)):
            if number == left:
                return
            yield raw


class Feed:
    """Trains with every batch of ``file``; iterating gives the loss of each step.

    ``told`` is called with each batch when its step begins. ``workers``: processes of the DataLoader. ``step``: what to call
    in place of the trainer's own step, such as a compiled one. ``options``: of ``engine.data.staged`` or
    ``engine.torch.smart_stage``.
    """

    def __init__(self, way: str, trainer: Trainer, file: File, told: Callable[[Batch], None] = lambda batch: None,
                 workers: int = 0, step: Callable[[Batch], Any] | None = None, **options: Any) -> None:  # fmt: skip
        if way not in WAYS:
            raise ValueError(f"input '{way}' is unknown; {', '.join(WAYS)} are allowed")
        self.way, self.trainer, self.file, self.told, self.workers = way, trainer, file, told, workers
        self.whole = step or trainer.step
        self.options = {"capacity": AHEAD, "name": "batches", **options}
        self.stage: Any = None  # what runs ahead, if anything does

    def step(self, batch: Batch) -> Any:
        self.told(batch)
        return self.whole(batch)

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self.way == "plain":
            yield from map(self.step, self.file)
        elif self.way == "dataloader":
            ahead = {"prefetch_factor": max(1, AHEAD // self.workers)} if self.workers else {}
            yield from map(self.step, DataLoader(self.file, batch_size=None, num_workers=self.workers, **ahead))
        elif self.way == "staged":
            with engine.data.staged(self._made, feed_dict={"raw": self.file.raw()}, **self.options) as self.stage:
                for batch, prepared in self.stage:
                    self.told(batch)
                    yield self.trainer.train(*prepared)
        else:
            on_cpu = self.way == "on_cpu"
            with engine.torch.smart_stage(
                self.step, self.file, stage_subgraph_on_cpu=on_cpu, **self.options
            ) as self.stage:
                yield from self.stage

    def _made(self, raw: Any) -> Any:
        engine.torch.set_intra_op_threads(1)  # of the stage's thread: the step has the others
        batch = self.file.converted(raw)
        return batch, self.trainer.prepare(batch)

    def explain(self) -> str:
        """What runs ahead and why, for a feed that finds it by itself."""
        return str(self.stage.explain()) if hasattr(self.stage, "explain") else ""
