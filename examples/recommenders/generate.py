"""Writes a seeded file with the columns, cardinalities and skew of Criteo, Taobao or Amazon Books.

    python examples/recommenders/generate.py criteo /tmp/criteo.parquet --rows 200000 --scale 0.01

The values are drawn with a probability of about 1 / rank (Zipf). Labels come from a hidden model of the columns, so that
there is something to learn. ``malformed`` and ``unknown`` say which share of rows is broken, and which share of numbers
lies outside the vocabulary. The suffix of the file decides the format: .parquet or .csv.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # so that it runs as a script and as a module

from recommenders import schema  # noqa: E402

PIECE = 16_384  # rows of a row group; rows that the generator makes at once
MISSING = 0.1  # the share of numbers, and of values in columns with many of them, that is missing


def ranks(rng: np.random.Generator, cardinality: int, shape: int | tuple[int, ...]) -> np.ndarray:
    """Ranks from 1 to ``cardinality``; rank r has a probability of about 1 / r."""
    return np.minimum((cardinality + 1.0) ** rng.random(shape), cardinality).astype(np.int64)


def weight(rank: np.ndarray, salt: int) -> np.ndarray:
    """What the hidden model thinks of each value: numbers between -1 and 1, the same in every file."""
    mixed = (rank.astype(np.uint64) + np.uint64(salt * 7919)) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(40)).astype(np.float64) / 2**23 - 1


def text(rank: np.ndarray, salt: int, vocabulary: bool) -> pa.Array:
    """The values as strings: the number itself, or eight letters as in Criteo's files."""
    unique, where = np.unique(rank, return_inverse=True)
    if vocabulary:
        words = [str(value) for value in unique]
    else:
        words = [f"{(int(value) * 2654435761 + salt * 40503) % 2**32:08x}" for value in unique]
    return pa.array(words, pa.string()).take(pa.array(where.reshape(-1)))


def with_missing(column: pa.Array, missing: np.ndarray) -> pa.Array:
    return pa.compute.if_else(pa.array(missing), pa.scalar(None, column.type), column)


def joined(values: np.ndarray, lengths: np.ndarray, salt: int, vocabulary: bool) -> pa.Array:
    """Rows of ``values`` as lists with bars between."""
    words = np.array(text(values, salt, vocabulary).to_pylist(), object).reshape(values.shape)
    return pa.array(["|".join(row[:length]) for row, length in zip(words, lengths)], pa.string())


def flat(rng: np.random.Generator, data: schema.Dataset, rows: int) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The columns of Criteo and Taobao, and the hidden model's opinion of each row."""
    opinion, made = np.zeros(rows), {}
    for i, name in enumerate(data.dense):
        number = np.floor(rng.lognormal(1.0 + i % 4, 1.0, rows)).astype(np.int32) - 1
        opinion += 0.15 * (i % 3 - 1) * np.log1p(np.maximum(number, 0))
        made[name] = with_missing(pa.array(number), rng.random(rows) < MISSING)
    for salt, column in enumerate(data.single):
        rank = ranks(rng, column.cardinality, rows)
        opinion += 0.8 * weight(rank, salt) / np.sqrt(1 + salt % 5)
        made[column.name] = text(rank, salt, False)
        if column.cardinality > 1000:
            made[column.name] = with_missing(made[column.name], rng.random(rows) < MISSING)
    for salt, column in enumerate(data.lists, len(data.single)):
        rank = ranks(rng, column.cardinality, (rows, data.length))
        lengths = rng.integers(0, data.length + 1, rows)
        opinion += 0.5 * weight(rank[:, 0], salt) * (lengths > 0)
        made[column.name] = joined(rank, lengths, salt, False)
    return made, opinion


def sequences(
    rng: np.random.Generator, data: schema.Dataset, rows: int, unknown: float
) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The columns of Amazon: users mostly click in a few categories, and the label is about the candidate's."""
    sizes = {column.name: column.cardinality for column in data.single}

    def category_of(item: np.ndarray) -> np.ndarray:
        return (item * 7919) % sizes["category"] + 1

    user = ranks(rng, sizes["user"], rows)
    lengths = rng.integers(1, data.length + 1, rows)
    clicked = ranks(rng, sizes["item"], (rows, data.length))
    # A third of the clicks go back to the user's first item.
    clicked = np.where(rng.random(clicked.shape) < 0.3, clicked[:, :1], clicked)
    others = ranks(rng, sizes["item"], (rows, data.length))
    item = np.where(rng.random(rows) < 0.5, clicked[:, 0], ranks(rng, sizes["item"], rows))
    seen = (category_of(clicked) == category_of(item)[:, None]) & (np.arange(data.length) < lengths[:, None])
    opinion = 2.5 * (seen.mean(axis=1) > 0.05) - 1 + 0.3 * weight(user, 1)
    for array in (user, item, clicked):  # numbers that no vocabulary has
        outside = rng.random(array.shape) < unknown
        array[outside] = rng.integers(2**40, 2**41, int(outside.sum()))
    single = {"user": user, "item": item, "category": category_of(item)}
    lists = {"item_history": clicked, "category_history": category_of(clicked), "item_not_clicked": others,
             "category_not_clicked": category_of(others)}  # fmt: skip
    made = {name: text(array, 0, True) for name, array in single.items()}
    return made | {name: joined(array, lengths, 0, True) for name, array in lists.items()}, opinion


def pieces(data: schema.Dataset, rows: int, seed: int, malformed: float, unknown: float):
    """The file's rows, a piece at a time. A piece depends on the seed and its number alone."""
    for number, begin in enumerate(range(0, rows, PIECE)):
        rng, count = np.random.default_rng([seed, number]), min(PIECE, rows - begin)
        if data.name == "amazon":
            made, opinion = sequences(rng, data, count, unknown)
        else:
            made, opinion = flat(rng, data, count)
        chance = 1 / (1 + np.exp(-1.5 * opinion + (1.8 if data.dense else 0)))
        label = pa.array((rng.random(count) < chance).astype(np.int32))
        broken = rng.random(count) < malformed
        table = {data.label: pa.compute.if_else(pa.array(broken), pa.scalar(7, pa.int32()), label)}
        yield pa.table(table | made)


def write(data: schema.Dataset, path: pathlib.Path, rows: int, seed: int = 1, malformed: float = 0.0005,
          unknown: float = 0.001) -> None:  # fmt: skip
    """Writes the file, under another name until it is complete."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    writer = None
    for piece in pieces(data, rows, seed, malformed, unknown):
        if writer is None:
            kind = pa.parquet.ParquetWriter if path.suffix == ".parquet" else pa.csv.CSVWriter
            writer = kind(part, piece.schema)
        writer.write_table(piece)
    if writer is None:
        raise ValueError(f"{path}: {rows} rows; at least 1 is expected")
    writer.close()
    part.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dataset", choices=["criteo", "taobao", "amazon"])
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument(
        "--scale", type=float, default=0.01, help="of the real cardinalities above 100 (default: 0.01)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--malformed", type=float, default=0.0005)
    parser.add_argument("--unknown", type=float, default=0.001)
    args = parser.parse_args()
    if args.path.suffix not in (".parquet", ".csv"):
        parser.error(f"{args.path}: .parquet or .csv is expected")
    write(schema.DATASETS[args.dataset](args.scale), args.path, args.rows, args.seed, args.malformed, args.unknown)
    print(f"{args.path}: {args.rows:,} rows, {args.path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
