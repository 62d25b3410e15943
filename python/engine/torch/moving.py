"""Tensors on their way to a device: packed into one pinned buffer, copied once, on a stream of the stage's own.

On a machine without CUDA nothing is pinned and there are no streams; tensors are packed and copied all the same.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_ALIGNMENT = 256  # of each tensor in a packed buffer: that of an allocation on a CUDA device


class Mover:
    """Copies for one stage. ``stream_id``: 0 is a stream that all such stages share, others are their own. On the device
    that was the current one of the thread whose step ran last."""

    _streams: dict[tuple[int, int], Any] = {}  # by device and number
    _lock = threading.Lock()

    def __init__(self, stream_id: int) -> None:
        self._number, self._device = stream_id, 0
        self._steps: Any = None  # the stream of the steps; None: none has begun
        self._here = threading.local()  # in threads of the stage: loader is the stream on which the item was read

    def step(self) -> None:
        """The calling thread runs the steps."""
        if torch.cuda.is_initialized():
            self._device, self._steps = torch.cuda.current_device(), torch.cuda.current_stream()

    def _stream(self) -> Any:
        key = self._device, self._number
        with self._lock:
            if key not in self._streams:
                self._streams[key] = torch.cuda.Stream(self._device)
            return self._streams[key]

    def stream(self, ahead: bool) -> Any:
        """The block in which work for an item runs: on the stage's stream, if it runs ahead of the step. The stream's device
        is the current one inside."""
        if not (ahead and torch.cuda.is_initialized()):
            return contextlib.nullcontext()
        self._here.loader = torch.cuda.current_stream(self._device)
        return torch.cuda.stream(self._stream())

    def behind(self) -> None:
        """What this thread gives the stage's stream from here on goes behind what loader and steps have given theirs: they may have
        made, or changed, what it reads on the device."""
        if not torch.cuda.is_initialized():
            return
        mine = torch.cuda.current_stream()
        for stream in (self._here.loader, self._steps):
            if stream is not None and stream != mine:
                mine.wait_stream(stream)

    def mark(self, ahead: bool) -> Any:
        """An event behind what this thread gave its stream; None if there is no stream."""
        if not (ahead and torch.cuda.is_initialized()):
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def wait(self, event: Any, made: Any) -> None:
        """The calling thread's stream goes on behind the event. The memory is kept until that stream has used it."""
        if event is None:
            return
        stream = torch.cuda.current_stream()
        stream.wait_event(event)
        for tensor in pytree.tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                tensor.record_stream(stream)

    def packed(self, moves: list[tuple[Any, Tensor]]) -> list[Any]:
        """What each call that moves a tensor would return, by one copy for each device. Calls that change the type of
        the elements too are made as they are."""
        there: list[Any] = [None] * len(moves)
        by_device: dict[torch.device, list[int]] = {}
        for i, (node, tensor) in enumerate(moves):
            device = target(node, tensor)
            if device is None:
                there[i] = node.func(tensor, *node.args[1:], **node.kwargs)
            else:
                by_device.setdefault(device, []).append(i)
        for device, places in by_device.items():
            for i, moved in zip(places, copied([moves[i][1] for i in places], device)):
                there[i] = moved
        return there


def target(node: Any, tensor: Tensor) -> torch.device | None:
    """Where a call moves its tensor; None if it does more than that."""
    given = [*node.args[1:], *node.kwargs.values()]
    if node.name == "cuda" and not given:
        return torch.device("cuda", torch.cuda.current_device())
    devices = [torch.device(g) for g in given if isinstance(g, (str, torch.device))]
    plain = node.name == "to" and len(devices) == 1 and tensor.layout == torch.strided
    return devices[0] if plain and all(isinstance(g, (str, torch.device, bool)) for g in given) else None


def copied(tensors: list[Tensor], device: torch.device) -> list[Tensor]:
    """The tensors on the device, by one copy of one buffer, which is pinned where there is CUDA."""
    places, end = [], 0
    for tensor in tensors:
        places.append(end)
        end += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    buffer = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for place, tensor in zip(places, tensors):
        _view(buffer, place, tensor).copy_(tensor)
    there = buffer.to(device, non_blocking=True)
    return [_view(there, place, tensor) for place, tensor in zip(places, tensors)]


def _view(buffer: Tensor, place: int, like: Tensor) -> Tensor:
    """The part of the buffer that is a tensor like that one, with the strides that a copy of it alone would have."""
    part = buffer[place : place + like.numel() * like.element_size()].view(like.dtype)
    return part.as_strided(like.shape, torch.empty_like(like, device="meta").stride())
