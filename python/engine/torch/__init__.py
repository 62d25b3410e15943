"""PyTorch on the engine: torch.compile(model, backend="engine"), and whole training steps as one plan.

    model = torch.compile(model, backend="engine")         # the entry point is registered by the package

    @engine.torch.compile_step                             # forward, backward and optimizer in one plan
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    server = engine.torch.serve(model.eval(), example)     # answers requests from any thread

    print(*engine.torch.explain(step))

Needs torch (extra ``engine[torch]``) and, to be fast, a C++ compiler: what calls torch's operators without the interpreter
is compiled at the first use. docs/torch.md says what is captured, and what is not.
"""

from importlib.metadata import entry_points

from torch._dynamo import register_backend

from .explanation import PlanExplained, TorchExplanation, explain
from .regions import backend
from .serve import Server, serve
from .smart_stage import SmartStage, smart_stage
from .staged import plain
from .step import CompiledStep, compile_step
from .team import set_intra_op_threads

if not entry_points(group="torch_dynamo_backends", name="engine"):  # the package is on the path, and not installed
    register_backend(backend, name="engine")

__all__ = [
    "CompiledStep",
    "PlanExplained",
    "Server",
    "SmartStage",
    "TorchExplanation",
    "backend",
    "compile_step",
    "explain",
    "plain",
    "serve",
    "set_intra_op_threads",
    "smart_stage",
]
