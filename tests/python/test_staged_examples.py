"""The examples of stages, with what they must print."""

import importlib.util
import pathlib
import zlib

import pytest

import engine

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "staged"


def load(name):
    spec = importlib.util.spec_from_file_location(f"staged_{name.strip('_')}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example():
    return load("__main__")


def expected(example, lines):
    """What the page's program computes, without stages and without the engine."""
    out = []
    for at in range(0, len(lines), 2):
        keys, values = zip(*[line.strip().split(",") for line in lines[at : at + 2]])
        assert all(0 <= zlib.crc32(key.encode()) % 10 < 100 for key in keys)
        out.append([["1.0"] * 3 * len(keys), [*values, "xxx"], [*values, "xxx"]])
    return out


@pytest.mark.parametrize("options", [{}, {"capacity": 3, "num_threads": 4}, {"autotune": True}])
def test_the_program_of_the_page(example, tmp_path, options):
    path = tmp_path / "1.txt"
    path.write_text(example.SAMPLE)
    assert list(example.targets(path, **options)) == expected(example, example.SAMPLE.splitlines())


def test_it_prints_the_targets(run_python):
    ended = run_python(f"import runpy; runpy.run_path({str(EXAMPLES)!r}, run_name='__main__')")
    assert ended.code == 0, ended
    lines = ended.out.splitlines()
    assert len(lines) == 5
    assert lines[0] == str([["1.0"] * 6, ["value-0", "value-1", "xxx"], ["value-0", "value-1", "xxx"]])


def test_rows_look_up_their_own_bucket(example):
    table = engine.value([[float(i)] * 3 for i in range(100)])
    keys = ["key-3", "key-4"]
    numbers = example.step(table, [keys, ["a", "b"]]).get()[0]
    assert numbers == [str(float(zlib.crc32(key.encode()) % 10)) for key in keys for _ in range(3)]


def test_a_bad_row_comes_after_the_rows_before_it(example, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text("a,1\nb,2\nc\nd,4\n")
    seen = example.targets(path)
    assert next(seen)[1] == ["1", "2", "xxx"]
    with pytest.raises(ValueError, match=r"2 columns are expected, and there are 1 in \['c'\]"):
        next(seen)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_files_through_pyarrow(tmp_path, suffix):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: it is optional")
    np = pytest.importorskip("numpy")
    path = tmp_path / f"rows.{suffix}"
    columns = {"x": np.arange(5000), "y": np.arange(5000) * 0.5}
    table = pyarrow.table(columns)
    if suffix == "parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(table, path)
    else:
        import pyarrow.csv

        pyarrow.csv.write_csv(table, path)
    read = list(load("parquet").staged_batches(path))
    for name, column in columns.items():
        assert np.array_equal(np.concatenate([batch[name] for batch in read]), column)


def test_a_truncated_and_a_malformed_file_through_pyarrow(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: it is optional")
    parquet = pytest.importorskip("pyarrow.parquet")
    staged_batches = load("parquet").staged_batches
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"x": list(range(5000))}), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(pyarrow.ArrowInvalid, match="Parquet"):
        next(staged_batches(path))
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "1,2\n" * 3 + "5\n")
    with pytest.raises(pyarrow.ArrowInvalid, match="Expected 2 columns, got 1: 5"):
        list(staged_batches(path))


@pytest.mark.parametrize("program", ["automatic", "extended"])
@pytest.mark.parametrize("options", [{}, {"profile_steps": 0, "guard_steps": 0, "capacity": 3, "num_threads": 2},
                                     {"do_smart_stage": False}])  # fmt: skip
def test_the_programs_of_the_page_on_smart_stage(example, tmp_path, program, options):
    path = tmp_path / "test_data.csv"
    path.write_text(example.SAMPLE)
    steps = getattr(load("smart"), program)(path, **options)
    assert [target.get() for target in steps] == expected(example, example.SAMPLE.splitlines())


def test_smart_stage_stages_all_but_the_target(example, tmp_path):
    path = tmp_path / "test_data.csv"
    path.write_text(example.SAMPLE)
    steps = load("smart").automatic(path, profile_steps=0, guard_steps=0)
    assert len(list(steps)) == 5
    assert dict(steps.report["nodes"]) == {"decode_csv": "", "string_to_hash_bucket": "", "embedding_lookup": "",
                                           "concat": "", "make_target": "is a marked target"}  # fmt: skip


def test_smart_stage_prints_the_targets_and_why(run_python):
    ended = run_python(f"import runpy; runpy.run_path({str(EXAMPLES / 'smart.py')!r}, run_name='__main__')")
    assert ended.code == 0, ended
    lines = ended.out.splitlines()
    target = str([["1.0"] * 6, ["value-0", "value-1", "xxx"], ["value-0", "value-1", "xxx"]])
    assert lines.count(target) == 2
    assert "smart stage 'automatic': 4 of 5 nodes staged, in 1 level" in lines
    assert "smart stage 'extended': 3 of 4 nodes staged, in 1 level" in lines
    assert lines.count("not staged make_target: is a marked target") == 2
