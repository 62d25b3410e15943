"""Scratch memory of MXNet's ops, with its wheel: it is the running thread's."""

import pytest
from test_mxnet import run, wheel  # noqa: F401

BRANCHES = """
import mxnet as mx
from mxnet.gluon import nn
class Branches(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.branches = [nn.Dense(8) for _ in range(8)]
        for i, branch in enumerate(self.branches): setattr(self, f"branch{i}", branch)
    def hybrid_forward(self, F, x):
        return F.concat(*[branch(x) for branch in self.branches], dim=1)
net = Branches()
net.initialize(); net.hybridize(**({"static_alloc": True, "static_shape": True} if STATIC else {}))
"""


@wheel
@pytest.mark.parametrize("env, waits", [({}, False), ({"ENGINE_MXNET_SCRATCH": "shared", "MXNET_CPU_TEMP_COPY": "4"}, True)])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_branches_do_not_wait_for_each_others_scratch_memory(run, workers, static, env, waits):
    run(f"STATIC = {static}" + BRANCHES + f"""
x = mx.nd.ones((4, 4))
net(x).wait_to_read()
with engine.trace() as trace:
    engine.stop()  # so that all are pending at once
    y = net(x)
    engine.start()
    y.wait_to_read()
products = {{event.op for event in trace.events if event.name == "FullyConnected"}}
assert len(products) == 8, trace.events
behind = [event for event in trace.events if event.op in products and products & set(event.after)]
assert bool(behind) == {waits}, behind
""", MXNET_CPU_WORKER_NTHREADS=str(workers), MXNET_EXEC_BULK_EXEC_INFERENCE="0", **env)


@wheel
@pytest.mark.parametrize("static", [False, True])
def test_readers_of_one_array_at_once_see_the_values_of_the_serial_program(run, static):
    run(f"STATIC = {static}" + BRANCHES + """
import numpy as np
random = np.random.RandomState(1)
for _ in range(100):
    x = random.rand(16, 4).astype("float32")
    y = net(mx.nd.array(x)).asnumpy()       # all branches read x, which nobody has read before
    one_by_one = [np.dot(x, b.weight.data().asnumpy().T) + b.bias.data().asnumpy() for b in net.branches]
    assert np.allclose(y, np.concatenate(one_by_one, axis=1), atol=1e-5)
""", MXNET_CPU_WORKER_NTHREADS="4")


@wheel
def test_functions_that_run_at_once_have_scratch_memory_of_their_own(run):
    run("""
import mxnet as mx, numpy as np
random = np.random.RandomState(1)
xs = [random.rand(n, 50).astype("float32") for n in range(20, 60)]
for _ in range(10):
    sorted_ = [mx.nd.sort(mx.nd.array(x), axis=1) for x in xs]       # sorting takes scratch memory
    for x, y in zip(xs, sorted_): assert (y.asnumpy() == np.sort(x, axis=1)).all()
""", MXNET_CPU_WORKER_NTHREADS="4")
