#!/usr/bin/env python3
"""A service on asyncio: clients that ask a small model, on the loop, in a thread pool, and as a recorded function.

    service.py [--quick]

`await model(x)` leaves the loop free: the whole recorded function runs on a worker, which then tells the loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import numpy as np

import engine
from compared import compare, run

CLIENTS, NODES = 32, 40
WORKERS = 1  # of each way: the model keeps the GIL, so a second one would only wait for it, and keep the loop from it
WEIGHTS = [np.random.default_rng(n).standard_normal((48, 48)).astype(np.float32) / 7 for n in range(NODES)]


def layer(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.tanh(x @ w)


def model(x: np.ndarray) -> np.ndarray:
    for w in WEIGHTS:
        x = layer(x, w)
    return x


layered = engine.op(layer)


@engine.hybridize
def recorded(x: Any) -> Any:
    for w in WEIGHTS:
        x = layered(x, w)
    return x


def serve(ask: Any, requests: int) -> list[float]:
    """The sums of the answers that the clients get."""

    async def client(number: int) -> float:
        total = 0.0
        for request in range(requests):
            total += float((await ask(np.full((1, 48), (number + request) / 50, np.float32))).sum())
        return total

    async def all_clients() -> list[float]:
        return await asyncio.gather(*(client(number) for number in range(CLIENTS)))

    return asyncio.run(all_clients())


async def on_loop(x: np.ndarray) -> np.ndarray:
    return model(x)


async def hybrid(x: np.ndarray) -> np.ndarray:
    with engine.policy("inline"):  # a whole run on one worker: its nodes are too small to be shared
        answer = recorded(x)
    return await answer


def main(quick: bool = False, rounds: int | None = None) -> dict[str, list[float]]:
    engine.init(workers=WORKERS)
    requests = 2 if quick else 50
    recorded.record(np.zeros((1, 48), np.float32))
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:

        async def pooled(x: np.ndarray) -> np.ndarray:
            return await asyncio.get_running_loop().run_in_executor(pool, model, x)

        ways = {"on the loop": lambda: serve(on_loop, requests), "thread pool": lambda: serve(pooled, requests),
                "recorded": lambda: serve(hybrid, requests)}  # fmt: skip
        return compare("service", ways, rounds or (1 if quick else 5), same=np.allclose)


if __name__ == "__main__":
    run(main, __doc__)
