"""The options of engine.torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Mapping

import torch

import engine

from .. import _core
from .modes import WORKERS

POLICIES = ("cost_model", "threaded", "inline", "naive")
PARTITIONS = ("default", "min_cut", "inductor")
WEIGHTS = ("change", "fixed")
PRODUCTS = ("exact", "fast", "torch")


@dataclass(frozen=True)
class Options:
    """``policy``: of runs with workers. ``workers``: threads of such a run, the caller's among them; None: one a core.
    ``intra_op_threads``: of torch's kernels when the caller runs the nodes alone; None: torch.get_num_threads().
    ``partition``: which values forward keeps for backward: "default" those that eager keeps, "min_cut" computes again what is
    cheap; "inductor", of compile_step: the whole step compiled by Inductor is one of the modes. ``products``: of matrices, by
    oneDNN where that is faster than torch's own kernel: "exact" if the results are equal to the bit, "fast" also if they differ
    in the last bits, "torch" never. ``weights``: "fixed" keeps copies of a model's matrices in rows, as brgemm reads them.
    ``keep_freed_memory``: False: the first compiled model or step does not tell malloc to keep what tensors free, which it does
    for the whole process (memory.py). ``capture_step``: False: compile_step runs eagerly."""

    policy: str = "cost_model"
    workers: int | None = None
    intra_op_threads: int | None = None
    partition: str = "default"
    products: str = "exact"
    weights: str = "change"
    keep_freed_memory: bool = True
    capture_step: bool = True

    @property
    def team(self) -> int:
        return self.workers or _core.default_workers()

    @property
    def kernel_threads(self) -> int:
        """Of torch's kernels when the caller runs the nodes alone."""
        return self.intra_op_threads or torch.get_num_threads()

    @property
    def has_workers(self) -> bool:
        return self.team > 1 and self.policy in ("cost_model", "threaded")

    @property
    def warm(self) -> str | None:
        """The mode in which calls do not count at first, because cost_model measures nodes in them."""
        return WORKERS if self.policy == "cost_model" else None


def options_of(given: Mapping[str, Any] | None, **defaults: Any) -> Options:
    """engine.UsageError, with what is allowed, for a name or a value that is none."""
    named = {f.name for f in fields(Options)}
    for name in given or {}:
        if name not in named:
            raise engine.errors.UsageError(f"engine.torch: no option '{name}'; there are {', '.join(sorted(named))}")
    options = Options(**{**defaults, **(given or {})})
    _one_of("policy", options.policy, POLICIES)
    _one_of("partition", options.partition, PARTITIONS)
    _one_of("products", options.products, PRODUCTS)
    _one_of("weights", options.weights, WEIGHTS)
    for name in ("workers", "intra_op_threads"):
        value = getattr(options, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 256):
            raise engine.errors.UsageError(f"engine.torch: {name} is {value!r}; None, or 1 to 256, is allowed")
    for name in ("keep_freed_memory", "capture_step"):
        if not isinstance(getattr(options, name), bool):
            raise engine.errors.UsageError(f"engine.torch: {name} is {getattr(options, name)!r}; True or False is allowed")
    return options


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise engine.errors.UsageError(f"engine.torch: {name} is {value!r}; {', '.join(allowed)} are allowed")
