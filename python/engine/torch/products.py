"""Products of matrices by oneDNN, where that is faster than torch's own choice of a kernel.

For float32 torch calls MKL, which on processors that are not Intel's reaches half of what they can do. Which is fastest
depends on processor and form, so it is measured, once for each form, while a graph is compiled. The order in which a
kernel adds up depends on the form and not on the numbers: results that are equal to the bit for random numbers are so
for all others. A library adds up so many products, then so many more, and adds these sums; brgemm, the kernel that
oneDNN's products are made of, can be told how many, so it is found by trying how many make results equal."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from . import adapter
from .calls import Call
from .numerics import precisions
from .options import Options

FASTER = 0.9  # the share of the time of torch's kernel that another may take at most: below a tenth it is noise
LEVEL = 1.0  # the same where threads of a run can share the other, which they cannot with torch's
LEAST = 1 << 10  # multiplications: below that a call costs more than the product
LEAST_MATMUL = 1 << 18  # multiplications: below that a call of oneDNN's matmul (10 us) takes longer than MKL's product
MOST = 1 << 32  # multiplications: larger ones are not tried, because that would take seconds
WORK_TO_SHARE = 1 << 22  # multiplications: as kWorkToShare of adapter/brgemm.h
WORK = 1 << 28  # multiplications of all runs of a trial, but for the first three
DEPTHS = (192, 256, 384, 128, 320, 336, 448, 512, 96, 64)  # at which libraries cut their sums
NUMBERS = 256  # of results that must be equal: one alone may be so by chance
WHOLE = 512  # products at most that are added up without a cut
DEPTH = 256  # where results need not be equal: as many rows of b stay in the cache

aten = torch.ops.aten
TURNS = {aten.t.default, aten.transpose.int, aten.permute.default, aten.detach.default, aten.alias.default}


class Form(NamedTuple):
    """What matrices a product is of, as the adapter takes it. ``adds``: a row is added to each row, as addmm does.
    ``kept``: b is a weight that changes seldom, so a copy of it is kept in rows, as brgemm reads it."""

    adds: bool
    rows: int
    columns: int
    others: int
    a: tuple[int, int]  # strides
    b: tuple[int, int]
    kept: bool = False

    def spec(self, depth: int) -> tuple[Any, ...]:
        """For the adapter. ``depth``: of brgemm; 0: by matmul."""
        return (self.adds, self.rows, self.columns, self.others, *self.a, *self.b, self.kept, depth)

    @property
    def work(self) -> int:
        return self.rows * self.columns * self.others


class Trial(NamedTuple):
    """Seconds of torch's kernel and of another, and whether their results were equal to the bit. ``depth``: of brgemm; 0: the
    other is matmul."""

    torch: float
    other: float
    equal: bool
    depth: int = 0


def form_of(call: Call, fixed: bool = False) -> Form | None:
    """None for a call that is no product, or whose form is not known before it runs. ``fixed``: inputs change seldom."""
    if call.target is aten.addmm.default:
        added, a, b, beta, alpha = call.args
        row = _fake(added)
        if beta != 1 or alpha != 1 or row is None or row.dim() != 1 or row.dtype != torch.float32:
            return None
    elif call.target is aten.mm.default:
        (a, b), row = call.args, None
    else:
        return None
    kept = fixed and _is_input(b)
    a, b = _fake(a), _fake(b)
    for matrix in (a, b):
        if matrix is None or matrix.dim() != 2 or matrix.dtype != torch.float32 or matrix.device.type != "cpu" \
                or matrix.layout != torch.strided or not all(type(n) is int for n in (*matrix.shape, *matrix.stride())):  # fmt: skip
            return None
        if any(size > 1 and stride == 0 for size, stride in zip(matrix.shape, matrix.stride())):
            return None  # one row as many, as of a sum's gradient: no matrix of random numbers is like that
    if row is not None and row.shape[0] != b.shape[1]:
        return None
    return Form(row is not None, a.shape[0], a.shape[1], b.shape[1], a.stride(), b.stride(), kept)


def _is_input(node: Any) -> bool:
    """Whether it is an input of the program, or that turned."""
    while node.op == "call_function" and node.target in TURNS:
        node = node.args[0]
    return bool(node.op == "placeholder")


def _fake(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def product_of(call: Call, options: Options) -> tuple[Any, ...] | None:
    """What the adapter needs to make the call by another kernel; None: torch makes it."""
    if options.products == "torch" or not torch.backends.mkldnn.enabled:
        return None
    form = form_of(call, options.weights == "fixed")
    if form is None or not LEAST <= form.work <= MOST:
        return None
    trials = tried(form, options.kernel_threads, precisions()[0])
    shared = options.has_workers and form.work >= WORK_TO_SHARE
    taken = [t for t in trials if t.other <= (LEVEL if shared and t.depth else FASTER) * t.torch and (t.equal or options.products == "fast")]
    return form.spec(min(taken, key=lambda t: t.other / t.torch).depth) if taken else None


def work_of(product: tuple[Any, ...] | None) -> int:
    """How many multiplications a product of this description is."""
    return 0 if product is None else math.prod(product[1:4])


def can_be_shared(product: tuple[Any, ...] | None) -> bool:
    """Whether several threads can make a product of this description: by brgemm, which is large enough."""
    return product is not None and product[-1] > 0 and work_of(product) >= WORK_TO_SHARE


def kernel_of(product: tuple[Any, ...] | None) -> str:
    """Who makes a product of this description, for people."""
    return "" if product is None else "oneDNN's brgemm" if product[-1] else "oneDNN's matmul"


@functools.cache
def tried(form: Form, threads: int, precision: str) -> tuple[Trial, ...]:
    """The kernels on random numbers: timed with one thread, and equal only if they are with so many, and in pieces, too. Empty
    where there is no other than torch's. ``precision``: of torch's, while they are tried."""
    native = adapter.load()
    if native is None:
        return ()
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        numbers = torch.Generator()  # the program's own random numbers stay as they are
        draws = [_matrices(form, numbers) for _ in range(1 + NUMBERS // (form.rows * form.others))]

        def equal(depth: int) -> bool:
            spec = form.spec(depth)
            return all(_equal(native.compare(spec, given, 1, count)) for count in {0, 1, threads} for given in draws)

        depth = next(filter(equal, _depths(form.columns)), 0)
        runs, trials = 3 + min(17, WORK // form.work), []
        for other in [depth or min(DEPTH, form.columns), *([0] if form.work >= LEAST_MATMUL else [])]:
            found = native.compare(form.spec(other), draws[0], runs, 1)
            if found is not None:
                (theirs, _), (seconds, _) = found
                trials.append(Trial(theirs, seconds, equal(0) if other == 0 else depth > 0, other))
        return tuple(trials)


def _matrices(form: Form, numbers: torch.Generator) -> list[torch.Tensor]:
    def filled(shape: tuple[int, int], strides: tuple[int, int]) -> torch.Tensor:
        return torch.empty_strided(shape, strides).copy_(torch.randn(shape, generator=numbers))

    row = [torch.randn(form.others, generator=numbers)] if form.adds else []
    return [*row, filled((form.rows, form.columns), form.a), filled((form.columns, form.others), form.b)]


def _depths(columns: int) -> Iterator[int]:
    """Where a library may cut sums of so many products. What does not fill two blocks may be cut in halves."""
    if columns <= WHOLE:
        yield columns
    yield from (d for d in DEPTHS if d < columns)
    if columns > 64:
        yield -(-columns // 8) * 4


def _equal(found: Any) -> bool:
    """Whether both kernels have given the same bits."""
    return found is not None and torch.equal(found[0][1], found[1][1])
