"""Checkpoints: everything that the next step depends on, in one file that is either complete or not there."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import torch

from .training import Trainer


def save(path: pathlib.Path, trainer: Trainer, position: int, about: dict[str, Any]) -> None:
    """``position``: how many batches were trained with. ``about``: what must be the same when training goes on."""
    part = path.with_name(path.name + ".part")
    torch.save({"trainer": trainer.state(), "position": position, "about": about}, part)
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(path)


def load(path: pathlib.Path, trainer: Trainer, about: dict[str, Any]) -> int:
    """Puts the trainer where the checkpoint is, and returns its position. ValueError if it is of another training. What was saved on
    a device that is not here is read all the same; the trainer moves everything to its own."""
    found = torch.load(path, weights_only=True, map_location="cpu")
    for name, value in about.items():
        if name not in found["about"]:
            raise ValueError(f"{path}: does not say its {name}: an older version wrote it, and no training goes on from it")
        if found["about"][name] != value:
            raise ValueError(
                f"{path}: is of a training with {name} {found['about'][name]!r}; this one has {value!r}"
            )
    trainer.load(found["trainer"])
    return int(found["position"])
