"""Strings to numbers, for whole columns at once. NumPy's large calls let other threads run meanwhile."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a


def _bytes(column: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The letters of all strings, and where each string begins and ends. A missing string is empty."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_string(column.type):  # numbers; or text that counts its letters in 64 bits
        column = pc.cast(column, pa.string())
    column = pc.fill_null(column, "") if column.null_count else column
    _, offsets, letters = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(letters or b"\0", np.uint8), ends[:-1], ends[1:]


def hashed(column: pa.Array) -> np.ndarray:
    """A positive 63-bit hash of each string (FNV-1a); 0 for a missing or empty one."""
    letters, begin, end = _bytes(column)
    lengths = end - begin
    key = np.full(len(lengths), _OFFSET)
    for place in range(int(lengths.max(initial=0))):
        there = place < lengths
        letter = letters.take(begin + place, mode="clip")
        key = np.where(there, (key ^ letter) * _PRIME, key)
    return np.where(lengths > 0, (key >> np.uint64(1)).astype(np.int64) | 1, 0)


def bucketized(column: np.ndarray, boundaries: tuple[float, ...]) -> np.ndarray:
    """From 1: the number of the bucket that each number is in, a boundary in the upper one; 0 for a missing number."""
    exact = np.asarray(boundaries, column.dtype)  # rounded as the numbers are: 1.78 in float32 is less than in float64
    return np.where(np.isnan(column), 0, np.searchsorted(exact, column, side="right") + 1)


def padded(column: pa.Array, length: int, of_strings) -> np.ndarray:
    """Lists with bars between: a row of ``length`` numbers for each, its last values first, and zeros behind them."""
    lists = pc.split_pattern(pc.fill_null(column, ""), "|")
    offsets = lists.offsets.to_numpy()
    values = of_strings(lists.values)[offsets[0] : offsets[-1]]
    counts = np.diff(offsets)
    row = np.repeat(np.arange(len(counts)), counts)
    place = offsets[1:][row] - 1 - np.arange(offsets[0], offsets[-1])  # 0: the last value of its row
    out = np.zeros((len(counts), length), np.int64)
    kept = place < length
    out[row[kept], place[kept]] = values[kept]
    return out
