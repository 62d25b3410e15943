"""Watching an engine while it runs: its counters, Prometheus, a live table."""

from __future__ import annotations

from .watching import Live, live
from .counters import Metrics, metrics

__all__ = ["Live", "Metrics", "live", "metrics"]
