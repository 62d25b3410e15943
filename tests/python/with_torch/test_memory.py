"""The memory that a step's tensors give back stays for the next step."""

import os
import subprocess
import sys

import pytest

# A process may change malloc once, so each of these programs is one; what leaves malloc alone may be tried in turn in one.
PROGRAM = """
import resource, sys
import torch
from torch import nn
import engine.torch
from engine.torch.memory import keep_freed_memory

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss

batches = [torch.ones(2, 4)] * 3

def train(way, **kept):
    if way == "compile_step":
        list(map(engine.torch.compile_step(step, options=kept), batches))
    elif way == "smart_stage":
        list(engine.torch.smart_stage(step, batches, **kept))
    elif way == "compile":
        list(map(torch.compile(model, backend=engine.torch.backend, options=kept), batches))

def changed():
    return keep_freed_memory.cache_info().currsize > 0 and keep_freed_memory()
"""
FAULTS = PROGRAM + """
train(sys.argv[1], keep_freed_memory=True)

def gradients_of_tables():
    return [torch.ones(10_000, 16) for _ in range(16)]  # 160 pages each

for _ in range(4):
    gradients_of_tables()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    gradients_of_tables()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10, changed())
"""
SOME = 16 * 160 // 4  # page faults
WAYS = ["compile_step", "compile", "smart_stage"]


def told(program, *ways, **chosen):
    """What a process of its own prints, in which nobody but ``chosen`` says what malloc does."""
    known = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if name not in known}
    done = subprocess.run([sys.executable, "-c", program, *ways], capture_output=True, text=True, timeout=300,
                          env=environment | chosen)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("way", WAYS)
def test_tensors_have_the_pages_of_those_before(way):
    faults, changed = told(FAULTS, way)
    assert int(faults) < SOME and changed == "True"


# Whether pages come back by themselves depends on what the process has freed before, so these ask what was done.
CHANGED = PROGRAM + """
for way in sys.argv[1:]:
    train(way, keep_freed_memory=False)
    print(way, changed())
"""


def test_without_a_compiled_step_and_with_the_option_malloc_is_left_alone():
    ways = ["nothing", *WAYS]
    found = told(CHANGED, *ways)
    assert dict(zip(found[::2], found[1::2])) == dict.fromkeys(ways, "False")


def test_where_the_environment_says_what_malloc_does_it_is_left_alone():
    assert told(FAULTS, "compile_step", MALLOC_TRIM_THRESHOLD_="131072")[1] == "False"
