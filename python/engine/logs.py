"""Python's logging for what the engine reports by itself."""

from __future__ import annotations

import logging
from typing import Any

from .errors import an


def log_to(logger: str | logging.Logger | logging.LoggerAdapter[Any] = "engine") -> dict[str, Any]:
    """Hooks that log what else goes to stderr: ``engine.init(**engine.log_to("engine"))``, or as keywords of Engine.

    Errors that no wait has shown are logged as errors, with their tracebacks; reports of the watchdog as warnings. ``logger``: a name, a
    logger, or what has ``error`` and ``warning`` as loggers have; TypeError for anything else.
    """
    if not isinstance(logger, str) and not all(callable(getattr(logger, level, None)) for level in ("error", "warning")):
        raise TypeError(f"log_to: logger is {an(type(logger))}; a name or a logging.Logger is expected")
    log = logging.getLogger(logger) if isinstance(logger, str) else logger

    def unobserved(error: BaseException) -> None:
        log.error("an op failed, and nobody waited for it: %s", error, exc_info=error)

    def stalled(report: str) -> None:
        log.warning("no progress: %s", report)

    return {"on_unobserved": unobserved, "on_stall": stalled}
