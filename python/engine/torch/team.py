"""The threads that calls of PyTorch use: inside of one call (intra-op), and side by side (inter-op).

OpenMP makes a team for every thread that calls it. A stage's thread with a team as large as the step's would fight with
the step for the cores, so it gets a size of its own. ``torch.set_num_threads`` would change the size for threads that
start later, too.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import torch

_set = threading.local()  # what was set for each thread, because looking for the libraries takes a while


def set_intra_op_threads(threads: int) -> bool:
    """PyTorch's kernels use this many threads when the calling thread calls them; other threads keep their numbers.

    For threads that call PyTorch beside a step: two teams as large as the machine fight for its cores. False: OpenMP was
    not found, so nothing has changed.
    """
    if getattr(_set, "threads", 0) == threads:
        return True
    torch.get_num_threads()  # PyTorch sets up a thread at this call; later it would overwrite what is set here
    found = False
    for name, function in _setters():
        function(threads)
        found |= name == "omp_set_num_threads"
    _set.threads = threads if found else 0
    return found


class Team:
    """``threads`` that work on a list together, the calling one among them; each uses ``intra_op`` threads in a call.
    ``callers``: how many lists are worked on at once."""

    def __init__(self, threads: int, intra_op: int, callers: int = 1) -> None:
        self.threads = threads
        self._others = ThreadPoolExecutor((threads - 1) * callers, "stage-inter-op", set_intra_op_threads, (intra_op,))

    def each(self, function: Callable[[int], Any], work: list[int]) -> None:
        """Calls ``function`` with each number, and returns when all calls have."""
        begun = [
            self._others.submit(self._some, function, work[i :: self.threads])
            for i in range(1, min(self.threads, len(work)))
        ]
        self._some(function, work[:: self.threads])
        for other in begun:
            other.result()

    @staticmethod
    def _some(function: Callable[[int], Any], work: list[int]) -> None:
        for number in work:
            function(number)


@functools.cache
def _setters() -> list[tuple[str, Any]]:
    """What sets the calling thread's number, of each library, by name. Found once: a thread that looks for them has the
    interpreter's lock for milliseconds. MKL's own setting goes before OpenMP's."""
    names = ("omp_set_num_threads", "MKL_Set_Num_Threads_Local")
    libraries = map(ctypes.CDLL, _libraries())
    return [(name, getattr(library, name)) for library in libraries for name in names if hasattr(library, name)]


def _libraries() -> list[str]:
    """The OpenMP and PyTorch libraries that this process has loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            return sorted(
                set(re.findall(r"\s(/\S*lib(?:gomp|omp|iomp5|torch_cpu)[-.\w]*\.so[.\d]*)$", maps.read(), re.M))
            )
    except OSError:
        return []
