"""The Python package on CUDA: ops, memory, and PyTorch's work as ops of the engine, beside PyTorch's own stream and graph.

Prints lines of JSON as gpu_suite does; ends with an exception if something is wrong."""

import json
import time

import engine

try:
    import torch
except ImportError:
    torch = None

OPS, ROUNDS = 200, 15


def check_order(eng) -> None:
    """Device ops and host ops of one Var come in their order."""
    x, seen = engine.Var("x", eng), []
    for i in range(100):
        eng.push(lambda i=i: seen.append(i), updates=[x], place=engine.gpu(0) if i % 3 else None)
    x.wait()
    assert seen == list(range(100)), seen
    assert eng.device_stats()["issued"] == 66, eng.device_stats()


def row(case: str, peer_name: str, ours: list[float], peer: list[float]) -> None:
    print(json.dumps({"type": "row", "row": 20, "case": case, "metric": "time an op", "unit": "ns", "peer_name": peer_name,
                      "limit": {"kind": "none", "value": 0}, "ours": ours, "peer": peer}), flush=True)  # fmt: skip


def with_torch(eng) -> None:
    tensor = torch.zeros(1024, device="cuda")
    x = engine.Var("x", eng)
    torch.cuda.synchronize()

    def add() -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(engine.cuda_stream())):
            tensor.add_(1)

    def ours() -> None:
        with engine.bulk(15):
            for _ in range(OPS):
                eng.push(add, updates=[x], place=engine.gpu(0))
        x.wait()

    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def theirs() -> None:
        with torch.cuda.stream(side):
            for _ in range(OPS):
                tensor.add_(1)
        side.synchronize()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    ours(), theirs()
    with torch.cuda.graph(graph):
        for _ in range(OPS):
            tensor.add_(1)
    replay()
    torch.cuda.synchronize()
    assert tensor.eq(3 * OPS).all().item(), tensor[:4]

    def timed(run) -> float:
        begin = time.perf_counter_ns()
        run()
        return (time.perf_counter_ns() - begin) / OPS

    figures = [(timed(ours), timed(theirs), timed(replay)) for _ in range(ROUNDS)]
    by = list(map(list, zip(*figures)))
    row("tensor.add_ as ops, in bulks of 15", "PyTorch on one stream", by[0], by[1])
    row("tensor.add_ as ops, in bulks of 15", "a CUDA graph of PyTorch", by[0], by[2])


def main() -> None:
    print(f"engine {engine.__version__}")
    with engine.Engine(workers=1, devices=["cuda:0"]) as eng:
        check_order(eng)
        if torch is None or not torch.cuda.is_available():
            print("ops are right; there is no PyTorch with CUDA in this Python, so its rows are left out")
        else:
            with_torch(eng)


if __name__ == "__main__":
    main()
