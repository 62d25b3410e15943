"""Communicators, and collectives: what the ranks of a communicator do together (docs/gpu.md).

A collective is a value that a communicator pushes:

    ranks = engine.comm.communicators([0, 1])
    ranks[0].push([engine.comm.Collective.all_reduce(gradient)], updates=[v])
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Union

from ._core import Communicator, communicator_id, communicators
from .values import Value

__all__ = ["Collective", "Communicator", "communicator_id", "communicators"]


class OnDevice(Protocol):
    """Memory of a device: an engine.DeviceArray, or a tensor of a framework on CUDA."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


Buffer = Union[OnDevice, Value[Any]]


class Collective(NamedTuple):
    """One call of a communicator, for its ``push``. Made by the functions below, whose arguments are NCCL's.

    A buffer is an ``engine.DeviceArray``, an object with ``__cuda_array_interface__`` (on CUDA; C-contiguous), or a
    Value of one, on the communicator's device. Counts follow from the buffers' sizes; shapes do not matter. dtypes:
    int8, uint8, int32, uint32, int64, uint64, float16, float32, float64. ``dtype`` says that the bytes are of another
    type, such as "bfloat16". The push itself reads address, size and dtype, and refuses what is wrong with them before
    another rank waits for it. It cannot read those of a Value that is not computed yet, and refuses that too: make the
    array first, and let ops fill it (``updates``). ``reduction``: "sum", "product", "max", "min", "average".
    """

    kind: str
    send: Buffer | None
    recv: Buffer | None
    reduction: str = "sum"
    peer: int = 0
    dtype: str | None = None

    @staticmethod
    def all_reduce(
        send: Buffer, recv: Buffer | None = None, reduction: str = "sum", *, dtype: str | None = None
    ) -> Collective:
        """``recv`` (if not given: ``send`` itself) = the reduction over all ranks of ``send``, element by element."""
        return Collective("all_reduce", send, send if recv is None else recv, reduction, 0, dtype)

    @staticmethod
    def broadcast(
        send: Buffer | None, recv: Buffer | None = None, *, root: int = 0, dtype: str | None = None
    ) -> Collective:
        """``recv`` (if not given: ``send`` itself) = ``send`` of rank ``root``; on other ranks ``send`` is not read.
        """
        return Collective("broadcast", send, send if recv is None else recv, "sum", root, dtype)

    @staticmethod
    def reduce_scatter(send: Buffer, recv: Buffer, reduction: str = "sum", *, dtype: str | None = None) -> Collective:
        """``recv`` = this rank's part of the reduction of ``send``, which holds one such part for each rank."""
        return Collective("reduce_scatter", send, recv, reduction, 0, dtype)

    @staticmethod
    def all_gather(send: Buffer, recv: Buffer, *, dtype: str | None = None) -> Collective:
        """``recv`` = every rank's ``send``, one behind the other, in the order of the ranks."""
        return Collective("all_gather", send, recv, "sum", 0, dtype)

    @staticmethod
    def send_to(send: Buffer, rank: int, *, dtype: str | None = None) -> Collective:
        """Sends to a ``recv_from`` of that rank. Ranks that exchange data put both calls in one push."""
        return Collective("send", send, None, "sum", rank, dtype)

    @staticmethod
    def recv_from(recv: Buffer, rank: int, *, dtype: str | None = None) -> Collective:
        """Receives from a ``send_to`` of that rank."""
        return Collective("recv", None, recv, "sum", rank, dtype)
