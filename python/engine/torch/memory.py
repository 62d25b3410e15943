"""Keeps the memory that tensors give back for the next step's.

A step frees all that it made, gradients of whole tables among it. The C library gives the free top of a thread's heap back
to the system, and the next step has a page fault for each 4 KiB of it: with 26 tables at a batch of 128 that was half of
a step's time, and more with workers, because each has a heap of its own."""

from __future__ import annotations

import ctypes
import functools
import os

MAPPED_FROM = 32 << 20  # bytes: the most that glibc allows; larger blocks go back to the system
MOST_KEPT = 1 << 30  # bytes at the top of a heap; gradients of a thousand tables are 640 MB
CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@functools.cache
def keep_freed_memory() -> bool:
    """Changes malloc for the whole process, at the first call, unless its environment says what malloc does. False: it has
    changed nothing, because of that or because this is no glibc."""
    if any(os.environ.get(name) for name in CHOSEN):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(library.mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM) and library.mallopt(_M_TRIM_THRESHOLD, MOST_KEPT))
