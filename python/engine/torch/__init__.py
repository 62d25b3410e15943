"""PyTorch on the engine: torch.compile(model, backend="engine"), and whole training steps as one plan.

    model = torch.compile(model, backend="engine")         # the entry point is registered by the package

    @engine.torch.compile_step                             # forward, backward and optimizer in one plan
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    print(*engine.torch.explain(step))

Needs torch (extra ``engine[torch]``) and, to be fast, a C++ compiler: what calls torch's operators without the interpreter
is compiled at the first use. docs/torch.md says what is captured, and what is not.
"""

from importlib.metadata import entry_points

from torch._dynamo import register_backend

from .explanation import PlanExplained, TorchExplanation, explain
from .regions import backend
from .step import CompiledStep, compile_step

if not entry_points(group="torch_dynamo_backends", name="engine"):  # the package is on the path, and not installed
    register_backend(backend, name="engine")

__all__ = ["CompiledStep", "PlanExplained", "TorchExplanation", "backend", "compile_step", "explain"]
