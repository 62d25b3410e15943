"""Products of matrices by oneDNN, where that is faster than torch's own kernel.

For float32 torch calls MKL, which on processors that are not Intel's reaches half of what oneDNN does. Which is faster
depends on processor and form, so it is measured, once for each form, while a graph is compiled. The order in which a
kernel adds up depends on the form and not on the numbers: results that are equal to the bit for random numbers are so
for all others."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from . import adapter
from .calls import Call
from .options import Options

FASTER = 0.9  # the share of the time of torch's kernel that oneDNN's may take at most: below a tenth it is noise
LEAST = 1 << 18  # multiplications: below that a call of oneDNN (10 us) takes longer than MKL's product
MOST = 1 << 32  # multiplications: larger ones are not tried, because that would take seconds
WORK = 1 << 28  # multiplications of all runs of a trial, but for the first three

aten = torch.ops.aten


class Form(NamedTuple):
    """What matrices a product is of, as the adapter takes it. ``adds``: a row is added to each row, as addmm does."""

    adds: bool
    rows: int
    columns: int
    others: int
    a: tuple[int, int]  # strides
    b: tuple[int, int]

    @property
    def spec(self) -> tuple[Any, ...]:
        return (self.adds, self.rows, self.columns, self.others, *self.a, *self.b)

    @property
    def work(self) -> int:
        return self.rows * self.columns * self.others


class Trial(NamedTuple):
    """Seconds of torch's kernel and of oneDNN's, and whether their results were equal to the bit."""

    torch: float
    onednn: float
    equal: bool


def form_of(call: Call) -> Form | None:
    """None for a call that is no product, or whose form is not known before it runs."""
    if call.target is aten.addmm.default:
        added, a, b, beta, alpha = call.args
        row = _fake(added)
        if beta != 1 or alpha != 1 or row is None or row.dim() != 1 or row.dtype != torch.float32:
            return None
    elif call.target is aten.mm.default:
        (a, b), row = call.args, None
    else:
        return None
    a, b = _fake(a), _fake(b)
    for matrix in (a, b):
        if matrix is None or matrix.dim() != 2 or matrix.dtype != torch.float32 or matrix.device.type != "cpu" \
                or matrix.layout != torch.strided or not all(type(n) is int for n in (*matrix.shape, *matrix.stride())):  # fmt: skip
            return None
    if row is not None and row.shape[0] != b.shape[1]:
        return None
    return Form(row is not None, a.shape[0], a.shape[1], b.shape[1], a.stride(), b.stride())


def _fake(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def product_of(call: Call, options: Options) -> tuple[Any, ...] | None:
    """What the adapter needs to make the call by oneDNN; None: torch makes it."""
    if options.products == "torch" or not torch.backends.mkldnn.enabled:
        return None
    form = form_of(call)
    if form is None or not LEAST <= form.work <= MOST:
        return None
    trial = tried(form, options.intra_op_threads or torch.get_num_threads())
    if trial is None or trial.onednn > FASTER * trial.torch or not (trial.equal or options.products == "fast"):
        return None
    return form.spec


@functools.cache
def tried(form: Form, threads: int) -> Trial | None:
    """Both kernels on random numbers: timed with one thread, and equal only if they are with so many, too. None where
    there is no other than torch's."""
    native = adapter.load()
    if native is None:
        return None
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        numbers = torch.Generator()  # the program's own random numbers stay as they are
        matrices = [_filled((form.rows, form.columns), form.a, numbers), _filled((form.columns, form.others), form.b, numbers)]
        if form.adds:
            matrices.insert(0, torch.randn(form.others, generator=numbers))
        found = native.compare(form.spec, matrices, 3 + min(17, WORK // form.work), 1)
        if found is None:
            return None
        (theirs, expected), (other, got) = found
        equal = torch.equal(expected, got)
        if equal and threads > 1:
            (_, expected), (_, got) = native.compare(form.spec, matrices, 1, threads)
            equal = torch.equal(expected, got)
        return Trial(theirs, other, equal)


def _filled(shape: tuple[int, int], strides: tuple[int, int], numbers: torch.Generator) -> torch.Tensor:
    return torch.empty_strided(shape, strides).copy_(torch.randn(shape, generator=numbers))
