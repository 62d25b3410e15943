"""The memory that a step's tensors give back stays for the next step."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from torch import nn
import engine.torch

kept = {"keep_freed_memory": "leave" not in sys.argv}
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss

batches = [torch.ones(2, 4)] * 3
if sys.argv[1] == "compile_step":
    list(map(engine.torch.compile_step(step, options=kept), batches))
elif sys.argv[1] == "smart_stage":
    list(engine.torch.smart_stage(step, batches, **kept))
elif sys.argv[1] == "compile":
    list(map(torch.compile(model, backend=engine.torch.backend, options=kept), batches))

def gradients_of_tables():
    return [torch.ones(10_000, 16) for _ in range(16)]  # 160 pages each

for _ in range(4):
    gradients_of_tables()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    gradients_of_tables()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""
SOME = 16 * 160 // 4  # page faults


def faults(way, **chosen):
    """Page faults each time that so many tensors are made and given back, in a process of its own."""
    known = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if name not in known}
    told = subprocess.run([sys.executable, "-c", PROGRAM, way], capture_output=True, text=True, timeout=300,
                          env=environment | chosen)  # fmt: skip
    assert told.returncode == 0, told.stderr
    return int(told.stdout)


@pytest.mark.parametrize("way", ["compile_step", "compile", "smart_stage"])
def test_tensors_have_the_pages_of_those_before(way):
    assert faults(way) < SOME


# Whether pages come back by themselves depends on what the process has freed before, so these ask what was done.
CHANGED = PROGRAM[: PROGRAM.index("def gradients_of_tables")] + """
from engine.torch.memory import keep_freed_memory
print(keep_freed_memory.cache_info().currsize > 0 and keep_freed_memory())
"""


def changed(*ways, **chosen):
    told = subprocess.run([sys.executable, "-c", CHANGED, *ways], capture_output=True, text=True, timeout=300,
                          env=os.environ | chosen)  # fmt: skip
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


def test_without_a_compiled_step_and_where_the_environment_says_so_malloc_is_left_alone():
    assert changed("compile_step") == "True"
    assert changed("nothing") == "False"
    assert changed("compile_step", MALLOC_TRIM_THRESHOLD_="131072") == "False"


@pytest.mark.parametrize("way", ["compile_step", "compile", "smart_stage"])
def test_the_option_leaves_malloc_alone(way):
    assert changed(way, "leave") == "False"
