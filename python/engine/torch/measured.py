"""Measures calls of a compiled graph, forward and, where there is one, backward, for the choice of a mode."""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .modes import EAGER, Choice

clock = time.perf_counter
TWICE = "its gradients are differentiated (create_graph=True), which programs of torch's AOTAutograd do not support"


class Measured:
    """One call: its forward, and what comes of it. A call's cost is told when its backward has ended, or, if there was
    none, when the next call begins."""

    def __init__(self, choice: Choice, mode: str) -> None:
        self.choice, self.mode = choice, mode
        self.seconds = 0.0
        self.backward = 0.0  # when it began; 0: not yet
        self.told = False

    def forward(self, call: Any, args: tuple[Any, ...]) -> Any:
        begin = clock()
        result = call(*args)
        self.seconds = clock() - begin
        waits = False
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(self._begins)
                waits = True
        if not waits:
            self.tell()
        return result

    def _begins(self, _: torch.Tensor) -> None:
        if self.backward or self.told:
            return
        if self.mode == EAGER and torch.is_grad_enabled():  # the graph of the backward pass is made, too
            self.choice.hold(EAGER, TWICE)
            warnings.warn(f"engine.torch: a model under torch.compile runs eagerly: {TWICE}", stacklevel=2)
        self.backward = clock()
        torch.autograd.Variable._execution_engine.queue_callback(self._ends)  # type: ignore[attr-defined]

    def _ends(self) -> None:
        self.seconds += clock() - self.backward
        self.tell()

    def tell(self) -> None:
        if not self.told:
            self.told = True
            self.choice.add(self.mode, self.seconds)
