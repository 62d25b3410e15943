"""The three whole programs of examples/programs: each way has the same results."""

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
