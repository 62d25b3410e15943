"""Interpreters that the engine refuses: sub-interpreters, whose threads it cannot serve, and those without a GIL."""

from __future__ import annotations

import importlib
import sys


def refuse_sub_interpreter() -> None:
    """ImportError in a sub-interpreter."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # 3.13, and before
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        current, main = interpreters.get_current(), interpreters.get_main()
        if (current[0] if isinstance(current, tuple) else current) != (main[0] if isinstance(main, tuple) else main):
            raise ImportError("engine: this is a sub-interpreter; the engine's threads serve the main interpreter only, so "
                              "import and use engine there")  # fmt: skip
        return


def refuse_missing_gil() -> None:
    """ImportError if the GIL is forced off. On a free-threaded Python, loading the extension turns it on, unless PYTHON_GIL or -X gil
    says otherwise."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError("engine: the GIL is forced off by PYTHON_GIL=0 or -X gil=0, and the extension counts on it; leave that "
                          "out, then importing engine turns the GIL on")  # fmt: skip
