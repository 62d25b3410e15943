"""Writes a seeded file with the columns, cardinalities and skew of Criteo, Taobao or Amazon Books.

    python examples/recommenders/generate.py criteo /tmp/criteo.parquet --rows 200000 --scale 0.01

The values are drawn with a probability of about 1 / rank (Zipf). Labels come from a hidden model of the columns, so that
there is something to learn; most rows have no click. Histories are long-tailed. The vocabularies of Amazon's columns lie
beside the file. ``malformed`` and ``unknown`` say which share of rows is broken, and which share of values the
vocabulary lacks. The suffix of the file decides the format: .parquet or .csv.
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

from recommenders import schema, vocabulary  # noqa: E402
from recommenders.vocabulary import ranks  # noqa: E402

PIECE = 16_384  # rows of a row group; rows that the generator makes at once
LONGEST = 4  # histories are up to so many times as long as what a model looks at
OUTSIDE = 2**40  # values from here on are in no vocabulary
RARE = {"criteo": 1.8, "taobao": 3.5, "amazon": 2.5}  # how seldom clicks are: a quarter of the rows, a tenth, a fifth
MISSING = 0.1  # the share of numbers, and of values in columns with many of them, that is missing


def weight(rank: np.ndarray, salt: int) -> np.ndarray:
    """What the hidden model thinks of each value: numbers between -1 and 1, the same in every file."""
    mixed = (rank.astype(np.uint64) + np.uint64(salt * 7919)) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(40)).astype(np.float64) / 2**23 - 1


def text(rank: np.ndarray, salt: int, table: str = "") -> pa.Array:
    """The values as strings: eight letters as in Criteo's files; words of the table's vocabulary as in Amazon's."""
    unique, where = np.unique(rank, return_inverse=True)
    if table:
        words = [word(int(value), table) for value in unique]
    else:
        words = [f"{(int(value) * 2654435761 + salt * 40503) % 2**32:08x}" for value in unique]
    return pa.array(words, pa.string()).take(pa.array(where.reshape(-1)))


def word(value: int, table: str) -> str:
    """An identifier that looks like Amazon's: no vocabulary has values that are not below OUTSIDE."""
    prefix = {"user": "A", "item": "B", "category": "Books > "}[table] if value < OUTSIDE else "?"
    return f"{prefix}{value * 2654435761 % OUTSIDE:010X}"


def category_of(item: np.ndarray, data: schema.Dataset) -> np.ndarray:
    return (item * 7919) % (data.tables["category"] - 1) + 1


def with_missing(column: pa.Array, missing: np.ndarray) -> pa.Array:
    return pa.compute.if_else(pa.array(missing), pa.scalar(None, column.type), column)


def joined(values: np.ndarray, lengths: np.ndarray, salt: int, table: str = "") -> pa.Array:
    """Rows of ``values`` as lists with bars between."""
    there = np.arange(values.shape[1]) < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.compute.binary_join(pa.ListArray.from_arrays(offsets, text(values[there], salt, table)), "|")


def flat(rng: np.random.Generator, data: schema.Dataset, rows: int) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The columns of Criteo and Taobao, and the hidden model's opinion of each row."""
    opinion, made = np.zeros(rows), {}
    for i, name in enumerate(data.dense):
        number = np.floor(rng.lognormal(1.0 + i % 4, 1.0, rows)).astype(np.int32) - 1
        opinion += 0.15 * (i % 3 - 1) * np.log1p(np.maximum(number, 0))
        made[name] = with_missing(pa.array(number), rng.random(rows) < MISSING)
    for salt, column in enumerate(data.single):
        if column.boundaries:
            price = np.round(rng.lognormal(4.0, 1.2, rows), 2)
            opinion += 0.3 * weight(np.searchsorted(column.boundaries, price, side="right"), salt)
            made[column.name] = with_missing(pa.array(price), rng.random(rows) < MISSING)
            continue
        rank = ranks(rng, column.cardinality, rows)
        opinion += 0.8 * weight(rank, salt) / np.sqrt(1 + salt % 5)
        made[column.name] = text(rank, salt)
        if column.cardinality > 1000:
            made[column.name] = with_missing(made[column.name], rng.random(rows) < MISSING)
    for salt, column in enumerate(data.lists, len(data.single)):
        rank = ranks(rng, column.cardinality, (rows, data.length))
        lengths = rng.integers(0, data.length + 1, rows)
        opinion += 0.5 * weight(rank[:, 0], salt) * (lengths > 0)
        made[column.name] = joined(rank, lengths, salt)
    return made, opinion


def sequences(
    rng: np.random.Generator, data: schema.Dataset, rows: int, unknown: float
) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The columns of Amazon: users mostly click in a few categories, and the label is about the candidate's."""
    sizes = {column.name: column.cardinality for column in data.single}
    user = ranks(rng, sizes["user"], rows)
    # Most users clicked a few times, and some very often: longer histories than a model looks at.
    longest = LONGEST * data.length
    lengths = np.minimum(1 + rng.lognormal(2.7, 1.1, rows).astype(np.int64), longest)
    clicked = ranks(rng, sizes["item"], (rows, longest))
    # A third of the clicks go back to the user's first item.
    clicked = np.where(rng.random(clicked.shape) < 0.3, clicked[:, :1], clicked)
    item = np.where(rng.random(rows) < 0.5, clicked[:, 0], ranks(rng, sizes["item"], rows))
    same = category_of(clicked, data) == category_of(item, data)[:, None]
    seen = same & (np.arange(longest) < lengths[:, None])
    opinion = 2.5 * (seen.sum(axis=1) > 0.1 * lengths) - 1 + 0.3 * weight(user, 1)
    single = {"user": user, "item": item, "category": category_of(item, data)}
    lists = {"item_history": clicked, "category_history": category_of(clicked, data)}
    for array in (user, item, clicked):  # values that no vocabulary has
        outside = rng.random(array.shape) < unknown
        array[outside] = rng.integers(OUTSIDE, 2 * OUTSIDE, int(outside.sum()))
    made = {name: text(array, 0, name) for name, array in single.items()}
    return made | {name: joined(array, lengths, 0, schema.HISTORIES[name]) for name, array in lists.items()}, opinion


def vocabularies(data: schema.Dataset, path: pathlib.Path) -> None:
    """Writes the vocabulary of each table beside the file."""
    for table, size in {c.table: c.cardinality for c in data.columns if c.vocabulary}.items():
        rows = np.arange(1, size + 1)
        made = {"word": pa.array([word(int(value), table) for value in rows])}
        if table == "item":
            made["category"] = pa.array(category_of(rows, data))
        pa.parquet.write_table(pa.table(made), vocabulary.path_of(path, table))


def pieces(data: schema.Dataset, rows: int, seed: int, malformed: float, unknown: float):
    """The file's rows, a piece at a time. A piece depends on the seed and its number alone."""
    for number, begin in enumerate(range(0, rows, PIECE)):
        rng, count = np.random.default_rng([seed, number]), min(PIECE, rows - begin)
        if data.name == "amazon":
            made, opinion = sequences(rng, data, count, unknown)
        else:
            made, opinion = flat(rng, data, count)
        chance = 1 / (1 + np.exp(RARE[data.name] - 1.5 * opinion))
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
    vocabularies(data, path)
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
