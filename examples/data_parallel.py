"""Data-parallel SGD on two devices: what an MXNet program does with a KVStore.

Each rank has a copy of the weights and half of the rows. A layer's gradients are averaged over the ranks while those of the
layers below are still being computed: a collective is an op, and waits for its own gradient only.

    python examples/data_parallel.py
"""

import numpy as np

import engine
from engine.comm import Collective

RANKS, STEPS, RATE, SIZES = 2, 40, 0.2, (12, 16, 8, 1)
rng = np.random.default_rng(7)
rows = rng.normal(size=(64, SIZES[0]))
targets = np.tanh(rows @ rng.normal(size=(SIZES[0], 1)))
start = [rng.normal(size=shape) / shape[0] ** 0.5 for shape in zip(SIZES, SIZES[1:])]


@engine.op
def forward(x, w):
    return np.tanh(x @ w)


@engine.op
def loss_gradient(y, target):
    return 2 * (y - target) / len(y)


@engine.op(updates="gradient", outputs=1)
def backward(gradient, x, w, y, dy):
    """Fills the layer's gradient, on the device, and returns that of its input."""
    dz = dy * (1 - y**2)
    gradient.from_host(x.T @ dz)
    return dz @ w.T


@engine.op(updates="w")
def sgd(w, gradient):
    w -= RATE * gradient.to_host()


with engine.Engine(devices=["software"] * RANKS) as eng:
    comms = engine.comm.communicators(range(RANKS), name="data", engine=eng)
    x = [engine.value(part, engine=eng) for part in np.split(rows, RANKS)]
    target = np.split(targets, RANKS)
    weights = [[engine.value(w.copy(), engine=eng) for w in start] for _ in comms]
    gradients = [[engine.value(engine.DeviceArray(w, r, eng), engine=eng) for w in start] for r in range(RANKS)]
    for _ in range(STEPS):
        for r, comm in enumerate(comms):
            layers = [x[r]]
            for w in weights[r]:
                layers.append(forward(layers[-1], w))
            dy = loss_gradient(layers[-1], target[r])
            for i in reversed(range(len(start))):
                dy = backward(gradients[r][i], layers[i], weights[r][i], layers[i + 1], dy)
                comm.push(Collective.all_reduce(gradients[r][i], reduction="average"), name=f"average {i}")
        for r in range(RANKS):
            for w, gradient in zip(weights[r], gradients[r]):
                sgd(w, gradient)
    trained = [[w.get() for w in rank] for rank in weights]


def run(w):
    """All layers' outputs, in one process and by hand."""
    layers = [rows]
    for one in w:
        layers.append(np.tanh(layers[-1] @ one))
    return layers


serial = [w.copy() for w in start]
for _ in range(STEPS):
    layers = run(serial)
    dy = 2 * (layers[-1] - targets) / len(rows)
    for i in reversed(range(len(serial))):
        dz = dy * (1 - layers[i + 1] ** 2)
        dy = dz @ serial[i].T
        serial[i] -= RATE * layers[i].T @ dz
assert all(np.array_equal(a, b) for a, b in zip(*trained)), "the ranks have drifted apart"
assert all(np.allclose(a, b) for a, b in zip(trained[0], serial))
loss = [float(np.mean((run(w)[-1] - targets) ** 2)) for w in (start, trained[0])]
print(
    f"mean squared error {loss[0]:.2f}, after {STEPS} steps {loss[1]:.3f}; both ranks agree, and so does serial SGD"
)
