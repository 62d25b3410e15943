"""A small DLRM in NumPy: every kernel that training is made of, used by the serial run and through the engine.

                 late?                    dense columns -> bottom (two layers) -> vector of E
                   |                      each id -> row of its embedding table: a vector of E
      top: three layers, sigmoid          interact: the dot product of every pair of those vectors
                   |
    [bottom | embeddings | dot products]  Naumov et al., "Deep Learning Recommendation Model", 2019

A step trains on several chunks, one Work each; a kernel touches one Work, one layer or one table, and always does the
same operations in the same order. So any schedule that respects the data gives the same bits.
Shapes: n rows, E floats a vector, all float32. Kernels write into buffers that are made once.
"""

import itertools

import numpy as np

import data

E = 32
VECTORS = 1 + len(data.TABLES)  # the bottom's output, then one a table
PAIRS = list(itertools.combinations(range(VECTORS), 2))
TOP_IN = VECTORS * E + len(PAIRS)
BOTTOM = (data.DENSE, 64, E)
TOP = (TOP_IN, 128, 64, 1)
RATE = np.float32(0.01)
EPSILON = np.float32(1e-6)


class Layer:
    """y = relu(x @ w + b), or without relu; with its Adagrad sums."""

    def __init__(self, rng, fan_in, fan_out, relu):
        self.w = (rng.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)).astype(np.float32)
        self.b = np.zeros(fan_out, np.float32)
        self.w_sum, self.b_sum = np.zeros_like(self.w), np.zeros_like(self.b)
        self.relu = relu


class Table:
    """An embedding table with its Adagrad sums; only rows that a step touched are updated."""

    def __init__(self, rng, rows):
        self.w = (rng.standard_normal((rows, E)) * 0.05).astype(np.float32)
        self.sum = np.zeros_like(self.w)


class Model:
    """All weights, from one seed."""

    def __init__(self, seed=2013):
        rng = np.random.default_rng(seed)
        sizes = [(pair, True) for pair in zip(BOTTOM, BOTTOM[1:])] + [(pair, True) for pair in zip(TOP, TOP[1:])]
        self.layers = [Layer(rng, *pair, relu and pair[1] > 1) for pair, relu in sizes]
        self.tables = [Table(rng, data.TABLE_ROWS[name]) for name in data.TABLES]

    def arrays(self):
        """Every array that training changes, in a fixed order."""
        for layer in self.layers:
            yield from (layer.w, layer.b, layer.w_sum, layer.b_sum)
        for table in self.tables:
            yield from (table.w, table.sum)


BOTTOM_LAYERS = range(0, len(BOTTOM) - 1)
TOP_LAYERS = range(len(BOTTOM) - 1, len(BOTTOM) + len(TOP) - 2)


class Work:
    """Activations and gradients of one chunk, in buffers for ``rows`` flights; ``begin`` cuts them to a chunk."""

    def __init__(self, model, rows=data.ROWS):
        widths = [layer.w.shape[1] for layer in model.layers]
        empty = lambda *shape: np.zeros(shape, np.float32)  # zeros: touched pages, so that no run pays for them
        self._full = {
            "x": empty(rows, TOP_IN),
            "dx": empty(rows, TOP_IN),
            "scratch": empty(rows, E),
            "out": [empty(rows, width) for width in widths],
            "dout": [empty(rows, width) for width in widths],
        }
        self.dw = [np.zeros_like(layer.w) for layer in model.layers]
        self.db = [np.zeros_like(layer.b) for layer in model.layers]
        self.loss = 0.0

    def begin(self, rows):
        """Takes the parsed ``rows`` in; everything below then has their number of rows."""
        n = len(rows.late)
        self.n, self.rows = n, rows
        for name, buffer in self._full.items():
            setattr(self, name, [b[:n] for b in buffer] if isinstance(buffer, list) else buffer[:n])
        self.out[BOTTOM_LAYERS[-1]], self.dout[BOTTOM_LAYERS[-1]] = self.vector(self.x, 0), self.vector(self.dx, 0)

    @staticmethod
    def vector(x, v):
        return x[:, v * E : (v + 1) * E]


def _inputs(work, i):
    """What layer ``i`` reads, and where the gradient of that goes (None: nobody needs it)."""
    if i == BOTTOM_LAYERS[0]:
        return work.rows.dense, None
    if i == TOP_LAYERS[0]:
        return work.x, work.dx
    return work.out[i - 1], work.dout[i - 1]


def forward_layer(model, work, i):
    layer, out = model.layers[i], work.out[i]
    np.matmul(_inputs(work, i)[0], layer.w, out=out)
    np.add(out, layer.b, out=out)
    if layer.relu:
        np.maximum(out, 0, out=out)


def lookup(model, work, t):
    """Embedding vectors of table ``t`` into their place in the top's input."""
    work.vector(work.x, 1 + t)[...] = model.tables[t].w.take(work.rows.ids[t], axis=0)


def interact(work):
    for column, (i, j) in enumerate(PAIRS, VECTORS * E):
        np.einsum("ne,ne->n", work.vector(work.x, i), work.vector(work.x, j), out=work.x[:, column])


def predict(model, work, rows):
    """Logits of ``rows``: a whole forward pass as one kernel, for the test set."""
    work.begin(rows)
    for t in range(len(model.tables)):
        lookup(model, work, t)
    for i in BOTTOM_LAYERS:
        forward_layer(model, work, i)
    interact(work)
    for i in TOP_LAYERS:
        forward_layer(model, work, i)
    return work.out[-1][:, 0].copy()


def loss(work):
    """Sum of the binary cross-entropy of the chunk, and its gradient by the logits."""
    logit, late = work.out[-1][:, 0], work.rows.late
    shrunk = np.exp(-np.abs(logit))
    work.loss = float(np.sum(np.maximum(logit, 0) - logit * late + np.log1p(shrunk), dtype=np.float64))
    probability = np.where(logit >= 0, 1, shrunk) / (1 + shrunk)
    np.subtract(probability, late, out=work.dout[-1][:, 0])


def backward_layer(model, work, i):
    layer, dout = model.layers[i], work.dout[i]
    x, dx = _inputs(work, i)
    if layer.relu:
        np.multiply(dout, work.out[i] > 0, out=dout)
    np.matmul(x.T, dout, out=work.dw[i])
    np.sum(dout, axis=0, out=work.db[i])
    if dx is not None:
        np.matmul(dout, layer.w.T, out=dx)


def interact_back(work):
    """Adds the dot products' gradient to that of the vectors."""
    for column, (i, j) in enumerate(PAIRS, VECTORS * E):
        slope = work.dx[:, column : column + 1]
        for to, other in ((i, j), (j, i)):
            np.multiply(slope, work.vector(work.x, other), out=work.scratch)
            np.add(work.vector(work.dx, to), work.scratch, out=work.vector(work.dx, to))


def _adagrad(weights, sums, gradient):
    """Duchi et al., 2011: each weight's step shrinks with the gradients that it has seen. Returns the new two."""
    sums = sums + gradient * gradient
    return weights - RATE * gradient / (np.sqrt(sums) + EPSILON), sums


def update_layer(model, works, i):
    layer, scale = model.layers[i], np.float32(1 / sum(work.n for work in works))
    layer.w[...], layer.w_sum[...] = _adagrad(layer.w, layer.w_sum, sum(work.dw[i] for work in works) * scale)
    layer.b[...], layer.b_sum[...] = _adagrad(layer.b, layer.b_sum, sum(work.db[i] for work in works) * scale)


def update_table(model, works, t):
    table, scale = model.tables[t], np.float32(1 / sum(work.n for work in works))
    rows, place = np.unique(np.concatenate([work.rows.ids[t] for work in works]), return_inverse=True)
    gradient = np.zeros((len(rows), E), np.float32)
    np.add.at(gradient, place, np.concatenate([work.vector(work.dx, 1 + t) for work in works]))
    table.w[rows], table.sum[rows] = _adagrad(table.w[rows], table.sum[rows], gradient * scale)


def auc(late, score):
    """Area under the ROC curve, ties counted half (Mann-Whitney)."""
    levels, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    positive = late > 0
    ones = positive.sum()
    return (rank[positive].sum() - ones * (ones + 1) / 2) / (ones * (len(late) - ones))
