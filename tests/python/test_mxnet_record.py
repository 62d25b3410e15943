"""The record of MXNet's own tests (tests/mxnet/theirs/record.py): what its sum says."""

import importlib.util
import pathlib

_PATH = pathlib.Path(__file__).resolve().parent.parent / "mxnet/theirs/record.py"
_SPEC = importlib.util.spec_from_file_location("record", _PATH)
record = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(record)


def run(file, lost=(), clean=True, commit="1234567"):
    return {"file": file, "commit": commit, "theirs_passed": 10, "lost": list(lost), "clean": clean}


def test_files_stand_by_the_number_of_their_runs():
    table = record.table([run("engine")] * 3 + [run("autograd"), run("gluon"), run("gluon")] + [run("kvstore")] * 5,
                         ["autograd", "engine", "gluon", "kvstore", "operator"])  # fmt: skip
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:6]]
    assert rows == [
        ["3 or more", "2: engine, kvstore", "20", "0", "0", "0"],
        ["2", "1: gluon", "10", "0", "0", "0"],
        ["1", "1: autograd", "10", "0", "0", "0"],
        ["0", "1: operator", "", "", "", ""],
    ]
    assert "11 runs of files, of the engine at 1234567." in table


def test_a_lost_test_and_an_unclean_end_stay_in_the_sum_behind_runs_that_kept_it():
    table = record.table([run("engine", ["test_engine.py::test_bulk"], clean=False, commit="abcdef0"), run("engine"), run("engine")],
                         ["engine"])  # fmt: skip
    assert "| 3 or more | 1: engine | 10 | 1 | 0 | 1 |" in table
    assert "- lost at abcdef0: `test_engine.py::test_bulk`" in table


def test_why_a_test_is_unsteady_on_both_engines_is_told_where_it_was_lost():
    test = "test_gluon_data.py::test_multi_worker_dataloader_release_pool"
    table = record.table([run("gluon_data", [test])], ["gluon_data"])
    assert f"- lost at 1234567: `{test}`: on both engines, now and then: Python's Pool.terminate hangs" in table


def test_tests_that_differ_on_purpose_are_counted_also_where_a_line_does_not_say_it():
    says = run("profiler") | {"on_purpose": ["a", "b"]}
    does_not_say = run("profiler", lost=["c"]) | {"passed": 6}
    assert "| 1 | 1: profiler | 10 | 0 | 2 | 0 |" in record.table([says], ["profiler"])
    assert "| 2 | 1: profiler | 10 | 1 | 3 | 0 |" in record.table([says, does_not_say], ["profiler"])
    assert "| 1 | 1: engine | 10 | 0 | 0 | 0 |" in record.table([run("engine") | {"passed": 6}], ["engine"])


def test_the_commit_with_most_files_run_three_times_is_named():
    rows = [run("engine", commit="aaa")] * 2 + [run(name, commit="bbb") for name in ("engine", "gluon", "attr") * 3] + [run("attr", commit="ccc")] * 9
    assert "Most at one commit: 3 runs of 3 of the files, at bbb." in record.table(rows, ["attr", "engine", "gluon"])
    assert "Most at one commit" not in record.table(rows[:2], ["engine"])


def test_a_new_line_is_behind_those_that_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "LINES", tmp_path / "record.jsonl")
    assert record.rows() == []
    for row in (run("engine"), run("gluon")):
        record.add(**row)
    assert record.rows() == [run("engine"), run("gluon")]
