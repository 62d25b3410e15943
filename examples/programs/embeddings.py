#!/usr/bin/env python3
"""Looks up 26 embeddings and feeds a net, in PyTorch: as written, with an op for each table, and recorded.

    embeddings.py [--quick]

The tables do not depend on each other, so their ops run together; a recorded function replays all of them as one call."""

from __future__ import annotations

from typing import Any

import torch

import engine
from compared import compare, run

TABLES, ROWS, WIDTH = 26, 50_000, 32


class Model:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.tables = [torch.randn(ROWS, WIDTH) for _ in range(TABLES)]
        self.hidden, self.out = torch.randn(TABLES * WIDTH, 64), torch.randn(64, 1)


@torch.no_grad()
def look_up(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding_bag(ids, table, mode="sum")


@torch.no_grad()
def score(model: Model, found: list[torch.Tensor]) -> torch.Tensor:
    return torch.relu(torch.cat(found, 1) @ model.hidden) @ model.out


looked_up, scored = engine.op(look_up), engine.op(score)


def main(quick: bool = False, rounds: int | None = None) -> dict[str, list[float]]:
    model, threads = Model(), torch.get_num_threads()
    steps, batch = (3, 64) if quick else (40, 1024)
    batches = [torch.randint(0, ROWS, (TABLES, batch, 20)) for _ in range(4)]

    def plain() -> Any:
        for step in range(steps):
            ids = batches[step % 4]
            result = score(model, [look_up(table, ids[t]) for t, table in enumerate(model.tables)])
        return result

    def with_ops() -> Any:
        for step in range(steps):
            ids = batches[step % 4]
            result = scored(model, [looked_up(table, ids[t]) for t, table in enumerate(model.tables)])
        return result.get()

    recorded = engine.hybridize(lambda *ids: scored(model, [looked_up(t, i) for t, i in zip(model.tables, ids)]))

    def hybrid() -> Any:
        for step in range(steps):
            result = recorded(*batches[step % 4])
        return result.get()

    def one_thread(run: Any) -> Any:  # the workers are the threads
        def limited() -> Any:
            torch.set_num_threads(1)
            try:
                return run()
            finally:
                torch.set_num_threads(threads)

        return limited

    ways = {"plain": plain, "ops": one_thread(with_ops), "recorded": one_thread(hybrid)}
    return compare("embeddings", ways, rounds or (1 if quick else 5), same=lambda a, b: torch.allclose(a, b, rtol=1e-3, atol=1e-2))


if __name__ == "__main__":
    run(main, __doc__)
