"""The three whole programs of examples/programs: each way has the same results."""

import importlib
import importlib.util
import pathlib
import subprocess
import sys

import pytest

from conftest import environment

PROGRAMS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "programs"


@pytest.mark.parametrize("name", ["images", "embeddings", "service"])
def test_a_program_has_the_same_results_in_each_way(name):
    if name == "embeddings" and not importlib.util.find_spec("torch"):
        pytest.skip("torch is not installed")
    ended = subprocess.run([sys.executable, str(PROGRAMS / f"{name}.py"), "--quick"], capture_output=True, text=True,
                           timeout=300, env=environment())  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{name}: "), ended.stdout


def test_a_whole_program_is_judged_by_the_interval_of_its_rounds(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # the suite adds perf/
    spec = importlib.util.spec_from_file_location("perf_python", PROGRAMS.parents[1] / "perf" / "python" / "suite.py")
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    assert suite.verdict(1.01, 1.2) == "reached" and suite.verdict(0.8, 0.99) == "NOT reached"
    assert suite.verdict(0.98, 1.03).startswith("level")


def test_the_ways_of_a_program_take_turns_at_being_first(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAMS))
    compared = importlib.import_module("compared")
    first = []
    times = compared.compare("turns", {way: lambda way=way: first.append(way) for way in "abc"}, 3, lambda a, b: True)
    assert first[::3] == ["a", "b", "c", "a"] and all(len(taken) == 3 for taken in times.values())
