"""MXNet 1.9.1 on this engine: its programs as they are, with another engine below them (docs/mxnet.md).

    import engine.mxnet                 # before mxnet
    engine.mxnet.init(workers=2)        # or nothing: MXNet's own environment variables say how many
    import mxnet as mx

    with engine.trace("step.json"):     # MXNet's ops, by name
        train_one_step()
        mx.nd.waitall()
"""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys
from typing import Any, NamedTuple

from . import _core
from .errors import UsageError

__all__ = ["Failure", "active", "counts", "failures", "init"]

VERSION = "1.9.1"


class Failure(NamedTuple):
    """A function of MXNet that threw: its op, the text, how many ops were skipped for it, whether a wait raised it."""

    op: str
    text: str
    skipped: int
    raised: bool


def init(**options: Any) -> None:
    """Makes the default engine for MXNet, with options of ``engine.init``; before anything has used the engine.

    ``workers`` and the other options come from MXNet's variables where they are not given:
    MXNET_CPU_WORKER_NTHREADS (1), MXNET_CPU_PRIORITY_NTHREADS (4), MXNET_ENGINE_TYPE. UsageError if there is a
    default engine already, or for an option that is not allowed.
    """
    _core._mxnet_init(**options)


def active() -> bool:
    """Whether MXNet runs on this engine: it asks for one when it is first used."""
    return _core._mxnet_active()


def counts() -> dict[str, int]:
    """How many functions of MXNet ``failed``; ops ``skipped`` for that; failures ``dropped`` beside one that waitall
    raised; and ``unlisted``: beyond the 64 that waitall can raise, which it clears like the others."""
    return _core._mxnet_counts()


def failures() -> list[Failure]:
    """The last 64 failures of MXNet's ops, also those that MXNet itself never shows: of ops that write nothing."""
    return [Failure(*entry) for entry in _core._mxnet_log()]


def _check_wheel() -> None:
    """Refuses what would fail in a way that nobody understands."""
    if "mxnet" in sys.modules:
        raise UsageError("import engine.mxnet before mxnet: it is imported already, and keeps its own engine")
    spec = importlib.util.find_spec("mxnet")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"engine.mxnet: mxnet {VERSION} is not installed; pip install mxnet=={VERSION}", name="mxnet"
        )
    folder = pathlib.Path(spec.origin).parent
    try:
        libinfo = (folder / "libinfo.py").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^__version__ = [\"'](.*)[\"']", libinfo, re.M)
        library = (folder / "libmxnet.so").open("rb").read(4)
    except OSError as error:
        raise UsageError(f"engine.mxnet: the mxnet in {folder} is broken: {error}; install it again") from error
    if found is None or found[1] != VERSION:
        version = found[1] if found else "of an unknown version"
        raise UsageError(f"engine.mxnet: the mxnet in {folder} is {version}; {VERSION} is what this engine knows")
    if library != b"\x7fELF":
        raise UsageError(
            f"engine.mxnet: the mxnet in {folder} is broken: libmxnet.so is no library; install it again"
        )


_check_wheel()
_core._mxnet_load()
