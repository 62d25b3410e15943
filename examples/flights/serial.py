"""The plain run: the same kernels one after the other on the caller's thread. The engine's run is compared with it."""

import contextlib

import numpy as np

import data
import model

SHARDS = 2  # chunks a step trains on


def epoch_order(source, epoch, limit=None):
    """The chunks of each step, mixed anew every epoch, so that a step sees different weeks of the year."""
    chunks = np.random.default_rng([epoch, 17]).permutation(source.chunks)[:limit]
    return [chunks[i : i + SHARDS] for i in range(0, len(chunks), SHARDS)]


class Serial:
    """Trains epoch by epoch. ``span(name)`` is entered around every kernel (a recorder, or nothing)."""

    def __init__(self, source, test, limit=None):
        self.source, self.test, self.limit = source, test, limit
        self.model = model.Model()
        self.works = [model.Work(self.model) for _ in range(SHARDS)]
        self.span = lambda name: contextlib.nullcontext()

    def epoch(self, epoch, progress=lambda: None):
        """Returns (mean training loss, test AUC)."""
        total, rows = 0.0, 0
        for chunks in epoch_order(self.source, epoch, self.limit):
            works = self.works[: len(chunks)]
            for work, chunk in zip(works, chunks):
                self.step_gradient(work, chunk)
                total, rows = total + work.loss, rows + work.n
            self.update(works)
            with self.span("tick"):
                progress()
        scores = np.concatenate([self.predict(piece) for piece in self.test.pieces])
        return total / rows, model.auc(self.test.late, scores)

    def step_gradient(self, work, chunk):
        m, span = self.model, self.span
        with span("read"):
            text = data.read(self.source, chunk)
        with span("parse"):
            rows, _ = data.parse(self.source, text)
        work.begin(rows)
        for t in range(len(m.tables)):
            with span("lookup"):
                model.lookup(m, work, t)
        for i in model.BOTTOM_LAYERS:
            with span("forward"):
                model.forward_layer(m, work, i)
        with span("interact"):
            model.interact(work)
        for i in model.TOP_LAYERS:
            with span("forward"):
                model.forward_layer(m, work, i)
        with span("loss"):
            model.loss(work)
        for i in reversed(model.TOP_LAYERS):
            with span("backward"):
                model.backward_layer(m, work, i)
        with span("interact"):
            model.interact_back(work)
        for i in reversed(model.BOTTOM_LAYERS):
            with span("backward"):
                model.backward_layer(m, work, i)

    def update(self, works):
        for i in range(len(self.model.layers)):
            with self.span("update"):
                model.update_layer(self.model, works, i)
        for t in range(len(self.model.tables)):
            with self.span("update"):
                model.update_table(self.model, works, t)

    def predict(self, rows):
        with self.span("test"):
            return model.predict(self.model, self.works[0], rows)
