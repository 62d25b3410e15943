"""What ``python -m engine demo`` runs: a training loop in miniature, which needs nothing but Python.

Batches come from a stage; four towers of a model work on each, side by side; their gradients meet in one update.
``hashlib`` stands for the kernels, because it gives the GIL up, as NumPy and PyTorch do.
"""

from __future__ import annotations

import hashlib
from typing import Iterator

from . import data
from .defaults import wait_all
from .explanation import TraceExplanation
from .graphs import hybridize
from .ops import op
from .tracing import Trace
from .values import value

BLOCK = bytes(1 << 16)


def _work(seed: object, blocks: int) -> bytes:
    """About a tenth of a millisecond for each block."""
    digest = hashlib.sha256(repr(seed).encode())
    for _ in range(blocks):
        digest.update(BLOCK)
    return digest.digest()


@op
def forward(batch: bytes, tower: int) -> bytes:
    return _work((batch, tower), 4 + 3 * (tower % 3))


@op
def backward(activation: bytes, loss: bytes) -> bytes:
    return _work((activation, loss), 6)


@op
def loss(a: bytes, b: bytes, c: bytes, d: bytes) -> bytes:
    return _work((a, b, c, d), 2)


@op(updates="weights")
def update(weights: bytearray, a: bytes, b: bytes, c: bytes, d: bytes) -> None:
    weights[:] = _work((bytes(weights), a, b, c, d), 5)


def _batches(steps: int) -> Iterator[bytes]:
    for step in range(steps):
        yield _work(step, 6)


def run(steps: int) -> TraceExplanation:
    """Runs so many steps under a trace, and explains it."""
    weights = value(bytearray(32))

    @hybridize
    def step(batch: bytes) -> object:
        towers = [forward(batch, tower) for tower in range(4)]
        error = loss(*towers)
        update(weights, *(backward(tower, error) for tower in towers))
        return error

    with Trace() as trace:
        for batch in data.staged(_batches(steps), capacity=2, name="batches"):
            step(batch)
        wait_all()
    return TraceExplanation(trace.data._replace(name="engine demo"))
