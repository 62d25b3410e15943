"""What the columns of each data set are: one description for the generator, the reader, and the models.

Criteo's and Taobao's cardinalities are those of the public data sets; ``scaled`` makes them smaller. The strings of a column
with a ``vocabulary`` are looked up there (vocabulary.py), and one that it lacks is out of vocabulary. Numbers of a column with
``boundaries`` are cut into as many buckets and one. A ``sampled`` column is in no file: the reader draws it. The strings of
all other columns are hashed into buckets.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Column:
    """A categorical column. ``table``: the embedding table, which columns may share. ``list``: values with bars between."""

    name: str
    cardinality: int
    buckets: int
    table: str
    vocabulary: bool = False
    list: bool = False
    boundaries: tuple[float, ...] = ()
    sampled: bool = False


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Columns of a file. A row's label is 1 if the label column is above ``label_above``; ``single`` columns have one
    value a row, ``lists`` have up to ``length``."""

    name: str
    label: str
    dense: tuple[str, ...]
    single: tuple[Column, ...]
    lists: tuple[Column, ...] = ()
    length: int = 0
    label_above: float = 0.5
    binary: bool = True  # the label column holds 0 and 1 and nothing else

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.single, *self.lists)

    @property
    def in_file(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if not column.sampled)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that hold numbers and nothing else."""
        return (*self.dense, *(column.name for column in self.columns if column.boundaries))

    @property
    def tables(self) -> dict[str, int]:
        """Rows of each embedding table; row 0 stands for missing and unknown values."""
        return {column.table: column.buckets for column in self.columns}


CRITEO = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
          2173, 4, 7046547, 18, 15, 286181, 105, 142572)  # fmt: skip
TAOBAO_USER = {"user_id": 1141729, "cms_segid": 97, "cms_group_id": 13, "age_level": 7, "pvalue_level": 4,
               "shopping_level": 3, "occupation": 2, "new_user_class_level": 5}  # fmt: skip
TAOBAO_ITEM = {"adgroup_id": 846811, "cate_id": 12960, "campaign_id": 423436, "customer": 255875, "brand": 461497,
               "price": 50, "pid": 2, "final_gender_code": 2}  # fmt: skip
TAOBAO_LISTS = {"tag_category_list": 12960, "tag_brand_list": 461497}
AMAZON = {"user": 543060, "item": 367983, "category": 1601}  # Books
HISTORIES = {"item_history": "item", "category_history": "category"}
PRICES = tuple(round(10 ** (i / 12), 2) for i in range(49))  # 1 to 10,000: the boundaries of 50 buckets
NOT_CLICKED = {"item_not_clicked": "item", "category_not_clicked": "category"}


def _scaled(cardinality: int, scale: float) -> int:
    return cardinality if cardinality <= 100 else max(100, int(cardinality * scale))


def _hashed(names: dict[str, int], scale: float, most: int, is_list: bool = False) -> tuple[Column, ...]:
    sizes = {name: _scaled(size, scale) for name, size in names.items()}
    return tuple(Column(n, size, min(most, 2 * size + 2), n, list=is_list) for n, size in sizes.items())


def criteo(scale: float = 0.01, most: int = 10_000) -> Dataset:
    """Clicks on advertisements: 13 numbers, 26 categories of strings, 10,000 buckets at most for each."""
    return Dataset("criteo", "label", tuple(f"I{i}" for i in range(1, 14)),
                   _hashed({f"C{i}": size for i, size in enumerate(CRITEO, 1)}, scale, most))  # fmt: skip


def taobao(scale: float = 0.01, most: int = 100_000) -> Dataset:
    """Clicks on Taobao's advertisements: ten columns of the user, two of them lists, and eight of the item. Its price is a
    number, in 50 buckets."""
    single = tuple(dataclasses.replace(column, boundaries=PRICES, buckets=len(PRICES) + 2) if column.name == "price" else column
                   for column in _hashed(TAOBAO_USER | TAOBAO_ITEM, scale, most))  # fmt: skip
    return Dataset("taobao", "clk", (), single, _hashed(TAOBAO_LISTS, scale, most, True), 8)


def amazon(scale: float = 0.01, length: int = 50) -> Dataset:
    """Reviews of books: user, item, category, what the user clicked before, and as many items not clicked, which are drawn."""
    sizes = {name: _scaled(size, scale) for name, size in AMAZON.items()}
    single = tuple(Column(n, size, size + 1, n, vocabulary=True) for n, size in sizes.items())
    lists = tuple(Column(n, sizes[table], sizes[table] + 1, table, vocabulary=True, list=True, sampled=n in NOT_CLICKED)
                  for n, table in (HISTORIES | NOT_CLICKED).items())  # fmt: skip
    return Dataset("amazon", "click", (), single, lists, length)


def flights(scale: float = 1.0) -> Dataset:
    """Flights from New York in 2013, a real data set: more than 15 minutes late or not. Nothing in it is scaled."""
    sizes = {
        "carrier": 16,
        "flight": 3844,
        "tailnum": 4044,
        "origin": 3,
        "dest": 105,
        "month": 12,
        "day": 31,
        "hour": 20,
    }
    return Dataset("flights", "arr_delay", ("sched_dep_time", "sched_arr_time", "distance", "hour", "minute", "month"),
                   _hashed(sizes, 1.0, 10_000), label_above=15, binary=False)  # fmt: skip


DATASETS = {"criteo": criteo, "taobao": taobao, "amazon": amazon, "flights": flights}
