"""Errors of MXNet's ops and custom operators, with its wheel."""

import pytest
from test_mxnet import ENV, run, wheel  # noqa: F401


@wheel
def test_errors_have_mxnets_type_and_text_and_are_raised_once(run, run_python):
    program = """
import mxnet as mx
def text(wait):
    try: wait()
    except mx.base.MXNetError as error: return str(error).splitlines()[-1]
    return "nothing"
a = mx.nd.random.normal(0, -1, (2, 2))
b = a + 1
c = b * 2
print(text(c.asnumpy)); print(text(c.asnumpy)); print(text(a.asnumpy)); print(text(mx.nd.waitall))
a = mx.nd.random.normal(0, -1, (2, 2)); b = mx.nd.random.normal(0, -2, (2, 2))
print(text(mx.nd.waitall)); print(text(a.asnumpy)); print(text(b.asnumpy)); print(text(mx.nd.waitall))
"""
    theirs = run_python(program, **ENV, timeout=120)
    ours = run(program + """
failure = engine.mxnet.failures()[0]
assert failure.op == "_random_normal" and failure.raised and failure.skipped == 2, failure
# the generator of random numbers carries the failure to the second call
assert engine.mxnet.counts() == {"failed": 2, "skipped": 3, "dropped": 0, "unlisted": 0}, engine.mxnet.counts()
""")
    assert ours.out == theirs.out and "scale" in ours.out, (ours, theirs)


CUSTOM = """
import mxnet as mx
class Op(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        if BAD == "forward": raise ValueError("from python")
        x = in_data[0] * 2          # pushes, and waits, on a thread of MXNet's
        assert x.asnumpy().shape == x.shape
        self.assign(out_data[0], req[0], x)
    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        if BAD == "backward": raise ValueError("from python")
        self.assign(in_grad[0], req[0], out_grad[0] * 2)
@mx.operator.register("twice")
class Prop(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes): return Op()
"""


@wheel
def test_custom_operators_push_and_wait(run):
    run("BAD = None\n" + CUSTOM + """
from mxnet import autograd
x = mx.nd.ones((2, 3)); x.attach_grad()
for _ in range(20):
    with autograd.record():
        y = mx.nd.Custom(mx.nd.Custom(x, op_type="twice"), op_type="twice").sum()
    y.backward()
assert float(y.asscalar()) == 24 and float(x.grad.sum().asscalar()) == 24
""")


@wheel
@pytest.mark.parametrize("workers", [1, 2])
def test_waitall_waits_for_all_that_a_custom_operators_thread_has_pushed(run, workers):
    run("""
import mxnet as mx
class Op(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        late = mx.nd.ones((300, 300))            # nobody waits for it, and it goes with this call
        for _ in range(20): late = mx.nd.dot(late, late)
        self.assign(out_data[0], req[0], in_data[0] * 2)
@mx.operator.register("late")
class Prop(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes): return Op()
for _ in range(10):
    x = mx.nd.ones(3)
    x.wait_to_read()
    y = mx.nd.Custom(x, op_type="late")
    mx.nd.waitall()
    assert "dot" not in engine.describe_pending(), engine.describe_pending()
""", MXNET_CPU_WORKER_NTHREADS=str(workers))


@wheel
def test_waitall_clears_more_failures_than_it_keeps(run):
    run("""
import mxnet as mx
arrays = [mx.nd.zeros((2, 2)) for _ in range(200)]
for a in arrays: mx.nd.random.normal(0, -1, out=a)
try: mx.nd.waitall()
except mx.base.MXNetError as error: assert "scale" in str(error), error
else: raise AssertionError("nothing was raised")
mx.nd.waitall()
for a in arrays: assert (a + 1).asnumpy().shape == (2, 2)
""")


@wheel
def test_exceptions_in_custom_operators_are_raised_and_all_goes_on(run):
    run("BAD = 'forward'\n" + CUSTOM + """
for _ in range(3):
    try:
        mx.nd.Custom(mx.nd.ones(3), op_type="twice").asnumpy()
    except mx.base.MXNetError as error:
        assert "kCustomOpForward" in str(error), error
    else:
        raise AssertionError("nothing was raised")
assert mx.nd.ones(3).asnumpy().sum() == 3
mx.nd.waitall()
""")


@wheel
def test_an_exception_in_a_custom_operators_gradient_is_raised_and_the_next_step_trains(run):
    run("BAD = 'backward'\n" + CUSTOM + """
from mxnet import autograd
x = mx.nd.ones(3); x.attach_grad()
def step():
    with autograd.record():
        y = mx.nd.Custom(x, op_type="twice").sum()
    y.backward()
    return x.grad.asnumpy().sum()
try:
    step()
except mx.base.MXNetError as error:
    assert "kCustomOpBackward" in str(error), error
else:
    raise AssertionError("nothing was raised")
try: mx.nd.waitall()                  # the failure may have reached arrays that nobody has asked for
except mx.base.MXNetError: pass
BAD = None
assert step() == 6
""")
