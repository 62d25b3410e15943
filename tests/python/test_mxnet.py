"""MXNet on this engine: what programs rely on, with MXNet's wheel. Each program has a process of its own, because MXNet takes
its engine once."""

import importlib.util
import json

import pytest

_spec = importlib.util.find_spec("mxnet")
wheel = pytest.mark.skipif(
    _spec is None or _spec.origin is None,  # a mere folder of that name, such as tests/mxnet, is no package
    reason="mxnet 1.9.1 is not installed (it needs Python <= 3.11 and numpy 1.23); ./run mxnet-tests has it",
)
OURS = "import engine.mxnet\n"
ENV = {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def run(run_python):
    """Runs a program behind `import engine.mxnet`; it ends with 0."""

    def ended_well(program, **env):
        ended = run_python(OURS + program, **{"timeout": 120, **ENV, **env})
        assert ended.code == 0, ended
        return ended

    return ended_well


C_API = """
import ctypes
import mxnet as mx
lib = mx.base._LIB
class Done(ctypes.Structure):
    _fields_ = [("call", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)),
                ("engine", ctypes.c_void_p), ("param", ctypes.c_void_p)]
class Context(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
AsyncBody = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
cpu = Context(1, 0)
def push(body, reads, updates):
    handles = lambda arrays: (ctypes.c_void_p * len(arrays))(*[a.handle for a in arrays])
    code = lib.MXEnginePushAsyncND(body, None, None, ctypes.byref(cpu), handles(reads), len(reads), handles(updates),
                                   len(updates), None, 0, b"mine", False)
    assert code == 0, mx.base.py_str(lib.MXGetLastError())
def called(done):
    done = ctypes.cast(done, ctypes.POINTER(Done)).contents
    done.call(done.engine, done.param, None)
"""


# --- programs

TRAINING = """
import json
import mxnet as mx, numpy as np
from mxnet import autograd, gluon
mx.random.seed(1); np.random.seed(1)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(32, activation="relu"), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
if HYBRID: net.hybridize(static_alloc=True, static_shape=True)
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
loss = gluon.loss.SoftmaxCrossEntropyLoss()
x, y = mx.nd.array(np.random.rand(64, 16)), mx.nd.array(np.random.randint(0, 10, 64))
losses = []
for _ in range(20):
    with autograd.record():
        l = loss(net(x), y)
    l.backward()
    trainer.step(64)
    losses.append(float(l.mean().asscalar()))
print(json.dumps(losses))
"""


@wheel
@pytest.mark.parametrize("env", [{}, {"MXNET_CPU_WORKER_NTHREADS": "4"}, {"MXNET_ENGINE_TYPE": "NaiveEngine"},
                                 {"MXNET_ENGINE_TYPE": "inline"}])  # fmt: skip
@pytest.mark.parametrize("hybrid", [False, True])
def test_gluon_trains_with_the_losses_of_mxnets_engine(run, run_python, hybrid, env):
    program = f"HYBRID = {hybrid}\n" + TRAINING
    theirs = run_python(program, **ENV, timeout=120)
    assert json.loads(run(program + "assert engine.mxnet.active()", **env).out) == json.loads(theirs.out)


@wheel
def test_preloaded_library_serves_a_program_that_does_not_know_of_it(run_python, mxnet_library):
    program = "HYBRID = True\n" + TRAINING
    theirs = run_python(program, **ENV, timeout=120)
    ours = run_python(program + "print({t for t in os.listdir('/proc/self/task')} and open('/proc/self/maps').read()"
                      ".count('libengine_mxnet.so') > 0)", LD_PRELOAD=mxnet_library, timeout=120, **ENV)
    assert ours.code == 0 and ours.out == theirs.out + "True\n", ours


@wheel
def test_trace_stats_and_describe_pending_know_mxnets_ops_by_name(run):
    ended = run("""
import mxnet as mx
a = mx.nd.ones((4, 4)); a.wait_to_read()
before = engine.stats()["pushed"]
with engine.trace() as trace:
    (mx.nd.dot(a, a) + a).wait_to_read()
    mx.nd.waitall()
assert {"dot", "broadcast_add"} <= {event.name for event in trace.events}, trace.events
assert engine.stats()["pushed"] >= before + 2
engine.stop()
b = mx.nd.dot(a, a)
said = engine.describe_pending()
assert "dot" in said, said
engine.start()
assert b.asnumpy().sum() == 64
""")
    assert ended.err == "", ended


@wheel
@pytest.mark.parametrize("workers, bulk, joined", [(2, None, True), (2, "0", False), (1, None, True), (1, "0", False)])
def test_ops_of_a_static_graph_are_joined_as_mxnets_variable_says(run, workers, bulk, joined):
    run(f"""
import mxnet as mx
net = mx.gluon.nn.HybridSequential()
for _ in range(4): net.add(mx.gluon.nn.Dense(8, activation="relu"))
net.initialize(); net.hybridize(static_alloc=True, static_shape=True)
x = mx.nd.ones((4, 4))
net(x).wait_to_read()
with engine.trace() as trace:
    net(x).wait_to_read()
seen = {{event.name for event in trace.events}}
assert any("Activation,FullyConnected" in name for name in seen) == {joined}, seen
assert "FullyConnected" in seen, seen
""", MXNET_CPU_WORKER_NTHREADS=str(workers), **({"MXNET_EXEC_BULK_EXEC_INFERENCE": bulk} if bulk else {}))


@wheel
def test_watchdog_names_the_op_of_mxnet_that_hangs(run):
    run("""
told = threading.Event(); reports = []
def stall(report):
    reports.append(report); told.set()
engine.mxnet.init(stall_timeout=0.3, on_stall=stall)
import mxnet as mx
class Slow(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        assert told.wait(60)
        self.assign(out_data[0], req[0], in_data[0])
@mx.operator.register("slow")
class SlowProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes): return Slow()
y = mx.nd.Custom(mx.nd.ones(3), op_type="slow")
assert y.asnumpy().sum() == 3
assert "Custom" in reports[0], reports
""")


@wheel
def test_policies_govern_mxnets_ops(run):
    run("""
import mxnet as mx
a = mx.nd.ones((4, 4)); mx.nd.waitall()
engine.set_policy("naive")
with engine.trace() as trace:
    b = mx.nd.dot(a, a)
assert [e.thread for e in trace.events if e.name == "dot"] == ["caller"], trace.events
engine.set_policy("threaded")
with engine.trace() as trace:
    mx.nd.dot(a, a).wait_to_read()
assert [e.thread for e in trace.events if e.name == "dot"] == ["cpu/0"], trace.events
""")


@wheel
@pytest.mark.parametrize("variable, value, said", [
    ("MXNET_ENGINE_TYPE", "FastEngine", "MXNET_ENGINE_TYPE is 'FastEngine'; allowed are ThreadedEnginePerDevice"),
    ("MXNET_CPU_WORKER_NTHREADS", "0", "MXNET_CPU_WORKER_NTHREADS is '0'; a number from 1 to 4096 is allowed"),
    ("MXNET_CPU_PRIORITY_NTHREADS", "many", "MXNET_CPU_PRIORITY_NTHREADS is 'many'; a number from 1 to 4096 is allowed"),
    ("ENGINE_SPIN_US", "x", "ENGINE_SPIN_US='x'; allowed: an integer"),
    ("ENGINE_MXNET_SCRATCH", "none", "ENGINE_MXNET_SCRATCH is 'none'; private and shared are allowed"),
])  # fmt: skip
def test_other_values_are_refused_where_the_library_is_preloaded(run_python, mxnet_library, variable, value, said):
    program = """
import mxnet as mx
for _ in range(2):      # each time
    try: mx.nd.ones(1).asnumpy()
    except mx.base.MXNetError as error: print(error)
"""
    ended = run_python(program, **{"LD_PRELOAD": mxnet_library, variable: value, "timeout": 120, **ENV})
    assert ended.out.count(said) == 2 and "terminate" not in ended.err, ended


@wheel
@pytest.mark.parametrize("kind, runs_here", [("inline", True), ("ThreadedEngine", False)])
def test_preloaded_library_runs_ops_in_waits_where_the_engine_type_says_inline(run_python, mxnet_library, kind, runs_here):
    ended = run_python(C_API + """
ran = []
body = AsyncBody(lambda context, done, param: (ran.append(threading.get_native_id()), called(done)))
x = mx.nd.zeros(1)
push(body, [], [x])
x.wait_to_read()
print(ran == [threading.get_native_id()], os.environ["MXNET_ENGINE_TYPE"])
""", LD_PRELOAD=mxnet_library, MXNET_ENGINE_TYPE=kind, timeout=120, **ENV)
    assert ended.out == f"{runs_here} {kind}\n", ended


@wheel
def test_errors_of_the_programs_own_ops_are_left_to_its_own_waits(run):
    run("""
import mxnet as mx
mx.nd.ones(1).wait_to_read()
def bad(): raise KeyError("mine")
engine.push(bad)
mx.nd.waitall()
try: engine.wait_all()
except KeyError as error: assert "mine" in str(error)
else: raise AssertionError("lost")
""")


@wheel
@pytest.mark.parametrize("workers", [0, 2])
def test_dataloader_with_forked_workers_feeds_the_same_batches(run, workers):
    run(f"""
import mxnet as mx, numpy as np
data = np.arange(256, dtype="float32").reshape(64, 4)
loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(mx.nd.array(data)), batch_size=8, num_workers={workers})
for _ in range(2):
    seen = np.concatenate([batch.asnumpy() for batch in loader])
    assert (seen == data).all()
""")


IMAGES = """
import mxnet as mx, numpy as np, struct, tempfile, zlib
def png(pixels):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width, _ = pixels.shape
    rows = b"".join(b"\\0" + row.tobytes() for row in pixels)
    return (b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
if not mx.runtime.Features().is_enabled("OPENCV"):
    print("no OpenCV")
    sys.exit()
folder = tempfile.TemporaryDirectory()
path = os.path.join(folder.name, "images.rec")
record = mx.recordio.MXRecordIO(path, "w")
random = np.random.RandomState(1)
pictures = random.randint(0, 256, (48, 16, 16, 3)).astype(np.uint8)
for i, picture in enumerate(pictures):
    record.write(mx.recordio.pack(mx.recordio.IRHeader(0, float(i), i, 0), png(picture)))
record.close()
iterator = mx.io.ImageRecordIter(path_imgrec=path, data_shape=(3, 16, 16), batch_size=8, preprocess_threads=2, verbose=False)
for _ in range(2):
    data, labels = [], []
    for batch in iterator:
        data.append(batch.data[0].asnumpy()); labels.append(batch.label[0].asnumpy())
    iterator.reset()
    assert (np.concatenate(labels) == np.arange(48)).all(), labels
    assert (np.concatenate(data).transpose(0, 2, 3, 1) == pictures).all()
print("fed")
"""


@wheel
def test_image_record_iterator_feeds_the_pictures_of_its_file(run):
    said = run(IMAGES).out
    if said == "no OpenCV\n":
        pytest.skip("this mxnet was built without OpenCV")
    assert said == "fed\n"


PROFILED = """
import tempfile
import mxnet as mx
folder = tempfile.TemporaryDirectory()  # MXNet removes the file of this name, whatever it is
mx.profiler.set_config(profile_all=True, aggregate_stats=True, filename=os.path.join(folder.name, "profile.json"))
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Dense(8, activation="relu"), mx.gluon.nn.Dense(2))
net.initialize()
if STATIC: net.hybridize(static_alloc=True, static_shape=True)
x = mx.nd.ones((4, 4))
net(x).wait_to_read()
with engine.trace() as trace:
    for _ in range(2):
        mx.profiler.set_state("run")
        for _ in range(3): net(x).wait_to_read()
        mx.profiler.set_state("stop")
names = [event.name for event in trace.events]
assert sum("FullyConnected" in name for name in names) >= 3, names
"""
SEES_NO_OPS = "MXNet's profiler sees no ops here; engine.trace() does"


@wheel
@pytest.mark.parametrize("static", [False, True])
def test_mxnets_profiler_is_said_once_to_see_no_ops_and_the_trace_sees_them(run, static):
    ended = run(f"STATIC = {static}" + PROFILED)
    assert ended.err.count(SEES_NO_OPS) == 1, ended


@wheel
def test_the_same_is_said_where_the_profiler_runs_from_the_start(run, tmp_path):
    program = f"os.chdir({str(tmp_path)!r})\nimport mxnet as mx\nmx.nd.ones(1).wait_to_read()\n"  # it writes profile.json there
    assert SEES_NO_OPS not in run(program).err
    assert run(program, MXNET_PROFILER_AUTOSTART="1").err.count(SEES_NO_OPS) == 1


@wheel
def test_child_of_a_fork_computes_and_finds_what_was_on_its_way(run):
    run("""
import mxnet as mx
a = mx.nd.zeros((1000,))
for _ in range(200): a += 1
engine.push(lambda: None)
pid = os.fork()
if pid == 0:
    ok = float(a.sum().asscalar()) == 200000 and float((a + 1).sum().asscalar()) == 201000
    os._exit(0 if ok else 1)
assert os.waitpid(pid, 0)[1] == 0
assert float(a.sum().asscalar()) == 200000
""")


@wheel
@pytest.mark.parametrize("end, code", [("sys.exit(3)", 3), ("raise RuntimeError('x')", 1), ("pass", 0)])
@pytest.mark.parametrize("env", [{}, {"MXNET_CPU_WORKER_NTHREADS": "4"}])
def test_exit_in_the_midst_of_training_ends_cleanly(run_python, end, code, env):
    program = OURS + "HYBRID = False\n" + TRAINING + """
for _ in range(50):
    with autograd.record():
        l = loss(net(x), y)
    l.backward()
    trainer.step(64)
""" + end
    for _ in range(3):
        ended = run_python(program, **ENV, **env, timeout=120)
        assert ended.code == code and "egmentation" not in ended.err, ended


@wheel
def test_arrays_deleted_while_their_ops_are_pending(run):
    run("""
import mxnet as mx
engine_stopped = engine.stop()
for i in range(200):
    a = mx.nd.ones((32, 32)); b = mx.nd.dot(a, a); del a
del b
engine.start()
mx.nd.waitall()
""")


@wheel
def test_a_million_arrays_keep_memory_flat(run):
    run("""
import mxnet as mx
def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096
def round(n):
    for _ in range(n): mx.nd.empty((1,)) + 0 if _ % 50 == 0 else mx.nd.empty((1,))
    mx.nd.waitall()
round(100_000)
before = resident()
round(900_000)
assert resident() - before < 16 << 20, resident() - before
""", timeout=600)


# --- where MXNet's engine hangs, through its C API

@wheel
def test_four_threads_that_push_overlapping_sets_in_opposite_order_end(run):
    run(C_API + """
x, y = mx.nd.zeros(1), mx.nd.zeros(1)
ran = []
body = AsyncBody(lambda context, done, param: (ran.append(1), called(done)))
threads = [threading.Thread(target=lambda t=t: [push(body, [], [x, y] if t % 2 else [y, x]) for _ in range(200)])
           for t in range(4)]
for t in threads: t.start()
for t in threads: t.join()
mx.nd.waitall()
assert len(ran) == 800
""")


@wheel
def test_function_that_waits_inside_an_op_ends_with_one_worker(run):
    run(C_API + """
x, y = mx.nd.zeros(1), mx.nd.zeros(1)
def waits(context, done, param):
    global seen
    seen = float((y + 1).asscalar())
    called(done)
body = AsyncBody(waits)
push(body, [], [x])
x.wait_to_read()
assert seen == 1
""")
