"""PyTorch on the engine."""

from .backend import backend

__all__ = ["backend"]
