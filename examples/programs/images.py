#!/usr/bin/env python3
"""Decodes PNG files and learns from them: one after the other, by a thread pool, and with ops.

    images.py [--quick]

Decoding an image releases the GIL (zlib, NumPy); learning needs the images in their order. With ops that is all one has to
say: `learn` updates the weights, so its calls keep their order, and `decode` runs ahead on the workers."""

from __future__ import annotations

import collections
import concurrent.futures
import os
import struct
import zlib

import numpy as np

import engine
from compared import compare, run

SIDE = 128


def png(number: int, side: int = SIDE) -> bytes:
    """A picture as the bytes of a PNG file, each row filtered by the row above it."""
    rng = np.random.default_rng(number)
    pixels = np.cumsum(rng.integers(0, 3, (side, side, 3)), axis=0).astype(np.uint8)
    rows = np.empty((side, 1 + 3 * side), np.uint8)
    rows[:, 0] = 2  # "up"
    rows[:, 1:] = np.diff(pixels.reshape(side, -1), axis=0, prepend=np.zeros((1, 3 * side), np.uint8))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 1)) + chunk(b"IEND", b"")


def decode(data: bytes) -> np.ndarray:
    at, packed, side = 8, b"", 0
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            side = struct.unpack_from(">I", body)[0]
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(side, -1)
    pixels = np.cumsum(rows[:, 1:], axis=0, dtype=np.uint8).astype(np.float32)
    return (pixels - pixels.mean()) / (pixels.std() + 1)


def learn(weights: np.ndarray, pixels: np.ndarray) -> None:
    weights += 0.01 * (pixels.mean(axis=0) - weights)


def serial(files: list[bytes]) -> np.ndarray:
    weights = np.zeros(3 * SIDE, np.float32)
    for data in files:
        learn(weights, decode(data))
    return weights


def thread_pool(files: list[bytes]) -> np.ndarray:
    weights = np.zeros(3 * SIDE, np.float32)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        ahead: collections.deque[concurrent.futures.Future[np.ndarray]] = collections.deque()
        for data in files:  # some ahead, because all of them may not fit into memory
            ahead.append(pool.submit(decode, data))
            if len(ahead) > 16:
                learn(weights, ahead.popleft().result())
        while ahead:
            learn(weights, ahead.popleft().result())
    return weights


decoded = engine.op(decode)
learned = engine.op(updates="weights")(learn)


def ops(files: list[bytes]) -> np.ndarray:
    weights = engine.value(np.zeros(3 * SIDE, np.float32))
    bound = engine.default()
    bound.max_pending_bytes = 16 * 12 * SIDE * SIDE  # some ahead, likewise
    try:
        for data in files:
            learned(weights, decoded(data))
        return weights.get()
    finally:
        bound.max_pending_bytes = 0


def main(quick: bool = False, rounds: int | None = None) -> dict[str, list[float]]:
    files = [png(number) for number in range(20 if quick else 500)]
    ways = {"serial": lambda: serial(files), "thread pool": lambda: thread_pool(files), "ops": lambda: ops(files)}
    return compare("images", ways, rounds or (1 if quick else 5), same=np.allclose)


if __name__ == "__main__":
    run(main, __doc__)
