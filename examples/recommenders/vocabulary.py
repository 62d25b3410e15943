"""Vocabularies: which row of a table each string has. They lie beside the data file, one file for each table.

Row numbers go from 1, by how often a value occurs, so a value can be drawn as often as it occurs. The vocabulary of items also
says the category of each.
"""

from __future__ import annotations

import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from . import keys
from .schema import Dataset


def ranks(rng: np.random.Generator, cardinality: int, shape: int | tuple[int, ...]) -> np.ndarray:
    """Ranks from 1 to ``cardinality``; rank r has a probability of about 1 / r (Zipf's law)."""
    return np.minimum((cardinality + 1.0) ** rng.random(shape), cardinality).astype(np.int64)


def path_of(data_file: pathlib.Path, table: str) -> pathlib.Path:
    return data_file.with_name(f"{data_file.name}.{table}.parquet")


class Vocabulary:
    """``words``: by row, from 1. ``category``: of each word, or None. Looking up lets other threads run meanwhile."""

    def __init__(self, words: pa.Array, category: np.ndarray | None = None) -> None:
        hashes = keys.hashed(words)
        self.category, self.count = category, len(words)
        self._rows = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._rows]
        if (self._hashes[1:] == self._hashes[:-1]).any():
            raise ValueError("a vocabulary has a word twice")

    def rows(self, column: pa.Array) -> np.ndarray:
        """The row of each string; 0 for a missing or empty one, -1 for one that is no word of the vocabulary."""
        hashes = keys.hashed(column)
        at = np.minimum(np.searchsorted(self._hashes, hashes), self.count - 1)
        return np.where(self._hashes[at] == hashes, self._rows[at] + 1, np.where(hashes == 0, 0, -1))


def of(data_file: pathlib.Path | str, data: Dataset) -> dict[str, Vocabulary]:
    """The vocabularies of a file's tables. ValueError if one is missing, or has more words than its table has rows."""
    found = {}
    for column in data.columns:
        if not column.vocabulary or column.table in found:
            continue
        path = path_of(pathlib.Path(data_file), column.table)
        if not path.exists():
            raise ValueError(f"{data_file}: its vocabulary {path.name} is missing; generate.py writes it beside the file")
        table = pa.parquet.read_table(path).combine_chunks()
        if table.num_rows != column.cardinality:
            raise ValueError(f"{path}: has {table.num_rows} words; {column.cardinality} are expected, so --scale is another one")
        category = table["category"].to_numpy() if "category" in table.column_names else None
        found[column.table] = Vocabulary(table["word"].chunk(0), category)
    return found


def not_clicked(rng: np.random.Generator, items: Vocabulary, clicked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each clicked item another one, drawn as often as it is clicked, and its category; 0 where there is none."""
    drawn = ranks(rng, items.count, clicked.shape)
    drawn = np.where(drawn == clicked, drawn % items.count + 1, drawn)
    assert items.category is not None
    there = clicked != 0
    return drawn * there, items.category[drawn - 1] * there
