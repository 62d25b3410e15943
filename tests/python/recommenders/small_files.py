"""What the tests of the recommenders share: the example's package, small files of each kind, kernels on one thread.

Not a conftest.py, because the tests of the folder above import theirs by that name.
"""

import pathlib
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: it is optional")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: it is optional")

import torch  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples"))

from recommenders import generate, schema  # noqa: E402

SCALE = 0.001  # of the real cardinalities
PATIENCE = 20  # seconds; reached only when something hangs


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of each data set and format, with rows that are malformed and numbers that are unknown: (name, suffix) -> path."""
    folder, made = tmp_path_factory.mktemp("recommenders"), {}
    for name in ("criteo", "taobao", "amazon"):
        for suffix in ("parquet", "csv"):
            made[name, suffix] = folder / f"{name}.{suffix}"
            generate.write(schema.DATASETS[name](SCALE), made[name, suffix], 900, malformed=0.01, unknown=0.01)
    return made


@pytest.fixture(autouse=True)
def one_thread():
    """Each kernel on one thread: the same sums in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
