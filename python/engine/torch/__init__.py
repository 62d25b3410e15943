"""PyTorch on the engine."""

from .backend import backend
from .step import compile_step

__all__ = ["backend", "compile_step"]
