"""From a file to batches: ``rows`` reads blocks and leaves malformed rows out, ``convert`` makes arrays of a batch: it looks
strings up or hashes them, cuts numbers into buckets, and draws what was not clicked.

``rows`` goes through the file in order, one thread at a time. ``convert`` has no state, so several threads may call it at
once. Both spend their time in pyarrow and NumPy, which let other threads run.
"""

from __future__ import annotations

import pathlib
from typing import Any, Iterator, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from . import keys, vocabulary
from .schema import Column, Dataset
from .vocabulary import Vocabulary

NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
BLOCK = 1 << 20  # bytes of a CSV file that are parsed at once


class Sampling(NamedTuple):
    """What is drawn: of the rows without a click the share ``keep`` stays, because most have none; and what was not clicked
    (schema.py). ``seed`` and the place in the file say all of it, so it is the same however the file is read."""

    keep: float = 1.0
    seed: int = 1


class Raw(NamedTuple):
    """A batch as it is in the file, how many malformed rows came since the batch before, and its number."""

    table: pa.Table
    malformed: int
    number: int


def blocks(path: pathlib.Path, data: Dataset) -> Iterator[tuple[pa.Table, int]]:
    """The file's blocks, and how many of their lines have a wrong number of columns. All columns of a CSV are strings."""
    wanted = [data.label, *data.dense, *(column.name for column in data.in_file)]
    wanted = list(dict.fromkeys(wanted))  # a column may be a number and a category
    if path.suffix == ".parquet":
        file = pa.parquet.ParquetFile(path)
        missing = [name for name in wanted if name not in file.schema_arrow.names]
        if missing:
            raise ValueError(f"{path}: has no column '{missing[0]}', which the data set '{data.name}' has")
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=wanted, use_threads=False), 0
        return
    bad = 0

    def skip(row: Any) -> str:
        nonlocal bad
        bad += 1
        return "skip"

    try:
        reader = pa.csv.open_csv(
            path, pa.csv.ReadOptions(use_threads=False, block_size=BLOCK), pa.csv.ParseOptions(invalid_row_handler=skip),
            pa.csv.ConvertOptions(include_columns=wanted, column_types={name: pa.string() for name in wanted},
                                  strings_can_be_null=True, null_values=["", "NA"]))  # fmt: skip
    except (KeyError, pa.ArrowKeyError) as error:
        raise ValueError(f"{path}: lacks a column of the data set '{data.name}': {error}") from None
    for block in reader:
        yield pa.Table.from_batches([block]), bad
        bad = 0


def good_rows(block: pa.Table, data: Dataset) -> pa.Table:
    """The block without its malformed rows: those whose label is not valid, or that have text where a number belongs."""
    good = None
    for name in (data.label, *data.numbers):
        column = block[name]
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            fine = pc.fill_null(pc.match_substring_regex(column, NUMBER), name != data.label)
            column = pc.ascii_ltrim(pc.if_else(fine, column, None), "+")  # a sign that the cast does not know
            block = _with(block, name, pc.cast(column, pa.float32()))
        elif name == data.label:
            if pa.types.is_boolean(column.type):
                block = _with(block, name, pc.cast(column, pa.float32()))
            fine = pc.is_valid(column)
        else:
            continue
        column = block[name]
        if name == data.label and data.binary:
            fine = pc.and_(fine, pc.fill_null(pc.or_(pc.equal(column, 0), pc.equal(column, 1)), False))
        good = fine if good is None else pc.and_(good, fine)
    return block if pc.all(good).as_py() else block.filter(good)


def _with(block: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    """The block with another column of that name."""
    return block.set_column(block.schema.get_field_index(name), name, column)


def rows(
    path: pathlib.Path | str, data: Dataset, size: int, start: int = 0, step: int = 1, offset: int = 0, sampling: Sampling = Sampling()
) -> Iterator[Raw]:
    """The file in batches of ``size`` good rows; the rows that do not fill the last one are left out.

    ``start``: how many batches are left out, for a program that resumes. Of the others, every ``step``-th from
    ``offset`` on is given, for processes that share the work.
    """
    rest, number, malformed = None, 0, 0
    rng = np.random.default_rng([sampling.seed, 0])  # a number for each row, so blocks may have any size
    for block, bad in blocks(pathlib.Path(path), data):
        clean = _with_categories(block, data)
        found = good_rows(clean, data)
        malformed += bad + block.num_rows - found.num_rows
        if sampling.keep < 1:
            lucky = pa.array(rng.random(found.num_rows) < sampling.keep)
            found = found.filter(pc.or_(pc.greater(found[data.label], data.label_above), lucky))
        rest = found if rest is None else pa.concat_tables([rest, found])
        at = 0
        for at in range(size, rest.num_rows + 1, size):
            if number >= start and (number - start) % step == offset:
                yield Raw(rest.slice(at - size, size), malformed, number)
            number, malformed = number + 1, 0
        rest = rest.slice(at)


def _with_categories(block: pa.Table, data: Dataset) -> pa.Table:
    """The block, with each column that is both a number and a category once more: as strings, under another name."""
    for column in data.in_file:
        if column.name in data.dense:
            block = block.append_column(f"{column.name}:category", pc.cast(block[column.name], pa.string()))
    return block


class Batch(NamedTuple):
    """A batch as arrays. label: float32 [rows]; dense: float32 [rows, numbers], NaN where one is missing; single: int64
    [columns, rows] of keys; lists: int64 [columns, rows, length] of keys; malformed: how many rows were left out before and
    among these; unknown: how many keys are not in their vocabulary."""

    label: Any
    dense: Any
    single: Any
    lists: Any
    malformed: int
    unknown: int


def convert(raw: Raw, data: Dataset, words: dict[str, Vocabulary] | None = None, seed: int = 1) -> Batch:
    """Strings become keys, and numbers float32. ``words``: the vocabularies (vocabulary.py); keys of a column with one are
    rows, -1 for a string that it lacks. ``seed``: of what is drawn, together with the batch's number."""
    table, words = raw.table, words or {}
    size = table.num_rows
    label = (table[data.label].to_numpy() > data.label_above).astype(np.float32)
    dense = np.empty((size, len(data.dense)), np.float32)
    for i, name in enumerate(data.dense):
        dense[:, i] = _floats(table[name])
    single = _single(table, data, words)
    lists = np.zeros((len(data.lists), size, data.length), np.int64)
    for i, column in enumerate(data.lists):
        if not column.sampled:
            of_strings = words[column.table].rows if column.vocabulary else keys.hashed
            lists[i] = keys.padded(_strings(table, column, data), data.length, of_strings)
    drawn = [i for i, column in enumerate(data.lists) if column.sampled]
    if drawn:  # Amazon's: the items of the first list, and the category of each
        rng = np.random.default_rng([seed, 1, raw.number])
        lists[drawn] = vocabulary.not_clicked(rng, words[data.lists[0].table], lists[0])
    unknown = int((single < 0).sum() + (lists < 0).sum())
    return Batch(label, dense, single, lists, raw.malformed, unknown)


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return pc.fill_null(pc.cast(column, pa.float32(), safe=False), float("nan")).to_numpy()


def _strings(table: pa.Table, column: Column, data: Dataset) -> pa.Array:
    """The column as text in one piece, whichever type the file has: text, categories, numbers, or nothing at all."""
    name = f"{column.name}:category" if column.name in data.dense else column.name
    text = table[name].cast(pa.string())
    return text.chunk(0) if text.num_chunks == 1 else pa.concat_arrays(text.chunks)


def _single(table: pa.Table, data: Dataset, words: dict[str, Vocabulary]) -> np.ndarray:
    """Keys of the columns with one value a row, [columns, rows]."""
    made = np.empty((len(data.single), table.num_rows), np.int64)
    hashed = [i for i, column in enumerate(data.single) if not (column.vocabulary or column.boundaries)]
    if hashed:  # in one go: one long call costs less than one for each column
        strings = [_strings(table, data.single[i], data) for i in hashed]
        made[hashed] = keys.hashed(pa.concat_arrays(strings)).reshape(len(hashed), -1)
    for i, column in enumerate(data.single):
        if column.vocabulary:
            made[i] = words[column.table].rows(_strings(table, column, data))
        elif column.boundaries:
            made[i] = keys.bucketized(_floats(table[column.name]), column.boundaries)
    return made
