"""The same training through the engine: every kernel is an op, and the Vars it names are all the scheduling there is.

A Var stands for each buffer that kernels share. Nothing below says what may run beside what: the engine finds that
lookups of four tables, both chunks of a step, weight updates and the reading and parsing of later chunks overlap, and
that a step's first layer waits for the update of the step before. The training step is hybridized: recorded once, then
replayed as a plan whose Vars order it among the rest.
"""

import collections

import numpy as np

import data
import engine
import model
import serial

AHEAD = 4  # steps whose chunks are read and parsed before their turn


class Input:
    """A parsed chunk waiting for its step. A ring of them bounds how far reading runs ahead."""

    def __init__(self, slot):
        self.text = self.rows = None
        self.text_var, self.rows_var = engine.Var(f"text{slot}"), engine.Var(f"rows{slot}")


class WorkVars:
    """The Vars of one Work, named after its buffers."""

    def __init__(self, layers, shard):
        var = lambda name: engine.Var(f"{name}.{shard}")
        self.chunk, self.next_rows = var("chunk"), None  # the chunk of the step to come
        self.rows = var("rows")  # also stands for the cut of all buffers to this chunk's rows
        self.x = [var(f"x{v}") for v in range(model.VECTORS)]
        self.dx = [var(f"dx{v}") for v in range(model.VECTORS)]
        self.dots, self.ddots = var("dots"), var("ddots")
        self.out = [var(f"out{i}") for i in range(layers)]
        self.dout = [var(f"dout{i}") for i in range(layers)]
        self.dw = [var(f"dw{i}") for i in range(layers)]
        # The bottom's last layer works in place, in vector 0 of the top's input.
        self.out[model.BOTTOM_LAYERS[-1]], self.dout[model.BOTTOM_LAYERS[-1]] = self.x[0], self.dx[0]

    def inputs(self, i):
        """Vars of what layer ``i`` reads, and of the gradient it makes of that."""
        if i == model.BOTTOM_LAYERS[0]:
            return [self.rows], []
        if i == model.TOP_LAYERS[0]:
            return [*self.x, self.dots], [*self.dx, self.ddots]
        return [self.out[i - 1]], [self.dout[i - 1]]


class ThroughEngine:
    """Trains as serial.Serial does, to the same bits."""

    def __init__(self, source, test, limit=None):
        self.source, self.test, self.limit = source, test, limit
        self.model = model.Model()
        self.works = [model.Work(self.model) for _ in range(serial.SHARDS)]
        self.vars = [WorkVars(len(self.model.layers), shard) for shard in range(serial.SHARDS)]
        self.layers = [engine.Var(f"layer{i}") for i in range(len(self.model.layers))]
        self.tables = [engine.Var(f"table.{name}") for name in data.TABLES]
        self.inputs = [Input(slot) for slot in range(AHEAD * serial.SHARDS)]
        self.testers = [(model.Work(self.model), engine.Var(f"tester{i}")) for i in range(2)]
        self.total = engine.Var("total")
        self.steps = {}  # by number of chunks
        self.loss, self.rows, self.scores = 0.0, 0, []

    def epoch(self, epoch, progress=lambda: None):
        """Returns (mean training loss, test AUC)."""
        loss = self.train(epoch, progress)
        self.scores = [None] * len(self.test.pieces)
        for i, piece in enumerate(self.test.pieces):
            self.predict(i, piece)
        engine.wait(*(busy for _, busy in self.testers))
        return loss, model.auc(self.test.late, np.concatenate(self.scores))

    def train(self, epoch, progress=lambda: None):
        """Returns the mean training loss."""
        self.loss, self.rows = 0.0, 0
        running = collections.deque()
        fetched = 0
        steps = serial.epoch_order(self.source, epoch, self.limit)
        for k, chunks in enumerate(steps):
            while fetched < min(k + AHEAD, len(steps)):
                for shard, chunk in enumerate(steps[fetched]):
                    self.fetch(self.input(fetched, shard), chunk)
                fetched += 1
            for shard in range(len(chunks)):
                self.hand_over(shard, self.input(k, shard))
            self.step(len(chunks))()
            running.append(self.tally(len(chunks), progress))
            if len(running) > AHEAD:
                running.popleft().wait()  # keeps the queue short; the engine would also do with all of it at once
        engine.wait(self.total)
        return self.loss / self.rows

    def step(self, shards):
        """The training step on so many chunks: its pushes are recorded once, and replayed at every later call."""
        if shards not in self.steps:

            @engine.hybridize
            def training_step():
                for shard in range(shards):
                    self.step_gradient(shard)
                self.update(shards)

            self.steps[shards] = training_step
        return self.steps[shards]

    def input(self, step, shard):
        return self.inputs[step * serial.SHARDS % len(self.inputs) + shard]

    def fetch(self, slot, chunk):
        def read():
            slot.text = data.read(self.source, chunk)

        def parse():
            slot.rows, _ = data.parse(self.source, slot.text)

        engine.push(read, writes=[slot.text_var], place=engine.io())
        engine.push(parse, reads=[slot.text_var], writes=[slot.rows_var])

    def hand_over(self, shard, slot):
        """Puts a parsed chunk where the step looks for it: what is recorded names the same Vars every time."""
        v = self.vars[shard]

        def take():
            v.next_rows = slot.rows

        engine.push(take, reads=[slot.rows_var], writes=[v.chunk], priority=1)

    def step_gradient(self, shard):
        m, work, v = self.model, self.works[shard], self.vars[shard]

        def op(name, kernel, *args, reads=(), **sets):
            engine.push(lambda: kernel(*args), name=name, reads=[v.rows, *reads], priority=1, **sets)

        engine.push(lambda: work.begin(v.next_rows), name="begin", reads=[v.chunk], writes=[v.rows], priority=1)
        for t, table in enumerate(self.tables):
            op("lookup", model.lookup, m, work, t, reads=[table], writes=[v.x[1 + t]])
        for i in model.BOTTOM_LAYERS:
            op("forward", model.forward_layer, m, work, i, reads=[self.layers[i], *v.inputs(i)[0]], writes=[v.out[i]])
        op("interact", model.interact, work, reads=v.x, writes=[v.dots])
        for i in model.TOP_LAYERS:
            op("forward", model.forward_layer, m, work, i, reads=[self.layers[i], *v.inputs(i)[0]], writes=[v.out[i]])
        op("loss", model.loss, work, reads=[v.out[-1]], writes=[v.dout[-1]])
        for i in reversed(model.TOP_LAYERS):
            self.backward(op, work, v, i)
        op("interact", model.interact_back, work, reads=[*v.x, v.ddots], updates=v.dx)
        for i in reversed(model.BOTTOM_LAYERS):
            self.backward(op, work, v, i)

    def backward(self, op, work, v, i):
        source, gradient = v.inputs(i)
        op("backward", model.backward_layer, self.model, work, i, reads=[self.layers[i], v.out[i], *source],
           updates=[v.dout[i]], writes=[v.dw[i], *gradient])  # fmt: skip

    def update(self, shards):
        works, vs = self.works[:shards], self.vars[:shards]

        def op(kernel, index, gradients, weights):
            engine.push(lambda: kernel(self.model, works, index), name="update", priority=1,
                        reads=[*(v.rows for v in vs), *gradients], updates=[weights])  # fmt: skip

        for i, weights in enumerate(self.layers):
            op(model.update_layer, i, [v.dw[i] for v in vs], weights)
        for t, weights in enumerate(self.tables):
            op(model.update_table, t, [v.dx[1 + t] for v in vs], weights)

    def tally(self, shards, progress):
        works, vs, done = self.works[:shards], self.vars[:shards], engine.Var("step")

        def tick():
            for work in works:
                self.loss, self.rows = self.loss + work.loss, self.rows + work.n
            progress()

        losses = [v.dout[-1] for v in vs]
        engine.push(tick, reads=[*(v.rows for v in vs), *losses], updates=[self.total], writes=[done])
        return done

    def predict(self, i, rows):
        work, busy = self.testers[i % len(self.testers)]

        def test():
            self.scores[i] = model.predict(self.model, work, rows)

        engine.push(test, reads=[*self.layers, *self.tables], updates=[busy])
