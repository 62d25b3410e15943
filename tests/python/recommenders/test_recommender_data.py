"""The files: columns, cardinalities, skew, seeds; the reader: keys, malformed and unknown values, positions."""

# First: it skips the file where a package is missing.
from small_files import SCALE, files, one_thread  # noqa: F401

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from recommenders import generate, keys, reader, schema


def read(path, data, size=64, **where):
    return [reader.convert(raw, data) for raw in reader.rows(path, data, size, **where)]


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


def test_numbers_outside_the_vocabulary_are_counted_and_mapped_to_row_0(files):
    from recommenders.din import DIN
    from recommenders.training import Trainer, tensors

    data = schema.amazon(SCALE)
    batches = [b for b in read(files["amazon", "csv"], data) if b.unknown]
    assert batches
    inputs, _ = Trainer(DIN(data), data, 0.1).prepare(tensors(batches[0]))
    outside = batches[0].single[1] > data.single[1].cardinality
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
    assert keys.numbers(pa.array(["12", "x", None, "1" * 19])).tolist() == [12, -1, 0, -1]
    lists = keys.padded(pa.array(["1|2|3", "", None, "7"]), 2, keys.numbers)
    assert lists.tolist() == [[3, 2], [0, 0], [0, 0], [7, 0]]


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
