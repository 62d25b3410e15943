"""The same training through the engine: every kernel is an op, and the Vars it names are all the scheduling there is.

A Var stands for each buffer that kernels share. Nothing below says what may run beside what: the engine finds that
lookups of four tables, both chunks of a step and weight updates overlap, and that a step's first layer waits for the update
of the step before. The training step is hybridized: recorded once, then replayed as a plan whose Vars order it among the
rest. SmartStage finds that reading and parsing the chunks does not depend on the model, and runs it ahead.
"""

import collections
import itertools

import numpy as np

import data
import engine
import model
import serial

AHEAD = 4  # steps that are pushed before the first of them has ended
CUT = {"capacity": 3, "profile_steps": 4, "guard_steps": 16, "name": "flights"}
CUT_QUICK = {**CUT, "profile_steps": 2, "guard_steps": 0}  # too few steps to compare


@engine.op
def read(source, chunk):
    return data.read(source, chunk)


@engine.op
def parse(source, text):
    return data.parse(source, text)[0]


@engine.op(updates="slot")
def take(slot, rows):
    """Puts a parsed chunk where the step looks for it."""
    slot[0] = rows


class WorkVars:
    """The Vars of one Work, named after its buffers."""

    def __init__(self, layers, shard):
        var = lambda name: engine.Var(f"{name}.{shard}")
        self.next_rows = [None]  # the chunk of the step to come
        self.chunk = engine.value(self.next_rows, name=f"chunk.{shard}")
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
        self.testers = [(model.Work(self.model), engine.Var(f"tester{i}")) for i in range(2)]
        self.total = engine.Var("total")
        self.steps = {}  # by number of chunks
        cut = CUT_QUICK if limit else CUT
        self.staged = engine.data.smart_stage(self.input_and_step, self.chunks(serial.SHARDS), **cut)
        # An epoch that ends with a step of fewer chunks: too seldom to run ahead.
        rest = source.chunks % serial.SHARDS if limit is None else limit % serial.SHARDS
        self.whole = engine.data.smart_stage(self.input_and_step, self.chunks(rest), do_smart_stage=False)
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
        for chunks in serial.epoch_order(self.source, epoch, self.limit):
            (self.staged if len(chunks) == serial.SHARDS else self.whole).step()
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

    def chunks(self, count):
        """The chunks of all steps that have so many, epoch after epoch."""
        for epoch in itertools.count():
            for chunks in serial.epoch_order(self.source, epoch, self.limit):
                if len(chunks) == count:
                    yield chunks.tolist()

    def input_and_step(self, *chunks):
        for shard, chunk in enumerate(chunks):
            take(self.vars[shard].chunk, parse(self.source, read(self.source, chunk)))
        self.step(len(chunks))()

    def counters(self):
        """For the progress bar: whether input is read ahead at the moment, and how far."""
        stats = self.staged.stats()
        stage = stats["stage"]
        if stage:
            return f"read {stats['read']}, {stage['fill']} steps ahead, waited {stage['consumer_wait'] * 1e3:.0f} ms for it"
        return f"read {stats['read']}, with their steps" + ("" if self.staged.report["decided"] else ", timed")

    def step_gradient(self, shard):
        m, work, v = self.model, self.works[shard], self.vars[shard]

        def op(name, kernel, *args, reads=(), **sets):
            engine.push(lambda: kernel(*args), name=name, reads=[v.rows, *reads], priority=1, **sets)

        engine.push(lambda: work.begin(v.next_rows[0]), name="begin", reads=[v.chunk], writes=[v.rows], priority=1)
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
