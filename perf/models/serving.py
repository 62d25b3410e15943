"""Serving a model to several clients at once: each client asks again as soon as it is answered."""

import copy
import pathlib
import statistics
import threading
import time

import torch

from recommenders.layers import Inputs

ROWS = 8  # candidates of a request


class Server:
    """``way``: eager, inductor, engine (engine.torch's backend under ``inline``), engine:fixed (the same with
    weights that do not change, as the last one has), engine:serve (engine.torch.serve) or onnx (ONNX Runtime)."""

    def __init__(self, way: str, trainer, batch, folder: pathlib.Path) -> None:
        model = trainer.model.eval()
        inputs, _ = trainer.prepare(batch)
        self.inputs = Inputs(*(part[:ROWS] if i == 0 else part[:, :ROWS] for i, part in enumerate(inputs)))
        self.answer = {"eager": lambda: model, "inductor": lambda: torch.compile(model), "engine": lambda: of_engine(model),
                       "engine:fixed": lambda: of_engine(model, weights="fixed"),
                       "engine:serve": lambda: of_server(model, self.inputs), "onnx": lambda: of_onnx(model, self.inputs, folder)}[way]()  # fmt: skip
        with torch.no_grad():
            expected = model(self.inputs)
            for _ in range(20):
                got = self.answer(self.inputs)
            if not torch.allclose(torch.as_tensor(got).cpu(), expected.cpu(), atol=1e-4):
                raise RuntimeError("answers differ from the model's")

    def asked(self, clients: int, n: int) -> dict:
        """Latencies of n requests of each client, in microseconds."""
        took: list[list[float]] = [[] for _ in range(clients)]
        gate = threading.Barrier(clients + 1)
        failed: list[BaseException] = []

        def client(times: list[float]) -> None:
            try:
                with torch.no_grad():
                    self.answer(self.inputs)  # what a thread sets up at its first call
                    gate.wait()
                    for _ in range(n):
                        begin = time.perf_counter()
                        self.answer(self.inputs).cpu()  # an answer is there when the host has it
                        times.append((time.perf_counter() - begin) * 1e6)
            except BaseException as error:
                failed.append(error)
                gate.abort()

        threads = [threading.Thread(target=client, args=(times,)) for times in took]
        for thread in threads:
            thread.start()
        begin = time.perf_counter()
        try:
            gate.wait()
            begin = time.perf_counter()
        except threading.BrokenBarrierError:
            pass
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        wall = time.perf_counter() - begin
        every = sorted(t for times in took for t in times)
        return {"p50_us": statistics.median(every), "p99_us": every[int(0.99 * (len(every) - 1))],
                "us_per_request": wall / len(every) * 1e6}  # fmt: skip


def of_engine(model, **options):
    import engine.torch

    return torch.compile(model, backend=engine.torch.backend, options={"policy": "inline", **options})


def of_server(model, inputs: Inputs):
    import engine.torch

    return engine.torch.serve(model, (inputs,), batch=((Inputs(0, 1, 1),), {}))


def of_onnx(model, inputs: Inputs, folder: pathlib.Path):
    import onnxruntime

    model, inputs = copy.deepcopy(model).cpu(), Inputs(*(part.cpu() for part in inputs))

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *parts):
            return self.model(Inputs(*parts))

    path = folder / f"{type(model).__name__}.onnx"
    names = ["dense", "single", "lists"]
    used = [name for name, part in zip(names, inputs) if part.numel()]
    torch.onnx.export(Flat().eval(), tuple(inputs), str(path), input_names=names, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    known = {given.name for given in session.get_inputs()}

    def answer(given: Inputs):
        parts = {name: part.cpu().numpy() for name, part in zip(names, given) if name in known and name in used}
        return torch.from_numpy(session.run(None, parts)[0])

    return answer
