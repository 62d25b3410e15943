"""The files: columns, cardinalities, skew, seeds; the reader: keys, malformed and unknown values, positions."""

# First: it skips the file where a package is missing.
from small_files import SCALE, files, one_thread  # noqa: F401

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from recommenders import generate, keys, reader, schema, vocabulary


def read(path, data, size=64, **where):
    words = vocabulary.of(path, data)
    return [reader.convert(raw, data, words) for raw in reader.rows(path, data, size, **where)]


@pytest.mark.parametrize("name", ["criteo", "taobao", "amazon"])
def test_parquet_and_csv_hold_the_same_rows(files, name):
    data = schema.DATASETS[name](SCALE)
    batches = [read(files[name, suffix], data) for suffix in ("parquet", "csv")]
    assert len(batches[0]) == len(batches[1]) > 10
    for one, other in zip(*batches):
        for here, there in zip(one[:4], other[:4]):
            assert np.array_equal(here, there, equal_nan=here.dtype.kind == "f")
        assert one.unknown == other.unknown
    assert sum(b.malformed for b in batches[0]) == sum(b.malformed for b in batches[1])


def test_a_seed_gives_the_same_file_and_another_seed_another(tmp_path):
    data = schema.criteo(SCALE)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate.write(data, tmp_path / f"{name}.parquet", 100, seed)
    a, b, c = (pa.parquet.read_table(tmp_path / f"{name}.parquet") for name in "abc")
    assert a.equals(b) and not a.equals(c)


def test_columns_cardinalities_and_skew_are_criteos():
    data = schema.criteo(1.0)
    assert len(data.dense) == 13 and [column.cardinality for column in data.single] == list(schema.CRITEO)
    drawn = generate.ranks(np.random.default_rng(1), 1_000_000, 200_000)
    counts = np.bincount(drawn)
    # By Zipf's law the first value of a million has 1 / ln(10**6) = 7 % of the rows, and the tenth a tenth of that.
    assert 0.04 < counts[1] / len(drawn) < 0.06 and 5 < counts[1] / counts[10] < 12
    assert drawn.min() == 1 and drawn.max() <= 1_000_000


def test_malformed_rows_are_left_out_and_counted(files):
    data = schema.criteo(SCALE)
    labels = pa.parquet.read_table(files["criteo", "parquet"])["label"].to_numpy()
    bad = int((labels == 7).sum())
    assert bad > 0
    batches = read(files["criteo", "parquet"], data, 50)
    assert len(batches) == (len(labels) - bad) // 50
    used = np.flatnonzero(labels != 7)[len(batches) * 50 - 1]
    assert sum(b.malformed for b in batches) >= int((labels[:used] == 7).sum()) > 0
    assert np.array_equal(np.concatenate([b.label for b in batches]), labels[labels != 7][: len(batches) * 50])


def test_text_where_a_number_belongs_and_a_short_line_are_malformed(tmp_path):
    data = schema.criteo(SCALE)
    path = tmp_path / "rows.csv"
    generate.write(data, path, 20, malformed=0)
    lines = path.read_text().splitlines()
    fields = lines[3].split(",")
    lines[3] = ",".join([fields[0], "many", *fields[2:]])
    lines[5] = "1,2,3"
    lines[7] = ",".join(["", *lines[7].split(",")[1:]])
    path.write_text("\n".join(lines) + "\n")
    (batch,) = read(path, data, 17)
    assert batch.malformed == 3


def test_words_that_a_vocabulary_lacks_are_counted_and_mapped_to_row_0(files):
    from recommenders.din import DIN
    from recommenders.training import Trainer, tensors

    data = schema.amazon(SCALE)
    batches = [b for b in read(files["amazon", "csv"], data) if b.unknown]
    assert batches
    inputs, _ = Trainer(DIN(data), data, 0.1).prepare(tensors(batches[0]))
    outside = batches[0].single[1] < 0
    assert (inputs.single[1].numpy()[outside] == 0).all()
    assert (inputs.single[1].numpy() < data.single[1].buckets).all()


def test_a_file_without_a_column_is_refused(files):
    with pytest.raises(ValueError, match="no column 'clk', which the data set 'taobao' has"):
        read(files["criteo", "parquet"], schema.taobao(SCALE))
    with pytest.raises(ValueError, match="lacks a column of the data set 'taobao'"):
        read(files["criteo", "csv"], schema.taobao(SCALE))


def test_keys_of_strings():
    column = pa.array(["a", None, "ab", "a", "", "b" * 40]).slice(0)
    made = keys.hashed(column)
    assert made[0] == made[3] and made[1] == made[4] == 0
    assert len(set(made.tolist())) == 4 and (made >= 0).all()
    assert np.array_equal(keys.hashed(column.slice(2)), made[2:])
    words = vocabulary.Vocabulary(pa.array(["one", "two", "three", "seven"]))
    assert words.rows(pa.array(["two", "x", None, "", "seven", "one"])).tolist() == [2, -1, 0, 0, 4, 1]
    lists = keys.padded(pa.array(["one|two|three", "", None, "seven", "x|one"]), 2, words.rows)
    assert lists.tolist() == [[3, 2], [0, 0], [0, 0], [4, 0], [1, -1]]
    with pytest.raises(ValueError, match="a vocabulary has a word twice"):
        vocabulary.Vocabulary(pa.array(["one", "two", "one"]))


def test_numbers_are_cut_into_buckets(tmp_path):
    assert keys.bucketized(np.array([0.5, 1.0, 2.5, 9.0, np.nan]), (1.0, 3.0)).tolist() == [1, 2, 2, 3, 0]
    data = schema.taobao(SCALE)
    generate.write(data, tmp_path / "rows.csv", 40, malformed=0)
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    price = [name.strip('"') for name in lines[0].split(",")].index("price")
    at = [column.name for column in data.single].index("price")
    for line, value in ((1, "1.00"), (2, "99999"), (3, ""), (4, "cheap")):
        fields = lines[line].split(",")
        lines[line] = ",".join([*fields[:price], value, *fields[price + 1 :]])
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    (batch,) = read(tmp_path / "rows.csv", data, 39)
    assert batch.single[at, :3].tolist() == [2, len(schema.PRICES) + 1, 0] and batch.malformed == 1
    assert batch.single[at].max() < data.single[at].buckets
    for kind in (np.float32, np.float64):  # each boundary is in the upper bucket, also where float32 rounds it down
        assert keys.bucketized(np.array(schema.PRICES, kind), schema.PRICES).tolist() == list(range(2, len(schema.PRICES) + 2))


def test_a_vocabulary_that_is_missing_or_of_another_size_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    generate.write(schema.amazon(SCALE), path, 20)
    with pytest.raises(ValueError, match="words; .* are expected, so --scale is another one"):
        vocabulary.of(path, schema.amazon(2 * SCALE))
    (tmp_path / "rows.csv.item.parquet").unlink()
    with pytest.raises(ValueError, match="vocabulary rows.csv.item.parquet is missing; generate.py writes it"):
        read(path, schema.amazon(SCALE))


def test_what_was_not_clicked_is_another_item_and_as_skewed(files):
    data = schema.amazon(SCALE)
    words = vocabulary.of(files["amazon", "csv"], data)
    batches = read(files["amazon", "csv"], data)
    clicked, of_clicked, drawn, of_drawn = np.concatenate([b.lists for b in batches], 1)
    there = clicked != 0
    assert ((drawn != 0) == there).all() and ((of_drawn != 0) == there).all()
    assert (drawn != clicked)[there].all() and drawn.max() <= words["item"].count
    category = words["item"].category
    assert (of_drawn[there] == category[drawn[there] - 1]).all()
    known = there & (clicked > 0)
    assert (of_clicked[known] == category[clicked[known] - 1]).all()
    counts = np.bincount(drawn[there])
    assert counts[1] > 3 * counts[10] > 0
    # Long-tailed: the longest history is cut, and half of them are far shorter.
    lengths = there.sum(1)
    assert lengths.max() == data.length and np.median(lengths) < data.length / 2


@pytest.mark.parametrize("name", ["taobao", "amazon"])
def test_of_the_rows_without_a_click_a_seeded_share_is_kept(files, name):
    data = schema.DATASETS[name](SCALE)
    whole = np.concatenate([b.label for b in read(files[name, "csv"], data, 10)])
    kept = [read(files[name, s], data, 10, sampling=reader.Sampling(0.25)) for s in ("csv", "parquet")]
    for one, other in zip(*kept, strict=True):  # however the file is cut into blocks
        assert all(np.array_equal(a, b) for a, b in zip(one[2:4], other[2:4]))
    labels = np.concatenate([b.label for b in kept[0]])
    assert abs(int(labels.sum()) - int(whole.sum())) <= 10  # the last rows fill no batch
    share = (len(labels) - labels.sum()) / (len(whole) - whole.sum())
    assert 0.15 < share < 0.35
    other = read(files[name, "csv"], data, 10, sampling=reader.Sampling(0.25, seed=2))
    assert any(not np.array_equal(a.single, b.single) for a, b in zip(kept[0], other))
    rest = read(files[name, "csv"], data, 10, start=3, sampling=reader.Sampling(0.25))
    assert all(np.array_equal(a.lists, b.lists) for a, b in zip(kept[0][3:], rest, strict=True))


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_reading_resumes_at_any_batch_and_shares_batches(files, suffix):
    data, path = schema.taobao(SCALE), files["taobao", suffix]
    whole = read(path, data)
    for start in (1, 5):
        for one, other in zip(whole[start:], read(path, data, start=start), strict=True):
            assert np.array_equal(one.single, other.single)
    shared = [read(path, data, start=2, step=3, offset=i) for i in range(3)]
    for number, batch in enumerate(whole[2:]):
        assert np.array_equal(shared[number % 3][number // 3].lists, batch.lists)


def test_flights_without_an_arrival_are_left_out(tmp_path):
    path = tmp_path / "flights.csv"
    head = (
        "month,day,hour,minute,sched_dep_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,distance\n"
    )
    rows = ["1,2,5,15,515,819,11,UA,1545,N14228,EWR,IAH,1400", "1,2,5,29,529,830,20,UA,1714,N24211,LGA,IAH,1416",
            "1,2,5,40,540,850,NA,AA,1141,,JFK,MIA,1089", "1,2,5,45,545,1022,-18,B6,725,NA,JFK,BQN,1576"]  # fmt: skip
    path.write_text(head + "\n".join(rows) + "\n")
    (batch,) = read(path, schema.flights(), 3)
    assert batch.malformed == 1 and batch.label.tolist() == [0, 1, 0]
    names = [column.name for column in schema.flights().single]
    assert batch.single[names.index("tailnum"), 2] == 0 and (batch.single[names.index("month")] != 0).all()
    assert batch.dense[:, 2].tolist() == [1400, 1416, 1576]


def test_columns_of_other_types_hold_the_same_rows(files, tmp_path):
    """As other programs write them: text with 64-bit lengths, and labels that are true or false."""
    data = schema.criteo(SCALE)
    table = pa.parquet.read_table(files["criteo", "parquet"])
    texts = [name for name in table.column_names if pa.types.is_string(table[name].type)]
    assert texts
    other = table
    for name in texts:
        other = other.set_column(other.schema.get_field_index(name), name, other[name].cast(pa.large_string()))
    pa.parquet.write_table(other, tmp_path / "large.parquet")
    for one, there in zip(read(files["criteo", "parquet"], data), read(tmp_path / "large.parquet", data), strict=True):
        assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(one[:4], there[:4]))
    clicked, nothing = pa.array(table["label"].to_numpy() == 1), pa.nulls(len(table), pa.string())
    kinds = {"C3": (table["C3"], table["C3"].cast(pa.large_string())), "C5": (table["C5"], table["C5"].dictionary_encode()),
             "C7": (nothing, pa.nulls(len(table))), "label": (clicked.cast(pa.int64()), clicked)}  # fmt: skip
    for number, name in enumerate(("plain", "mixed")):
        made = table
        for column, both in kinds.items():
            made = made.set_column(made.schema.get_field_index(column), column, both[number])
        pa.parquet.write_table(made, tmp_path / f"{name}.parquet")
    for keep in (1.0, 0.5):
        batches = [read(tmp_path / f"{name}.parquet", data, sampling=reader.Sampling(keep)) for name in ("plain", "mixed")]
        assert sum(b.label.sum() for b in batches[1]) > 0
        for one, there in zip(*batches, strict=True):
            assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(one[:4], there[:4]))


def test_keys_of_numbers_are_those_of_their_text():
    numbers = pa.array([1, 20, None, 300])
    assert np.array_equal(keys.hashed(numbers), keys.hashed(pa.array(["1", "20", None, "300"])))


@pytest.mark.parametrize("text, good", [("1e-05", True), ("2.5E+3", True), ("-7.", True), (" 5", False), ("1e", False), ("9" * 45, True),
                                        (".5", True), ("-.5", True), ("+5", True), (".", False), ("+-5", False)])  # fmt: skip
def test_numbers_in_text(text, good):
    data = schema.criteo(SCALE)
    block = pa.table({name: [text if name == data.dense[0] else "1"] for name in (data.label, *data.numbers)})
    assert reader.good_rows(block, data).num_rows == good
