"""Sub-interpreters: the engine's threads serve the main interpreter only."""

from __future__ import annotations

import importlib


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
