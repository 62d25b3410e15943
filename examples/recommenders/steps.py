"""How a step runs: eagerly, compiled by Inductor, or compiled whole for this engine."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .training import Trainer

STEPS = ("eager", "inductor", "engine")


class NotThere(RuntimeError):
    """A way to run steps that this installation lacks."""


def step_of(way: str, trainer: Trainer, **options: Any) -> Callable[[Any], Any]:
    """The step of the trainer. What prepares the batch stays eager, so that a stage can run it ahead.

    ``options``: of ``engine.torch.compile_step``. NotThere if this installation has no such function.
    """
    if way == "eager":
        return trainer.step
    if way == "inductor":
        model_loss = torch.compile(trainer.model.loss)

        def loss_and_step(inputs: Any, label: Any) -> Any:
            return trainer.train(inputs, label, model_loss)

        run: Callable[..., Any] = loss_and_step
    elif way == "engine":
        import engine.torch

        compile_step = getattr(engine.torch, "compile_step", None)
        if compile_step is None:
            raise NotThere("engine.torch has no compile_step here")
        run = compile_step(trainer.train, **({"options": options} if options else {}))
    else:
        raise ValueError(f"step '{way}' is unknown; {', '.join(STEPS)} are allowed")

    def step(batch: Any) -> Any:
        from engine.torch import plain

        return run(*plain(trainer.prepare(batch)))

    return step
