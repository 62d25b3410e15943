"""How a step runs: eagerly, with a model compiled by Inductor, or compiled as a whole for this engine."""

from __future__ import annotations

from typing import Any, Callable

import torch

import engine.torch

from .training import Trainer

STEPS = ("eager", "inductor", "engine")


def step_of(way: str, trainer: Trainer, **options: Any) -> Callable[[Any], Any]:
    """The trainer's step, run in the given way. The batch is prepared eagerly, so that a stage can do that ahead.

    ``options``: of ``engine.torch.compile_step``.
    """
    if way == "eager":
        return trainer.step
    if way == "inductor":
        model_loss = torch.compile(trainer.model.loss)

        def loss_and_step(inputs: Any, label: Any) -> Any:
            return trainer.train(inputs, label, model_loss)

        run: Callable[..., Any] = loss_and_step
    elif way == "engine":
        run = engine.torch.compile_step(trainer.train, options=options)
    else:
        raise ValueError(f"step '{way}' is unknown; {', '.join(STEPS)} are allowed")

    def step(batch: Any) -> Any:
        return run(*engine.torch.plain(trainer.prepare(batch)))  # a compiled function wants plain tensors

    setattr(step, "runs", run)  # for who wants to know how it runs
    return step
