"""What stages read: structures of sources, feeds, recorded functions, ops, files with errors; random programs."""

import collections
import csv
import random

import pytest

import engine
from conftest import PATIENCE


def counting(n, then=None):
    yield from range(n)
    if then is not None:
        raise then


async def asynchronous():
    return 1


def test_iterators_in_a_structure_advance_together_and_end_together():
    stage = engine.data.staged(
        {"a": iter("xyz"), "b": [counting(10), None], "c": (lambda: "made",)}, capacity=2, num_threads=2
    )
    assert list(stage) == [{"a": c, "b": [i, None], "c": ("made",)} for i, c in enumerate("xyz")]


def test_feeds_are_evaluated_once_an_item_and_shared():
    asked = []

    def clock():
        asked.append(1)
        return len(asked)

    stage = engine.data.staged(
        [lambda row, now: (row, now), lambda now, rate: now * rate],
        feed_dict={"row": iter("abc"), "now": clock, "rate": 10},
        num_threads=2,
        capacity=4,
    )
    items = list(stage)
    assert [row for (row, _), _ in items] == ["a", "b", "c"]
    assert all(by_rate == 10 * now for (_, now), by_rate in items)
    assert len(asked) == 3


@pytest.mark.parametrize(
    "features, feed, message",
    [
        (3, {}, "features is an int"),
        ("train.csv", {}, "features is a str"),
        ([1, 2], {}, r"features\[0\] is an int"),
        ([engine.value(1)], {}, r"features\[0\] is a Value; an iterator"),
        ({"a": None}, {}, "no source"),
        (lambda x: x, {}, "parameter 'x' of .* is not in feed_dict; add it there"),
        (lambda: 1, {"x": 1}, "names 'x'"),
        (lambda: 1, {3: 1}, "key 3"),
        (counting, {"n": 3}, r"features is a generator function, .*; give counting\(...\)"),
        ([iter("ab"), lambda x: x], {"x": counting}, r"feed_dict\['x'\] is a generator function"),
        (asynchronous, {}, "features is a coroutine function"),
    ],
)
def test_sources_that_make_no_sense_are_refused(features, feed, message):
    with pytest.raises((TypeError, engine.UsageError), match=message):
        engine.data.staged(features, feed)


def test_a_class_may_make_the_items():
    stage = engine.data.staged([iter(range(2)), list])
    assert list(stage) == [[0, []], [1, []]]


def test_a_recorded_function_is_a_source_that_is_run_in_order():
    row = engine.value([0], name="row")

    @engine.op(updates="row", outputs=1)
    def read(row):
        row[0] += 1
        if row[0] > 20:
            raise StopIteration
        return 10 * row[0]

    @engine.hybridize
    def reader():
        return {"x": read(row)}

    stage = engine.data.staged(reader, capacity=3, num_threads=3)
    assert list(stage) == [{"x": 10 * i} for i in range(1, 21)]
    assert stage.position == 20


def test_a_recorded_function_may_be_what_parses_and_its_error_comes_in_its_place():
    @engine.op
    def split(line):
        return [int(x) for x in line.split(",")]

    @engine.hybridize
    def parse(line):
        return split(line)

    stage = engine.data.staged(parse, {"line": iter(["1,2", "3", "oops", "4"])}, capacity=3, num_threads=2)
    assert [next(stage), next(stage)] == [[1, 2], [3]]
    with pytest.raises(ValueError, match="oops") as raised:
        next(stage)
    assert any("'split'" in note for note in raised.value.__notes__)


def test_a_take_inside_an_op_and_a_source_that_uses_the_engine():
    v = engine.Var("v")

    def source():
        for i in range(20):
            made = engine.Var("made")
            engine.push(lambda: None, writes=[made])
            made.wait()
            yield i

    stage, got = engine.data.staged(source(), capacity=2), []
    for _ in range(20):
        engine.push(lambda: got.append(next(stage)), updates=[v])
    assert v.wait(PATIENCE) and got == list(range(20))


def test_random_programs_see_what_a_loop_would_see(rng):
    class Bad(Exception):
        pass

    for _ in range(60):
        seed = rng.getrandbits(32)
        print("program", seed)
        r = random.Random(seed)
        length, fails, closes = r.randrange(40), r.choice([None, r.randrange(40)]), r.choice([None, r.randrange(40)])
        bad = set(r.sample(range(40), r.choice([0, 5])))

        def work(x, bad=bad, fails=fails, closes=closes):
            if x == fails:
                raise LookupError(x)
            if x == closes:
                raise StopIteration
            if x in bad:
                raise Bad(x)
            return x

        def level(source, work=work, r=r):
            return engine.data.staged(work, {"x": source}, capacity=r.randrange(1, 4), num_threads=r.randrange(1, 4),
                                 ignored_exception_types=Bad)  # fmt: skip

        expected, error = [], None
        for x in range(length):
            if x == fails:
                error = x
                break
            if x == closes:
                break
            if x not in bad:
                expected.append(x)
        stage, got, seen = level(level(iter(range(length)))), [], None
        try:
            got.extend(stage)
        except LookupError as raised:
            seen = raised.args[0]
        while (item := next(stage, None) if seen is None else None) is not None:
            got.append(item)
        assert (got[: len(expected)], seen) == (expected, error)


def test_a_malformed_row_is_named_by_its_line(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("1,a\n2,b\nthree,c\n4,d\n")

    def parse(row):
        line, fields = row
        try:
            return int(fields[0]), fields[1]
        except ValueError as error:
            raise ValueError(f"{path.name}:{line}: {error}") from None

    def rows():
        with path.open(newline="") as file:
            reader = csv.reader(file)
            for fields in reader:
                yield reader.line_num, fields

    stage = engine.data.staged(parse, {"row": rows()}, num_threads=2)
    assert [next(stage), next(stage)] == [(1, "a"), (2, "b")]
    with pytest.raises(ValueError, match="rows.csv:3: invalid literal"):
        next(stage)
    ignoring = engine.data.staged(parse, {"row": rows()}, num_threads=2, ignored_exception_types=ValueError)
    assert [key for key, _ in ignoring] == [1, 2, 4]


def test_a_truncated_file_ends_with_its_own_error_after_what_was_whole(tmp_path):
    import gzip

    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"".join(b"%d\n" % random.randrange(10**9) for _ in range(20000)))[:-2000])

    def rows():
        with gzip.open(path, "rt") as file:
            for line in file:
                yield int(line)

    alone = []
    with pytest.raises(EOFError):
        alone.extend(rows())  # extend keeps what came before
    stage, got = engine.data.staged(rows(), capacity=10), []
    with pytest.raises(EOFError, match="end-of-stream"):
        for row in stage:
            got.append(row)
    assert got == alone and stage.position == len(got) > 0


def test_values_are_replaced_in_containers_of_every_kind():
    pair = collections.namedtuple("Pair", "a b")
    inc = engine.op(lambda x: x + 1)
    with engine.data.staged(engine.hybridize(lambda: pair(inc(1), [inc(2)]))) as stage:
        assert next(stage) == pair(2, [3])
